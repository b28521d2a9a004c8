"""Grids: quadrature, exact regions, embedding."""

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference.differences import fitted_order
from reference.networks import GRIDS

import lim_jax as lim
from lim_jax._jit import filter_jit
from lim_jax.grid import cell_embedding
from lim_jax.grid.integrals import inner, less_their_mean
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.panels import PanelGrid
from lim_jax.grid.partition import interval_weights, require_regions

REFINEMENTS = (20, 40, 80, 160, 320)


@jax.jit
def prefix_weights(grid):
    return grid.prefix_weights()


def exact_nodes(kind, size):
    """The nodes as rationals, from their definition."""
    indices = range(1, size + 1)
    if kind == "tokens":
        return [Fraction(i, size) for i in indices]
    middles = [Fraction(2 * i - 1, 2 * size) for i in indices]
    return middles if kind == "midpoints" else [middle**3 for middle in middles]


@pytest.mark.parametrize("kind", GRIDS)
def test_nodes_weights_and_cells(kind):
    grid = GRIDS[kind](7)
    size = 7
    nodes = np.array(exact_nodes(kind, size), dtype=float)
    np.testing.assert_allclose(grid.nodes, nodes, rtol=1e-15)
    edges = (np.arange(size + 1) / size) ** (3 if kind == "graded" else 1)
    np.testing.assert_allclose(grid.edges, edges, rtol=1e-15)
    expected = 3 * np.cbrt(nodes) ** 2 / size if kind == "graded" else np.full(size, 1 / size)
    np.testing.assert_allclose(grid.weights, expected, rtol=1e-14)
    assert np.all((edges[:-1] < nodes) & (nodes <= edges[1:]))
    np.testing.assert_allclose(grid.widest_cell, np.diff(edges).max(), rtol=1e-15)


@pytest.mark.parametrize("kind", GRIDS)
def test_prefix_weights_by_their_definition(kind):
    grid = GRIDS[kind](6)
    diagonal = 1.0 if kind == "tokens" else 0.5
    weights = np.asarray(grid.weights)
    expected = np.zeros((6, 6))
    for i in range(6):
        for j in range(i + 1):
            expected[i, j] = weights[j] * (diagonal if i == j else 1)
    np.testing.assert_allclose(prefix_weights(grid), expected, rtol=1e-15)


# Where the prefix sum of a smooth function is measured, and the order there.
PREFIX_ORDERS = {
    "tokens": ("everywhere", 1),
    "midpoints": ("last", 2),
    "graded": ("everywhere", 2),
}


@pytest.mark.parametrize("kind", GRIDS)
def test_prefix_integrals_converge_at_the_stated_order(kind):
    where, order = PREFIX_ORDERS[kind]
    errors = []

    @jax.jit
    def all_weights(grids):
        return [prefix_weights(grid) for grid in grids]

    grids = [GRIDS[kind](size) for size in REFINEMENTS]
    for grid, prefix in zip(grids, all_weights(grids), strict=True):
        p = np.asarray(grid.nodes)
        error = np.abs(np.asarray(prefix) @ np.cos(3 * p) - np.sin(3 * p) / 3)
        errors.append(error[-1] if where == "last" else error.max())
    assert abs(fitted_order(REFINEMENTS, errors) - order) < 0.15


@pytest.mark.parametrize("kind", GRIDS)
def test_weights_integrate_polynomials(kind):
    """Monotone ones, up to p^3, to what each rule leaves of them.

    Right ends err at most by a cell's width times what the integrand gains, here one. Middles err
    at most by an eighth of the width's square times what its slope gains: 3 of p^3, and 33 of
    u^9 3 u^2, as it is on the equal cells below the graded ones.
    """
    size = 400
    grid = GRIDS[kind](size)
    error = {"tokens": 1 / size, "midpoints": 3 / 8 / size**2, "graded": 33 / 8 / size**2}[kind]
    degrees = np.arange(4)
    integrals = jax.jit(lim.integral)(np.asarray(grid.nodes)[:, None] ** degrees, grid)
    np.testing.assert_allclose(integrals, 1 / (degrees + 1), rtol=0, atol=error)


