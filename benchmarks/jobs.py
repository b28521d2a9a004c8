"""What is measured here and there: models of some sizes, and each job as one function."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

import lim_jax as lim
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.masking import mask_gradient
from lim_jax.observability.gramian import ObservedTokens, observability_gramians
from lim_jax.training.density_objectives import Penalty, balanced_objective
from lim_jax.training.dynamics import density_dynamics, risk

OURS = "lim_jax"
KEEPING = "lim_jax, products kept"
WIDE = "lim_jax, 512 bits"
STRENGTH = 0.1
VOCABULARY = 32


class Size(NamedTuple):
    """A model and a batch."""

    length: int
    width: int
    heads: int
    depth: int
    batch: int


SIZES = {
    "small": Size(32, 16, 2, 2, 2),
    "a": Size(256, 64, 4, 12, 8),
    "b": Size(1024, 128, 8, 12, 2),
    "long": Size(8192, 64, 4, 8, 1),
}
# Those of the tables of docs/speed.md, which `speed` and `accelerator` run by themselves.
JOBS = ("influence", "gradient", "algorithm 1", "mdot", "cone mass", "gramians")


def network(size: Size, remat: str = "full") -> tuple[tuple, np.ndarray, np.ndarray]:
    """Return a random pre-norm network with its readout, inputs and labels."""
    keys = jax.random.split(jax.random.key(0), size.depth + 3)
    make = jax.vmap(lambda k: lim.TransformerField.init(size.width, heads=size.heads, key=k))
    flow = lim.ResidualFlow(make(keys[:-3]), horizon=float(size.depth), step=lim.split, remat=remat)
    readout = lim.LinearReadout.init(size.width, VOCABULARY, key=keys[-3])
    x = jax.random.normal(keys[-2], (size.batch, size.length, size.width))
    labels = jax.random.randint(keys[-1], (size.batch, size.length), 0, VOCABULARY)
    return (flow, readout), np.asarray(x), np.asarray(labels, np.int64)


def our_jobs(length: int, dtype: DTypeLike | None = None) -> dict[str, Callable]:
    """Return each job as a function of the model and a batch, in JAX's precision or another."""
    grid = lim.token_grid(length, dtype)
    last = jax.numpy.array([length - 1])

    def loss(model, x, y):
        """Compute one example's cross-entropy."""
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def objective(model, batch):
        """Compute risk and penalty of Algorithm 1."""
        even = Penalty(epsilon=0.0)
        return balanced_objective(loss, model, batch, grid, even, strength=STRENGTH)

    def mask_gradients(model, batch):
        """Compute the batch's mean gradient in each position's log weight."""

        def of_example(x, y):
            """Compute the density of one example's mask gradient."""

            def terminal(state, y):
                """Compute the loss of the last layer's states."""
                return lim.cross_entropy(model[1](state, grid), y, grid)

            return mask_gradient(model[0], terminal, (x, y), grid).total

        return grid.weights * jax.vmap(of_example)(*batch).mean(axis=0)

    return {
        "influence": lambda model, batch: lim.influence(loss, model, batch, grid).energy,
        "gradient": jax.grad(lambda model, batch: risk(loss, model, batch)),
        "algorithm 1": jax.grad(objective),
        "mdot": lambda model, batch: density_dynamics(loss, model, batch, grid).rate,
        "mask gradient": mask_gradients,
        "cone mass": lambda model, batch: cone_mass(first_attention(model), batch[0][0], grid),
        "gramians": lambda model, batch: observability_gramians(
            ObservedTokens(model[0], grid, last), batch[0][0], 1.0
        ),
    }


def weights(model: tuple) -> dict[str, np.ndarray]:
    """Return the network's arrays by name."""
    attention = model[0].layers.attention
    feed_forward = model[0].layers.feed_forward
    arrays = {name: getattr(attention, name) for name in ("query", "key", "value", "output")}
    inner = ("inner", "inner_bias", "outer", "outer_bias")
    arrays.update({name: getattr(feed_forward, name) for name in inner})
    for index, norm in (("1", attention.norm), ("2", feed_forward.norm)):
        arrays.update({f"scale{index}": norm.scale, f"shift{index}": norm.shift})
    arrays["readout"] = model[1].weight
    return {name: np.asarray(value) for name, value in arrays.items()}


def arrays_by_name(result: jax.Array | tuple) -> dict[str, np.ndarray]:
    """Return what a job returns, by name: one array, or one for each of the network's."""
    return {"": np.asarray(result)} if isinstance(result, jax.Array) else weights(result)


def first_attention(model: tuple) -> lim.CausalAttention:
    """Return the attention sublayer of the first layer."""
    return jax.tree.map(lambda leaf: leaf[0], model[0].layers.attention)
