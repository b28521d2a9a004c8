# pyright: reportArgumentType=false
"""What studies refuse, in words of their own, where a user's call enters."""

import dataclasses

import diffrax
import jax
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


def line(p):
    return p[:, None]


def shadowing(depths):
    return lim.limits.shadowing_study(lambda depth: averaging([1.5] * depth), X, GRID, depths)


def attention(sizes):
    return lim.limits.attention_studies(lim.limits.averaging_attention(), line, sizes)


def moments(sizes):
    return lim.limits.fourth_moment_studies(
        lambda grid: lambda weight, x, y: weight * x[-1, 0],
        jnp.array(2.0),
        lambda grid: (jnp.zeros((2, grid.size, 1)), None),
        jnp.array(1.0),
        sizes,
    )


def cone_mass(sizes):
    return lim.limits.cone_mass_study(lim.limits.averaging_attention(), line, sizes)


def left_cone_mass(sizes):
    return lim.limits.left_cone_mass_study(lim.limits.averaging_attention(), line, sizes)


def loss(sizes):
    return lim.limits.loss_study(line, line, sizes)


def terminal(sizes):
    return lim.limits.terminal_adjoint_study(lambda size: READOUT, READOUT, line, line, sizes)


def consistency(sizes):
    return lim.limits.readout_consistency_study(lambda size: READOUT, READOUT, line, line, sizes)


def split_defect(depths):
    return lim.limits.split_defect_study(FIELD, jnp.ones((3, 4)), GRID, depths)


def of_layers(depths):
    return lim.limits.trajectory_studies(CONTROL, X, GRID, depths, {"Euler": Scheme()})


def adjoints_of_layers(depths):
    return lim.limits.input_adjoint_depth_studies(
        CONTROL,
        lambda x, y: lim.inner(x, x, GRID),
        (X, None),
        GRID,
        depths,
        schemes={"Euler": Scheme()},
    )


READOUT = lim.LinearReadout(jnp.eye(1))
FIELD = lim.TransformerField.init(4, norm_eps=0.1, key=jax.random.key(0))
IN_DEPTH = [of_layers, adjoints_of_layers, shadowing, split_defect]
IN_POSITION = [
    attention,
    moments,
    cone_mass,
    left_cone_mass,
    loss,
    terminal,
    consistency,
]


@pytest.mark.parametrize("study", IN_DEPTH + IN_POSITION)
@pytest.mark.parametrize(
    "refinements, got",
    [
        ((), "none"),
        (8, "8"),
        ((0, 8, 16, 32), "0"),
        ((8.0, 16.0), "8.0"),
        ((8, 4), r"\[8, 4\]"),
        ((4, 8, 8), r"\[4, 8, 8\]"),
    ],
)
def test_refinements_are_whole_numbers_that_rise(study, refinements, got):
    """Also where no order is claimed, for which a study needs but one of them."""
    named = "depths" if study in IN_DEPTH else "sizes"
    with pytest.raises(ValueError, match=f"{named}: got {got}.*, expected .*[wW]hole number"):
        study(refinements)


def test_masses_are_compared_at_one_position_at_least():
    with pytest.raises(ValueError, match=r"positions: got \(\), expected positions between 0 and"):
        lim.limits.cone_mass_study(lim.limits.averaging_attention(), line, (8, 16), positions=())


def test_every_grid_has_a_position_inside():
    """The last of ten midpoints is at 0.95, so none is at 0.97 or above."""
    message = "sizes: got 5 positions at inside = 0.97, expected a position from there on. Take"
    with pytest.raises(ValueError, match=message):
        lim.limits.attention_studies(
            lim.limits.averaging_attention(), line, (5, 100), lim.midpoint_grid, inside=0.97
        )


def test_the_bound_of_a_readout_is_of_states_on_the_grid():
    # `eq:readout-adjoint-boundedness`.
    with pytest.raises(ValueError, match="x: got shape .4, 2., expected .3, width"):
        lim.limits.readout_bound(lim.LinearReadout(jnp.eye(2)), jnp.ones((4, 2)), GRID)
    with pytest.raises(ValueError, match="readout: got 3, expected a function readout"):
        lim.limits.readout_bound(3, jnp.ones((3, 2)), GRID)


@pytest.mark.parametrize("flow", ["x", lim.ResidualFlow(averaging([1.5]))])
def test_slopes_in_time_are_of_a_depth_flow(flow):
    # `eq:depth-time-consistency`.
    with pytest.raises(ValueError, match="flow: got .* expected an instance of ContinuousFlow"):
        lim.limits.time_slope_bounds(flow, GRID)


@pytest.mark.parametrize("only", ["attention", 3])
def test_studies_are_chosen_by_a_list_of_names(only):
    """A name by itself was read letter by letter."""
    message = f"only: got {only!r}, expected a list of some of depth, attention"
    with pytest.raises(ValueError, match=message):
        lim.limits.measure(only=only)
