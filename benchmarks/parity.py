"""Every family of checkpoints beside transformers: logits, loss, gradient and the exact ledger.

``python benchmarks/parity.py`` (with torch and transformers installed) makes small networks of ten
configurations with random weights off their defaults, saves them as their publishers do, reads them
with `models.load`, and prints the largest relative difference of each quantity in float64.
transformers computes RMS norms and rotary angles in float32 even so: they are done again in double
here, unless ``--as-they-are``, where 3e-7 of difference is its own.
"""

import argparse
import tempfile
import types
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

import lim_jax as lim
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels

SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9]


def configurations() -> dict[str, transformers.PretrainedConfig]:
    """Six families and their options."""
    t, grouped = transformers, SIZES | {"num_key_value_heads": 2}
    gpt2 = {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 40}
    biased = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    return {
        "gpt2": t.GPT2Config(vocab_size=37, **gpt2),
        "gpt_neox": t.GPTNeoXConfig(**SIZES, rotary_pct=0.34),
        "gpt_neox, serial": t.GPTNeoXConfig(**SIZES, use_parallel_residual=False, rotary_pct=1.0),
        "llama": t.LlamaConfig(**grouped),
        "llama, biased": t.LlamaConfig(**SIZES, **biased, num_key_value_heads=1, head_dim=8),
        "llama 3": t.LlamaConfig(**grouped, rope_parameters=LLAMA3),
        "llama, linear": t.LlamaConfig(**SIZES, rope_parameters=LINEAR),
        "mistral": t.MistralConfig(**grouped, sliding_window=None),
        "qwen2": t.Qwen2Config(**grouped),
        "qwen3": t.Qwen3Config(**grouped, head_dim=10),
    }


def published(config: transformers.PretrainedConfig, folder: Path) -> torch.nn.Module:
    """A network off its defaults, saved in float32 and handed back in double."""
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            spread = 0.15 if parameter.ndim > 1 else 0.3
            parameter.add_(spread * torch.randn_like(parameter))
    network.save_pretrained(folder)
    return network.double().eval()


def in_double(network: torch.nn.Module, rope: dict | None) -> None:
    """Do norms and angles again in double."""

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
            module.frequencies = frequencies(2 * module.inv_freq.numel(), rope or {})
            module.forward = types.MethodType(turns, module)


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


def theirs(network: torch.nn.Module) -> list[np.ndarray]:
    """Logits, loss, and the gradient in the embeddings of words."""
    ids = torch.tensor([IDS])
    embedded = network.get_input_embeddings()(ids).detach().requires_grad_(True)
    logits = network(inputs_embeds=embedded).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    loss.backward()
    return [logits[0].detach().numpy(), loss.detach().numpy(), embedded.grad[0].numpy()]


@eqx.filter_jit
def ours(model: lim.models.CausalLM) -> list[jax.Array]:
    """The same, and the gradient as the sum of channels and of hops."""
    ids = jnp.array(IDS)
    grid, x = lim.token_grid(len(IDS)), model.embed(ids)
    weights = lim.loss.teacher_forcing(len(IDS), continuation=False)
    y, terminal_loss = lim.models.Queries(jnp.roll(ids, -1), weights), model.terminal_loss
    loss, gradient = jax.value_and_grad(model.loss)(x, y)
    ledger = channels(model.flow, terminal_loss, (x, y), grid).vectors.sum(axis=0)
    hops = attention_hops(model.flow, terminal_loss, (x, y), grid, 2)[0].sum(axis=0)
    cells = grid.weights[:, None]
    return [model.logits(ids), loss, gradient, cells * ledger, cells * hops]


def main() -> None:
    """Print a row for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as-they-are", action="store_true", help="leave norms and angles alone")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    names = ("logits", "loss", "gradient", "channels", "hops")
    print(f"{'':18s} " + " ".join(f"{name:>8s}" for name in names))
    for name, config in configurations().items():
        with tempfile.TemporaryDirectory() as folder:
            network = published(config, Path(folder))
            if not options.as_they_are:
                in_double(network, getattr(config, "rope_parameters", None))
            expected = theirs(network)
            found = ours(lim.models.load(folder, dtype="float64"))
        expected += expected[2:] * 2
        gaps = (
            float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())
            for a, b in zip(found, expected, strict=True)
        )
        print(f"{name:18s} " + " ".join(f"{gap:8.1e}" for gap in gaps), flush=True)


if __name__ == "__main__":
    main()
