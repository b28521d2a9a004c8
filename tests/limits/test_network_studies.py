# pyright: reportArgumentType=false
"""A study of one's own, on averages whose limits are known: C q^n = q^n/(n+1)."""

import csv
import dataclasses
import io
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import prefix_weights
from reference.light import averaging, light_flow
from reference.networks import GRIDS, layer_of, randomised
from scipy.linalg import expm

import lim_jax as lim
from lim_jax.limits import Quantity, mean_square, network_studies
from lim_jax.limits.refinement import largest
from lim_jax.network.controls import LayerwiseControl
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Alibi, Rotary
from lim_jax.network.tokenwise import GatedFeedForward

SIZES = (12, 24, 48, 96)
DEPTHS = (10, 20, 40, 80)


def squares(p):
    return p[:, None] ** 2


# Quantities by name, not anew in each test: what is compiled depends on them.
def state(x, grid):
    return x


def whole(x, grid):
    return lim.integral(x, grid)[0]


def grids(make_grid, sizes=SIZES):
    return [make_grid(size) for size in sizes]


def averages(grid):
    """The matrix of causal averaging, by NumPy."""
    prefix = prefix_weights(grid)
    return prefix / prefix.sum(axis=1, keepdims=True)


def layered(grid, depth, total=1.5):
    """Euler's steps of averaging on p^2."""
    steps = np.eye(grid.size) + total / depth * averages(grid)
    return np.linalg.matrix_power(steps, depth) @ np.asarray(grid.nodes) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("name, order", [("tokens", 1), ("graded", 2)])
def test_errors_are_those_against_the_closed_form(name, order):
    """Of a field, in three norms, and of a number: three layers multiply p^2 by (1 + c/9)^3."""
    known = grids(GRIDS[name])
    study = lim.limits.convergence_study(
        lim.ResidualFlow(averaging([1.5] * 3)),
        squares,
        known,
        {
            "largest": Quantity(state, order),
            "mean square": Quantity(state, order, norm=mean_square),
            "last": Quantity(state, norm=lambda gap, grid: float(abs(gap[-1, 0]))),
            "integral": Quantity(whole, order),
        },
    )
    factor = (1 + 1.5 / 9) ** 3
    expected = []
    for grid in known:
        weights = np.asarray(grid.weights)
        p = np.asarray(grid.nodes)
        ours = layered(grid, 3)
        gap = ours - factor * p**2
        integral = abs(weights @ ours - factor / 3)
        expected.append([abs(gap).max(), np.sqrt(weights @ gap**2), abs(gap[-1]), integral])
    for row, errors in zip(study, np.transpose(expected), strict=True):
        np.testing.assert_allclose(row.study.errors, errors, rtol=1e-8, err_msg=row.name)
        assert row.study.refinements == SIZES and row.study.resolved
        assert row.study.reference_error < 1e-12
    assert abs(study[0].study.order.value - order) < 0.15 and study.agree
    assert [row.expected for row in study] == [order, order, None, order]


def tight(flow):
    control = diffrax.PIDController(rtol=1e-12, atol=1e-12)
    return dataclasses.replace(flow, stepsize_controller=control)


@pytest.mark.slow
def test_depth_is_refined_under_a_control_and_a_profile():
    """The constant field grows by the exponential of the integral of (1/2 + t)^2."""
    flow = lim.ContinuousFlow(
        lim.network.linear_control(averaging([0.5, 1.5])), profile=lambda time: 0.5 + time
    )
    study = lim.limits.convergence_study(
        flow,
        lambda p: jnp.ones((p.size, 1)),
        lim.graded_grid(5),
        {"state": Quantity(state, 1, norm=mean_square)},
        depths=DEPTHS,
        references=(dataclasses.replace(flow, profile=lambda time: 1.0), tight(flow)),
    )
    mass = np.sqrt(np.asarray(lim.graded_grid(5).weights).sum())
    for depth, error in zip(DEPTHS, study[0].study.errors, strict=True):
        t = np.arange(depth) / depth
        euler = np.prod(1 + (0.5 + t) ** 2 / depth)
        np.testing.assert_allclose(error, mass * abs(euler - np.exp(13 / 12)), rtol=1e-8)
    assert study.agree and study[0].study.refinements == DEPTHS
    # The first of one's own references tells the error of the last.
    expected = mass * abs(np.exp(1) - np.exp(13 / 12))
    np.testing.assert_allclose(study[0].study.reference_error, expected, rtol=1e-3)


