"""Hypotheses of the limits that a study's own arguments refute are refused, by their names."""

# pyright: reportArgumentType=false

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import lim_jax as lim
from lim_jax.limits.attention_error import attention_constant
from lim_jax.limits.fields import averaging_attention
from lim_jax.limits.position import cesaro_study, input_adjoint_studies, singularity_study
from lim_jax.limits.refinement import fit_order

pytestmark = pytest.mark.usefixtures("as_users_run")  # what is refused needs no network
SIZES = (10, 20, 40, 80)
READOUT = lim.LinearReadout(jnp.eye(2))


def column(p):
    return p[:, None]


def pair(p):
    return jnp.stack([p, 1 - p], axis=1)


def falling(p):
    """Negative from a quarter on, and of integral -1."""
    return 1 - 4 * p


def squares(p):
    return p[:, None] ** 2


attention = partial(lim.limits.attention_studies, averaging_attention(), column, SIZES)
loss = partial(lim.limits.loss_study, pair, pair, SIZES)
terminal = partial(
    lim.limits.terminal_adjoint_study, lambda size: READOUT, READOUT, pair, pair, SIZES
)
consistency = partial(
    lim.limits.readout_consistency_study, lambda size: READOUT, READOUT, pair, pair, SIZES
)
input_adjoints = partial(input_adjoint_studies, None, None, column, SIZES)
TWICE = {"references": (lim.gauss_grid(8), lim.gauss_grid(8))}


def test_the_left_region_ends_at_the_decimal_that_delta_spells():
    """The average of p² up to cell i of 100 errs by (3i + 1)/60,000, and 0.29 · 100 falls short."""
    # `eq:attention-left-regional-error`.
    studies = lim.limits.attention_studies(
        averaging_attention(), squares, (100,), delta=0.29, smooth=True
    )
    left, inside = studies["left region"], studies["inside"]
    assert left.bounds is not None and inside.bounds is not None
    np.testing.assert_allclose(left.errors, [(3 * 15 + 1) / 60_000], rtol=1e-9)
    ratio = left.bounds[0] / inside.bounds[0]
    np.testing.assert_allclose(ratio, (1 + math.log(29)) / 29 * 100, rtol=1e-12)


@pytest.mark.parametrize("inside", [-0.1, 0.0, 1.0, math.nan])
def test_positions_inside_begin_in_the_interval(inside):
    # `eq:attention-continuum-pointwise-error`.
    with pytest.raises(ValueError, match=f"inside: got {inside}, expected a position above 0"):
        attention(inside=inside)


@pytest.mark.parametrize("delta", [0.0, 1.5, math.nan])
def test_the_left_region_is_part_of_the_context(delta):
    # `eq:attention-left-regional-error`.
    with pytest.raises(ValueError, match=f"delta: got {delta}, expected a width above 0, and 1"):
        attention(delta=delta)


@pytest.mark.parametrize("study", [attention, loss, terminal, consistency, input_adjoints])
def test_a_reference_does_not_tell_its_own_error(study):
    with pytest.raises(ValueError, match="references: got PanelGrid twice, expected two grids"):
        study(**TWICE)


@pytest.mark.parametrize("study", [loss, terminal])
def test_a_query_density_is_nowhere_negative(study):
    # `eq:continuum-ar-loss`, `eq:continuum-ar-terminal-adjoint`.
    with pytest.raises(ValueError, match="query_density: got -0.002 at 0.251, expected a density"):
        study(query_density=falling)


@pytest.mark.parametrize("study", [loss, terminal])
@pytest.mark.parametrize(
    "density, shape", [(lambda p: 1.0, r"\(\)"), (lambda p: p[:, None], r"\(2001, 1\)")]
)
def test_a_query_density_is_a_number_for_each_position(study, density, shape):
    # `eq:continuum-ar-loss`, `eq:continuum-ar-terminal-adjoint`.
    message = f"query_density: got shape {shape} at 2,001 positions, expected shape"
    with pytest.raises(ValueError, match=message):
        study(query_density=density)


@pytest.mark.parametrize("study", [loss, terminal])
def test_a_query_density_shares_out_the_whole_loss(study):
    """The paper's has the integral one; 2 p has, and 3 p has 3/2."""
    # `eq:continuum-ar-loss`, `eq:continuum-ar-terminal-adjoint`.
    study(query_density=lambda p: 2 * p)
    study(query_density=lambda p: jnp.where(p < 1 / 3, 3.0, 0.0))  # a jump within a cell
    study(query_density=jnp.ones_like)
    message = "query_density: got an integral of 1.5, expected a density of integral one. Divide"
    with pytest.raises(ValueError, match=message):
        study(query_density=lambda p: 3 * p)


def test_a_constant_is_measured_at_two_points_at_least():
    # `thm:attention-continuum-error`.
    with pytest.raises(ValueError, match="points: got 1, expected a whole number"):
        attention_constant(averaging_attention(), column, 1)


@pytest.mark.parametrize("halving", [0, 199])
def test_no_adjoint_is_read_nearer_to_zero_than_the_panels_reach(halving):
    with pytest.raises(ValueError, match=f"halvings: got {halving}, expected a whole number"):
        singularity_study(None, None, column, halvings=(50, 75, 100, halving))


def test_the_closed_form_is_of_a_positive_strength_and_a_whole_series():
    for strength in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="strength: got .*, expected a positive finite"):
            cesaro_study(strength, SIZES)
    with pytest.raises(RuntimeError, match="terms: got too few of them"):
        cesaro_study(1.0, SIZES, terms=5)
    cesaro_study(1.0, SIZES, terms=30)


def test_an_order_is_of_different_refinements():
    with pytest.raises(ValueError, match="expected at least four positive errors, each of anoth"):
        fit_order((10, 10, 20, 40), (1.0, 0.9, 0.5, 0.25))


@pytest.mark.parametrize("positions", [(1.5,), (0.0, 0.5), (-0.25,), (0.5, 1.0)])
def test_positions_of_a_cones_mass_are_within_the_context(positions):
    # `eq:cone-mass`: at 1 the mass is zero, and beyond the last node a grid would extrapolate.
    with pytest.raises(ValueError, match="positions: got .* expected positions between 0 and 1"):
        lim.limits.cone_mass_study(averaging_attention(), column, SIZES, positions=positions)


def test_a_cones_mass_has_two_references():
    with pytest.raises(ValueError, match="references"):
        lim.limits.cone_mass_study(averaging_attention(), column, SIZES, **TWICE)
