"""Laws of the gold place, and draws that follow them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from benchmarks.validation.laws import (
    edge_law,
    every_place,
    gold_places,
    law_of_weights,
    middle_law,
    uniform_law,
)


def test_edges_and_middle_have_the_odds_that_were_asked_for():
    edges = np.asarray(edge_law(11, width=0.3, odds=0.1))
    # floor(3.3) = 3 at each edge: 6 of weight 1 and 5 of weight 0.1.
    np.testing.assert_allclose(edges[[0, 2, 3, 7, 8, 10]] * 6.5, [1, 1, 0.1, 0.1, 1, 1])
    middle = np.asarray(middle_law(11, width=0.3, odds=0.1))
    np.testing.assert_allclose(middle[[0, 2, 3, 7, 8, 10]] * 5.6, [0.1, 0.1, 1, 1, 0.1, 0.1])


@pytest.mark.parametrize("law", [edge_law(7), middle_law(7), uniform_law(7)])
def test_a_law_has_a_total_of_one(law):
    np.testing.assert_allclose(law.sum(), 1, rtol=1e-14)


def test_draws_follow_their_law():
    law = law_of_weights(jnp.array([1.0, 0.0, 5.0, 2.0, 0.5]))
    drawn = np.bincount(gold_places(law, 20_000, key=jax.random.key(1)), minlength=5)
    assert drawn[1] == 0
    kept = [0, 2, 3, 4]
    assert chisquare(drawn[kept], 20_000 * np.asarray(law)[kept]).pvalue > 1e-3


def test_every_place_is_as_often_as_every_other():
    np.testing.assert_array_equal(np.bincount(every_place(5, 3)), [3] * 5)
