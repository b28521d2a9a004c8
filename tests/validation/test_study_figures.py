"""Figures of a study show its numbers."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from reference.drawn import assert_nothing_is_cut
from reference.made_study import made_faithfulness, made_results
from reference.made_tuning import made_tuning

from benchmarks.validation.faithful_figure import faithfulness_against_cost
from benchmarks.validation.figures import (
    accuracy_by_place,
    gain_against_cost,
    gains_of_arms,
    influence_by_record,
    middle_against_time,
    prompted_records,
    rank_correlations,
    shifted_records,
    tuned_course,
    tuned_places,
)
from benchmarks.validation.gains import Gain, compare_arms
from benchmarks.validation.intervals import Interval
from benchmarks.validation.prediction import ATTRIBUTIONS
from benchmarks.validation.prompted import PromptedStudy
from benchmarks.validation.study import LONG
from lim_jax.probes import Estimate

RESULTS = made_results()
ARMS = RESULTS["arms"]
LOPSIDED = Interval(*map(np.array, (0.2, 0.1, 0.5)))
GAIN = Gain(*6 * [LOPSIDED], operations=2.0, time=3.0)


def named(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn_bars(axes) -> list[Any]:
    """Points with their bars, in order."""
    return list(axes.containers)


def test_accuracy_by_place_is_before_after_plain_and_after_the_arm():
    figure = accuracy_by_place(ARMS, "8 records")
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
    figure = influence_by_record(RESULTS["settings"], "before the arms")
    axes = figure.axes[0]
    record = RESULTS["settings"]["8 records"]
    for line, name in zip(
        axes.lines, ("accuracy", "answer_records", "margin_records"), strict=True
    ):
        np.testing.assert_allclose(np.array(line.get_ydata()), np.mean(record[name], axis=0))
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 9))
    assert_nothing_is_cut(figure)


def test_the_middle_is_drawn_over_seconds():
    figure = middle_against_time(ARMS, "8 records")
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
    gains["Algorithm 1"] = gains["Algorithm 1"]._replace(middle=LOPSIDED)
    figure = gains_of_arms(gains, "8 records")
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(gains)
    first = drawn_bars(axes)[0]
    assert first.get_label() == "equal steps"
    (point, _, (bar,)) = first.lines
    gain = gains["Algorithm 1"].middle
    np.testing.assert_allclose(np.array(point.get_xdata(), float), [gain.value])
    np.testing.assert_allclose(bar.get_segments()[0][:, 0], [gain.low, gain.high])
    # Variants with networks of their own were not trained plainly for as long.
    assert len(axes.containers) == 2 * len(gains) - 2
    assert named(figure) == ["equal steps", "equal time"]
    assert_nothing_is_cut(figure)


def test_a_gain_stands_over_what_a_step_costs():
    gains = {"a": GAIN, "b": GAIN._replace(time=1.5)}
    figure = gain_against_cost(gains, "")
    first, second = drawn_bars(figure.axes[0])
    (point, _, (bar,)) = first.lines
    assert (point.get_xdata(), point.get_ydata()) == ([3.0], [0.2])
    np.testing.assert_allclose(bar.get_segments()[0], [[3.0, 0.1], [3.0, 0.5]])
    assert second.lines[0].get_xdata() == [1.5]
    assert named(figure) == ["a", "b"] and figure.axes[0].get_xlim()[0] == 0
    assert_nothing_is_cut(figure)


def test_correlations_stand_in_rows_of_attributions():
    figure = rank_correlations(RESULTS["predictions"], "")
    shown = figure.axes[0]
    assert [tick.get_text() for tick in shown.get_yticklabels()] == list(ATTRIBUTIONS)
    profile, at_gold = drawn_bars(shown)
    point, _, (bar,) = profile.lines
    # As made: a tenth more in each row.
    values = np.arange(len(ATTRIBUTIONS)) / 10
    np.testing.assert_allclose(point.get_xdata(), values)
    ends = np.stack([values - 0.3, values + 0.2], axis=1)
    np.testing.assert_allclose(np.array(bar.get_segments())[:, :, 0], ends)
    assert [container.get_label() for container in (profile, at_gold)] == named(figure)
    low, high = shown.get_ylim()
    assert low > high  # the first is on top
    assert_nothing_is_cut(figure)


def test_a_shift_is_drawn_length_by_length():
    figure = shifted_records(RESULTS["shifts"], "")
    assert [axes.get_title() for axes in figure.axes] == 2 * ["contexts of 8 records"] + 2 * [
        "contexts of 16 records"
    ]
    for axes, (length, part) in zip(
        figure.axes,
        itertools.product(("8 records", "16 records"), ("accuracy", "influence")),
        strict=True,
    ):
        for line, shift in zip(axes.lines, RESULTS["shifts"].values(), strict=True):
            np.testing.assert_allclose(
                np.array(line.get_ydata()), np.mean(shift[length][part], axis=0)
            )
    assert named(figure) == list(RESULTS["shifts"])
    assert_nothing_is_cut(figure)


@pytest.mark.parametrize("shown, across", [(1, 1), (2, 2), (4, 2), (5, 3)])
def test_panels_fill_the_width_and_what_is_not_needed_is_not_shown(shown, across):
    settings = {f"network {number}": RESULTS["settings"]["8 records"] for number in range(shown)}
    figure = influence_by_record(settings, "")
    seen = [axes for axes in figure.axes if axes.get_visible()]
    assert len(seen) == shown
    figure.draw_without_rendering()
    widths = [axes.get_position().width for axes in seen]
    assert sum(widths[:across]) > 0.65  # of the canvas; names of the axes take the rest
    named = [bool(axes.get_ylabel()) for axes in seen]
    assert named == [number % across == 0 for number in range(shown)]


def test_a_published_models_records_have_bars_of_two_errors():
    rng = np.random.default_rng(0)

    def estimate():
        return Estimate(*map(jax.device_put, rng.uniform(0.1, 1, (2, 5))))

    names = ("influence, margin", "gradient times input, margin", "normalised influence, margin")
    profile, at_gold = ({name: estimate() for name in names} for _ in "ab")
    study = PromptedStudy(profile, at_gold, {"margin": estimate(), "accuracy": estimate()}, [])
    figure = prompted_records(study, "a model")
    upper, lower = figure.axes
    drawn = [*drawn_bars(upper), *drawn_bars(lower)]
    shown = [profile[names[0]], profile[names[2]], study.scores["accuracy"]]
    for bars, one in zip(drawn, shown, strict=True):
        np.testing.assert_array_equal(bars.lines[0].get_ydata(), one.value)
        np.testing.assert_array_equal(bars.lines[0].get_xdata(), np.arange(1, 6))
        (ends,) = (line.get_segments() for line in bars.lines[2])
        np.testing.assert_allclose(np.ptp(np.array(ends)[:, :, 1], axis=1), 4 * one.error)
    assert named(figure) == [names[0], names[2], "accuracy, greedy decoding"]
    looks = [(bars.lines[0].get_color(), bars.lines[0].get_marker()) for bars in drawn]
    assert len(set(looks)) == len({colour for colour, _ in looks}) == 3


def test_a_trained_models_accuracy_is_drawn_by_place():
    """A column for each arm: before, early on, and in the end."""
    results = made_tuning()
    figure = tuned_places(results, "a model")
    grid = np.array(figure.axes).reshape(2, 3)
    for row, (length, records) in zip(grid, (("short", 8), ("longer", 9)), strict=True):
        for axes, (name, arm) in zip(row, results["arms"].items(), strict=True):
            assert axes.get_title() == f"{name}, {records} records"
            course = np.array(arm[length]["accuracy"])
            for line, stage in zip(axes.lines, range(3), strict=True):
                np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 1 + records))
                np.testing.assert_allclose(line.get_ydata(), course[stage].mean(axis=0))
    assert named(figure) == ["before", "after 4 steps", "after 8 steps"]
    assert_nothing_is_cut(figure)


def test_a_trained_models_accuracy_is_drawn_over_seconds():
    results = made_tuning()
    figure = tuned_course(results, "a model")
    (axes,) = figure.axes
    pairs = [(arm, length) for arm in results["arms"].values() for length in ("short", "longer")]
    for container, (arm, length) in zip(drawn_bars(axes), pairs, strict=True):
        line, _, (bars,) = container.lines
        by_seed = np.array(arm[length]["accuracy"]).mean(axis=2)
        seconds = np.array([0, 4, 8]) * np.mean(arm["seconds_per_step"])
        np.testing.assert_allclose(line.get_xdata(), seconds)
        np.testing.assert_allclose(line.get_ydata(), by_seed.mean(axis=1))
        error = by_seed.std(axis=1, ddof=1) / np.sqrt(3)
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 4 * error, atol=1e-12)
        assert line.get_linestyle() == ("-" if length == "short" else ":")
    assert axes.get_ylim()[1] > 1 and named(figure)[1] == "plain, 9 records"
    assert_nothing_is_cut(figure)


def test_faithfulness_stands_over_its_cost():
    kinds = made_faithfulness()["kinds"]
    figure = faithfulness_against_cost(kinds, "small")
    alone = ("influence", "integrated gradients", "leave-one-out")
    methods = {
        "mask gradient and path": ("mask-gradient", "mask-path on 4"),
        **{name: (name,) for name in alone},
        "ContextCite": ("ContextCite on 32", "ContextCite on 64"),
        "AT2": ("AT2",),
    }
    assert sorted(named(figure)) == sorted([*methods, "random"])
    shown = ("datamodeling score", "datamodeling score", "top-3 drop", "top-3 drop")
    for number, (axes, measure) in enumerate(zip(figure.axes, shown, strict=True)):
        kind = ("keys and values, 10 records", "sentences")[number % 2]
        measures = {name: of[measure] for name, of in kinds[kind]["measures"].items()}
        bars = drawn_bars(axes)
        assert axes.get_xscale() == "log"
        for names, bar in zip(methods.values(), bars, strict=True):
            line, _, (upright,) = bar
            costs, values = line.get_data()
            assert values.tolist() == [measures[name]["value"] for name in names]
            for name, cost, segment in zip(names, costs, upright.get_segments(), strict=True):
                passes, gradients = kinds[kind]["costs"][name].values()
                assert abs(np.log(cost / (passes + 2 * gradients))) < 0.15
                ends = [measures[name]["low"], measures[name]["high"]]
                np.testing.assert_allclose(segment[:, 1], ends)
        floor = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert np.asarray(floor[0].get_ydata())[0] == measures["random"]["value"]
        apart = {bar[0].get_xdata()[0] for bar in bars}
        assert len(apart) == len(bars), "what costs the same stands side by side"
        assert len({bar[0].get_color() for bar in bars}) == len(bars)
    assert figure.axes[0].get_title() == "keys and values\n10 records\nn = 20"
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "datamodeling score",
        "",
        "top-3 drop (nats)",
        "",
    ]
    assert_nothing_is_cut(figure)
