# pyright: reportArgumentType=false
"""What studies refuse, in words of their own, where a user's call enters."""

import dataclasses

import diffrax
import jax.numpy as jnp
import pytest
from reference.light import averaging

import lim_jax as lim
from lim_jax.limits import Scheme
from lim_jax.limits.schemes import reference_flows
from lim_jax.network.controls import LayerwiseControl

pytestmark = pytest.mark.usefixtures("as_users_run")

GRID = lim.token_grid(3)
CONTROL = LayerwiseControl(averaging([1.5]))
X = jnp.ones((3, 1))
DEPTHS = (4, 8, 16, 32)


def whole(x, grid):
    return lim.integral(x, grid)[0]


def trajectories(references):
    return lim.limits.trajectory_studies(
        CONTROL, X, GRID, DEPTHS, {"Euler": Scheme()}, references=references
    )


def adjoints(references):
    return lim.limits.input_adjoint_depth_studies(
        CONTROL,
        lambda x, y: lim.inner(x, x, GRID),
        (X, None),
        GRID,
        DEPTHS,
        schemes={"Euler": Scheme()},
        references=references,
    )


def of_ones_own(references):
    return lim.limits.convergence_study(
        lim.ContinuousFlow(CONTROL),
        lambda p: p[:, None],
        GRID,
        {"integral": whole},
        depths=DEPTHS,
        references=references,
    )


def longer():
    """Two solutions of the same control at twice the horizon."""
    return [
        lim.ContinuousFlow(lambda time: CONTROL(time / 2), horizon=2.0, solver=solver)
        for solver in (diffrax.Tsit5(), diffrax.Dopri8())
    ]


STUDIES_IN_DEPTH = pytest.mark.parametrize("study", [trajectories, adjoints, of_ones_own])


@STUDIES_IN_DEPTH
def test_a_depth_flow_to_another_horizon_is_no_reference(study):
    """Errors would be distances between states of two depths, and not fall."""
    message = "references: got flows to 2, 2, expected two depth flows to 1. Pass the horizon"
    with pytest.raises(ValueError, match=message):
        study(longer())


@STUDIES_IN_DEPTH
def test_a_depth_flow_is_no_reference_for_its_own_error(study):
    """It is at the distance zero from itself, and from one that is made like it."""
    flow, _ = reference_flows(CONTROL)
    again = dataclasses.replace(flow)
    assert again is not flow
    for pair in ([flow, flow], [flow, again]):
        with pytest.raises(ValueError, match="references: got one depth flow twice, expected two"):
            study(pair)


@STUDIES_IN_DEPTH
@pytest.mark.parametrize(
    "references, got",
    [
        ([lim.gauss_grid(3), lim.gauss_grid(4)], "PanelGrid, PanelGrid"),
        ([], "none"),
        ([lim.ContinuousFlow(CONTROL)], "ContinuousFlow"),
        (lim.ContinuousFlow(CONTROL), "ContinuousFlow"),
    ],
)
def test_references_in_depth_are_two_depth_flows(study, references, got):
    message = f"references: got {got}, expected two depth flows to 1. Pass two ContinuousFlows"
    with pytest.raises(ValueError, match=message):
        study(references)
