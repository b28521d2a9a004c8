"""Measured orders, and what each method buys."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from lim_jax.limits.convergence import Curve, Row
from lim_jax.plots.drawing import new_figure


def convergence_rates(rows: Sequence[Row], title: str) -> Figure:
    """Draw studies on logarithmic axes, with each one's fitted order and explicit bound."""
    figure, axes = new_figure("error", "refinement (tokens or layers)")
    for index, row in enumerate(rows):
        study, colour = row.study, f"C{index % 10}"
        label = f"{row.name}: {study.order.value:.2f}"
        style = ("o-", "s--", "^-.")[index // 10 % 3]  # ten colours, then another line
        axes.loglog(study.refinements, study.errors, style, color=colour, markersize=3, label=label)
        if study.bounds is not None:
            axes.loglog(study.refinements, study.bounds, ":", color=colour, linewidth=0.8)
    axes.set_title(f"{title} (dotted: bounds)", fontsize=10)
    axes.legend(frameon=False, fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.set_size_inches(11, 4.5)
    return figure


def error_against_cost(curves: Sequence[Curve], cost: str) -> Figure:
    """Draw what each method buys: errors against cost on logarithmic axes."""
    figure, axes = new_figure("error", cost)
    for curve in curves:
        axes.loglog(curve.costs, curve.errors, "o-", markersize=3, label=curve.name)
    axes.legend(frameon=False, fontsize=8)
    return figure
