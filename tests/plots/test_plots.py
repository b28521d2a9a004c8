"""Figures show the numbers of the results they are given."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from reference.networks import random_states

import lim_jax as lim
from lim_jax.plots import influence_profile, simulation_convergence
from lim_jax.studies.paper import GateRun, Section4


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


def test_surrogates_are_drawn_over_their_initial_values():
    histories = {f"algorithm{n}": jnp.array([4.0, 3.0, 1.0]) ** n for n in (1, 2, 3)}
    runs = {name: GateRun(h, h[-1], h) for name, h in histories.items()}
    fields: Any = dict.fromkeys(Section4._fields) | {"runs": runs}
    (axes,) = simulation_convergence(Section4(**fields)).axes
    shown = [np.asarray(line.get_ydata()) for line in axes.lines]
    np.testing.assert_allclose(shown, [[1, 0.75**n, 0.25**n] for n in (1, 2, 3)])
