"""The page of a study says what its results are."""

import numpy as np
from reference.made_study import made_results

from lim_jax import report
from lim_jax.report.findings import found_in_a_line
from lim_jax.validation.gains import Gain, compare_arms
from lim_jax.validation.intervals import Interval

UP, NOT = (Interval(*map(np.array, ends)) for ends in ((0.2, 0.1, 0.3), (0.2, -0.1, 0.5)))


def one_gain(steps, time):
    return Gain(UP, steps, time, UP, UP, 2.0)


def rows(page, first):
    """The cells of the row that begins with a name, in every table that has one."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_first_line_counts_what_is_above_zero_with_its_interval():
    gains = {"a": one_gain(UP, NOT), "b": one_gain(NOT, None), "c": one_gain(UP, UP)}
    line = found_in_a_line(gains | {"answers of the probes": one_gain(UP, UP)})
    assert line == (
        "**At equal steps 2 of 3 remedies lift the middle (a +0.20; c +0.20); "
        "at equal time 1 (c +0.20).**"
    )
    assert "at equal time none" in found_in_a_line({"a": one_gain(UP, NOT)})


def test_arms_stand_with_their_gains_costs_and_channels():
    results = made_results()
    page, gain = report.findings_page(results, ["some.png"]), compare_arms(results)["Algorithm 1"]
    table, channels, certificates = rows(page, "Algorithm 1")
    arm = results["arms"]["Algorithm 1"]
    accuracy = np.array(arm["accuracy"])[-1]
    assert table[1:3] == [f"{accuracy.mean():.3f}", f"{accuracy[:, 2:6].mean():.3f}"]
    low, high = gain.middle.low, gain.middle.high
    assert table[3] == f"+0.250 ({low:+.3f} to {high:+.3f})"
    assert table[5] == f"{np.mean(arm['risk'][-1]):.3g}"
    assert table[6] == f"{np.mean(arm['answer_lim']):.3g}"
    sizes = np.mean(arm["answer_total"]), np.mean(arm["discrepancy"][-1])
    assert table[7:9] == [f"{value:.3g}" for value in sizes]
    assert table[9:] == ["3.0", "3"]
    energies = np.array(arm["channels"])
    shares = (energies / energies.sum(axis=2, keepdims=True))[:, 1].mean(axis=0)
    assert channels[1:4] == [f"{share:.2f}" for share in shares]
    weaker = np.minimum(energies[:, 0], energies[:, 2])[:, 1:]
    assert channels[4:] == [f"{ratio:.3g}" for ratio in (energies[:, 1, 1:] / weaker).mean(axis=0)]
    assert certificates[1:] == ["2 of 3, 2.5", "0 of 3, -2, 3 vacuous"]
    before, _ = rows(page, "before")
    assert before[1] == f"{np.mean(arm['accuracy'][0]):.3f}"
    assert page.endswith("![some.png](some.png)\n")


def test_times_are_as_certain_as_the_plain_arms_two_runs():
    results = made_results()
    results["arms"]["plain"]["seconds_per_step"] = 0.0125
    page = report.findings_page(results)
    assert "the plain arm's two runs differ by 25% in the time of a step" in page


def test_variants_and_predictions_have_their_rows():
    page = report.findings_page(made_results())
    (deeper,) = rows(page, "deeper")
    assert deeper[3].startswith("-0.100") and deeper[4:] == ["", "3.0"]
    assert not rows(page, "deeper, plain")
    profile, at_gold = rows(page, "influence, margin")
    assert profile[1] == at_gold[1] == "+0.10 (-0.20 to +0.30), 1 constant"


def test_the_verdict_counts_variants_and_names_what_moved():
    results = made_results()
    verdict = report.findings_page(results).split("\n\n")[1]
    varied = "Of 2 variants of Algorithm 1 on probes 1 lift it at equal steps (strength 3 +"
    assert varied in verdict
    cone = {}
    for name in ("Algorithm 1", "plain"):
        energies = np.array(results["arms"][name]["channels"])[:, :, 1]
        ratio = (energies[:, 1] / np.minimum(energies[:, 0], energies[:, 2])).mean()
        cone[name] = f"{ratio:.3g}"
    assert "After Algorithm 1 the middle's energy is, over the weaker boundary's" in verdict
    moved = f"in the cone channel {cone['Algorithm 1']} where plain training has {cone['plain']}"
    assert moved in verdict


def test_a_shift_stands_with_its_gains_and_correlations():
    results = made_results()
    page = report.findings_page(results)
    (ours_row,) = rows(page, "Algorithm 1, probes")
    middles = {
        name: np.array(found["16 records"]["accuracy"])[:, 4:12].mean(axis=1)
        for name, found in results["shifts"].items()
    }
    ours = middles["Algorithm 1, probes"]
    assert ours_row[6] == f"{ours.mean():.3f}"
    assert ours_row[7].startswith(f"{(ours - middles['plain']).mean():+.3f} (")
    assert ours_row[8] == "+0.20 (-0.10 to +0.40), 1 constant"
    (plain,) = (row for row in rows(page, "plain") if len(row) == len(ours_row))
    assert plain[7] == ""
    assert "## Position shift" not in report.findings_page(results | {"shifts": {}})


def test_what_was_not_explained_has_no_table():
    results = made_results()
    for arm in results["arms"].values():
        del arm["channels"], arm["certificates"]
    page = report.findings_page(results | {"variants": {}})
    for title in ("## Which channel", "## Certificates", "## Ablations"):
        assert title not in page
