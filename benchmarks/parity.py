"""Every family of checkpoints beside transformers: what it computes, and its derivatives.

``python benchmarks/parity.py [FAMILY ...]`` (the extra ``parity`` brings torch and transformers)
makes the small networks of `configurations` with random weights off their defaults, saves them as
their publishers do, and reads them with `models.load`. It prints and keeps the largest difference
of each quantity, relative to its largest entry, in float32 and in float64. What transformers
computes in float32 even of a network in double is done in double (`peer_transformers.Doubled`), or
3e-7 of difference would be its own.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import peer_transformers as peer
import torch
import transformers
from configurations import CONFIGURATIONS, PUBLISHED, chosen, ids_of
from record import RESULTS, keep

import lim_jax as lim
from lim_jax.adjoint import attention_hops, channels, cone_mass, kernel_factors, local_blocks
from lim_jax.adjoint.sites import attention_of
from lim_jax.network.layer_kinds import kinds_of

LAYER = 1  # the one whose attention is differentiated
BESIDE = "falcon_h1"  # its attention stands beside a recurrent sublayer, and is not one


def their_quantities(
    network: transformers.PreTrainedModel,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Compute every quantity by torch and NumPy, and the state before the layer."""
    ids = ids_of(network.config)
    logits, loss, gradient = peer.logits_and_gradient(network, ids)
    slopes = [gradient, peer.logits_and_gradient(network, ids[::-1])[2]]
    energy = np.mean([(slope**2).sum(axis=1) for slope in slopes], axis=0)
    quantities = {
        "logits": logits,
        "loss": loss,
        "gradient": gradient,
        "channels": gradient,
        "hops": gradient,
        "influence": energy / energy.mean(),
    }
    if network.config.model_type == BESIDE:
        return quantities, None
    state, kernel = peer.attention_blocks(network, ids, LAYER, queries=False)
    _, with_queries = peer.attention_blocks(network, ids, LAYER, queries=True)
    factor = getattr(network.config, "full_attn_beta_factor", 1)  # MiniMax's, of what is added
    kernel = factor * kernel
    with_queries = factor * with_queries
    tokens = np.arange(len(ids))
    length = len(ids)
    return quantities | {
        "kernel": kernel,
        "local": (with_queries - kernel)[tokens, tokens],
        "cone": length * (np.linalg.norm(kernel, ord=2, axis=(2, 3)) ** 2).sum(axis=0),
        "frobenius": length * (kernel**2).sum(axis=(0, 2, 3)),
    }, state


@eqx.filter_jit
def our_quantities(
    model: lim.models.CausalLM, ids: jax.Array, state: jax.Array | None
) -> dict[str, jax.Array]:
    """Compute them by the library, and the gradient also as the sum of channels and of hops."""
    length = len(ids)
    grid = lim.token_grid(length)
    weights = lim.loss.teacher_forcing(length, continuation=False)
    terminal_loss = model.terminal_loss
    both = jnp.stack([ids, ids[::-1]])
    x = model.embed(ids)
    y = lim.models.Targets(jnp.roll(ids, -1), weights)
    example = (x, y)
    loss, gradient = jax.value_and_grad(model.loss)(x, y)
    ledger = channels(model.flow, terminal_loss, example, grid).vectors.sum(axis=0)
    hops = attention_hops(model.flow, terminal_loss, example, grid, 2)[0].sum(axis=0)
    cells = grid.weights[:, None]
    targets = jax.vmap(lambda ids: lim.models.Targets(jnp.roll(ids, -1), weights))(both)
    batch = jax.vmap(model.embed)(both), targets
    influence = lim.influence(lim.models.CausalLM.loss, model, batch, grid)
    quantities = {
        "logits": model.logits(ids),
        "loss": loss,
        "gradient": gradient,
        "channels": cells * ledger,
        "hops": cells * hops,
        "influence": influence.density,
    }
    if state is None:
        return quantities
    attention = _attention_of(model.flow)
    factors = kernel_factors(attention, state, grid)
    kernel = jax.vmap(factors.column, out_axes=1)(jnp.arange(length))
    return quantities | {
        "kernel": grid.prefix_weights()[:, :, None, None] * kernel,
        "local": local_blocks(attention, state, grid),
        "cone": cone_mass(attention, state, grid),
        "frobenius": cone_mass(attention, state, grid, "frobenius"),
    }


def _attention_of(flow: lim.network.ResidualFlow) -> lim.network.CausalAttention:
    """Return the attention of the layer, among the layers of its kind."""
    layers = flow.layers
    order = getattr(layers, "order", (0,) * flow.depth)
    kind = order[LAYER]
    position = order[:LAYER].count(order[LAYER])
    return attention_of(jax.tree.map(lambda leaf: leaf[position], kinds_of(layers)[kind]))


def differences(name: str, precision: str) -> dict[str, float]:
    """Return the largest of each quantity, relative to its largest entry."""
    double = precision == "float64"
    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(double):
        more = PUBLISHED.get(name, {})
        network = peer.save_network(CONFIGURATIONS[name], Path(folder), more)
        with peer.Doubled() if double else contextlib.nullcontext():
            expected, state = their_quantities(peer.copy_in_double(network) if double else network)
        ids = jnp.array(ids_of(network.config), jnp.int32)
        actual = our_quantities(
            lim.models.load(folder, dtype=precision), ids, jax.device_put(state)
        )
    gaps = {
        name: np.abs(np.asarray(actual[name]) - value).max() / np.abs(value).max()
        for name, value in expected.items()
    }
    return {name: float(f"{gap:.1e}") for name, gap in gaps.items()}


def main() -> None:
    """Print and keep a row for each configuration and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", help="a family, or one of its configurations")
    parser.add_argument("--precisions", nargs="+", default=["float32", "float64"])
    parser.add_argument("--results", type=Path, default=RESULTS / "parity.json")
    options = parser.parse_args()
    torch.set_num_threads(1)  # such small matrices are not worth sharing
    rows = []
    for precision in options.precisions:
        for name in chosen(options.family):
            largest_differences = differences(name, precision)
            if not rows:
                print(
                    f"{'':34s} " + " ".join(f"{quantity:>9s}" for quantity in largest_differences)
                )
            gaps = " ".join(f"{gap:9.1e}" for gap in largest_differences.values())
            print(f"{name:26s} {precision} {gaps}", flush=True)
            rows.append({"configuration": name, "precision": precision} | largest_differences)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    keep(options.results, rows, ("configuration", "precision"), **versions)


if __name__ == "__main__":
    main()
