"""Figures of a study show its numbers."""

from typing import Any

import numpy as np
import pytest
from reference.drawn import assert_nothing_is_cut
from reference.made_study import made_results

from lim_jax import plots
from lim_jax.studies.intervals import Interval
from lim_jax.studies.validation import LONG, compare_arms

RESULTS = made_results()
ARMS = RESULTS["arms"]


def named(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_accuracy_by_place_is_before_after_plain_and_after_the_arm():
    figure = plots.accuracy_by_place(ARMS, "8 records")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["Algorithm 1", "answers of the probes"]
    before, plain, after = (np.array(line.get_ydata()) for line in shown[0].lines)
    course = np.array(ARMS["plain"]["accuracy"])
    np.testing.assert_allclose(before, course[0].mean(axis=0))
    np.testing.assert_allclose(plain, course[-1].mean(axis=0))
    ours = np.array(ARMS["Algorithm 1"]["accuracy"])[-1]
    np.testing.assert_allclose(after, ours.mean(axis=0))
    band = np.asarray(shown[0].collections[2].get_paths()[0].vertices)
    error = ours.std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(band[:, 1].max(), (ours.mean(axis=0) + 2 * error).max())
    assert named(figure) == ["before", "plain training", "the arm"]
    assert_nothing_is_cut(figure)


def test_influence_by_record_stands_beside_accuracy():
    figure = plots.influence_by_record(RESULTS["settings"], "before the arms")
    axes = figure.axes[0]
    record = RESULTS["settings"]["8 records"]
    for line, name in zip(
        axes.lines, ("accuracy", "answer_records", "margin_records"), strict=True
    ):
        np.testing.assert_allclose(np.array(line.get_ydata()), np.mean(record[name], axis=0))
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 9))
    assert_nothing_is_cut(figure)


def test_the_middle_is_drawn_over_seconds():
    figure = plots.middle_against_time(ARMS, "8 records")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(lines) == set(ARMS) - {"plain"}
    arm = ARMS["Algorithm 1"]
    np.testing.assert_allclose(np.array(lines["Algorithm 1"].get_xdata()), [0, 0.75, 1.5])
    middle = np.array(arm["accuracy"])[:, :, 2:6].mean(axis=(1, 2))
    np.testing.assert_allclose(np.array(lines["Algorithm 1"].get_ydata()), middle)
    assert len(np.array(lines[LONG].get_xdata())) == 11
    assert_nothing_is_cut(figure)


def test_gains_have_their_intervals():
    gains = compare_arms(RESULTS)
    lopsided = Interval(*map(np.array, (0.2, 0.1, 0.5)))
    gains["Algorithm 1"] = gains["Algorithm 1"]._replace(middle=lopsided)
    figure = plots.gains_of_arms(gains, "8 records")
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(gains)
    first: Any = axes.containers[0]
    assert first.get_label() == "equal steps"
    (point, _, (bar,)) = first.lines
    gain = gains["Algorithm 1"].middle
    np.testing.assert_allclose(np.array(point.get_xdata(), float), [gain.value])
    np.testing.assert_allclose(bar.get_segments()[0][:, 0], [gain.low, gain.high])
    # The variant with a network of its own was not trained plainly for as long.
    assert len(axes.containers) == 2 * len(gains) - 1
    assert named(figure) == ["equal steps", "equal time"]
    assert_nothing_is_cut(figure)


@pytest.mark.parametrize("shown", [1, 4])
def test_panels_that_are_not_needed_are_not_shown(shown):
    settings = {f"network {number}": RESULTS["settings"]["8 records"] for number in range(shown)}
    figure = plots.influence_by_record(settings, "")
    assert sum(axes.get_visible() for axes in figure.axes) == shown
