"""Section 4 by the command line, against the paper's digits and a NumPy twin."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread
from reference.as_users import run_python

from lim_jax import cli
from lim_jax.grid import boundary_regions
from lim_jax.studies import paper

FIGURES = (
    "simulation_influence_profiles",
    "simulation_observability_profiles",
    "simulation_convergence",
    "simulation_probe_errors",
)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The command in a process of its own: it has float64 by itself or not at all."""
    out = tmp_path_factory.mktemp("out") / "new"
    done = run_python("-m", "lim_jax", "reproduce", "--out", out, folder=out.parent)
    return done, out, json.loads((out / "section4.json").read_text())


def test_every_printed_digit_agrees(reproduced):
    done, _, numbers = reproduced
    assert done.returncode == 0, done.stderr
    assert [c.name for c in paper.compare(numbers) if not c.agrees] == []
    assert len(paper.compare(numbers)) == 56
    assert "56 of 56 printed figures agree." in done.stdout and "DIFFERS" not in done.stdout


def test_the_json_holds_what_it_promises(reproduced):
    _, _, numbers = reproduced
    assert set(numbers["table"]) == {"baseline", "algorithm1", "algorithm2", "algorithm3"}
    for row in numbers["table"].values():
        assert set(row) == set(paper.TABLE_COLUMNS)
    for row in numbers["minimiser"].values():
        assert set(row) == {*paper.TABLE_COLUMNS, "objective"}
    assert set(numbers["observability"]) == {"imbalance", "trace_averages", "penalty"}
    assert set(numbers["probe"]) == {str(count) for count in paper.PROBE_COUNTS}
    for row in numbers["probe"].values():
        assert set(row) == {"bias", "std", "bias_exact", "std_exact"}
    for region in paper.REGION_NAMES:
        assert set(numbers["condition_number"][region]) == {"mean", "min", "max"}
    row = numbers["table"]["baseline"]
    assert row["left"] != round(row["left"], 6), "unrounded"


def test_the_minima_beyond_the_printed_steps(reproduced):
    _, _, numbers = reproduced
    first, third = numbers["minimiser"]["algorithm1"], numbers["minimiser"]["algorithm3"]
    np.testing.assert_allclose(first["objective"], 0.0364, atol=5e-5)
    np.testing.assert_allclose(first["Z"], 0.709, atol=5e-4)
    np.testing.assert_allclose(third["objective"], 0.1853, atol=5e-5)
    np.testing.assert_allclose(third["Z"], 1.011, atol=5e-4)


def test_exact_probe_figures(reproduced):
    _, _, numbers = reproduced
    rows = numbers["probe"].values()
    biases = [50.08, 25.04, 12.52, 6.26, 3.13, 1.565]
    np.testing.assert_allclose([100 * row["bias_exact"] for row in rows], biases, atol=5e-3)
    deviations = [229.3, 131.2, 81.8, 53.9, 36.7, 25.5]
    found = [100 * row["std_exact"] for row in rows]
    np.testing.assert_allclose(found, deviations, atol=0.06)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written(reproduced, name):
    _, out, _ = reproduced
    pixels = imread(out / f"{name}.png")
    assert pixels.shape[:2] == (600, 1050) and pixels[..., :3].std() > 0.05


def test_a_missed_figure_is_marked_and_fails(reproduced):
    _, _, numbers = reproduced
    wrong = json.loads(json.dumps(numbers))
    wrong["table"]["algorithm2"]["gap"] += 1e-4
    wrong["probe"]["1"]["bias"] += 1e-3
    missed = [comparison.name for comparison in paper.compare(wrong) if not comparison.agrees]
    assert missed == ["table algorithm2 gap", "probe 1 bias"]
    assert "DIFFERS" in paper.comparison_table(paper.compare(wrong))


def cesaro_matrices():
    cesaro = np.tri(48) / np.arange(1, 49)[:, None]
    mixing = np.array(
        [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    )
    return np.eye(192) + 2 / 12 * np.kron(cesaro, mixing)


def test_influence_is_that_of_the_kronecker_matrices():
    gates = np.sin(np.arange(48.0))
    propagator = np.linalg.matrix_power(cesaro_matrices(), 12)
    covector = np.kron(0.85 * np.eye(48)[-1] + 0.15 / 48, [1, 0.5, -0.3, 0.2])
    adjoint = np.repeat(np.exp(gates), 4) * (propagator.T @ covector)
    energy = (adjoint.reshape(48, 4) ** 2).sum(axis=1)
    result = paper.gate_influence(jnp.asarray(gates))
    np.testing.assert_allclose(result.density, 48 * energy / energy.sum(), rtol=1e-12)
    np.testing.assert_allclose(paper.table_row(result).Z, energy.sum(), rtol=1e-12)


def test_gramians_are_those_of_the_kronecker_matrices_and_scale_with_the_gates():
    gates = np.cos(np.arange(48.0))
    step, power, expected = cesaro_matrices(), np.eye(192), np.zeros((48, 4, 4))
    for _ in range(12):
        last = power[-4:].reshape(4, 48, 4)
        expected += np.einsum("oia,oib->iab", last, last) / 12
        power = step @ power
    found = paper.gate_gramians(jnp.asarray(gates))
    scale = np.exp(2 * gates)[:, None, None]
    np.testing.assert_allclose(found, scale * expected, rtol=1e-11, atol=1e-13)


def test_the_influence_imbalance_ignores_a_common_gate():
    """Why the printed Z is the optimiser's: the controlled quantity does not see it."""
    gates = jnp.sin(jnp.arange(48.0))
    results = [paper.gate_influence(gates + shift) for shift in (0.0, 0.7)]
    imbalances = [paper.influence_imbalance(result.density) for result in results]
    np.testing.assert_allclose(*imbalances, rtol=1e-12)
    np.testing.assert_allclose(results[1].total / results[0].total, np.exp(1.4), rtol=1e-12)


@pytest.mark.slow
def test_single_precision_agrees_to_three_digits(reproduced):
    _, _, double = reproduced
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        single = paper.summary(paper.section4())
        assert paper.gate_influence(jnp.zeros(48)).density.dtype == jnp.float32
    for name in ("baseline", "algorithm1", "algorithm3"):
        for column in paper.TABLE_COLUMNS:
            expected = double["table"][name][column]
            found = single["table"][name][column]
            np.testing.assert_allclose(found, expected, rtol=5e-4, atol=5e-6, err_msg=column)


def test_the_regions_of_both_conventions():
    points = boundary_regions(paper.GRID, paper.DELTA, "points")
    assert (np.asarray(points.weights) > 0).sum(axis=1).tolist() == [9, 29, 10]


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "section 4" in capsys.readouterr().out.lower()
