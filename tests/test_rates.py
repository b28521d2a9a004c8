"""Measured orders of the paper's limits, and the honesty of the stated bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import random_flow, random_states

import lim_jax as lim
from lim_jax import rates
from lim_jax.flow import linear_control

SIZES = (40, 80, 160, 320)
DEPTHS = (8, 16, 32, 64)
SCHEMES = {"euler": lim.euler, "split": lim.split}


def smooth(p):
    return jnp.stack([jnp.sin(3 * p) + 0.3, jnp.cos(5 * p), p**2 - 0.4 * jnp.sin(7 * p)], axis=1)


def labels(p):
    return jnp.stack([0.2 + 0.3 * p, 0.5 - 0.2 * p**2, 0.3 - 0.3 * p + 0.2 * p**2], axis=1)


def layer(seed=0):
    stacked = random_flow(seed, depth=1, width=3, heads=1).layers
    return jax.tree.map(lambda leaf: leaf[0], stacked)


def assert_order(study, order):
    assert study.reference_error < min(study.errors) / 20
    assert abs(study.order.value - order) < 0.15, study


@pytest.mark.parametrize(
    "make_grid, inside, order",
    [
        (lim.token_grid, 0.0, 1),
        (lim.token_grid, 0.3, 1),
        (lim.midpoint_grid, 0.0, 1),
        (lim.midpoint_grid, 0.3, 2),
        (lim.graded_grid, 0.3, 2),
    ],
)
def test_attention_converges_to_the_volterra_operator(make_grid, inside, order):
    study = rates.attention_study(
        layer().attention, smooth, SIZES, make_grid=make_grid, inside=inside
    )
    assert_order(study, order)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_residual_recursions_converge_to_the_depth_flow(scheme):
    fields = random_flow(depth=3, width=3, heads=1).layers
    grid = lim.token_grid(6)
    study = rates.depth_study(
        linear_control(fields), smooth(grid.nodes), grid, DEPTHS, step=SCHEMES[scheme]
    )
    assert_order(study, 1)


def test_the_split_defect_is_of_second_order():
    study = rates.split_defect_study(layer(), random_states(0, 6, 3), lim.token_grid(6), DEPTHS)
    assert_order(study, 2)
    assert study.holds is None


@pytest.mark.parametrize("make_grid, order", [(lim.token_grid, 1), (lim.graded_grid, 2)])
def test_the_loss_converges_within_its_bound(make_grid, order):
    study = rates.loss_study(smooth, labels, SIZES, make_grid)
    assert_order(study, order)
    assert study.holds


def test_the_terminal_adjoint_converges_within_its_bound():
    readout = lim.LinearReadout(random_states(1, 3, 3))
    study = rates.terminal_adjoint_study(readout, smooth, labels, SIZES)
    assert_order(study, 1)
    assert study.holds and study.bounds is not None
    # The bound is sharp to a factor: it takes the largest slope everywhere.
    assert study.bounds[0] < 20 * study.errors[0]


def test_orders_are_fitted_with_their_uncertainty():
    refinements = (10, 20, 40, 80, 160)
    noise = np.array([1.1, 0.9, 1.05, 0.95, 1.0])
    errors = 3.0 / np.array(refinements) ** 1.5 * noise
    order = rates.fit_order(refinements, errors.tolist())
    assert abs(order.value - 1.5) < order.half_width < 0.1
    with pytest.raises(ValueError, match="at least four"):
        rates.fit_order((1, 2, 4), (1.0, 0.5, 0.25))
    with pytest.raises(ValueError, match="an error of zero has no logarithm"):
        rates.fit_order((1, 2, 4, 8), (1.0, 0.5, 0.25, 0.0))


def test_a_broken_bound_is_reported():
    study = rates.Study("eq", 1.0, (1.0, 2.0), (1.0, 0.6), (1.0, 0.5), 0.0)
    assert study.holds is False
