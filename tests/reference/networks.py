"""Random networks, states and labels, and the grids and schemes that tests run over.

Arrays are made on the host and put on the device: `jnp.asarray` would compile a program for each
shape.
"""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import lim_jax as lim

LENGTH = 12
WIDTH = 6
VOCABULARY = 5
GRIDS = {"tokens": lim.token_grid, "midpoints": lim.midpoint_grid, "graded": lim.graded_grid}
SCHEMES = {"euler": lim.euler, "split": lim.split}


def randomised(tree, seed, scale=0.5):
    """Replace every array by Gaussian noise: no bias is zero, no norm is trivial.

    Layers' kinds, which are whole numbers, are the first and the second by turns.
    """
    generator = np.random.default_rng(seed)

    def noise(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.asarray(np.arange(np.prod(leaf.shape, dtype=int)) % 2).reshape(leaf.shape)
        return jnp.asarray(scale * generator.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(noise, tree)


def falling_profile(time):
    """A depth profile that is one nowhere on the layers, and another at each of them."""
    return 1.3 / (1 + 0.7 * time)


def random_flow(
    seed=0, *, step=lim.euler, profile=falling_profile, depth=2, width=WIDTH, heads=2, horizon=1.0
):
    """A network of `depth` layers with random biases and norms."""
    layers = randomised(_layers(depth, width, heads), seed)
    return lim.ResidualFlow(layers, horizon, profile, step)


def small_fields(width=3, heads=1):
    """Three fields whose constants are moderate numbers: they are exponential in the weights."""
    layers = random_flow(depth=3, width=width, heads=heads).layers
    return jax.tree.map(lambda leaf: jax.device_put(0.4 * np.asarray(leaf)), layers)


@cache
def _layers(depth, width, heads):
    """The shapes of a network's layers."""

    def layer(key):
        return lim.TransformerField.init(
            width, heads=heads, intermediate_size=7, bias=True, norm_eps=0.1, key=key
        )

    return jax.eval_shape(lambda: jax.vmap(layer)(jax.random.split(jax.random.key(0), depth)))


def drawn(init, seed=0, count=None):
    """What ``init(key=...)`` makes, or so many along an axis; on the device it takes a program."""
    key = jax.random.key(0)
    if count is None:
        return randomised(eqx.filter_eval_shape(init, key=key), seed)
    several = eqx.filter_vmap(lambda key: init(key=key))
    return randomised(eqx.filter_eval_shape(several, jax.random.split(key, count)), seed)


def byte_network(length, *, heads=2, depth=1, seed=0):
    """A language model over bytes, of width 4."""
    return drawn(partial(lim.models.byte_model, length, width=4, heads=heads, depth=depth), seed)


def layer_of(flow, index=0):
    """One layer of a network."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[index]), flow.layers)


def random_states(seed=2, *shape):
    return jax.device_put(_normal(seed, shape or (LENGTH, WIDTH)))


def random_labels(seed=3, *shape):
    exponentials = np.exp(_normal(seed, shape or (LENGTH, VOCABULARY)))
    return jax.device_put(exponentials / exponentials.sum(axis=-1, keepdims=True))


def _normal(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)
