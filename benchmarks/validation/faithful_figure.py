"""How faithful attributions are, over what they cost."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.validation.faithfulness import MEASURES, Cost
from lim_jax.plots.drawing import COLOURS, MARKERS, ShownFigure, legend_below

Record = Mapping[str, Any]
SHOWN = (MEASURES[-1], MEASURES[1])
TICKS = (1, 3, 10, 30, 100)
BESIDE = 1.15


def faithfulness_against_cost(kinds: Mapping[str, Record], title: str) -> Figure:
    """Draw faithfulness over cost in forward passes, with 95 % intervals over prompts.

    A column of panels for each kind of prompt: the datamodeling score above, the top-3 drop below.
    What costs nothing, a random ranking, is a line.

    Parameters
    ----------
    kinds
        By kind of prompt ``faithfulness_study(...)[kind].record()``.
    title
        Of the figure.
    """
    figure = ShownFigure(7, 6.4)
    grid = figure.subplots(len(SHOWN), len(kinds), sharex=True, sharey="row", squeeze=False)
    for column, (kind, one) in enumerate(kinds.items()):
        for row, name in enumerate(SHOWN):
            axes = grid[row, column]
            _draw(axes, one, MEASURES.index(name))
            if column == 0:
                axes.set_ylabel(name if row == 0 else f"{name} (nats)", fontsize=8)
        grid[0, column].set_title(f"{kind}, n = {one['prompts']}", fontsize=8)
        grid[-1, column].set_xlabel("cost in forward passes", fontsize=8)
    figure.suptitle(title, fontsize=10)
    legend_below(figure, columns=3)
    return figure


def _draw(axes: Axes, one: Record, measure: int) -> None:
    totals = {name: Cost(**cost).total for name, cost in one["costs"].items()}
    for index, (name, interval) in enumerate(one["measures"].items()):
        value, low, high = (interval[end][measure] for end in ("value", "low", "high"))
        if totals[name] == 0:
            axes.axhline(value, color="black", linestyle=":", linewidth=1, label=name)
            continue
        # Those that cost the same stand beside one another.
        alike = [other for other, total in totals.items() if total == totals[name]]
        beside = BESIDE ** (alike.index(name) - (len(alike) - 1) / 2)
        axes.errorbar(
            totals[name] * beside, value, yerr=[[value - low], [high - value]],
            fmt=MARKERS[index % len(MARKERS)], color=COLOURS[index % len(COLOURS)], markersize=4,
            capsize=2, label=name, fillstyle="full" if index < len(COLOURS) else "none",
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
