"""Figures show the numbers of the results they are given."""

import jax.numpy as jnp
import numpy as np
from reference.networks import random_states

import lim_jax as lim
from lim_jax.plots import influence_profile


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