def test_the_pairing_sums_over_features():
    grid = lim.graded_grid(5)
    left = np.arange(10.0).reshape(5, 2)
    right = left**2
    weights = np.asarray(grid.weights)
    expected = sum(weights[i] * left[i, a] * right[i, a] for i in range(5) for a in range(2))
    np.testing.assert_allclose(jax.jit(lim.inner)(left, right, grid), expected, rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(GRIDS)),
    size=st.integers(3, 120),
    thousandths=st.integers(1, 499),
)
# A node on the boundary itself, which few draws have.
@example(kind="tokens", size=20, thousandths=200)
@example(kind="midpoints", size=5, thousandths=300)
@example(kind="graded", size=15, thousandths=125)
def test_point_regions_are_those_of_exact_arithmetic(kind, size, thousandths):
    # `eq:discrete-right-middle-sets`.
    delta = Fraction(thousandths, 1000)
    nodes = exact_nodes(kind, size)
    expected = np.array(
        [
            [node < delta for node in nodes],
            [delta <= node < 1 - delta for node in nodes],
            [1 - delta <= node for node in nodes],
        ]
    )
    grid = GRIDS[kind](size)
    if not expected.any(axis=1).all():
        with pytest.raises(ValueError, match="no node in the"):
            lim.boundary_regions(grid, thousandths / 1000, "points")
        return
    regions = lim.boundary_regions(grid, thousandths / 1000, "points")
    np.testing.assert_array_equal(np.asarray(regions.weights) > 0, expected)


def test_the_cure_of_an_empty_region_is_nothing_that_is_in_force_already():
    grid = lim.token_grid(5)
    with pytest.raises(ValueError, match="convention") as by_points:
        lim.boundary_regions(grid, 0.1, "points")
    assert "left out" in str(by_points.value) and "fewer" not in str(by_points.value)
    with pytest.raises(ValueError, match="or leave fewer positions out") as by_overlap:
        lim.boundary_regions(grid, 0.2).without([4])
    assert "convention" not in str(by_overlap.value)


def test_floats_would_have_erred():
    """At L = 50 and delta = 0.18 token 41 stands exactly on the boundary 0.82."""
    # `eq:discrete-right-middle-sets`.
    assert 41 / 50 < 1 - 0.18
    regions = lim.boundary_regions(lim.token_grid(50), 0.18, "points")
    assert (np.asarray(regions.weights) > 0).sum(axis=1).tolist() == [8, 32, 10]


@pytest.mark.parametrize("delta", [0.2, "1/5", Fraction(1, 5), np.float64(0.2)])
def test_delta_may_be_spelt_in_many_ways(delta):
    assert lim.boundary_regions(lim.token_grid(9), delta).delta == Fraction(1, 5)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(GRIDS)),
    size=st.integers(1, 60),
    thousandths=st.integers(1, 499),
)
def test_overlap_regions_partition_the_measure(kind, size, thousandths):
    delta = thousandths / 1000
    grid = GRIDS[kind](size)
    weights = np.asarray(lim.boundary_regions(grid, delta).weights)
    edges = np.asarray(grid.edges)
    cells = np.asarray(grid.weights)
    for row, (start, stop) in zip(weights, [(0, delta), (delta, 1 - delta), (1 - delta, 1)]):  # noqa: B905
        overlap = np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start)
        expected = cells * np.maximum(overlap, 0) / np.diff(edges)
        np.testing.assert_allclose(row, expected, atol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=0), cells, rtol=1e-12)


@pytest.mark.parametrize("spelt", [None, "float64", jnp.float64, "float32", jnp.float32])
def test_regions_are_of_the_same_positions_however_their_precision_is_spelt(spelt):
    """The same dtype in another spelling was refused as a grid of other positions."""
    grid = lim.token_grid(10, spelt)
    regions = lim.boundary_regions(lim.token_grid(10, "float64"), 0.2)
    require_regions(regions, grid)
    assert regions.same_as(lim.boundary_regions(grid, 0.2))
    assert spelt is None or grid == lim.token_grid(10, jnp.dtype(spelt))
    with pytest.raises(ValueError, match="regions: got regions of"):
        require_regions(regions, lim.token_grid(11, spelt))


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_positions_may_be_left_out_by_an_array(array, as_users_run):
    """An array of whole numbers was refused, with a cure that named what it was."""
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    assert regions.without(array([3, 0])) == regions.without([0, 3])
    for wrong in (array([0.0]), array([[0]]), array(0), array([True]), array([10])):
        with pytest.raises(ValueError, match="positions: got .*, expected a list of whole numbers"):
            regions.without(wrong)


