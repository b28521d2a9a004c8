"""Random networks, and finite differences: what several tests share.

Arrays are made on the host and put on the device: `jnp.asarray` would compile a program for each
shape.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import lim_jax as lim

LENGTH, WIDTH, VOCABULARY = 12, 6, 5


def randomised(tree, seed, scale=0.5):
    """Replace every array by Gaussian noise: no bias is zero, no norm is trivial."""
    generator = np.random.default_rng(seed)

    def noise(leaf):
        return jnp.asarray(scale * generator.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(noise, tree)


def random_flow(seed=0, *, step=lim.euler, depth=2, width=WIDTH, heads=2, **options):
    """A network of `depth` layers with random biases and norms."""
    return lim.ResidualFlow(randomised(_layers(depth, width, heads), seed), step=step, **options)


@cache
def _layers(depth, width, heads):
    """The shapes of a network's layers."""

    def layer(key):
        return lim.TransformerField.init(width, heads=heads, hidden=7, bias=True, eta=0.1, key=key)

    return jax.eval_shape(lambda: jax.vmap(layer)(jax.random.split(jax.random.key(0), depth)))


def layer_of(flow, index=0):
    """One layer of a network."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[index]), flow.layers)


def random_states(seed=2, *shape):
    generator = np.random.default_rng(seed)
    return jax.device_put(generator.standard_normal(shape or (LENGTH, WIDTH)))


def random_labels(seed=3, *shape):
    exponentials = np.exp(random_states(seed, *(shape or (LENGTH, VOCABULARY))))
    return jax.device_put(exponentials / exponentials.sum(axis=-1, keepdims=True))


def central_difference(function, point, direction, step=1e-5):
    """The derivative of `function` at the pytree `point` along `direction`, to fourth order."""

    @jax.jit
    def difference(point, direction):
        def moved(size):
            return function(jax.tree.map(lambda p, d: p + size * d, point, direction))

        values = jax.lax.map(moved, step * np.array([1.0, -1.0, 2.0, -2.0]))
        weights = np.array([8.0, -8.0, -1.0, 1.0]) / (12 * step)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), values)

    return difference(point, direction)


def central_gradient(function, x, step=1e-5):
    """All partial derivatives of a scalar function of one array, entry by entry."""

    @jax.jit
    def slopes(x):
        directions = np.eye(x.size).reshape(x.size, *x.shape)
        found = jax.lax.map(lambda d: central_difference(function, x, d, step), directions)
        return found.reshape(x.shape)

    return slopes(x)


def fitted_order(refinements, errors):
    """The slope of log error against log refinement, with its sign turned."""
    return -np.polyfit(np.log(refinements), np.log(errors), 1)[0]
