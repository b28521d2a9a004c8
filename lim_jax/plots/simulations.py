"""The figures of the paper's section 4."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lim_jax.paper.outcomes import Section4
from lim_jax.paper.simulation import DELTA, GRID
from lim_jax.plots.figure_style import (
    POSITION,
    legend_below,
    line_style,
    new_figure,
    shade_boundaries,
)

NAMES = {
    "baseline": "Baseline",
    "algorithm1": "Algorithm 1: balancing",
    "algorithm2": "Algorithm 2: reweighting",
    "algorithm3": "Algorithm 3: observability",
}
STYLES = {name: line_style(index) for index, name in enumerate(NAMES)}
SETTING = f"section 4's gated linear flow, linear loss (L = {GRID.size}, n = 1)"


def simulation_influence_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-influence-profiles`: densities on a logarithmic scale.

    Parameters
    ----------
    results
        All results of section 4, by `paper.section4`.

    Returns
    -------
    Figure
        The figure, with the densities of the baseline and of the three algorithms.
    """
    figure, axes = new_figure("influence density $L\\,m_i$ (uniform: 1)")
    for name, row in results.table.items():
        _draw_profile(axes, row.density, name, NAMES[name])
    return _finish(figure, axes, f"Influence-density profiles: {SETTING}")


def simulation_observability_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-observability-profiles`: trace densities.

    Parameters
    ----------
    results
        All results of section 4, by `paper.section4`.

    Returns
    -------
    Figure
        The figure, with the densities before and after Algorithm 3.
    """
    figure, axes = new_figure("trace-observability density $L\\,q_i$ (uniform: 1)")
    before = results.trace_densities["before"]
    after = results.trace_densities["after"]
    _draw_profile(axes, before, "baseline", "Before")
    _draw_profile(axes, after, "algorithm3", "After Algorithm 3")
    return _finish(figure, axes, f"Trace-observability profiles: {SETTING}")


def simulation_convergence(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-convergence`: each surrogate over its initial value.

    Parameters
    ----------
    results
        All results of section 4, by `paper.section4`.

    Returns
    -------
    Figure
        The figure, with a line for each of the three algorithms over its steps.
    """
    figure, axes = new_figure(
        "imbalance over the initial one (no unit)", "optimiser step or weight update"
    )
    surrogates = {
        "algorithm1": r"$\mathcal{E}_{inf}$",
        "algorithm2": r"$\mathcal{E}_{inf}$",
        "algorithm3": r"$\mathcal{E}_{obs}$",
    }
    for name, run in results.runs.items():
        history = np.asarray(run.history)
        label = f"{NAMES[name]} ({surrogates[name]})"
        axes.plot(history / history[0], **STYLES[name], markevery=20, label=label)
    return _finish(figure, axes, f"Surrogate imbalance that is controlled: {SETTING}")


def simulation_probe_errors(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-probe-bias`, with the exact values as lines.

    Parameters
    ----------
    results
        All results of section 4, by `paper.section4`.

    Returns
    -------
    Figure
        The figure, with the bias and the standard deviation of the empirical penalty by the number
        of probes, in per cent of the true one.
    """
    figure, axes = new_figure("per cent of the true penalty", "probes $N_{probe}$")
    study = results.probes
    counts = np.asarray(study.counts)
    pairs = {
        "bias": (study.bias, study.exact_bias),
        "standard deviation": (study.deviation, study.exact_deviation),
    }
    for index, (label, (sampled, exact)) in enumerate(pairs.items()):
        line = line_style(index)
        points = line_style(index)
        line.update(marker="")
        points.update(linestyle="", markersize=6)
        axes.plot(counts, np.asarray(exact), **line, label=f"{label}, exact")
        axes.plot(counts, np.asarray(sampled), **points, label=f"{label}, 1000 repetitions")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:.0f}" for count in counts])
    title = "Bias and single-batch deviation of the empirical penalty, section 4"
    _finish(figure, axes, title)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    return figure


def _draw_profile(axes: Axes, density: object, name: str, label: str) -> None:
    """Draw a density over position in the style of `name`, one of `STYLES`."""
    style = STYLES[name]
    axes.plot(np.asarray(GRID.nodes), np.asarray(density), **style, markevery=4, label=label)


def _finish(figure: Figure, axes: Axes, title: str) -> Figure:
    """Give a figure its logarithmic scale, title, regions and legend, and return it."""
    axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    if axes.get_xlabel() == POSITION:
        shade_boundaries(axes, DELTA)
    legend_below(figure, columns=2)
    return figure
