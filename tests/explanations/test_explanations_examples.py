"""What small functions of the room give, written down by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from lim_jax.density import common_grid
from lim_jax.explanations.windows import carried_to, regions_of_unasked, unasked_tokens
from lim_jax.grid import boundary_regions, token_grid


def test_carried_to():
    regions, shares = carried_to(boundary_regions(token_grid(2), 0.25), 4)
    assert (regions.grid.size, None if shares is None else shares.tolist()) == (
        4,
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]],
    )


def test_unasked_tokens():
    regions = boundary_regions(token_grid(4), 0.4).without([0])
    unasked = unasked_tokens(2, jnp.array([0.0, 0.0, 0.0, 1.0]), regions)
    assert [tokens.tolist() for tokens in unasked] == 2 * [[False, True, True, False]]
    rows = [np.eye(6)[5], np.array([0.5, 0.5])]
    unasked = unasked_tokens(2, rows, boundary_regions(token_grid(4), 0.4))
    assert [tokens.sum() for tokens in unasked] == [5, 0]


def test_regions_of_unasked():
    regions = boundary_regions(token_grid(4), 0.25)
    rest = regions_of_unasked([np.arange(4) < 3, np.arange(9) < 7], regions)
    assert rest is not None and (rest.grid.size, rest.delta) == (5, regions.delta)
    assert regions_of_unasked([np.ones(4, bool), np.zeros(4, bool)], regions) is None
    by_points = boundary_regions(token_grid(4), 0.3, "points")
    assert regions_of_unasked([np.arange(4) < 2], by_points) is None  # with no left


def test_an_error_of_another_kind_is_no_empty_region(monkeypatch):
    def broken_grid(size, dtype):
        raise ValueError("no such grid")

    regions = boundary_regions(token_grid(4), 0.25)
    monkeypatch.setattr(common_grid, "token_grid", broken_grid)
    with pytest.raises(ValueError, match="no such grid"):
        regions_of_unasked([np.arange(4) < 3], regions)
