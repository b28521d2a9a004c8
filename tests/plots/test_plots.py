"""Figures show the numbers of the results they are given."""

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from reference.networks import random_states
from reference.section4 import section4_by_hand

import lim_jax as lim
from lim_jax import plots
from lim_jax.adjoint.criteria import exact_characterisation
from lim_jax.plots import influence_profile
from lim_jax.plots.drawing import shade_boundaries
from lim_jax.probes import Estimate


def test_the_profile_shows_density_errors_averages_and_indices():
    grid = lim.graded_grid(30)
    batch = random_states(0, 5, 30, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid)
    (axes,) = influence_profile(result).axes
    curve = next(line for line in axes.lines if np.size(line.get_xdata()) == 30)
    shown = np.array(curve.get_data())
    np.testing.assert_allclose(shown, [result.grid.nodes, result.density])
    band, averages = axes.collections
    top = np.asarray(band.get_paths()[0].vertices)[:, 1].max()
    np.testing.assert_allclose(top, (result.density + 2 * result.density_error).max(), rtol=1e-12)
    heights = [np.asarray(path.vertices)[0, 1] for path in averages.get_paths()]
    np.testing.assert_allclose(heights, result.regional_averages)
    assert f"LIM {float(result.indices().lim):+.3f}" in axes.get_title()


def test_one_example_is_drawn_without_a_band():
    grid = lim.token_grid(5)
    batch = random_states(0, 1, 5, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid)
    (axes,) = influence_profile(result).axes
    assert len(axes.collections) == 1  # the regional averages


def test_positions_left_out_are_not_drawn():
    grid = lim.graded_grid(30)
    regions = lim.boundary_regions(grid, 0.2).without([28, 29])
    batch = random_states(0, 5, 30, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid, regions)
    (axes,) = influence_profile(result).axes
    curve, uniform = axes.lines
    shown = np.array(curve.get_data())
    np.testing.assert_allclose(shown, np.array([grid.nodes, result.density])[:, :28])
    kept = np.asarray(grid.weights)[:28].sum()
    np.testing.assert_allclose(np.asarray(uniform.get_ydata()), 1 / kept)
    assert "L = 30, 2 left out" in axes.get_title()


def test_regions_are_drawn_where_they_lie():
    grid = lim.token_grid(10)
    batch = random_states(0, 1, 10, 2), None
    regions = lim.boundary_regions(grid, "1/4")
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid, regions)
    (axes,) = influence_profile(result).axes
    ends = [np.asarray(path.vertices)[:, 0] for path in axes.collections[0].get_paths()]
    np.testing.assert_allclose(ends, [(0, 0.25), (0.25, 0.75), (0.75, 1)])
    bare = Figure().add_subplot()
    shade_boundaries(bare, 0.25)
    shaded = [patch.get_extents().transformed(bare.transData.inverted()) for patch in bare.patches]
    np.testing.assert_allclose([(s.x0, s.x1) for s in shaded], [(0, 0.25), (0.75, 1)])


def drawn(figure):
    """The ordinates of a figure's lines, by label; numbers that it was not given are not made."""
    (axes,) = figure.axes
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}


def test_section_4_is_drawn_as_it_was_computed():
    results = section4_by_hand()
    profiles = drawn(plots.simulation_influence_profiles(results))
    for shown, row in zip(profiles.values(), results.table.values(), strict=True):
        np.testing.assert_array_equal(shown, row.density)
    traces = drawn(plots.simulation_observability_profiles(results))
    np.testing.assert_array_equal(traces["Before"], results.trace_densities["before"])
    np.testing.assert_array_equal(traces["After Algorithm 3"], results.trace_densities["after"])
    study, shown = results.probes, drawn(plots.simulation_probe_errors(results))
    for label, expected in {
        "bias, exact": study.exact_bias,
        "bias, 1000 repetitions": study.bias,
        "standard deviation, exact": study.exact_deviation,
        "standard deviation, 1000 repetitions": study.deviation,
    }.items():
        np.testing.assert_array_equal(shown[label], expected, err_msg=label)


def test_imbalances_are_drawn_over_their_first_values():
    results = section4_by_hand()
    shown = drawn(plots.simulation_convergence(results))
    for curve, run in zip(shown.values(), results.runs.values(), strict=True):
        np.testing.assert_allclose(curve, np.asarray(run.history) / float(run.history[0]))
        assert curve[0] == 1


def test_cone_masses_have_a_band_of_two_errors():
    regions = lim.boundary_regions(lim.token_grid(6), 0.3)
    value, error = np.arange(2.0, 8.0), np.linspace(0.1, 0.5, 6)
    mass = Estimate(*map(jnp.asarray, (value, error)))
    (axes,) = plots.cone_masses({"network": mass}, regions).axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), value)
    heights = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [2 - 0.2, 7 + 1.0])


def test_certificates_draw_the_greater_side_as_the_greater():
    products = jnp.asarray(np.random.default_rng(0).random((3, 3, 3, 3)))
    certificate = exact_characterisation(lim.adjoint.RegionalChannels(products))
    (axes,) = plots.certificate_margins([certificate], "title").axes
    for name in ("greater", "lesser"):
        marks = [line for line in axes.lines if line.get_label() == f"must be {name}"]
        for row, (mark, found) in enumerate(zip(marks, certificate.inequalities, strict=True)):
            largest = max(abs(found.greater), abs(found.lesser))
            place = [np.ravel(part)[0] for part in mark.get_data()]
            np.testing.assert_allclose(place, [getattr(found, name) / largest, row])
