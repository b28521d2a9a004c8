"""Section 4's parts against a NumPy twin; `test_reproduction` holds it to the paper's digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.section4 import section4_by_hand

from lim_jax import paper
from lim_jax.cli.commands import main
from lim_jax.grid import boundary_regions
from lim_jax.grid.partition import REGIONS
from lim_jax.paper.algorithms import minimiser
from lim_jax.paper.outcomes import probe_study, regional_condition_numbers, summary, table_row
from lim_jax.paper.printed_figures import compare_with_printed, printed_figures
from lim_jax.paper.simulation import (
    gate_gramians,
    gate_influence,
    influence_imbalance,
    trace_density,
)


def cesaro_matrices():
    cesaro = np.tri(48) / np.arange(1, 49)[:, None]
    mixing = np.array(
        [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    )
    return np.eye(192) + 2 / 12 * np.kron(cesaro, mixing)


def test_influence_is_that_of_the_kronecker_matrices():
    # `eq:simulation-causal-matrix`, `eq:simulation-feature-mixing`,
    # `eq:simulation-residual-propagator`, `eq:simulation-input-gate`,
    # `eq:simulation-terminal-covector`, `eq:simulation-influence-profile`,
    # `tab:simulation-remedy-results`.
    gates = np.sin(np.arange(48.0))
    propagator = np.linalg.matrix_power(cesaro_matrices(), 12)
    covector = np.kron(0.85 * np.eye(48)[-1] + 0.15 / 48, [1, 0.5, -0.3, 0.2])
    adjoint = np.repeat(np.exp(gates), 4) * (propagator.T @ covector)
    energy = (adjoint.reshape(48, 4) ** 2).sum(axis=1)
    result = gate_influence(jnp.asarray(gates))
    np.testing.assert_allclose(result.density, 48 * energy / energy.sum(), rtol=1e-12)
    row = table_row(result)
    density = 48 * energy / energy.sum()
    np.testing.assert_allclose((row.Z, row.imbalance), (energy.sum(), density.var()), rtol=1e-12)
    # 9.6 tokens are a fifth: six tenths of the tenth from the left and from the right.
    share = np.clip(9.6 - np.arange(48), 0, 1) / 9.6
    left = share @ density
    right = share[::-1] @ density
    middle = (48 - 9.6 * (left + right)) / 28.8
    gap = min(left, right) - middle
    expected = left, middle, right, gap, gap / (gap + middle), gap / (gap + 2 * middle)
    np.testing.assert_allclose(row.indices, expected, rtol=1e-6)
    # The flow is linear: its derivative, which is all that influence sees, is the flow itself.
    x = np.random.default_rng(0).standard_normal((48, 4))
    simulation = paper.simulation
    moved = jax.jit(lambda x: simulation.cesaro_flow()(x, simulation.GRID))(x)
    np.testing.assert_allclose(moved, (propagator @ x.ravel()).reshape(48, 4), rtol=1e-10)


def test_gramians_are_those_of_the_kronecker_matrices_and_scale_with_the_gates():
    # `eq:simulation-observability-gramian`.
    gates = np.cos(np.arange(48.0))
    step = cesaro_matrices()
    power = np.eye(192)
    expected = np.zeros((48, 4, 4))
    for _ in range(12):
        last = power[-4:].reshape(4, 48, 4)
        expected += np.einsum("oia,oib->iab", last, last) / 12
        power = step @ power
    gramians = gate_gramians(jnp.asarray(gates))
    scale = np.exp(2 * gates)[:, None, None]
    np.testing.assert_allclose(gramians, scale * expected, rtol=1e-11, atol=1e-13)


def test_the_influence_imbalance_ignores_a_common_gate():
    """Why the printed Z is the optimiser's: the controlled quantity does not see it."""
    gates = jnp.sin(jnp.arange(48.0))
    results = [gate_influence(gates + shift) for shift in (0.0, 0.7)]
    imbalances = [influence_imbalance(result.density) for result in results]
    np.testing.assert_allclose(*imbalances, rtol=1e-12)
    np.testing.assert_allclose(results[1].total / results[0].total, np.exp(1.4), rtol=1e-12)