@pytest.mark.parametrize("delta", [np.nan, np.inf])
def test_a_delta_that_is_not_finite_is_refused_as_such(delta):
    """The message asked for a number known before tracing, which it is."""
    with pytest.raises(ValueError, match=f"delta: got {delta}, expected a finite number"):
        lim.boundary_regions(lim.token_grid(10), delta)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("convention", ["overlap", "points"])
def test_regional_averages_of_known_functions(kind, convention):
    # `eq:gd-left-average`, `eq:gd-middle-average`, `eq:gd-right-average`.
    grid = GRIDS[kind](4000)
    regions = lim.boundary_regions(grid, 0.2, convention)
    constant = lim.regional_averages(jax.device_put(np.full((4000, 2), 3.0)), regions)
    np.testing.assert_allclose(constant, np.full((3, 2), 3.0), rtol=1e-12)
    linear = lim.regional_averages(grid.nodes, regions)
    np.testing.assert_allclose(linear, [0.1, 0.5, 0.9], atol=1e-3)


@pytest.mark.parametrize("width", [(), (2,)])
def test_infinity_and_nan_are_averaged_in_their_own_region_alone(width):
    """They turned the averages of all three regions into NaN, from positions left out too."""
    ones = np.ones((10, *width))
    infinite = np.concatenate([np.full((1, *width), np.inf), ones[1:]])
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    averages = lim.regional_averages(jax.device_put(infinite), regions)
    np.testing.assert_allclose(averages, np.concatenate([infinite[:1], ones[:2]]), rtol=1e-14)
    not_a_number = jax.device_put(np.where(np.isinf(infinite), np.nan, infinite))

    def averages_without_the_first(values):
        return lim.regional_averages(values, regions.without([0]))

    averages, slopes = jax.vjp(averages_without_the_first, not_a_number)
    np.testing.assert_allclose(averages, ones[:3], rtol=1e-14)
    # One position on the left, six in the middle and two on the right.
    slope = np.repeat([0, 1, 1 / 6, 1 / 2], [1, 1, 6, 2])
    expected = np.broadcast_to(slope.reshape(10, *(1 for _ in width)), ones.shape)
    np.testing.assert_allclose(slopes(jnp.ones_like(averages))[0], expected, rtol=1e-14)


@pytest.mark.parametrize("size", [5, 20, 49])
def test_a_boundary_at_a_graded_cells_edge_takes_nothing_of_the_cell_beyond(size):
    """Its edges are cubes of fractions: a rounding more or less made a weight of some 1e-17."""
    grid = lim.graded_grid(size)
    for edge in range(1, size):
        delta = Fraction(edge, size) ** 3
        if delta < Fraction(1, 2):
            left = np.asarray(lim.boundary_regions(grid, delta).weights)[0]
            assert (left[:edge] > 0).all() and (left[edge:] == 0).all(), f"{edge} of {size} cells"


@pytest.mark.parametrize("of_grid, of_nodes", [("float64", "float32"), ("float32", "float64")])
def test_nodes_of_another_precision_are_in_their_own_cells(of_grid, of_nodes):
    nodes = jax.device_put(np.arange(1, 31, dtype=of_nodes) / np.array(30, of_nodes))
    values = cell_embedding(jnp.arange(30.0), lim.token_grid(30, dtype=of_grid), nodes)
    np.testing.assert_array_equal(values, np.arange(30))