@pytest.mark.slow
def test_positions_and_layers_are_refined_together():
    control = LayerwiseControl(averaging([1.5]))
    known = grids(lim.token_grid)
    scheme = lim.limits.Scheme(lim.euler)
    study = lim.limits.convergence_study(
        lim.ContinuousFlow(control),
        squares,
        known,
        {"state": state},
        depths=DEPTHS,
        scheme=scheme,
    )
    for grid, depth, error in zip(known, DEPTHS, study[0].study.errors, strict=True):
        exact = np.exp(1.5 / 3) * np.asarray(grid.nodes) ** 2
        np.testing.assert_allclose(error, abs(layered(grid, depth) - exact).max(), rtol=1e-8)
    assert study[0].expected is None and study[0].study.refinements == SIZES


@pytest.mark.slow
def test_a_depth_flow_is_solved_as_well_on_every_grid():
    """Whatever the tolerance that it came with: exp(c A) of the averaging matrix A.

    A study of the solutions on four grids and two references would be six times as dear.
    """
    flow = lim.ContinuousFlow(LayerwiseControl(averaging([1.5])))
    grid = lim.token_grid(12)
    runs: Any = network_studies._network_runs(flow, grids(lim.token_grid), None, None)
    references: Any = network_studies._reference_runs(flow, runs, None, {})
    check, limit = references
    assert [run.grid.size for run in runs.values()] == list(SIZES)
    for run in (*runs.values(), limit):
        assert jax.tree.structure(run.network) == jax.tree.structure(limit.network)
        assert run.network.stepsize_controller.rtol == run.network.stepsize_controller.atol == 1e-13
    assert type(check.network.solver) is not type(limit.network.solver)
    solved = eqx.filter_jit(limit.network)(squares(grid.nodes), grid)
    exact = expm(1.5 * averages(grid)) @ np.asarray(grid.nodes) ** 2
    np.testing.assert_allclose(np.ravel(solved), exact, rtol=1e-11)


def integrals(grid):
    return np.asarray(grid.weights) @ layered(grid, 3)


def integral_study(references, order):
    quantity = Quantity(whole, order)
    flow = lim.ResidualFlow(averaging([1.5] * 3))
    known = grids(lim.token_grid)
    (row,) = lim.limits.convergence_study(
        flow, squares, known, {"integral": quantity}, references=references
    )
    return row.study


def test_finer_grids_of_the_same_kind_are_a_reference():
    check, limit = references = grids(lim.token_grid, (300, 500))
    study = integral_study(references, None)
    expected = [abs(integrals(grid) - integrals(limit)) for grid in grids(lim.token_grid)]
    np.testing.assert_allclose(study.errors, expected, rtol=1e-10)
    expected = abs(integrals(check) - integrals(limit))
    np.testing.assert_allclose(study.reference_error, expected, rtol=1e-9)
    # A first-order reference of five times the finest size is not ten times as good.
    assert not study.resolved


def test_three_grids_are_extrapolated_and_say_by_how_much_they_may_err():
    references = grids(lim.token_grid, (96, 192, 384))
    study = integral_study(references, 1)
    coarse, middle, fine = map(integrals, references)
    limit = 2 * fine - middle
    expected = [abs(integrals(grid) - limit) for grid in grids(lim.token_grid)]
    np.testing.assert_allclose(study.errors, expected, rtol=1e-9)
    np.testing.assert_allclose(study.reference_error, abs(2 * middle - coarse - limit), rtol=1e-8)
    exact = (1 + 1.5 / 9) ** 3 / 3
    assert abs(limit - exact) < study.reference_error and study.resolved


