"""The linearised field against dense Jacobians: kernel, local operator, stages and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import LENGTH, WIDTH, random_flow, random_states

import lim_jax as lim
from lim_jax.adjoint import tangent

GRIDS = {"tokens": lim.token_grid, "midpoints": lim.midpoint_grid, "graded": lim.graded_grid}


def field(seed=0):
    return jax.tree.map(lambda leaf: leaf[0], random_flow(seed, depth=1).layers)


def dense(function, x):
    """The Jacobian as (length, length, width, width)."""
    return np.asarray(jnp.moveaxis(jax.jacfwd(function)(x), 2, 1))


def transposed(blocks, covector, grid):
    """The adjoint in the grid's pairing, by loops over tokens."""
    weights = np.asarray(grid.weights)
    pulled = np.zeros((LENGTH, WIDTH))
    for j in range(LENGTH):
        for i in range(LENGTH):
            pulled[j] += weights[i] / weights[j] * blocks[i, j].T @ np.asarray(covector[i])
    return pulled


@pytest.mark.parametrize("grid_name", GRIDS)
def test_kernel_and_local_blocks_sum_to_the_jacobian(grid_name):
    grid, x = GRIDS[grid_name](LENGTH), random_states()
    blocks = np.array(tangent.kernel_blocks(field().attention, x, grid))
    blocks[np.diag_indices(LENGTH)] += tangent.local_blocks(field(), x, grid)
    np.testing.assert_allclose(blocks, dense(lambda x: field()(x, x, grid), x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid_name", GRIDS)
def test_push_and_pull_take_the_slots_apart(grid_name):
    grid, x, tangent_ = GRIDS[grid_name](LENGTH), random_states(), random_states(5)
    kernel = dense(lambda context: field()(x, context, grid), x)
    local = dense(lambda x_: field()(x_, x, grid), x)
    assert np.abs(local[~np.eye(LENGTH, dtype=bool)]).max() == 0
    pushed = tangent.push_forward(field(), x, tangent_, grid)
    pulled = tangent.pull_back(field(), x, tangent_, grid)
    for found, back, blocks in (
        (pushed.kernel, pulled.kernel, kernel),
        (pushed.local, pulled.local, local),
    ):
        np.testing.assert_allclose(
            found, np.einsum("ijab,jb->ia", blocks, tangent_), rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(back, transposed(blocks, tangent_, grid), rtol=1e-11, atol=1e-12)


def test_columns_act_as_their_blocks():
    grid, x, covector = lim.graded_grid(LENGTH), random_states(), random_states(5)
    factors = tangent.kernel_factors(field().attention, x, grid)
    for j in (0, 5, LENGTH - 1):
        blocks = np.asarray(factors.column(jnp.array(j)))
        pushed = factors.push_column(jnp.array(j), covector[j])
        pulled = factors.pull_column(jnp.array(j), covector)
        scale = np.abs(blocks).max()
        np.testing.assert_allclose(pushed, blocks @ np.asarray(covector[j]), atol=1e-13 * scale)
        expected = np.einsum("iab,ia->ib", blocks, covector)
        np.testing.assert_allclose(pulled, expected, atol=1e-13 * scale)


def test_a_head_is_the_attention_whose_other_heads_are_silent():
    grid, x, covector = lim.token_grid(LENGTH), random_states(), random_states(5)
    attention = field().attention
    heads = tangent.pull_back_heads(attention, x, covector, grid)
    for head in range(2):
        silent = attention.output.at[1 - head].set(0.0)
        alone = lim.CausalAttention(
            attention.norm, attention.query, attention.key, attention.value, silent,
            attention.query_bias, attention.key_bias, attention.value_bias,
        )  # fmt: skip
        expected = transposed(dense(lambda c: alone(x, c, grid), x), covector, grid)  # noqa: B023
        np.testing.assert_allclose(heads[head], expected, atol=1e-12)


@pytest.mark.parametrize("step", [lim.euler, lim.split])
def test_stages_add_up_to_the_layers_own_adjoint(step):
    grid, x, covector = lim.graded_grid(LENGTH), random_states(), random_states(5)
    flow = random_flow(depth=1, step=step)
    layer = (field(), jnp.array(0.7))
    stages = tangent.pull_back_stages(flow, layer, x, covector, grid)
    total = covector + sum(stage.parts.local + stage.parts.kernel for stage in stages)
    blocks = dense(lambda x: flow.transition(layer, x, grid), x)
    np.testing.assert_allclose(total, transposed(blocks, covector, grid), rtol=1e-11, atol=1e-12)


def test_attention_of_a_split_layer_meets_what_the_network_returns():
    """The covector at the kernel is (I + eps DFNN(x~)*) P, at the state x itself."""
    grid, x, covector = lim.token_grid(LENGTH), random_states(), random_states(5)
    flow = random_flow(depth=1, step=lim.split, horizon=0.7)
    between = x + 0.7 * field().attention(x, x, grid)
    network = dense(lambda x: field().feed_forward(x, x, grid), between)
    met = covector + 0.7 * transposed(network, covector, grid)
    after = between + 0.7 * field().feed_forward(between, between, grid)
    sites = tangent.attention_sites(
        flow, jnp.stack([x, after]), jnp.stack([covector, covector]), grid
    )
    np.testing.assert_allclose(sites.covectors[0], met, atol=1e-13)
    np.testing.assert_array_equal(sites.states[0], x)
    np.testing.assert_allclose(sites.increments, 0.7)


def test_other_steps_and_other_layers_are_refused():
    grid, x = lim.token_grid(LENGTH), random_states()
    heun = random_flow(depth=1, step=lim.network.heun)
    with pytest.raises(ValueError, match="flow.step: got heun, expected euler or split"):
        tangent.pull_back_stages(heun, (field(), jnp.array(1.0)), x, x, grid)
    network = lim.ResidualFlow(random_flow(depth=1).layers.feed_forward)
    with pytest.raises(ValueError, match="flow.layers: got FeedForward"):
        tangent.attention_sites(network, x[None], x[None], grid)
