"""Every family of checkpoints beside transformers: what it computes, and its derivatives.

``python benchmarks/parity.py`` (the extra ``parity`` brings torch and transformers) makes small
networks with random weights off their defaults, saves them as their publishers do, and reads them
with `models.load`. It prints and keeps the largest difference of each quantity, relative to its
largest entry, in float32 and in float64. transformers computes RMS norms and rotary angles in
float32 even of a network in double: these are done again in double, or 3e-7 of difference would be
its own.
"""

import argparse
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import peer_transformers as peer
import torch
import transformers as t
from record import RESULTS, keep

import lim_jax as lim
from lim_jax.adjoint import attention_hops, channels, cone_mass, kernel_blocks, local_blocks

SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 40}
BIASED = {"attention_bias": True, "mlp_bias": True}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
# Six families and their options.
CONFIGURATIONS = {
    "gpt2": t.GPT2Config(**GPT2),
    "gpt_neox": t.GPTNeoXConfig(**SIZES, rotary_pct=0.34),
    "gpt_neox, serial": t.GPTNeoXConfig(**SIZES, use_parallel_residual=False, rotary_pct=1.0),
    "llama": t.LlamaConfig(**GROUPED),
    "llama, tied": t.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "llama, biased": t.LlamaConfig(**SIZES, **BIASED, num_key_value_heads=1, head_dim=8),
    "llama 3": t.LlamaConfig(**GROUPED, rope_parameters=LLAMA3),
    "llama, linear": t.LlamaConfig(**SIZES, rope_parameters=LINEAR),
    "mistral": t.MistralConfig(**GROUPED, sliding_window=None),
    "mistral, window": t.MistralConfig(**GROUPED, sliding_window=4),
    "qwen2": t.Qwen2Config(**GROUPED),
    "qwen2, window": t.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=0
    ),
    "qwen3": t.Qwen3Config(**GROUPED, head_dim=10),
}
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9]
LENGTH, LAYER = len(IDS), 1  # the layer whose attention is differentiated


def theirs(network: torch.nn.Module) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every quantity by torch and NumPy, and the state before the layer."""
    logits, loss, gradient = peer.logits_and_gradient(network, IDS)
    slopes = [gradient, peer.logits_and_gradient(network, IDS[::-1])[2]]
    energy = np.mean([(slope**2).sum(axis=1) for slope in slopes], axis=0)
    state, kernel = peer.attention_blocks(network, IDS, LAYER, queries=False)
    _, whole = peer.attention_blocks(network, IDS, LAYER, queries=True)
    tokens = np.arange(LENGTH)
    return {
        "logits": logits,
        "loss": loss,
        "gradient": gradient,
        "channels": gradient,
        "hops": gradient,
        "influence": energy / energy.mean(),
        "kernel": kernel,
        "local": (whole - kernel)[tokens, tokens],
        "cone": LENGTH * (np.linalg.norm(kernel, ord=2, axis=(2, 3)) ** 2).sum(axis=0),
        "frobenius": LENGTH * (kernel**2).sum(axis=(0, 2, 3)),
    }, state


@eqx.filter_jit
def ours(model: lim.models.CausalLM, state: jax.Array) -> dict[str, jax.Array]:
    """The same by the library, and the gradient also as the sum of channels and of hops."""
    ids = jnp.array(IDS, jnp.int32)
    grid = lim.token_grid(LENGTH)
    weights, terminal_loss = (
        lim.loss.teacher_forcing(LENGTH, continuation=False),
        model.terminal_loss,
    )
    both = jnp.stack([ids, ids[::-1]])
    x, y = example = model.embed(ids), lim.models.Queries(jnp.roll(ids, -1), weights)
    loss, gradient = jax.value_and_grad(model.loss)(x, y)
    ledger = channels(model.flow, terminal_loss, example, grid).vectors.sum(axis=0)
    hops = attention_hops(model.flow, terminal_loss, example, grid, 2)[0].sum(axis=0)
    cells = grid.weights[:, None]
    asked = jax.vmap(lambda ids: lim.models.Queries(jnp.roll(ids, -1), weights))(both)
    batch = jax.vmap(model.embed)(both), asked
    influence = lim.influence(lim.models.CausalLM.loss, model, batch, grid)
    attention = jax.tree.map(lambda leaf: leaf[LAYER], model.flow.layers.attention)
    return {
        "logits": model.logits(ids),
        "loss": loss,
        "gradient": gradient,
        "channels": cells * ledger,
        "hops": cells * hops,
        "influence": influence.density,
        "kernel": kernel_blocks(attention, state, grid),
        "local": local_blocks(attention, state, grid),
        "cone": cone_mass(attention, state, grid),
        "frobenius": cone_mass(attention, state, grid, "frobenius"),
    }


def differences(name: str, precision: str) -> dict[str, float]:
    """The largest of each quantity, relative to its largest entry."""
    config = CONFIGURATIONS[name]
    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(precision == "float64"):
        network = peer.published(config, Path(folder))
        if precision == "float64":
            network = peer.in_double(network, config)
        expected, state = theirs(network)
        found = ours(lim.models.load(folder, dtype=precision), jax.device_put(state))
    return {
        name: float(np.abs(np.asarray(found[name]) - value).max() / np.abs(value).max())
        for name, value in expected.items()
    }


def main() -> None:
    """Print and keep a row for each configuration and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=[*CONFIGURATIONS])
    parser.add_argument("--precisions", nargs="+", default=["float32", "float64"])
    parser.add_argument("--results", type=Path, default=RESULTS / "parity.json")
    options = parser.parse_args()
    rows = []
    for precision in options.precisions:
        for name in options.only:
            found = differences(name, precision)
            if not rows:
                print(f"{'':26s} " + " ".join(f"{quantity:>9s}" for quantity in found))
            gaps = " ".join(f"{gap:9.1e}" for gap in found.values())
            print(f"{name:18s} {precision} {gaps}", flush=True)
            rows.append({"configuration": name, "precision": precision} | found)
    versions = {"torch": torch.__version__, "transformers": t.__version__}
    keep(options.results, rows, ("configuration", "precision"), **versions)


if __name__ == "__main__":
    main()