@pytest.mark.slow
def test_extrapolation_cancels_the_order_that_is_expected():
    """On midpoints, of order 2: (4 Q_2n - Q_n)/3 of a field, read off between its nodes."""
    flow = lim.ResidualFlow(averaging([1.5] * 3))
    known = grids(lim.midpoint_grid)
    references = grids(lim.midpoint_grid, (96, 192, 384))
    quantity = Quantity(state, 2, norm=mean_square)
    (row,) = lim.limits.convergence_study(
        flow, squares, known, {"state": quantity}, references=references
    )

    def read(source, positions):
        return np.interp(positions, np.asarray(source.nodes), layered(source, 3))

    for grid, error in zip(known, row.study.errors, strict=True):
        p = np.asarray(grid.nodes)
        limit = (4 * read(references[2], p) - read(references[1], p)) / 3
        gap = layered(grid, 3) - limit
        np.testing.assert_allclose(error, np.sqrt(np.mean(gap**2)), rtol=1e-8)


@pytest.mark.slow
def test_a_network_may_be_any_function_that_a_user_has():
    """The input adjoint of the integral of one average more: 1 + log(1/q), by harmonic sums."""
    flow = lim.ResidualFlow(averaging([1.0]))

    def adjoint(x, grid):
        def loss(state, y):
            return lim.integral(state, grid)[0]

        return lim.adjoint_trajectory(flow, loss, (x, None), grid).covectors[0]

    def inside(gap, grid):
        return np.abs(gap[np.asarray(grid.nodes) >= 0.25]).max()

    known = grids(lim.token_grid)
    (row,) = lim.limits.convergence_study(
        adjoint,
        squares,
        known,
        {"P_0": Quantity(state, 1, lambda n: 2.65 / n, inside, "eq:adjoint")},
        references=(lim.gauss_grid(12, panels=8), lim.gauss_grid(14, panels=10)),
    )
    for size, error in zip(SIZES, row.study.errors, strict=True):
        i = np.arange(1, size + 1)
        gap = np.cumsum(1 / i[::-1])[::-1] - np.log(size / i)
        np.testing.assert_allclose(error, abs(gap[i >= size / 4]).max(), rtol=1e-7)
    assert row.study.holds and row.agrees and row.study.source == "eq:adjoint"


@pytest.mark.slow
def test_a_field_with_turning_keys_and_a_gated_network_converges():
    def made(key):
        attention = lim.CausalAttention.init(
            4, heads=2, num_kv_heads=1, rotary=Rotary((1.0,), tokens=12), norm_eps=0.1, key=key
        )
        gated = GatedFeedForward.init(4, intermediate_size=5, norm_eps=0.1, key=key)
        return lim.TransformerField(attention, gated)

    field = randomised(jax.eval_shape(made, jax.random.key(0)), 1)

    def states(p):
        return jnp.stack([jnp.sin(3 * p) + 0.3, jnp.cos(5 * p), p**2, jnp.exp(-p)], axis=1)

    quantities = {"state": Quantity(state, 2, norm=mean_square)}
    known = grids(lim.graded_grid, (12, 24, 48, 96))
    study = lim.limits.convergence_study(field, states, known, quantities)
    assert study.agree and study[0].study.resolved


@pytest.fixture(scope="module")
def study_of_average():
    """The field of one average of p: p/2, and (p + 1/L)/2 on tokens."""
    quantities = {
        "state": Quantity(state, 1, lambda n: 0.51 / n, source="eq:mine"),
        "at the end": Quantity(lambda x, grid: grid.interpolate(x, jnp.ones(1)), 2),
        "beyond": Quantity(state, bound=lambda n: 0.4 / n),
    }
    field = layer_of(lim.ResidualFlow(averaging([1.0])))
    return lim.limits.convergence_study(
        field, lambda p: p[:, None], grids(lim.token_grid), quantities
    )


