"""The linearised field against dense Jacobians: kernel, local operator, stages and heads."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.dense import formed_blocks, jacobian_blocks
from reference.networks import (
    GRIDS,
    LENGTH,
    SCHEMES,
    WIDTH,
    falling_profile,
    layer_of,
    random_flow,
    random_states,
)

import lim_jax as lim
from lim_jax.adjoint import stages, tangent
from lim_jax.adjoint.sites import attention_sites


def field():
    return layer_of(random_flow(depth=1))


def transposed(blocks, covector, grid):
    """The adjoint in the grid's pairing, by loops over tokens."""
    blocks, covector, weights = map(np.asarray, (blocks, covector, grid.weights))
    pulled = np.zeros((LENGTH, WIDTH))
    for j in range(LENGTH):
        for i in range(LENGTH):
            pulled[j] += weights[i] / weights[j] * blocks[i, j].T @ covector[i]
    return pulled


@jax.jit
def linearised(field, x, vector, grid):
    """What `tangent` makes of a field at x, and the field's dense Jacobians in each slot."""
    return {
        "kernel blocks": formed_blocks(field.attention, x, grid),
        "local blocks": tangent.local_blocks(field, x, grid),
        "pushed": tangent.push_forward(field, x, vector, grid),
        "pulled": tangent.pull_back(field, x, vector, grid),
        "jacobian": jacobian_blocks(lambda x: field(x, x, grid), x),
        "kernel": jacobian_blocks(lambda context: field(x, context, grid), x),
        "local": jacobian_blocks(lambda x_: field(x_, x, grid), x),
    }


