"""Networks of the fewest operations, for tests to which it is all one what a sublayer computes.

Nearly all of a test's time goes into compiling, and half of a block's operations are its norms.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from reference.networks import WIDTH, falling_profile, random_flow

import lim_jax as lim


class Tanh(eqx.Module):
    """A tokenwise sublayer."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, x, context, grid):
        return jnp.tanh(x @ self.weight) + self.bias[None]


class Averaging(eqx.Module):
    """A field that averages what is left of each position, times a number."""

    value: jax.Array

    def __call__(self, x, context, grid):
        prefix = grid.prefix_weights()
        return self.value * (prefix @ context) / prefix.sum(axis=1)[:, None]


def averaging(values):
    """A field, or one for each layer."""
    return Averaging(jax.device_put(np.array(values)))


def light_layers(depth=2, width=WIDTH, heads=1, seed=0, scale=1.0):
    """Attention without a norm, and `Tanh`."""
    generator = np.random.default_rng(seed)
    weight, bias = (
        jax.device_put(scale * generator.standard_normal((depth, *shape)))
        for shape in ((width, width), (width,))
    )
    attention = random_flow(seed, depth=depth, width=width, heads=heads).layers.attention
    return lim.TransformerField(without_norm(attention), Tanh(weight, bias))


def light_flow(
    seed=0, *, step=lim.euler, profile=falling_profile, depth=2, width=WIDTH, heads=1, horizon=1.0
):
    """A network of `light_layers`, as `networks.random_flow` is one of blocks."""
    return lim.ResidualFlow(light_layers(depth, width, heads, seed, 0.5), horizon, profile, step)


def without_norm(attention):
    return eqx.tree_at(lambda attention: attention.norm, attention, eqx.nn.Identity())