def test_objectives_are_a_price_on_the_gates_and_the_scatter_that_they_lessen():
    # `eq:simulation-algorithm1-objective`, `eq:simulation-algorithm3-objective`,
    # `eq:simulation-imbalance-metrics`, `eq:simulation-normalized-observability`.
    gates = np.sin(np.arange(48.0))
    density = np.asarray(gate_influence(jnp.asarray(gates)).density)
    traces = np.trace(np.asarray(gate_gramians(jnp.asarray(gates))), axis1=1, axis2=2)
    scatters = np.var(density), np.var(traces / traces.mean())
    objectives = paper.algorithms.algorithm1_objective, paper.algorithms.algorithm3_objective
    for objective, price, strength, scatter in zip(
        objectives, (0.12, 1.0), (15, 0.5), scatters, strict=True
    ):
        expected = float(price / 2 * np.mean(gates**2) + strength / 2 * scatter), float(scatter)
        np.testing.assert_allclose(objective(jnp.asarray(gates)), expected, rtol=1e-12)


def test_a_minimiser_is_that_of_the_valley_where_it_starts():
    """Of sums of (u^2 - 1)^2 / 4 it is one or minus one, and Newton's steps alone lead to zero."""
    signs = np.where(np.arange(48) % 3, 1.0, -1.0)

    def valleys(gates):
        return jnp.sum((gates**2 - 1) ** 2) / 4 - 7, jnp.sum(gates)

    point = minimiser(valleys, jnp.asarray(signs / 5))
    np.testing.assert_allclose(point.gates, signs, rtol=1e-9)
    np.testing.assert_allclose(point.objective, -7, rtol=1e-12)
    np.testing.assert_allclose(point.history, [signs.sum()], rtol=1e-9)


def test_where_no_minimum_is_none_is_returned():
    """A slope of a millionth everywhere: small, and nowhere zero."""

    def slope(gates):
        return 1e-6 * gates[0], gates[0]

    with pytest.raises(RuntimeError, match=r"minimiser: .* did not converge \(.*\); start elsewh"):
        minimiser(slope, jnp.zeros(2))


def test_the_regions_of_both_conventions():
    points = boundary_regions(paper.simulation.GRID, paper.simulation.DELTA, "points")
    assert (np.asarray(points.weights) > 0).sum(axis=1).tolist() == [9, 29, 10]


def test_condition_numbers_are_those_of_the_points_of_each_region():
    """Whatever the gates: `eq:simulation-condition-number-invariance`."""
    numbers = np.linalg.cond(np.asarray(gate_gramians(jnp.cos(jnp.arange(48.0)))))
    regions = np.split(numbers, [9, 38])
    condition_numbers = regional_condition_numbers()
    for statistic, values in (
        (np.mean, condition_numbers.mean),
        (np.min, condition_numbers.smallest),
        (np.max, condition_numbers[2]),
    ):
        np.testing.assert_allclose(values, [float(statistic(r)) for r in regions], rtol=1e-7)


def test_the_probe_study_is_numpys_of_one_stream(monkeypatch):
    """Common Gaussian probes, one stream over the counts, and deviations of a sample."""
    monkeypatch.setattr(paper.outcomes, "PROBE_COUNTS", (1, 3))
    monkeypatch.setattr(paper.outcomes, "REPETITIONS", 20)
    gramians = np.asarray(gate_gramians(jnp.zeros(48)))
    penalty = np.var(np.trace(gramians, axis1=1, axis2=2))
    study = probe_study()
    stream = np.random.default_rng(20260717)
    np.testing.assert_allclose(study.penalty, penalty, rtol=1e-12)
    for index, count in enumerate((1, 3)):
        probes = stream.standard_normal((20, count, 4))
        traces = np.einsum("nra,iab,nrb->ni", probes, gramians, probes) / count
        estimates = np.var(traces, axis=1) / penalty
        np.testing.assert_allclose(study.bias[index], estimates.mean() - 1, rtol=1e-10)
        np.testing.assert_allclose(study.deviation[index], estimates.std(ddof=1), rtol=1e-10)


