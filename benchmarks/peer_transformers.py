"""Networks of transformers: how they are published, and what they and their autograd compute."""

import types
from pathlib import Path

import numpy as np
import torch
import transformers

Config = transformers.PretrainedConfig
# What makes queries: blocks of its output (-1 for one a head) and parts of each, queries first.
QUERIES = {"q_proj": (1, 1), "c_attn": (1, 3), "query_key_value": (-1, 3)}


def published(config: Config, folder: Path) -> torch.nn.Module:
    """A network off its defaults, saved in float32."""
    torch.manual_seed(0)
    kind = transformers.AutoModelForCausalLM
    network = kind.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            spread = 0.15 if parameter.ndim > 1 else 0.3
            parameter.add_(spread * torch.randn_like(parameter))
    network.save_pretrained(folder)
    return network.eval()


def in_double(network: torch.nn.Module, config: Config) -> torch.nn.Module:
    """The network in double, and its norms and angles too."""

    def normed(self: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        mean = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(mean + self.variance_epsilon))

    def turns(self: torch.nn.Module, x: torch.Tensor, position_ids: torch.Tensor) -> tuple:
        angles = position_ids[:, :, None].double() * self.frequencies[None, None, :]
        doubled = torch.cat((angles, angles), -1)
        return doubled.cos(), doubled.sin()

    for module in network.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = types.MethodType(normed, module)
        if name.endswith("RotaryEmbedding"):
            module.frequencies = frequencies(2 * module.inv_freq.numel(), config.rope_parameters)
            module.forward = types.MethodType(turns, module)
    return network.double()


def frequencies(size: int, rope: dict) -> torch.Tensor:
    """Rotary frequencies by transformers' formulas, in double."""
    found = rope["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    if rope.get("rope_type") == "linear":
        return found / rope["factor"]
    if rope.get("rope_type") != "llama3":
        return found
    trained, waves = rope["original_max_position_embeddings"], 2 * torch.pi / found
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = ((trained / waves - low) / (high - low)).clamp(0, 1)
    return (1 - share) * found / rope["factor"] + share * found


def logits_and_gradient(network: torch.nn.Module, ids: list[int]) -> tuple[np.ndarray, ...]:
    """Logits, next-word loss, and its gradient in the embeddings of words, of one context."""
    tokens = torch.tensor([ids])
    embedded = network.get_input_embeddings()(tokens).detach().requires_grad_(True)
    logits = network(inputs_embeds=embedded).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    loss.backward()
    return logits[0].detach().numpy(), loss.detach().numpy(), embedded.grad[0].numpy()


def attention_blocks(
    network: torch.nn.Module, ids: list[int], layer: int, queries: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The state before a layer, and its attention's Jacobian there, with or without its queries.

    Entry (i, j) of the Jacobian is the block from state j to output i, by autograd row by row.
    """
    ends = (f"layers.{layer}", f"h.{layer}")
    (block,) = (module for name, module in network.named_modules() if name.endswith(ends))
    named = dict(block.named_children())
    (attention,) = (named[name] for name in ("attn", "attention", "self_attn") if name in named)
    seen = {}
    hooks = [
        block.register_forward_pre_hook(lambda _, given: seen.update(state=given[0])),
        attention.register_forward_hook(lambda _, __, out: seen.update(output=out[0])),
    ]
    if not queries:
        hooks.append(_without_queries(attention))
    network(inputs_embeds=network.get_input_embeddings()(torch.tensor([ids])))
    for hook in hooks:
        hook.remove()
    state, output = seen["state"], seen["output"].flatten()
    rows = [torch.autograd.grad(entry, state, retain_graph=True)[0] for entry in output]
    _, length, width = state.shape
    jacobian = torch.stack(rows).reshape(length, width, length, width).transpose(1, 2)
    return state[0].detach().numpy(), jacobian.numpy()


def _without_queries(attention: torch.nn.Module) -> torch.utils.hooks.RemovableHandle:
    """Let queries keep their values and know nothing of the state."""
    ((name, module),) = (item for item in attention.named_children() if item[0] in QUERIES)
    blocks, parts = QUERIES[name]
    blocks = module.out_features // (3 * attention.head_size) if blocks < 0 else blocks

    def held(module: torch.nn.Module, given: tuple, out: torch.Tensor) -> torch.Tensor:
        cut = out.unflatten(-1, (blocks, parts, -1))
        return torch.cat([cut[..., :1, :].detach(), cut[..., 1:, :]], dim=-2).flatten(-3)

    return module.register_forward_hook(held)
