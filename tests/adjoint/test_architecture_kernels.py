"""Kernels, local operators, heads and cone mass of every architecture, by dense Jacobians."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import ARCHITECTURES, architecture_flow
from reference.dense import formed_blocks, jacobian_blocks, prefix_weights, transposed
from reference.networks import WIDTH, layer_of, random_states

import lim_jax as lim
from lim_jax.adjoint import stages, tangent
from lim_jax.adjoint.cone import Norm
from lim_jax.adjoint.sites import attention_sites

LENGTH = 7
# What each of these options gives is in tests/network/test_architectures.py; here they stand
# together in "everything", or are a case of others: one group of several, gates of experts.
TOGETHER = {
    "RMS norms, SwiGLU",
    "GeGLU",
    "grouped queries",
    "head norms",
    "rotary",
    "partial rotary",
    "one group",
    "clamped experts",
}
ALONE = [name for name in ARCHITECTURES if name not in TOGETHER]

# What NumPy calls each norm of a block.
NORMS: dict[Norm, Any] = {"operator": 2, "frobenius": "fro"}


@jax.jit
def linearised(field, x, covector, grid):
    """What `tangent` and `cone` make of a field at x, and its dense Jacobians."""
    attention = field.attention

    unnormed = dataclasses.replace(attention, output_norm=None)

    def alone(output):
        silenced = eqx.tree_at(lambda attention: attention.output, unnormed, output)
        blocks = jacobian_blocks(lambda context: silenced(x, context, grid), x)
        if attention.output_norm is None:
            return blocks
        # What a head adds goes through the norm at the sum of all.
        slopes = jax.vmap(jax.jacobian(attention.output_norm))(unnormed(x, x, grid))
        return jnp.einsum("iab,ijbc->ijac", slopes, blocks)

    heads = attention.output.shape[0]
    derivatives = {
        "kernel": formed_blocks(attention, x, grid),
        "local": tangent.local_blocks(field, x, grid),
        "heads": stages.pull_back_heads(attention, x, covector, grid),
    } | {norm: lim.adjoint.cone_mass(attention, x, grid, norm) for norm in NORMS}
    dense = {
        "whole": jacobian_blocks(lambda x: field(x, x, grid), x),
        "heads": jax.lax.map(alone, attention.output[None] * np.eye(heads)[..., None, None]),
    }
    return derivatives, dense


def density_weights(grid):
    """Of the integral from p_j to 1 over the Jacobian's blocks squared."""
    weights = np.asarray(grid.weights)
    prefix = prefix_weights(grid)
    seen = prefix > 0
    return np.where(seen, weights[:, None] / weights / np.where(seen, prefix, 1), 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_every_architecture_has_the_kernel_of_its_jacobian(name):
    """K + B, blocks, heads and both cone masses, on unequal cells, to rounding.

    Two of them with log weights between parts, beside a window and beside sinks.
    """
    grid = lim.graded_grid(LENGTH)
    if name in ("everything", "sinks"):
        grid = grid.weighted(random_states(7, LENGTH), jnp.arange(LENGTH) // 3)
    field = layer_of(architecture_flow(name, depth=1))
    x = random_states(2, LENGTH, WIDTH)
    covector = np.asarray(random_states(5, LENGTH, WIDTH))
    of = linearised(field, x, covector, grid)
    derivatives, dense = jax.tree.map(np.asarray, of)
    blocks = dense["heads"].sum(axis=0)
    np.testing.assert_allclose(derivatives["kernel"], blocks, rtol=0, atol=1e-12)
    whole = blocks.copy()
    whole[np.diag_indices(LENGTH)] += derivatives["local"]
    np.testing.assert_allclose(whole, dense["whole"], rtol=0, atol=1e-12)
    for head, dense_head in zip(derivatives["heads"], dense["heads"], strict=True):
        matrix = dense_head.transpose(0, 2, 1, 3).reshape(LENGTH * WIDTH, -1)
        pulled = transposed(matrix, grid) @ covector.ravel()
        np.testing.assert_allclose(head.ravel(), pulled, rtol=1e-12, atol=1e-12)
    for norm, order in NORMS.items():
        sizes = np.linalg.norm(blocks, ord=order, axis=(2, 3))
        expected = (density_weights(grid) * sizes**2).sum(axis=0)
        np.testing.assert_allclose(derivatives[norm], expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name, step", [("everything", lim.split), ("gated outputs", lim.euler)])
def test_the_ledger_sums_to_the_gradient(name, step):
    grid = lim.graded_grid(LENGTH)
    flow = architecture_flow(name, step=step, horizon=1.5)

    def terminal_loss(state, y=None):
        return jnp.sum(jnp.sin(state))

    @jax.jit
    def ledger_and_gradient(flow, x):
        ledger = lim.adjoint.channels(flow, terminal_loss, (x, None), grid)
        sites = attention_sites(flow, ledger.states, ledger.covectors, grid)
        gradient = jax.grad(lambda x: terminal_loss(flow(x, grid)))(x)
        heads = lim.adjoint.cone_by_head(sites, grid)
        return ledger.vectors, heads, gradient / grid.weights[:, None]

    vectors, heads, expected = map(
        np.asarray, ledger_and_gradient(flow, random_states(2, LENGTH, WIDTH))
    )
    np.testing.assert_allclose(vectors.sum(axis=0), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(heads.sum(axis=(0, 1)), vectors[1], rtol=1e-12, atol=1e-12)
    assert np.abs(vectors).max(axis=(1, 2)).min() > 0.01


@pytest.mark.slow
def test_columns_are_pushed_and_pulled_as_their_blocks():
    """With caps, gates and a norm of the output: the two maps are one matrix, either way."""
    grid = lim.graded_grid(LENGTH)
    attention = layer_of(architecture_flow("normed outputs")).attention
    x, covector, moved = (random_states(seed, LENGTH, WIDTH) for seed in (2, 5, 6))

    @jax.jit
    def compute(attention, j):
        factors = lim.adjoint.kernel_factors(attention, x, grid)
        pushed = factors.push_column(j, moved[0])
        return factors.column(j), pushed, factors.pull_column(j, covector)

    blocks, pushed, pulled = map(np.asarray, compute(attention, 2))
    np.testing.assert_allclose(pushed, blocks @ np.asarray(moved)[0], rtol=1e-12, atol=1e-13)
    expected = np.einsum("iab,ia->ib", blocks, np.asarray(covector))
    np.testing.assert_allclose(pulled, expected, rtol=1e-12, atol=1e-13)
