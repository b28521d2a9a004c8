"""What came of training networks that retrieve: by gold place, by arm, by time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.validation.gains import Gain
from benchmarks.validation.intervals import Interval
from benchmarks.validation.prediction import AT_GOLD, PROFILE, SCORES
from benchmarks.validation.prompted import PromptedStudy
from benchmarks.validation.remedies import PLAIN
from benchmarks.validation.retrievers import in_the_middle
from benchmarks.validation.study import LONG
from lim_jax.plots.figure_style import (
    COLOURS,
    ShownFigure,
    fit_scale,
    legend_below,
    line_style,
    new_figure,
)
from lim_jax.probes import Estimate

PLACE = "place that is asked for"
SHIFTED = ("accuracy (share)", "influence, margin (1 = uniform)")
LENGTHS = ("short", "longer")  # of the prompts of a published model
ACROSS = 3  # panels in a row at most
Record = Mapping[str, Any]


def accuracy_by_place(arms: Mapping[str, Record], title: str) -> Figure:
    """Draw accuracy by gold place, a panel for each arm: before it, after it, and after plain.

    Lines are means over seeds; bands are two standard errors to either side.
    """
    panel_names = [name for name in arms if name not in (PLAIN, LONG)]
    figure, panels = _panels(len(panel_names), title)
    plain = np.array(arms[PLAIN]["accuracy"])
    for axes, name in zip(panels, panel_names, strict=False):
        after = np.array(arms[name]["accuracy"])[-1]
        parts = {"before": plain[0], "plain training": plain[-1], "the arm": after}
        for index, (label, values) in enumerate(parts.items()):
            _band(axes, values, label, index)
        axes.set_title(name, fontsize=8)
        axes.set_ylim(-0.03, 1.03)
    _label(figure, panels, PLACE, "accuracy (share)")
    return figure


def influence_by_record(settings: Mapping[str, Record], title: str) -> Figure:
    """Draw influence by record beside accuracy by gold place, a panel for each network."""
    figure, panels = _panels(len(settings), title)
    for axes, (name, record) in zip(panels, settings.items(), strict=False):
        parts = {
            "accuracy (share)": record["accuracy"],
            "influence, answer's cross-entropy (1 = uniform)": record["answer_records"],
            "influence, margin (1 = uniform)": record["margin_records"],
        }
        for index, (label, values) in enumerate(parts.items()):
            _band(axes, np.array(values), label, index)
        axes.set_title(name, fontsize=8)
    fit_scale(panels[0], log=False)  # which all share
    _label(figure, panels, "record", "share, or density")
    return figure


def hybrid_beside_attention(networks: Mapping[str, Record], title: str) -> Figure:
    """Draw accuracy and influence by record of networks that differ in how their layers read."""
    figure, panels = _panels(3, title)
    values_of_panels = (
        ("accuracy (share)", lambda record: record["accuracy"]),
        *(
            (f"influence, margin (1 = uniform),\n{when}", of)
            for when, of in (
                ("before training", lambda record: record["before"]["margin_records"]),
                ("trained", lambda record: record["margin_records"]),
            )
        ),
    )
    for axes, (words, of) in zip(panels, values_of_panels, strict=True):
        for index, (name, record) in enumerate(networks.items()):
            _band(axes, np.array(of(record)), name, index)
        axes.set_title(words, fontsize=8)
    _label(figure, panels, "record", "share, or density")
    return figure


def middle_against_time(arms: Mapping[str, Record], title: str) -> Figure:
    """Draw accuracy in the middle over the processor's seconds of training, all seeds."""
    figure, axes = new_figure(
        "accuracy in the middle (share)", "processor's seconds of training, all seeds", title
    )
    for index, (name, record) in enumerate(arms.items()):
        if name == PLAIN:
            continue  # the longer run begins with it
        values = np.array(record["accuracy"])
        middle = in_the_middle(values).mean(axis=1)
        seconds = np.array(record["steps"]) * record["seconds_per_step"]
        style: dict[str, Any] = {"color": "black"} if name == LONG else line_style(index)
        axes.plot(seconds, middle, label=name, **style)
    legend_below(figure, columns=3)
    return figure


