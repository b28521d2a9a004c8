"""Weights that are fetched as they are needed give the numbers of weights in memory."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from reference.networks import (
    LENGTH,
    WIDTH,
    falling_profile,
    layer_of,
    random_flow,
    random_states,
)

import lim_jax as lim
from lim_jax import adjoint, weights
from lim_jax.attribution.gradients import attention_rollout
from lim_jax.network import ResidualFlow

DEPTH = 3
GRID = lim.graded_grid(LENGTH)
WHOLE = random_flow(step=lim.split, depth=DEPTH, horizon=2.0)


def from_memory(flow, read_from=None):
    """The same flow, whose layers a source hands out."""
    layers = jax.tree.map(np.asarray, flow.layers)

    def read(index):
        if read_from is not None:
            read_from.append((index, threading.current_thread().name))
        return jax.tree.map(lambda leaf: leaf[index], layers)

    source = weights.LayerSource(read, flow.depth)
    fetched = weights.FetchedLayers(jnp.arange(3.0), source)
    return ResidualFlow(fetched, flow.horizon, flow.profile, flow.step)


def loss(state, y):
    return jnp.sum(jnp.sin(state) * y)


EXAMPLE = random_states(4), random_states(5)
HELD = from_memory(WHOLE)


def cones(flow):
    """The adjoint of two, and what is made of its sites, one by one and together."""

    def of_one(x):
        run = lim.adjoint_trajectory(flow, loss, (x, EXAMPLE[1]), GRID)
        sites = adjoint.attention_sites(flow, run.states, run.covectors, GRID)
        return run, sites, adjoint.cone_by_head(sites, GRID), adjoint.cone_energies(sites, GRID)

    run, sites, *apart = jax.vmap(of_one)(random_states(6, 2, LENGTH, WIDTH))
    return run, apart, adjoint.joint_cone(sites, GRID)


JOBS = {
    "states": lambda flow: (flow(EXAMPLE[0], GRID), flow.trajectory(EXAMPLE[0], GRID)),
    "adjoint and cones": cones,
    "channels": lambda flow: adjoint.channels(flow, loss, EXAMPLE, GRID),
    "hops": lambda flow: adjoint.attention_hops(flow, loss, EXAMPLE, GRID, 2),
    "mask gradient": lambda flow: adjoint.mask_gradient(flow, loss, EXAMPLE, GRID),
    "one hop by head": lambda flow: adjoint.one_hop_by_head(flow, loss, EXAMPLE, GRID),
    "orders": lambda flow: adjoint.interaction_orders(flow, loss, EXAMPLE, GRID, 2),
    "rollout": lambda flow: attention_rollout(flow, EXAMPLE[0], GRID),
    "interactions": lambda flow: adjoint.interaction_norms(
        flow, EXAMPLE[0], GRID, key=jax.random.key(0)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_every_walk_through_fetched_layers_gives_the_numbers_of_those_in_memory(name):
    expected, found = (eqx.filter_jit(JOBS[name])(flow) for flow in (WHOLE, HELD))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_derivatives_in_the_state_are_those_of_layers_in_memory():
    def second(flow, x, tangent):
        return jax.jvp(jax.grad(lambda x: loss(flow(x, GRID), EXAMPLE[1])), (x,), (tangent,))

    xs = random_states(6, 2, LENGTH, WIDTH)
    tangents = random_states(7, 2, LENGTH, WIDTH)
    expected, found = (
        jax.jit(jax.vmap(lambda x, t, flow=flow: second(flow, x, t)))(xs, tangents)
        for flow in (WHOLE, HELD)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_each_layer_is_read_once_a_way_and_ahead_in_a_thread():
    read = []
    flow = from_memory(WHOLE, read)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: loss(flow(x, GRID), EXAMPLE[1]))))
    jax.block_until_ready(gradient(random_states(6, 2, LENGTH, WIDTH)))
    # Two examples go together; the last layer ends one way and begins the other.
    assert [index for index, _ in read] == [0, 1, 2, 1, 0]
    # Where one job ended the next begins.
    jax.block_until_ready(gradient(random_states(7, 2, LENGTH, WIDTH)))
    assert [index for index, _ in read[5:]] == [1, 2, 1, 0]
    here = threading.current_thread().name
    assert [name == here for _, name in read] == [True] + [False] * 8


def test_the_next_layer_is_read_before_it_is_asked_for():
    read = []
    source = weights.LayerSource(lambda index: read.append(index) or np.full(1, index), 3)
    ahead = []
    for number in (0, 1, 2, 2, 1, 0, 0, 1):
        (layer,) = source.fetch(np.array(number))
        source._thread.submit(lambda: None).result()  # what was begun is done
        ahead.append(read[-1])
        assert layer == number
    assert ahead == [1, 2, 2, 1, 0, 0, 1, 2]
    assert read == [0, 1, 2, 1, 0, 1, 2]


def test_a_layer_that_is_asked_for_out_of_turn_is_read():
    layer = eqx.filter_jit(HELD.layers.layer)
    for index in (2, 0, 2, 1, 1):
        expected = layer_of(WHOLE, index)
        jax.tree.map(np.testing.assert_array_equal, layer(np.array(index)), expected)


def test_a_depth_profile_and_the_pattern_are_those_of_the_flow():
    assert HELD.depth == DEPTH and HELD.profile is falling_profile
    shapes = jax.tree.map(lambda leaf: leaf.shape, HELD.kinds[0])
    assert jax.tree.leaves(shapes) == jax.tree.leaves(
        jax.tree.map(lambda leaf: leaf.shape[1:], WHOLE.layers)
    )
    assert WHOLE.kinds == (WHOLE.layers,)


def test_derivatives_in_fetched_weights_are_refused_with_the_cure():
    def objective(flow):
        return loss(flow(EXAMPLE[0], GRID), EXAMPLE[1])

    with pytest.raises(NotImplementedError, match=r"arrays in memory.*models\.load"):
        eqx.filter_grad(objective)(HELD)
    with pytest.raises(NotImplementedError, match="arrays in memory"):
        eqx.filter_jvp(objective, (HELD,), (eqx.filter(HELD, eqx.is_inexact_array),))

    table = weights.FetchedRows(jnp.zeros(1), row_source("float32"))
    with pytest.raises(NotImplementedError, match="arrays in memory"):
        eqx.filter_grad(lambda table: weights.gather_rows(table, jnp.array([1])).sum())(table)


def test_derivatives_in_layers_of_half_precision_are_refused_by_what_they_are():
    """The message spoke of weights that are read from their files; these are in memory.

    Rows in half precision are whole numbers, of which there is no derivative to refuse.
    """

    def objective(held):
        matrix, scale = weights.in_memory(held)
        return (matrix * scale).sum()

    bits = jnp.asarray(TABLE.astype(np.float16).view(np.uint16))
    layers = weights.HalfLayers((bits, jnp.ones(4, jnp.float32)), "float16")
    with pytest.raises(NotImplementedError, match=r"held in half precision.*storage_dtype"):
        eqx.filter_grad(objective)(layers)
    rows = weights.HalfRows(bits, "float16")
    slopes = eqx.filter_grad(lambda rows: weights.slice_rows(rows, jnp.array(1), 2).sum())(rows)
    assert slopes.bits is None


def test_what_a_source_meets_is_told():
    def read(index):
        if index == 2:
            raise ValueError("layers.2: got NaN or infinite weights")
        return jax.tree.map(lambda leaf: np.asarray(leaf)[index], WHOLE.layers)

    flow = ResidualFlow(weights.FetchedLayers(jnp.zeros(1), weights.LayerSource(read, DEPTH)))
    with pytest.raises(Exception, match=r"layers\.2: got NaN or infinite weights"):
        jax.block_until_ready(flow(EXAMPLE[0], GRID))


TABLE = np.random.default_rng(8).standard_normal((7, 4))


def row_source(dtype, read=None):
    table = TABLE.astype(dtype)

    def rows(part):
        if read is not None:
            read.append((part.start, part.stop))
        return table[part]

    return weights.RowSource(rows, TABLE.shape, dtype)


def test_rows_are_gathered_each_once_and_sliced_at_once():
    read = []
    table = weights.FetchedRows(jnp.zeros(1), row_source("float64", read))
    assert table.shape == (7, 4) and table.dtype == "float64"
    numbers = jnp.array([[5, 2, 5], [0, 2, 6]])
    rows = jax.jit(jax.vmap(lambda row: weights.gather_rows(table, row)))(numbers)
    np.testing.assert_array_equal(rows, TABLE[np.asarray(numbers)])
    assert read == [(0, 1), (2, 3), (5, 6), (6, 7)]
    rows = jax.jit(lambda start: weights.slice_rows(table, start, 3))(jnp.array(4))
    np.testing.assert_array_equal(rows, TABLE[4:7])
    assert read[4:] == [(4, 7)]


def test_numbers_beyond_a_table_and_below_zero_are_read_as_by_jax():
    table = weights.FetchedRows(jnp.zeros(1), row_source("float64"))
    numbers = jnp.array([9, 7, -1, -7, -8, -20])
    rows = weights.gather_rows(table, numbers)
    np.testing.assert_array_equal(rows, jax.device_put(TABLE)[numbers])
    np.testing.assert_array_equal(rows[2], TABLE[-1])


def test_a_layer_that_could_not_be_read_is_read_again():
    tries = []

    def read(index):
        tries.append(index)
        if tries.count(1) == 1 and index == 1:
            raise OSError("the disk is away")
        return np.full(1, index)

    source = weights.LayerSource(read, 3)
    source.fetch(np.array(0))
    with pytest.raises(OSError, match="the disk is away"):
        source.fetch(np.array(1))
    assert source.fetch(np.array(1)) == [1]


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_is_widened_as_it_comes(dtype):
    table = weights.FetchedRows(jnp.zeros(1), row_source(dtype))
    rows = weights.gather_rows(table, jnp.array([3, 1]))
    assert table.dtype == rows.dtype == "float32"
    np.testing.assert_array_equal(rows, TABLE.astype(dtype).astype(np.float32)[[3, 1]])
    rows = weights.slice_rows(table, jnp.array(2), 2)
    np.testing.assert_array_equal(rows, TABLE.astype(dtype).astype(np.float32)[2:4])

    source = weights.LayerSource(lambda index: TABLE.astype(dtype)[index], 2)
    layer = weights.FetchedLayers(jnp.zeros(1), source).layer(jnp.array(1))
    assert layer.dtype == "float32"
    np.testing.assert_array_equal(layer, TABLE.astype(dtype).astype(np.float32)[1])


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_all_numbers_of_half_precision_are_widened_by_their_bits(dtype):
    """Infinity and NaN too, which float16 turned into 65536 and 98304."""
    half = np.arange(2**16, dtype=np.uint16).view(dtype)
    # A program for a CPU reads what is smaller as zero.
    sizes = np.abs(half.astype(np.float32))
    half = half[~(sizes < 2.0**-126) | (sizes == 0)]
    layers = weights.HalfLayers((jnp.asarray(half.view(np.uint16)), jnp.ones(2)), half.dtype.name)
    wide, whole = jax.jit(weights.in_memory)(layers)
    np.testing.assert_array_equal(wide, half.astype(np.float32))
    np.testing.assert_array_equal(whole, [1, 1])
    table = weights.HalfRows(layers.layers[0][:, None], layers.precision)
    rows = jax.jit(weights.slice_rows, static_argnums=2)(table, jnp.array(5), 3)
    np.testing.assert_array_equal(rows, half[5:8, None].astype(np.float32))