def test_the_embedding_is_constant_on_right_closed_cells():
    # `eq:terminal-adjoint-density-embedding`.
    grid = lim.graded_grid(4)
    edges = np.asarray(grid.edges)
    positions = np.concatenate([[0.0], edges[1:], edges[:-1] + 1e-9, grid.nodes])
    expected = [0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    values = jax.jit(cell_embedding)(np.arange(4.0), grid, positions)
    np.testing.assert_array_equal(values, expected)


def test_the_embedding_keeps_integrals():
    grid = lim.token_grid(8)
    values = np.sin(np.arange(8.0))
    fine = (np.arange(8000.0) + 0.5) / 8000

    @jax.jit
    def embedded_and_integral(values, fine):
        return cell_embedding(values, grid, fine), lim.integral(values, grid)

    embedded, integral = embedded_and_integral(values, fine)
    np.testing.assert_allclose(np.asarray(embedded).mean(), integral, rtol=1e-12)


@pytest.mark.parametrize("kind", GRIDS)
def test_fields_on_cells_are_interpolated_by_lines(kind):
    """NumPy's interpolation between the nodes; beyond them the nearest line goes on."""
    source = GRIDS[kind](6)
    target = lim.token_grid(11)
    values = np.random.default_rng(0).standard_normal((6, 2))
    nodes = np.asarray(source.nodes)
    p = np.asarray(target.nodes)
    interpolated = np.asarray(jax.jit(lambda v: source.interpolate(v, target.nodes))(values))
    inside = (p >= nodes[0]) & (p <= nodes[-1])
    assert not inside.all()
    for feature in range(2):
        expected = np.interp(p, nodes, values[:, feature])
        np.testing.assert_allclose(interpolated[inside, feature], expected[inside], rtol=1e-12)
    slope = (values[1] - values[0]) / (nodes[1] - nodes[0])
    before = p < nodes[0]
    expected = values[0] + np.multiply.outer(p[before] - nodes[0], slope)
    np.testing.assert_allclose(interpolated[before], expected, rtol=1e-12)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("grid", [lim.graded_grid(6), lim.gauss_grid(6)])
@pytest.mark.parametrize(
    "position, got", [(-0.1, "below zero"), (1.1, "above one"), (np.nan, "NaN")]
)
def test_fields_are_not_interpolated_outside_of_the_context(
    grid, position, got, jitted, as_users_run
):
    """The lines and the polynomials went on there, with numbers that seemed plausible."""
    interpolate = filter_jit(grid.interpolate) if jitted else grid.interpolate
    with pytest.raises(
        ValueError, match=rf"positions: got .*{got}.*, expected numbers in \[0, 1\]"
    ):
        jax.block_until_ready(interpolate(grid.nodes, jnp.array([0.5, position])))


@pytest.mark.parametrize("grid", [lim.graded_grid(6), lim.gauss_grid(6)])
def test_fields_in_arrays_of_numpy_are_read_at_traced_positions(grid, as_users_run):
    """JAX raised TracerArrayConversionError."""
    values: Any = np.asarray(grid.nodes)  # a user's array of NumPy, which types do not name
    at_nodes = jax.jit(lambda nodes: grid.interpolate(values, nodes))(grid.nodes)
    np.testing.assert_allclose(at_nodes, values, rtol=1e-14)
    in_cells = jax.jit(lambda nodes: cell_embedding(values, grid, nodes))(grid.nodes)
    np.testing.assert_array_equal(in_cells, values)


def test_a_grid_is_static():
    grid = lim.token_grid(5)
    assert jax.tree.leaves(grid) == [] and grid == lim.token_grid(5) != lim.midpoint_grid(5)
    assert hash(grid) == hash(lim.token_grid(5))
    averages = jax.jit(lambda v, g: lim.regional_averages(v, lim.boundary_regions(g, 0.2)))
    np.testing.assert_allclose(averages(np.ones(5), grid), 1.0, rtol=1e-15)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_breaks_that_were_rounded_to_single_precision_are_refused(as_users_run):
    """Their differences are rounded too, and the panels no longer meet."""
    breaks = (0.0, 0.1, 0.3, 1.0)
    assert PanelGrid(breaks=breaks, order=4).size == 12
    with pytest.raises(ValueError, match="an error of .* in the integral of a polynomial"):
        PanelGrid(breaks=tuple(np.array(breaks, np.float32)), order=4)


def test_cells_without_a_weight_in_half_precision_are_refused(as_users_run):
    """The first of L graded cells weighs 3/(4 L^3): adjoints were divided by zero."""
    assert float(lim.graded_grid(250, jnp.float16).weights.min()) > 0
    for size in (300, 5000):
        with pytest.raises(ValueError, match=f"grid: got {size} cells, the first of which has the"):
            lim.graded_grid(size, jnp.float16)
    assert float(lim.graded_grid(5000, jnp.bfloat16).weights.min()) > 0


@pytest.mark.parametrize(
    "order, panels, dtype",
    [(4, 1100, "float64"), (2, 200, "float32"), (2, 130, "float32"), (2, 20, "float16")],
)
def test_panels_whose_nodes_coincide_are_refused(order, panels, dtype, as_users_run):
    """They gave an AssertionError of a thousand numbers, or a grid whose first nodes were zeros."""
    with pytest.raises(ValueError, match=f"grid: got {panels} panels, on which nodes coincide"):
        lim.gauss_grid(order, panels, dtype)
    with pytest.raises(ValueError, match="grid: got 2 panels, on which nodes coincide"):
        PanelGrid(breaks=(0.0, 0.5, 0.5), order=2)


def test_precision_follows_the_grid():
    assert lim.token_grid(3).weights.dtype == jnp.float64
    single = lim.token_grid(3, dtype=jnp.float32)
    assert {a.dtype for a in (single.nodes, single.weights, prefix_weights(single))} == {
        jnp.dtype("float32")
    }
    assert lim.boundary_regions(single, 0.2).weights.dtype == jnp.float32


@pytest.mark.parametrize("make", [lim.token_grid, lim.graded_grid])
def test_a_measure_is_carried_with_its_mass_cell_by_cell(make):
    """Against overlaps of cells by loops; the integral is kept exactly."""
    source = lim.graded_grid(5)
    target = make(7)
    density = np.exp(np.random.default_rng(0).standard_normal((5, 2)))
    carried_density = carrying_shares(source, target) @ density
    ends = np.asarray(source.edges)
    others = np.asarray(target.edges)
    mass = np.asarray(source.weights)[:, None] * density
    expected = np.zeros((7, 2))
    for t in range(7):
        for s in range(5):
            shared = min(ends[s + 1], others[t + 1]) - max(ends[s], others[t])
            expected[t] += max(shared, 0) / (ends[s + 1] - ends[s]) * mass[s]
    np.testing.assert_allclose(
        np.asarray(target.weights)[:, None] * carried_density, expected, rtol=1e-12
    )
    np.testing.assert_allclose(
        np.asarray(target.weights) @ carried_density, mass.sum(axis=0), rtol=1e-13
    )
    same = carrying_shares(source, source) @ density
    np.testing.assert_allclose(same, density, rtol=1e-13)


@pytest.mark.parametrize("convention", ["point", "Points", None])
def test_conventions_are_known_by_name(convention, as_users_run):
    grid = lim.token_grid(10)
    for call in (
        lambda: lim.boundary_regions(grid, 0.2, convention),
        lambda: interval_weights(grid, [(0, 0.3)], convention),
    ):
        with pytest.raises(ValueError, match='convention: got .*, expected "overlap" or "points"'):
            call()


@pytest.mark.parametrize("convention", ["overlap", "points"])
def test_unions_of_intervals_count_what_they_share_once(convention):
    """Against a fine sum over each cell, or the nodes in [a, b)."""
    intervals = [("0.5", "0.93"), ("0.12", "0.6"), ("0.3", "0.4"), ("0.97", 1)]
    weights = interval_weights(lim.token_grid(10), intervals, convention)
    if convention == "points":
        expected = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1]) / 10  # of nodes 0.1, 0.2, ..., 1
    else:
        expected = np.array([0, 0.8, 1, 1, 1, 1, 1, 1, 1, 0.6]) / 10
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["tokens", "graded"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sums_over_a_grid_of_few_bits_have_weights_of_single_precision(dtype, kind, as_users_run):
    """Weights of few bits are off by one factor in all cells: 1/100 by 1e-3 in bfloat16."""
    grid = GRIDS[kind](100, dtype=dtype)
    exact = GRIDS[kind](100)
    weights = np.asarray(exact.weights)
    values = np.random.default_rng(0).uniform(1, 2, 100).astype(np.float32)
    regions = lim.boundary_regions(grid, 0.25)
    in_regions = np.asarray(lim.boundary_regions(exact, 0.25).weights)
    f = jnp.asarray(values)
    results = {
        "integral": (lim.integral(f, grid), weights @ values),
        "pairing": (inner(f, f, grid), weights @ values**2),
        "less its mean": (less_their_mean(f, grid), values - weights @ values / weights.sum()),
        "averages": (
            lim.grid.regional_averages(f, regions),
            in_regions @ values / in_regions.sum(axis=1),
        ),
    }
    for name, (result, expected) in results.items():
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    assert lim.integral(f.astype(dtype), grid).dtype == jnp.float32


def test_a_line_is_interpolated_between_nodes_that_few_bits_cannot_tell_apart(as_users_run):
    """In bfloat16 four of 1,024 positions near 1 are one number: a line was read off by 3e-3."""
    grid = lim.token_grid(1024, jnp.bfloat16)
    values = jnp.arange(1, 1025, dtype=jnp.float32) / 1024
    at = jnp.array([0.25, 0.5, 0.75, 0.996, 1.0], jnp.float32)
    np.testing.assert_allclose(grid.interpolate(values, at), at, rtol=1e-6)
