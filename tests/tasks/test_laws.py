"""Laws of the gold place, and draws that follow them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from lim_jax import tasks


def test_edges_and_middle_have_the_odds_that_were_asked_for():
    edges = np.asarray(tasks.edge_law(11, width=0.3, odds=0.1))
    # floor(3.3) = 3 at each edge: 6 of weight 1 and 5 of weight 0.1.
    np.testing.assert_allclose(edges[[0, 2, 3, 7, 8, 10]] * 6.5, [1, 1, 0.1, 0.1, 1, 1])
    middle = np.asarray(tasks.middle_law(11, width=0.3, odds=0.1))
    np.testing.assert_allclose(middle[[0, 2, 3, 7, 8, 10]] * 5.6, [0.1, 0.1, 1, 1, 0.1, 0.1])


@pytest.mark.parametrize("law", [tasks.edge_law(7), tasks.middle_law(7), tasks.uniform_law(7)])
def test_a_law_has_a_total_of_one(law):
    np.testing.assert_allclose(law.sum(), 1, rtol=1e-14)


def test_draws_follow_their_law():
    law = tasks.law_of_weights(jnp.array([1.0, 0.0, 5.0, 2.0, 0.5]))
    drawn = np.bincount(tasks.gold_places(law, 20_000, key=jax.random.key(1)), minlength=5)
    assert drawn[1] == 0
    kept = [0, 2, 3, 4]
    assert chisquare(drawn[kept], 20_000 * np.asarray(law)[kept]).pvalue > 1e-3


def test_every_place_is_as_often_as_every_other():
    np.testing.assert_array_equal(np.bincount(tasks.every_place(5, 3)), [3] * 5)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tasks.edge_law(2), "among 2 records"),
        (lambda: tasks.edge_law(8, width=0.5), "two edges of 4 among 8"),
        (lambda: tasks.edge_law(8, width=-0.1), "width"),
        (lambda: tasks.middle_law(8, odds=-1.0), "odds: got"),
        (lambda: tasks.law_of_weights(jnp.ones((2, 2))), "weights: got"),
        (lambda: tasks.law_of_weights(jnp.array([1.0, -1.0])), "not negative"),
        (lambda: tasks.law_of_weights(jnp.zeros(3)), "above zero"),
        (lambda: tasks.law_of_weights(jnp.array([1.0, jnp.nan])), "finite"),
    ],
)
def test_what_is_no_law_is_refused(wrong, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        jax.block_until_ready(wrong())
