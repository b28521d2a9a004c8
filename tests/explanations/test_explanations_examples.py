"""What small functions of the room give, written down by hand."""

import jax.numpy as jnp
import numpy as np

from lim_jax.explanations.windows import carried_to, regions_without_queries
from lim_jax.grid import boundary_regions, token_grid


def test_carried_to():
    regions, shares = carried_to(boundary_regions(token_grid(2), 0.25), 4)
    assert (regions.grid.size, None if shares is None else shares.tolist()) == (
        4,
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]],
    )


def test_regions_without_queries():
    regions = boundary_regions(token_grid(4), 0.4)
    rest = regions_without_queries(jnp.array([0.0, 0.0, 0.0, 1.0]), regions)
    assert rest is not None and rest.left_out == (3,)
    assert regions_without_queries(jnp.ones(4) / 4, regions) is None
    rows = [np.eye(8)[5]]  # which lies in the third of four cells
    rest = regions_without_queries(rows, boundary_regions(token_grid(4), 0.25))
    assert rest is not None and rest.left_out == (2,)
