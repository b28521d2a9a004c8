"""Derivatives by finite differences, and orders by fits: truth from outside of autodiff."""

import jax
import jax.numpy as jnp
import numpy as np


def central_difference(function, point, direction, step=1e-5):
    """The derivative of `function` at the pytree `point` along `direction`, to fourth order."""

    @jax.jit
    def difference(point, direction):
        def value_at(size):
            return function(jax.tree.map(lambda p, d: p + size * d, point, direction))

        values = jax.lax.map(value_at, step * np.array([1.0, -1.0, 2.0, -2.0]))
        weights = np.array([8.0, -8.0, -1.0, 1.0]) / (12 * step)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), values)

    return difference(point, direction)


def difference_by_calls(function, point, direction, step=1e-5):
    """`central_difference` of what is compiled already, by calls of it: trees of NumPy arrays."""

    def value(size):
        shifted = jax.tree.map(
            lambda p, d: jax.device_put(p + size * d), *on_host((point, direction))
        )
        return on_host(function(shifted))

    def slope(after, before, far_after, far_before):
        return (8 * (after - before) - (far_after - far_before)) / (12 * step)

    return jax.tree.map(slope, value(step), value(-step), value(2 * step), value(-2 * step))


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def central_gradient(function, x, step=1e-5):
    """All partial derivatives of a scalar function of one array, entry by entry."""

    @jax.jit
    def slopes(x):
        directions = np.eye(x.size).reshape(x.size, *x.shape)
        partials = jax.lax.map(lambda d: central_difference(function, x, d, step), directions)
        return partials.reshape(x.shape)

    return slopes(x)


def fitted_order(refinements, errors):
    """The slope of log error against log refinement, with its sign turned."""
    return -np.polyfit(np.log(refinements), np.log(errors), 1)[0]