def test_orders_and_bounds_are_those_that_were_passed(study_of_average):
    errors = 0.5 / np.array(SIZES)
    for row in study_of_average:
        np.testing.assert_allclose(row.study.errors, errors, rtol=1e-9)
    assert [row.study.holds for row in study_of_average] == [True, None, False]
    assert [row.agrees for row in study_of_average] == [
        True,
        False,
        False,
    ] and not study_of_average.agree
    lines = str(study_of_average).splitlines()
    assert lines[1].split() == ["state", "1.00", "1.00", "1.00", "±", "0.00", "holds", "0.5"] + [
        f"{study_of_average[0].study.reference_error:.1e}"
    ]
    assert lines[2].endswith("DIFFERS") and "2.00" in lines[2]
    assert "BROKEN" in lines[3] and lines[3].split()[1:3] == ["–", "–"]
    assert len(lines) == 4  # no reasons


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e6])
def test_verdicts_are_those_of_any_unit_and_precision(scale, double):
    """The error is s/(2 n): a bound of just that holds up to rounding, a fifth of it is false."""
    quantities = {
        "exact": Quantity(state, 1, lambda n: scale * 0.5 / n),
        "false": Quantity(state, 1, lambda n: scale * 0.1 / n),
    }
    with jax.enable_x64(double):
        study = lim.limits.convergence_study(
            lim.limits.averaging_attention(),
            lambda p: scale * p[:, None],
            grids(lim.token_grid),
            quantities,
        )
    assert [row.study.verdict for row in study] == ["holds", "BROKEN"]
    assert not study.agree


def test_the_numbers_of_a_study_are_written_as_csv(study_of_average, tmp_path):
    text = study_of_average.to_csv(tmp_path / "study.csv")
    assert (tmp_path / "study.csv").read_text(encoding="utf-8") == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 3 * len(SIZES)
    for n, row in zip(SIZES, rows, strict=False):
        assert (row["quantity"], row["source"]) == ("state", "eq:mine")
        numbers = [float(row[name]) for name in ("refinement", "error", "bound", "order")]
        np.testing.assert_allclose(numbers, [n, 0.5 / n, 0.51 / n, 1], rtol=1e-9)
        assert float(row["expected_order"]) == 1 and float(row["reference_error"]) < 1e-12
    assert [rows[-1][name] for name in ("quantity", "source", "expected_order")] == [
        "beyond",
        "",
        "",
    ]
    assert rows[4]["bound"] == ""


def test_norms_of_errors_are_numpys():
    grid = lim.graded_grid(3)
    gap = np.arange(6.0).reshape(3, 2) - 4
    assert largest(gap, grid) == 4
    weights = np.asarray(grid.weights)
    np.testing.assert_allclose(mean_square(gap, grid), np.sqrt(weights @ [25, 5, 1]))


FLOW = light_flow(width=4, heads=2)
TURNING = dataclasses.replace(
    layer_of(FLOW).attention, mask=AttentionMask(positions=Rotary((1.0,)))
)
BIASED = dataclasses.replace(TURNING, mask=AttentionMask(positions=Alibi((0.5, 0.25))))
WINDOWED = dataclasses.replace(layer_of(FLOW).attention, mask=AttentionMask(window=3))
TOKENS = [lim.token_grid(n) for n in (4, 6, 8, 12)]
DOUBLED = [lim.token_grid(n) for n in (4, 8, 16)]
DEPTH_FLOW = lim.ContinuousFlow(LayerwiseControl(averaging([1.5])))


