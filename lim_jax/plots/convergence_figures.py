"""Measured orders, and errors against cost."""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

from lim_jax._checks import require, require_several, require_text
from lim_jax.limits.rows import Curve, Row, grouped
from lim_jax.plots.figure_style import (
    End,
    ShownFigure,
    label_ends,
    legend_below,
    line_style,
    literal,
    new_figure,
    positive_part,
)

AT_MOST = 5  # series in a panel
NARROW = "\u00a0±\u00a0"  # not broken at the end of a line
GREY = "#666666"
ERROR = "error (in the quantity's unit)"


def convergence_rates(rows: Sequence[Row], title: str) -> Figure:
    """Draw studies on logarithmic axes, with their measured orders, slopes and bounds.

    A panel holds five series of a topic at most. The measured order stands at the end of each line,
    with its standard error; triangles have the claimed slope, or else the expected one; bounds are
    dotted, in the colour of their series.

    Parameters
    ----------
    rows
        The rows of studies, such as `limits.convergence_study` returns or the first that
        `limits.measure` does. Rows whose names agree up to the first comma share a topic.
    title
        The heading of the figure.

    Returns
    -------
    Figure
        The figure, to save or show.

    Raises
    ------
    ValueError
        If `rows` is not a sequence of rows, at least one, or `title` not a string.

    Examples
    --------
    >>> from lim_jax.limits.refinement import Study
    >>> study = Study("eq:mine", 1.0, (10.0, 20.0, 40.0, 80.0), (0.4, 0.2, 0.1, 0.05), None, 0.0)
    >>> figure = convergence_rates([Row("state", study, 1.0)], "mine")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['claimed 1, measured 1.00', 'state: 1.00 ± 0.00']
    """
    require_several(rows, Row, "rows", "Take what limits.convergence_study gives.")
    require_text(title, "title")
    panels = list(_panels(rows))
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = ShownFigure(2.0 + 5.5 * columns, 3.6 * lines + 0.5)
    figure.suptitle(literal(title), fontsize=11)
    for index, (name, members) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, index + 1)
        _draw_panel(axes, members, name)
        axes.set_title(literal(name) if name != title else "", fontsize=9)
    mark = partial(Line2D, [], [], color=GREY)
    marks = [
        mark(marker="o", markersize=3.5, label="error: order ± standard error"),
        Patch(facecolor="none", edgecolor=GREY, label="slope claimed or expected"),
    ]
    if any(row.study.bounds for row in rows):
        marks.append(mark(linestyle=":", label="bound, in its series' colour"))
    legend_below(figure, *marks)
    return figure


def _panels(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield panels of rows by topic, and large topics by the last part of their rows' names."""
    topics = grouped(rows, lambda row: row.topic)
    if all(len(members) == 1 for members in topics.values()):
        topics = {"": list(rows)}
    for topic, members in topics.items():
        parts = grouped(members, lambda row: re.split(", |: ", row.name)[-1])
        if len(members) <= AT_MOST or len(parts) == len(members):
            parts = {"": members}
        for part, series in parts.items():
            name = ", ".join(filter(None, (topic, part)))
            for start in range(0, len(series), AT_MOST):
                yield name, series[start : start + AT_MOST]


def _draw_panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw the errors, bounds, orders and slopes of a panel's studies."""
    ends = []
    for index, row in enumerate(rows):
        study = row.study
        style = line_style(index)
        axes.loglog(study.refinements, study.errors, **style)
        if study.bounds is not None:
            axes.loglog(study.refinements, study.bounds, ":", color=style["color"], linewidth=1)
        order = study.order
        text = f"{_short(row.name, name)}: {order.value:.2f} ± {order.error:.2f}"
        text = textwrap.fill(text.replace(" ± ", NARROW), 30).replace(NARROW, " ± ")
        ends.append(End(study.refinements[-1], study.errors[-1], text, style["color"]))
    for order, members in grouped(rows, _slope_of).items():
        if order:
            _draw_slope(axes, order, members)
    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** 0.08, high)
    ticks = sorted({n for row in rows for n in row.study.refinements})
    axes.set_xticks(ticks, [f"{n:.4g}" for n in ticks], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(_joined(row.study.xlabel for row in rows), fontsize=8)
    axes.set_ylabel(_joined(row.study.ylabel for row in rows), fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    label_ends(axes, ends)


def _joined(labels: Iterable[str]) -> str:
    """Join the labels of a panel's studies, each once."""
    return literal(", ".join(dict.fromkeys(labels)))


def _short(name: str, panel: str) -> str:
    """Return a row's name without what the panel's name says."""
    topic, _, last = panel.partition(", ")
    short = name.removeprefix(f"{topic}, ")
    return re.sub(f"(, |: ){re.escape(last)}$", "", short) if last else short


def _slope_of(row: Row) -> float:
    """Return the order that is claimed, or else expected, or else 0, which has no slope."""
    return float((row.expected if row.study.claimed is None else row.study.claimed) or 0)


def _draw_slope(axes: Axes, order: float, rows: Sequence[Row]) -> None:
    """Draw a triangle of the slope below the lowest of its rows, with what was measured."""
    lowest = min((row.study for row in rows), key=lambda study: study.errors[-2])
    start, stop = lowest.refinements[-2:]
    high, _ = lowest.errors[-2:]
    top = high / 1.6
    bottom = top * (start / stop) ** order
    axes.plot((start, stop, start, start), (top, bottom, bottom, top), color=GREY, linewidth=0.8)
    measured = [f"{value:.2f}" for value in sorted(row.study.order.value for row in rows)]
    kinds = {"expected" if row.study.claimed is None else "claimed" for row in rows}
    word = " or ".join(sorted(kinds))
    spelt = " to ".join(dict.fromkeys((measured[0], measured[-1])))
    axes.annotate(
        f"{word} {order:.3g}, measured {spelt}",
        xy=(stop, min(top, bottom)),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=6.5,
        color=GREY,
        # On paper of its own: no line of another series strikes it through.
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        zorder=3,
    )


def error_against_cost(curves: Sequence[Curve], cost: str) -> Figure:
    """Draw the errors of methods against their cost, on logarithmic axes.

    Parameters
    ----------
    curves
        The errors and costs of each method, such as the second that `limits.measure` returns holds
        under ``"depth"`` or ``"position"``. The name of each stands at the end of its line.
    cost
        The label of the axis of costs, which says what is counted.

    Returns
    -------
    Figure
        The figure, to save or show.

    Raises
    ------
    ValueError
        If `curves` is not a sequence of curves, at least one, one has no positive finite error, or
        `cost` is not a string.
    """
    require_several(
        curves,
        Curve,
        "curves",
        'Take what limits.measure returns second, under "depth" or "position".',
    )
    require_text(cost, "cost")
    figure, axes = new_figure(ERROR, literal(cost))
    ends = []
    for index, curve in enumerate(curves):
        style = line_style(index)
        errors = positive_part(np.asarray(curve.errors, float))
        drawn = np.flatnonzero(np.isfinite(errors))
        require(
            drawn.size > 0,
            "curves",
            got=f"errors {list(curve.errors)} of {curve.name!r}",
            expected="a positive finite error in each curve: the axes are logarithmic",
            cure="Leave out a curve without one.",
        )
        axes.loglog(curve.costs, errors, **style, label=literal(curve.name))
        last = drawn[-1]
        ends.append(End(curve.costs[last], float(errors[last]), curve.name, style["color"]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    label_ends(axes, ends)
    return figure