def gains_of_arms(gains: Mapping[str, Gain], title: str) -> Figure:
    """Draw each arm's gain in the middle over plain training, with 95 % intervals over seeds."""
    figure = ShownFigure(7, 1.2 + 0.36 * len(gains))
    axes = figure.add_subplot()
    for row, gain in enumerate(gains.values()):
        pairs = (
            ("equal steps", gain.middle, 0.12),
            ("equal time", gain.middle_at_equal_time, -0.12),
        )
        for index, (label, interval, shift) in enumerate(pairs):
            if interval is None:
                continue
            value, low, high = map(float, interval)
            axes.errorbar(
                value,
                row + shift,
                xerr=[[value - low], [high - value]],
                fmt="os"[index],
                color=COLOURS[index],
                markersize=4,
                capsize=2,
                label=label,
            )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(gains)), list(gains), fontsize=8)
    axes.set_ylim(len(gains) - 0.5, -0.5)
    axes.set_xlabel("gain in the middle over plain training (95 %)")
    axes.set_title(title, fontsize=10, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(figure)
    return figure


def gain_against_cost(gains: Mapping[str, Gain], title: str) -> Figure:
    """Draw what each variant of a remedy gains in the middle over what its step costs.

    Intervals are of 95 %, over seeds.
    """
    figure, axes = new_figure(
        "gain in the middle,\nequal steps",
        "time of a step over that of a plain one",
        title,
    )
    for index, (name, gain) in enumerate(gains.items()):
        value, low, high = map(float, gain.middle)
        axes.errorbar(
            gain.time,
            value,
            yerr=[[value - low], [high - value]],
            fmt="os^Dv"[index // 8 % 5],
            color=COLOURS[index % len(COLOURS)],
            markersize=4,
            capsize=2,
            label=name,
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(left=0)
    legend_below(figure, columns=3)
    return figure


def rank_correlations(predictions: Mapping[str, Sequence[Record]], title: str) -> Figure:
    """Draw how each attribution goes with accuracy, a panel for each network.

    Spearman's correlation over the records, with the bootstrap's interval over seeds: of the
    profile, and of the record that is asked for.
    """
    figure, panels = _panels(len(predictions), title)
    names = list(
        dict.fromkeys(prediction["attribution"] for prediction in next(iter(predictions.values())))
    )
    for axes, (name, rows) in zip(panels, predictions.items(), strict=False):
        scored = [prediction for prediction in rows if prediction["score"] == SCORES[0]]
        for index, of in enumerate((PROFILE, AT_GOLD)):
            ends = np.array(
                [
                    [prediction["interval"][end] for end in Interval._fields]
                    for prediction in scored
                    if prediction["of"] == of
                ],
                float,
            )
            value, low, high = ends.T
            axes.errorbar(
                value,
                np.arange(len(names)) + 0.3 * index - 0.15,
                xerr=[value - low, high - value],
                fmt="os"[index],
                color=COLOURS[index],
                markersize=3,
                capsize=2,
                label=of,
            )
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(-1.05, 1.05)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(name, fontsize=8)
    panels[0].set_ylim(len(names) - 0.5, -0.5)  # which all share
    for axes in panels:
        axes.tick_params(labelsize=7)
        axes.set_xlabel("rank correlation with accuracy", fontsize=7)
    legend_below(figure)
    return figure


def shifted_records(shifts: Mapping[str, Record], title: str) -> Figure:
    """Draw accuracy and influence by record at the length of training and beyond it.

    A row of panels for each length; a line for each network, with two standard errors over seeds.
    """
    lengths = list(next(iter(shifts.values())))
    figure = ShownFigure(7, 1 + 2.2 * len(lengths))
    grid = figure.subplots(len(lengths), 2, squeeze=False)
    for row, length in zip(grid, lengths, strict=True):
        for axes, part, words in zip(row, ("accuracy", "influence"), SHIFTED, strict=True):
            for index, (name, record) in enumerate(shifts.items()):
                _band(axes, np.array(record[length][part]), name, index)
            axes.set_title(f"contexts of {length}", fontsize=8)
            axes.set_ylabel(words, fontsize=8)
            axes.set_xlabel("record", fontsize=7)
            axes.tick_params(labelsize=7)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    legend_below(figure, columns=3)
    return figure


def prompted_records(result: PromptedStudy, title: str) -> Figure:
    """Draw what a published model makes of each record: influence above, accuracy below."""
    figure = ShownFigure(7, 5)
    upper, lower = figure.subplots(2, sharex=True)
    names = [name for name in result.profile if "influence" in name]
    for index, name in enumerate(names):
        _with_errors(upper, result.profile[name], name, index)
    _with_errors(lower, result.scores["accuracy"], "accuracy, greedy decoding", len(names))
    upper.set_ylabel("influence by record (1 = uniform)", fontsize=8)
    lower.set_ylabel("accuracy (share)", fontsize=8)
    lower.set_xlabel("record, or place of the record that is asked for", fontsize=8)
    upper.set_title(title, fontsize=10, wrap=True)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))  # which both share
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    legend_below(figure, columns=2)
    return figure


def tuned_places(results: Record, title: str) -> Figure:
    """Draw accuracy by gold place before a published model is trained, early on, and in the end.

    A column for each arm; above prompts as in training, below longer ones. Lines are means over
    seeds; bands are two standard errors to either side.
    """
    arms = results["arms"]
    figure = ShownFigure(7.5, 5)
    grid = figure.subplots(len(LENGTHS), len(arms), sharey=True, squeeze=False)
    for row, length in zip(grid, LENGTHS, strict=True):
        records = results["tuning"][length]["records"]
        for axes, (name, arm) in zip(row, arms.items(), strict=True):
            for index, stage in enumerate(sorted({0, 1, len(arm["steps"]) - 1})):
                label = f"after {arm['steps'][stage]} steps" if stage else "before"
                _band(axes, np.array(arm[length]["accuracy"][stage]), label, index)
            axes.set_title(f"{name}, {records} records", fontsize=8)
            axes.set_ylim(-0.03, 1.03)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    _label(figure, list(grid.ravel()), PLACE, "accuracy (share)")
    return figure


def tuned_course(results: Record, title: str) -> Figure:
    """Draw mean accuracy of a published model over the processor's seconds of its training.

    Means over seeds, with two standard errors: full lines of prompts as in training, dotted ones of
    longer prompts.
    """
    figure, axes = new_figure("accuracy (share)", "processor's seconds of training", title)
    for index, (name, arm) in enumerate(results["arms"].items()):
        seconds = np.array(arm["steps"]) * np.mean(arm["seconds_per_step"])
        for length, line in zip(LENGTHS, ("-", ":"), strict=True):
            by_seed = np.array(arm[length]["accuracy"]).mean(axis=2).T
            label = f"{name}, {results['tuning'][length]['records']} records"
            bars = axes.errorbar(
                seconds,
                by_seed.mean(axis=0),
                yerr=2 * _error_of_mean(by_seed),
                capsize=2,
                label=label,
                **line_style(index),
            )
            bars.lines[0].set_linestyle(line)
    axes.set_ylim(-0.03, 1.03)
    legend_below(figure, columns=2)
    return figure


def _with_errors(axes: Axes, estimate: Estimate, label: str, index: int) -> None:
    """Draw an estimate with two standard errors to either side."""
    value = np.asarray(estimate.value)
    error = np.asarray(estimate.error)
    records = np.arange(1, len(value) + 1)
    axes.errorbar(records, value, yerr=2 * error, capsize=2, label=label, **line_style(index))


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    rows = -(-count // ACROSS)
    figure = ShownFigure(7, 0.8 + 1.9 * rows)
    # As many across as fill the rows: one or two panels have the whole width.
    grid = figure.subplots(rows, -(-count // rows), sharex=False, sharey=True, squeeze=False)
    panels = list(grid.ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure, panels


def _band(axes: Axes, values: np.ndarray, label: str, index: int) -> None:
    """Draw the mean over seeds, of shape (seeds, records), and its errors."""
    mean = values.mean(axis=0)
    error = _error_of_mean(values)
    style = line_style(index)
    records = np.arange(1, len(mean) + 1)
    axes.plot(records, mean, label=label, **style)
    axes.fill_between(records, mean - 2 * error, mean + 2 * error, color=style["color"], alpha=0.2)


def _error_of_mean(values: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean over seeds; zero with one."""
    if len(values) == 1:
        return np.zeros(values.shape[1:])
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _label(figure: Figure, panels: Sequence[Axes], xlabel: str, ylabel: str) -> None:
    for axes in panels:
        axes.tick_params(labelsize=7)
        axes.set_xlabel(xlabel, fontsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(ylabel, fontsize=8)
    legend_below(figure, columns=3)