def four_of_each(p):
    return jnp.ones((p.size, 4)) * p[:, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "message, changed",
    [
        ("network: got a function of (x)", {"network": lambda x: x}),
        ("network: got 3, expected a function network(x, grid) or field(", {"network": 3}),
        ("got ResidualFlow, expected a ContinuousFlow", {"depths": (1, 2, 3, 4)}),
        ("network: got Rotary with tokens=None, expected", {"network": TURNING}),
        ("[0, 1] stands for: Rotary(..., ", {"network": lim.ContinuousFlow(lambda t: TURNING)}),
        ("network: got Alibi with tokens=None, expected", {"network": BIASED}),
        (
            "quantities['a'].norm: got 3, expected a f",
            {"quantities": {"a": Quantity(state, norm=3)}},
        ),
        (
            "quantities['a'].bound: got 0.5, expected a function",
            {"quantities": {"a": Quantity(state, bound=0.5)}},
        ),
        ("window: got 3 positions on PanelGrid", {"network": WINDOWED}),
        ("depths: got None, with one grid", {"grids": TOKENS[0]}),
        ("depths: got None, with a scheme", {"scheme": lim.limits.Scheme()}),
        ("grids: got 40, expected a Grid", {"grids": 40}),
        ("grids: got [4, 6, 8] positions, expected 4 refinements", {"grids": TOKENS[:3]}),
        ("grids: got [4, 6, 8, 12, 4] positions", {"grids": [*TOKENS, TOKENS[0]]}),
        ("depths: got [1, 2, 2, 4] layers", {"network": DEPTH_FLOW, "depths": (1, 2, 2, 4)}),
        ("got 5 depths and 4 grids", {"network": DEPTH_FLOW, "depths": (1, 2, 3, 4, 5)}),
        (
            "references: got none, expected two depth flows to 1. Pass two ContinuousFlows",
            {"network": DEPTH_FLOW, "grids": TOKENS[0], "depths": (1, 2, 3, 4), "references": []},
        ),
        ("references: got grids of [4, 6, 8] positions", {"references": TOKENS[:3]}),
        ("references: got grids of [4] positions", {"references": TOKENS[:1]}),
        ("references: got CellGrid twice", {"references": TOKENS[-1:] * 2}),
        (
            "references: got one depth flow twice, expected two",
            {
                "network": DEPTH_FLOW,
                "grids": TOKENS[0],
                "depths": (1, 2, 3, 4),
                "references": [DEPTH_FLOW, DEPTH_FLOW],
            },
        ),
        ("quantities: got no order of state", {"references": DOUBLED}),
        (
            "quantities['a'].order: got -1, expected a positive one",
            {"references": DOUBLED, "quantities": {"a": Quantity(state, -1)}},
        ),
        (
            "quantities['a'].order: got nan, expected a f",
            {"quantities": {"a": Quantity(state, jnp.nan)}},
        ),
        (
            "quantities['a'].bound: got nan at 4, nan at 6, nan at 8, nan at 12, expected nothing",
            {"quantities": {"a": Quantity(state, bound=lambda n: jnp.nan)}},
        ),
        ("quantities: got 3, expected quantities by name", {"quantities": 3}),
        ("quantities: got none", {"quantities": {}}),
        ("quantities['a']: got 1, expected a function", {"quantities": {"a": 1}}),
        ("float64 (4, 2) on 8", {"quantities": {"a": lambda x, grid: x[::2, :2]}}),
        ("int64 () on 4", {"quantities": {"a": lambda x, grid: x.argmax()}}),
        ("got an error of 0.0 at 4", {"quantities": {"a": lambda x, grid: 1.0}}),
        ("an error of nan at 12", {"quantities": {"a": lambda x, grid: jnp.nan}}),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_what_has_no_limit_or_no_slope_is_refused(message, changed):
    arguments = {"network": FLOW, "grids": TOKENS, "quantities": {"state": state}} | changed
    with pytest.raises(ValueError) as refused:
        lim.limits.convergence_study(states=four_of_each, **arguments)
    assert message in str(refused.value)
