"""Networks of transformers: how they are published, and what they and their autograd compute."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

PLAIN = {"attn_implementation": "eager", "experts_implementation": "eager"}
# What makes queries of the state, the last of them where there are two.
QUERIES = ("q_b_proj", "q_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv")
# What follows from a layer's number, in the precision in which the network is made.
MADE = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense")


class Doubled(TorchFunctionMode):
    """Whatever asks for float32 gets double.

    transformers computes norms, rotary angles, routers and softmax in float32 even of a network in
    double: inside this they are in double too.
    """

    def __torch_function__(
        self, function: Any, _types: Any, arguments: Any = (), named: Any = None
    ):
        """Call a function with double in place of float32."""
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        arguments = [
            torch.float64 if argument is torch.float32 else argument for argument in arguments
        ]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (named or {}).items()}
        return function(*arguments, **named)

    def __enter__(self) -> "Doubled":
        """Let numbers of Python become double too."""
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(torch.float32)


def kind_of(config: PretrainedConfig) -> Any:
    """Return the class of its networks: of text alone, or of text and images."""
    multimodal = hasattr(config, "vision_config")
    return AutoModelForImageTextToText if multimodal else AutoModelForCausalLM


def save_network(
    config: PretrainedConfig, folder: Path, more: Mapping[str, Any]
) -> PreTrainedModel:
    """Save a network off its defaults in float32; `more` is what its file says otherwise."""
    torch.manual_seed(0)
    network = kind_of(config).from_config(config, **PLAIN, dtype=torch.float32)
    learned = "correction_bias", "layer_scalar"
    preferences = [buffer for name, buffer in network.named_buffers() if name.endswith(learned)]
    with torch.no_grad():
        for parameter in (*network.parameters(), *preferences):
            spread = 0.15 if parameter.ndim > 1 else 0.3
            parameter.add_(spread * torch.randn_like(parameter))
    network.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | more), encoding="utf-8"
    )
    return network.eval()


def copy_in_double(network: PreTrainedModel) -> PreTrainedModel:
    """Copy weights to a network that was made in double, to be called inside `Doubled`.

    So are the frequencies of its rotary positions, which no file holds.
    """
    config = network.config
    twin = kind_of(config).from_config(config, **PLAIN, dtype=torch.float64)
    learned = {name: of for name, of in network.state_dict().items() if not name.endswith(MADE)}
    twin.load_state_dict(twin.state_dict() | learned)
    return twin.eval()


def logits_and_gradient(network: PreTrainedModel, ids: list[int]) -> tuple[np.ndarray, ...]:
    """Return logits, next-word loss, and its gradient in the state before the first layer."""
    tokens = torch.tensor([ids])
    captured = {}

    def leaf(_: Any, inputs: tuple) -> tuple:
        """Let the layer read a copy of its input that is differentiated."""
        captured["state"] = inputs[0].detach().requires_grad_(True)
        return captured["state"], *inputs[1:]

    hook = _layer(network, 0).register_forward_pre_hook(leaf)
    logits = network(tokens).logits
    hook.remove()
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    (gradient,) = torch.autograd.grad(loss, captured["state"])
    return logits[0].detach().numpy(), loss.detach().numpy(), gradient[0].numpy()


def attention_blocks(
    network: PreTrainedModel, ids: list[int], layer: int, queries: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return a layer's input and its attention's Jacobian there, with or without its queries.

    Entry (i, j) of the Jacobian is the block from state j to output i, by autograd. A
    norm of what attention adds is part of it.
    """
    block = _layer(network, layer)
    captured = {}
    attention = _attention(block)
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: captured.update(state=inputs[0])),
        _output(block, attention).register_forward_hook(
            lambda _, __, out: captured.update(output=out)
        ),
    ]
    if not queries:
        hooks += _without_queries(attention, network.config.get_text_config())
    network(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    state = captured["state"]
    output = captured["output"].flatten()
    each = torch.eye(len(output), dtype=output.dtype)
    (rows,) = torch.autograd.grad(output, state, each, is_grads_batched=True)
    _, length, width = state.shape
    jacobian = rows.reshape(length, width, length, width).transpose(1, 2)
    return state[0].detach().numpy(), jacobian.numpy()


def _layer(network: torch.nn.Module, layer: int) -> torch.nn.Module:
    ends = (f".layers.{layer}", f".h.{layer}", f".blocks.{layer}")
    modules = ((name, module) for name, module in network.named_modules() if "vision" not in name)
    (block,) = (module for name, module in modules if name.endswith(ends))
    return block


def _attention(block: torch.nn.Module) -> torch.nn.Module:
    """Return the attention of a layer; GPT-Neo's stands inside another."""
    named = dict(block.named_children())
    names = ("attn", "attention", "self_attn", "self_attention", "mixer")
    (attention,) = (named[name] for name in names if name in named)
    return getattr(attention, "attention", attention)


def _output(block: torch.nn.Module, attention: torch.nn.Module) -> torch.nn.Module:
    """Return what gives the output of attention: its last matrix, or the norm after it."""
    named = dict(block.named_children())
    for name in ("post_self_attn_layernorm", "post_norm1"):
        if name in named:
            return named[name]
    if "post_feedforward_layernorm" in named or "post_mlp_layernorm" in named:
        return named["post_attention_layernorm"]
    return next(getattr(attention, name) for name in OUTPUTS if hasattr(attention, name))


def _without_queries(
    attention: torch.nn.Module, config: PretrainedConfig
) -> list[torch.utils.hooks.RemovableHandle]:
    """Let queries, and gates of the output, keep their values and know nothing of the state."""
    name = next(name for name in QUERIES if getattr(attention, name, None) is not None)

    def stop_queries(_: torch.nn.Module, __: tuple, out: torch.Tensor) -> torch.Tensor:
        """Cut queries off from the state, and leave keys and values."""
        return torch.where(_queries(name, out.shape[-1], config), out.detach(), out)

    hooks = [getattr(attention, name).register_forward_hook(stop_queries)]
    for gate in ("gate_proj", "g_proj"):
        if hasattr(attention, gate):
            matrix = getattr(attention, gate)
            hooks.append(matrix.register_forward_hook(lambda _, __, out: out.detach()))
    return hooks


def _queries(name: str, features: int, config: PretrainedConfig) -> torch.Tensor:
    """Tell which features of a projection are queries: all, the first, or in groups all but two."""
    indices = torch.arange(features)
    if name in ("q_proj", "q_b_proj"):
        return indices >= 0
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if config.model_type == "falcon":
        grouped = config.new_decoder_architecture
        multi_query = config.multi_query
        groups = (
            config.num_kv_heads if grouped else 1 if multi_query else config.num_attention_heads
        )
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    by_group = name == "query_key_value"
    if config.model_type == "gpt_bigcode":
        by_group = not config.multi_query
    if by_group:
        return indices % (features // groups) < features // groups - 2 * size
    return indices < features - 2 * groups * size
