"""How faithful attributions are, over what they cost."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.validation.faithfulness import RANDOM
from benchmarks.validation.judged_faithfulness import SCORE
from lim_jax.attribution.method import Cost
from lim_jax.plots.figure_style import COLOURS, MARKERS, ShownFigure, legend_below

Record = Mapping[str, Any]
SHOWN = (SCORE, "top-3 drop")
# In the tables, but not drawn, for there are seven colours: near another, or far below all.
LEFT_OUT = ("influence, margin", "gradient times input", "gradient times input, size")
TICKS = (1, 3, 10, 30, 100)
BESIDE = 1.04


def faithfulness_against_cost(kinds: Mapping[str, Record], title: str) -> Figure:
    """Draw faithfulness over cost in forward passes, with 95 % intervals over prompts.

    A column of panels for each kind of prompt: the datamodeling score above, the top-3 drop below.
    A method that may cost more or less is a line. What costs nothing, a random ranking, is dotted.

    Parameters
    ----------
    kinds
        By kind of prompt, of ``faithfulness_study(...)["kinds"]``.
    title
        Of the figure.
    """
    figure = ShownFigure(2 + 2.2 * len(kinds), 6.2)
    grid = figure.subplots(len(SHOWN), len(kinds), sharex=True, sharey="row", squeeze=False)
    names = [name for record in kinds.values() for name in record["costs"] if name not in LEFT_OUT]
    # The mask gradient has the first colour.
    names = sorted(dict.fromkeys(names), key=lambda name: not name.startswith("mask-"))
    series = [_series(name) for name in names if name != RANDOM]
    styles = {name: number for number, name in enumerate(dict.fromkeys(series))}
    for column, (kind, record) in enumerate(kinds.items()):
        for row, measure in enumerate(SHOWN):
            axes = grid[row, column]
            _draw(axes, record, measure, styles)
            floor = record["measures"][RANDOM][measure]["value"]
            axes.axhline(floor, color="black", linestyle=":", linewidth=1, label=RANDOM)
            if column == 0:
                axes.set_ylabel(measure if row == 0 else f"{measure} (nats)", fontsize=8)
        where = kind.replace(", ", "\n")
        grid[0, column].set_title(f"{where}\nn = {record['judged']}", fontsize=8)
        grid[-1, column].set_xlabel("cost in forward passes", fontsize=8)
    figure.suptitle(title, fontsize=10)
    legend_below(figure, columns=4)
    return figure


def _series(name: str) -> str:
    """Return what is one method: the mask gradient and its paths, a regression on more or fewer."""
    return "mask gradient and path" if name.startswith("mask-") else name.partition(" on ")[0]


def _draw(axes: Axes, record: Record, measure: str, styles: Mapping[str, int]) -> None:
    for series, style in styles.items():
        points = sorted(
            (Cost(**record["costs"][name]).total, *interval[measure].values())
            for name, interval in record["measures"].items()
            if _series(name) == series
        )
        if not points:
            continue
        costs, values, lows, highs = zip(*points, strict=True)
        below = [value - low for value, low in zip(values, lows, strict=True)]
        above = [high - value for value, high in zip(values, highs, strict=True)]
        # Those that cost the same stand beside one another.
        beside = BESIDE ** (style - len(styles) / 2)
        axes.errorbar(
            [cost * beside for cost in costs],
            values,
            yerr=[below, above],
            label=series,
            fmt=f"{MARKERS[style % len(MARKERS)]}-",
            color=COLOURS[style % len(COLOURS)],
            markersize=4,
            linewidth=1,
            capsize=2,
        )
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