@pytest.mark.parametrize("grid_name", ["midpoints", "graded"])
def test_kernel_and_local_blocks_sum_to_the_jacobian(grid_name):
    # `eq:attention-linearization-exact`, `eq:multihead-volterra-derivative`,
    # `eq:attention-local-operator`.
    tangent_ = random_states(5)
    parts = linearised(field(), random_states(), tangent_, GRIDS[grid_name](LENGTH))
    blocks = np.array(parts["kernel blocks"])
    blocks[np.diag_indices(LENGTH)] += np.asarray(parts["local blocks"])
    np.testing.assert_allclose(blocks, parts["jacobian"], rtol=0, atol=1e-13)
    expected = np.einsum("ijab,jb->ia", parts["jacobian"], tangent_)
    np.testing.assert_allclose(sum(parts["pushed"]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grid_name", GRIDS)
def test_push_and_pull_take_the_slots_apart(grid_name):
    # `eq:volterra-linearization`, `eq:volterra-adjoint`.
    grid = GRIDS[grid_name](LENGTH)
    tangent_ = random_states(5)
    parts = linearised(field(), random_states(), tangent_, grid)
    local = np.asarray(parts["local"])
    assert np.abs(local[~np.eye(LENGTH, dtype=bool)]).max() == 0
    for slot in ("kernel", "local"):
        pushed = getattr(parts["pushed"], slot)
        pulled = getattr(parts["pulled"], slot)
        expected = np.einsum("ijab,jb->ia", parts[slot], tangent_)
        np.testing.assert_allclose(pushed, expected, rtol=0, atol=1e-12)
        expected = transposed(parts[slot], tangent_, grid)
        np.testing.assert_allclose(pulled, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("make_flow", [random_flow, partial(architecture_flow, "everything")])
def test_columns_act_as_their_blocks(make_flow):
    covector = np.asarray(random_states(5))
    columns = np.array([0, 5, LENGTH - 1])

    @jax.jit
    def acted(attention, x, covector):
        factors = tangent.kernel_factors(attention, x, lim.graded_grid(LENGTH))

        def act(j):
            return (
                factors.column(j),
                factors.push_column(j, covector[j]),
                factors.pull_column(j, covector),
            )

        return jax.vmap(act)(columns)

    images = acted(layer_of(make_flow(depth=1)).attention, random_states(), covector)
    for j, blocks, pushed, pulled in zip(columns, *map(np.asarray, images), strict=True):
        scale = np.abs(blocks).max()
        np.testing.assert_allclose(pushed, blocks @ covector[j], atol=1e-13 * scale)
        expected = np.einsum("iab,ia->ib", blocks, covector)
        np.testing.assert_allclose(pulled, expected, atol=1e-13 * scale)


def test_a_head_is_the_attention_whose_other_heads_are_silent():
    grid = lim.graded_grid(LENGTH)
    covector = random_states(5)

    @jax.jit
    def heads_and_blocks(attention, x, covector):
        def alone(output):
            silenced = eqx.tree_at(lambda attention: attention.output, attention, output)
            return jacobian_blocks(lambda context: silenced(x, context, grid), x)

        outputs = attention.output[None] * np.eye(2)[..., None, None]
        heads = stages.pull_back_heads(attention, x, covector, grid)
        return heads, jax.vmap(alone)(outputs)

    heads, blocks = heads_and_blocks(field().attention, random_states(), covector)
    for head, dense_head in zip(np.asarray(heads), np.asarray(blocks), strict=True):
        np.testing.assert_allclose(head, transposed(dense_head, covector, grid), atol=1e-12)


@pytest.mark.parametrize("step", [lim.euler, lim.split])
def test_stages_add_up_to_the_layers_own_adjoint(step):
    grid = lim.graded_grid(LENGTH)
    covector = random_states(5)
    flow = random_flow(depth=1, step=step)

    @jax.jit
    def total_and_blocks(field, x, covector):
        layer = (field, jnp.array(0.7))
        by_stage = stages.pull_back_stages(flow, layer, x, covector, grid)
        total = covector + sum(stage.parts.local + stage.parts.kernel for stage in by_stage)
        return total, jacobian_blocks(lambda x: flow.transition(layer, x, grid), x)

    total, blocks = total_and_blocks(layer_of(flow), random_states(), covector)
    np.testing.assert_allclose(total, transposed(blocks, covector, grid), rtol=1e-11, atol=1e-12)


def test_attention_of_a_split_layer_meets_what_the_network_returns():
    """The covector at the kernel is (I + eps DFNN(x~)*) P, at the state x itself."""
    grid = lim.graded_grid(LENGTH)
    x = random_states()
    covector = random_states(5)
    flow = random_flow(depth=1, step=lim.split, horizon=0.7)
    size = 0.7 * falling_profile(0)

    @jax.jit
    def sites_and_network(flow, field, x, covector):
        between = x + size * field.attention(x, x, grid)
        after = between + size * field.feed_forward(between, between, grid)
        sites = attention_sites(flow, jnp.stack([x, after]), jnp.stack([covector, covector]), grid)
        return sites, jacobian_blocks(lambda x: field.feed_forward(x, x, grid), between)

    sites, network = sites_and_network(flow, layer_of(flow), x, covector)
    attention_input = np.asarray(covector) + size * transposed(network, covector, grid)
    np.testing.assert_allclose(np.asarray(sites.covectors)[0], attention_input, atol=1e-13)
    np.testing.assert_array_equal(np.asarray(sites.states)[0], x)
    np.testing.assert_allclose(sites.increments, size)


@pytest.mark.parametrize("step", SCHEMES)
def test_sites_know_the_profile_of_their_layers(step):
    """Layer k sees X_k and, where it has one field, P_(k+1), in a step of eps zeta(t_k)."""
    grid = lim.graded_grid(LENGTH)
    flow = random_flow(depth=3, step=SCHEMES[step], horizon=1.5)
    states, covectors = (random_states(seed, 4, LENGTH, WIDTH) for seed in (6, 7))
    find = jax.jit(lambda x, p: attention_sites(flow, x, p, grid))
    sites = find(states, covectors)
    np.testing.assert_allclose(sites.step, [0.5, 0.5, 0.5], rtol=1e-15)
    increments = 0.5 * falling_profile(np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(sites.increments, increments, rtol=1e-15)
    np.testing.assert_array_equal(sites.states, states[:-1])
    if step == "euler":
        np.testing.assert_array_equal(sites.covectors, covectors[1:])


def test_other_steps_and_other_layers_are_refused():
    grid = lim.token_grid(LENGTH)
    x = random_states()
    states = random_states(2, 1, LENGTH, WIDTH)
    heun = random_flow(depth=1, step=lim.network.heun)
    with pytest.raises(ValueError, match="flow.step: got heun, expected euler or split"):
        stages.pull_back_stages(heun, (field(), jnp.array(1.0)), x, x, grid)
    network = lim.ResidualFlow(random_flow(depth=1).layers.feed_forward)
    with pytest.raises(ValueError, match="flow.layers: got FeedForward"):
        attention_sites(network, states, states, grid)


@pytest.mark.parametrize(
    "mixing",
    [
        lambda x, context, grid: x + x.mean(axis=0, keepdims=True),
        lambda x, context, grid: jnp.cumsum(x, axis=0) * context,
    ],
)
def test_a_first_slot_that_mixes_tokens_has_no_local_blocks(mixing):
    with pytest.raises(
        Exception, match="field: got a first slot that mixes tokens, expected one that is read"
    ):
        jax.block_until_ready(
            tangent.local_blocks(mixing, random_states(), GRIDS["tokens"](LENGTH))
        )


@pytest.mark.parametrize("j", [-1, 2, 5])
def test_columns_are_of_positions_that_there_are(j):
    factors = tangent.kernel_factors(
        field().attention, random_states(0, 2, WIDTH), lim.token_grid(2)
    )
    at = jnp.array(j)
    for call in (
        lambda: factors.column(at),
        lambda: factors.push_column(at, jnp.ones(factors.states.shape[1])),
        lambda: factors.pull_column(at, factors.states),
    ):
        with pytest.raises(ValueError, match=f"j: got {j}, expected a position from 0 to 1"):
            call()
