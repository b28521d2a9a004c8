# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # From tokens to the continuum: rates of a field of your own
#
# A context is read as a field over positions $p \in [0, 1]$, and a network as a flow in depth. How
# far is a network of L tokens and M layers from that limit, and how fast does it come nearer?
# `convergence_study` measures it, of any field, flow or function, against a limit that is computed
# by another scheme: Gauss--Legendre panels in position, a tight solver in depth. Half a minute on a
# laptop, in float64.

# %%
import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)  # errors below float32's rounding are measured

import lim_jax as lim
from lim_jax.limits import Quantity, Scheme, convergence_study, mean_square
from lim_jax.network import linear_control
from lim_jax.plots import convergence_rates

SIZES = (16, 32, 64, 128)


# %% [markdown]
# ## A field of your own
#
# Anything with two slots will do: `field(x, context, grid)`. This one attends by distance of states
# rather than by a scalar product, with prefix weights that the grid hands out. Nothing in it knows
# whether the grid is one of tokens.


# %%
def kernel_average(x, context, grid):
    """Average the context that a position has seen, by a Gaussian of the states' distance."""
    distances = ((x[:, None, :] - context[None, :, :]) ** 2).sum(axis=2)
    weights = grid.prefix_weights() * jnp.exp(-distances)
    return weights @ context / weights.sum(axis=1, keepdims=True) - x


def states(p):
    """The input as a field, so that every grid samples the same one."""
    return jnp.stack([jnp.cos(3 * p), jnp.sin(2 * p), p], axis=1)


# %% [markdown]
# ## Positions are refined
#
# Tokens sum up to the right end of each cell, an error of first order.

# %%
tokens = convergence_study(
    kernel_average,
    states,
    [lim.token_grid(size) for size in SIZES],
    {
        "field, largest error": Quantity(lambda x, grid: x, order=1),
        "field, mean square": Quantity(lambda x, grid: x, order=1, norm=mean_square),
        "integral over positions": Quantity(lambda x, grid: lim.integral(x, grid), order=1),
    },
)
print(tokens)
assert tokens.agree

# %% [markdown]
# Midpoints with half of their own cell are of second order at every fixed p, but at p they err by
# $h^2/p$, whose integral is $h^2\log(1/h)$: the fitted order says so. A grid that is graded towards
# 0 takes the logarithm away.

# %%
whole = Quantity(lambda x, grid: lim.integral(x, grid), order=2)
midpoints, graded = (
    convergence_study(kernel_average, states, [kind(size) for size in SIZES], {"integral": whole})
    for kind in (lim.midpoint_grid, lim.graded_grid)
)
print(midpoints, graded, sep="\n")
assert graded.agree and 1.7 < midpoints[0].study.order.value < 1.85

# %%
convergence_rates(tokens, "A kernel average on tokens")

# %% [markdown]
# ## Depth is refined
#
# The layers of a residual network are samples of a control in depth, here of one that moves
# straight from one random Transformer to another. `split` applies attention and then the tokenwise
# network, as GPT-2 does. It tends to the flow at first order, as Euler's steps do, which are taken
# below.

# %%
keys = jax.random.split(jax.random.key(0), 2)
ends = jax.vmap(lambda key: lim.TransformerField.init(3, heads=1, key=key))(keys)
flow = lim.ContinuousFlow(linear_control(ends), horizon=1.0)
final = {"final state": Quantity(lambda x, grid: x, order=1, norm=mean_square)}
by_depth = convergence_study(
    flow, states, lim.token_grid(8), final, depths=(8, 16, 32, 64), scheme=Scheme(lim.split)
)
print(by_depth)
assert by_depth.agree

# %%
convergence_rates(by_depth, "A Transformer in split steps")

# %% [markdown]
# ## Both at once
#
# Tokens and layers refined together: the limit is the flow of the Volterra operator, on panels.
# Where three features are almost alike layer normalisation is steep, so the panels are finer than
# the default ones, whose result `convergence_study` would mark as unreliable. The numbers go into a
# table of your own by `to_csv`.

# %%
both = convergence_study(
    flow,
    states,
    [lim.token_grid(size) for size in SIZES],
    final,
    depths=[size // 4 for size in SIZES],
    references=(lim.gauss_grid(128), lim.gauss_grid(192)),
)
print(both.to_csv())
assert both.agree