def test_section_4_is_its_stages_and_the_rows_of_where_they_stop(monkeypatch):
    """`sec:simulations`: the stages by hand, and how each optimiser was asked."""
    by_hand = section4_by_hand()
    calls = []

    def optimised(objective, rate):
        name = objective.__name__.removesuffix("_objective")
        calls.append((name, rate))
        minimum = by_hand.runs["algorithm2"]._replace(objective=by_hand.objectives[name])
        return by_hand.runs[name], minimum

    for stage, result in {
        "_optimise": optimised,
        "algorithm2_run": lambda: by_hand.runs["algorithm2"],
        "regional_condition_numbers": lambda: by_hand.condition_numbers,
        "probe_study": lambda: by_hand.probes,
        "table_row": lambda influence: influence.energy,
    }.items():
        monkeypatch.setattr(paper.outcomes, stage, result)
    outcome = paper.section4()
    assert calls == [("algorithm1", 0.04), ("algorithm3", 0.03)]
    zeros = np.zeros(48)
    ones = np.ones(48)
    first, second, third = (np.asarray(run.gates) for run in by_hand.runs.values())
    rows = {
        "baseline": (zeros, ones),
        "algorithm1": (first, ones),
        "algorithm2": (zeros, second),
        "algorithm3": (third, ones),
    }
    for name, gates_and_weights in rows.items():
        expected = gate_influence(*map(jax.device_put, gates_and_weights)).energy
        np.testing.assert_array_equal(outcome.table[name], expected)
    for row in outcome.minimiser.values():
        np.testing.assert_array_equal(row, gate_influence(jax.device_put(second)).energy)
    assert outcome.objectives == by_hand.objectives and outcome.runs == by_hand.runs
    traces = {when: np.asarray(density) for when, density in outcome.trace_densities.items()}
    for when, gates in (("before", zeros), ("after", third)):
        np.testing.assert_array_equal(traces[when], trace_density(jax.device_put(gates)))
    assert outcome.condition_numbers is by_hand.condition_numbers
    assert outcome.probes is by_hand.probes


def test_the_summary_lays_out_what_it_is_given():
    results = section4_by_hand()
    numbers = summary(results)
    first, second, third = (np.asarray(run.history) for run in results.runs.values())
    rows = results.table
    assert numbers["change"] == {
        "algorithm1_imbalance": first[-1] / first[0],
        "algorithm2_imbalance_decrease": 1 - second[-1] / second[0],
        "algorithm3_Z": float(rows["algorithm3"].Z) / float(rows["baseline"].Z),
    }
    assert numbers["observability"]["imbalance"] == {"before": third[0], "after": third[-1]}
    smallest = np.asarray(results.condition_numbers.smallest).tolist()
    least = [numbers["condition_number"][region]["min"] for region in REGIONS]
    assert least == smallest
    objectives = {name: row["objective"] for name, row in numbers["minimiser"].items()}
    assert objectives == {name: float(value) for name, value in results.objectives.items()}


def test_figures_are_compared_by_ours_less_the_papers():
    numbers = {}
    for path, printed in printed_figures():
        inner = numbers
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        percent = printed.endswith("%")
        inner[path[-1]] = float(printed.rstrip("%")) / (100 if percent else 1)
    assert all(comparison.agrees for comparison in compare_with_printed(numbers))
    numbers["table"]["baseline"]["left"] += 0.25
    missed = [comparison for comparison in compare_with_printed(numbers) if not comparison.agrees]
    assert [found.name for found in missed] == ["table baseline left"]
    assert missed[0].difference == pytest.approx(0.25)


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "section 4" in capsys.readouterr().out.lower()
