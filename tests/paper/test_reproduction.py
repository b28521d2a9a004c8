"""Section 4 by its command, as users run it, against the paper's digits: whole runs, all slow."""

import contextlib
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread
from reference.json_entries import require_entries

from lim_jax import paper
from lim_jax.cli.commands import main
from lim_jax.grid.partition import REGIONS
from lim_jax.paper.algorithms import adam_run, algorithm1_objective, algorithm3_objective
from lim_jax.paper.outcomes import table_row
from lim_jax.paper.printed_figures import compare_with_printed, comparison_table
from lim_jax.paper.simulation import gate_influence

pytestmark = pytest.mark.slow

FIGURES = (
    "simulation_influence_profiles",
    "simulation_observability_profiles",
    "simulation_convergence",
    "simulation_probe_errors",
)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The command as users' processes are, where it has float64 by itself or not at all.

    But compiled quickly; `.ci/run` has it in a process of its own, twice.
    """
    out = tmp_path_factory.mktemp("out") / "new"
    said = io.StringIO()
    promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.enable_x64(False), promotion[0], promotion[1], contextlib.redirect_stdout(said):
        status = main(["reproduce", "--out", str(out)])
    record = json.loads((out / "section4.json").read_text(encoding="utf-8"))
    return (status, said.getvalue()), out, record


def test_every_printed_digit_agrees(reproduced):
    # `sec:simulations`, `tab:simulation-remedy-results`, `eq:simulation-imbalance-metrics`,
    # `eq:simulation-normalized-observability`.
    (status, printed), _, numbers = reproduced
    assert status == 0
    assert [c.name for c in compare_with_printed(numbers) if not c.agrees] == []
    assert len(compare_with_printed(numbers)) == 56
    assert "56 of 56 printed figures agree." in printed and "DIFFERS" not in printed


def test_the_json_holds_what_it_promises(reproduced):
    _, _, numbers = reproduced
    require_entries(numbers, "section4.json")
    assert set(numbers["table"]) == {"baseline", "algorithm1", "algorithm2", "algorithm3"}
    for row in numbers["table"].values():
        assert set(row) == set(paper.printed_figures.TABLE_COLUMNS)
    for row in numbers["minimiser"].values():
        assert set(row) == {*paper.printed_figures.TABLE_COLUMNS, "objective"}
    assert set(numbers["observability"]) == {"imbalance", "trace_averages", "penalty"}
    assert set(numbers["probe"]) == {str(count) for count in paper.outcomes.PROBE_COUNTS}
    for row in numbers["probe"].values():
        assert set(row) == {"bias", "std", "bias_exact", "std_exact"}
    for region in REGIONS:
        assert set(numbers["condition_number"][region]) == {"mean", "min", "max"}
    row = numbers["table"]["baseline"]
    assert row["left"] != round(row["left"], 6), "unrounded"


def test_the_minima_beyond_the_printed_steps(reproduced):
    # `eq:simulation-algorithm1-objective`, `eq:simulation-algorithm3-objective`.
    _, _, numbers = reproduced
    first = numbers["minimiser"]["algorithm1"]
    third = numbers["minimiser"]["algorithm3"]
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
    deviations_in_percent = [100 * row["std_exact"] for row in rows]
    np.testing.assert_allclose(deviations_in_percent, deviations, atol=0.06)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written(reproduced, name):
    # `fig:simulation-influence-profiles`, `fig:simulation-observability-profiles`,
    # `fig:simulation-convergence`, `fig:simulation-probe-bias`.
    _, out, _ = reproduced
    pixels = imread(out / f"{name}.png")
    assert pixels.shape[:2] == (600, 1050) and pixels[..., :3].std() > 0.05


def test_a_missed_figure_is_marked_and_fails(reproduced):
    _, _, numbers = reproduced
    wrong = json.loads(json.dumps(numbers))
    wrong["table"]["algorithm2"]["gap"] += 1e-4
    wrong["probe"]["1"]["bias"] += 1e-3
    missed = [
        comparison.name for comparison in compare_with_printed(wrong) if not comparison.agrees
    ]
    assert missed == ["table algorithm2 gap", "probe 1 bias"]
    assert "DIFFERS" in comparison_table(compare_with_printed(wrong))


def test_single_precision_agrees_to_three_digits(reproduced):
    _, _, double = reproduced
    runs = {"algorithm1": (algorithm1_objective, 0.04), "algorithm3": (algorithm3_objective, 0.03)}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        gates = {name: adam_run(*run).gates for name, run in runs.items()}
        gates["baseline"] = jnp.zeros(48)
        single = {name: table_row(gate_influence(of)) for name, of in gates.items()}
        assert single["algorithm1"].density.dtype == jnp.float32
    for name, row in single.items():
        columns = row.indices._asdict() | {"influence_imbalance": row.imbalance, "Z": row.Z}
        assert set(columns) == set(paper.printed_figures.TABLE_COLUMNS)
        for column, numbers in columns.items():
            expected = double["table"][name][column]
            np.testing.assert_allclose(numbers, expected, rtol=5e-4, atol=5e-6, err_msg=column)
