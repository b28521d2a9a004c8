"""The figures of the paper's section 4."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lim_jax.plots.drawing import new_figure, shade_boundaries
from lim_jax.studies.paper import DELTA, GRID, Section4

NAMES = {
    "baseline": "Baseline",
    "algorithm1": "Algorithm 1: balancing",
    "algorithm2": "Algorithm 2: reweighting",
    "algorithm3": "Algorithm 3: observability",
}
COLOURS = {
    "baseline": "#444444",
    "algorithm1": "#0072b2",
    "algorithm2": "#e69f00",
    "algorithm3": "#cc3366",
}


def simulation_influence_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-influence-profiles`: densities on a logarithmic scale."""
    figure, axes = new_figure("influence density $L\\,m_i$")
    for name, row in results.table.items():
        _draw_profile(axes, row.density, COLOURS[name], NAMES[name])
    axes.set_title("Influence-density profiles", fontsize=10)
    return _finished(figure, axes)


def simulation_observability_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-observability-profiles`: trace densities."""
    figure, axes = new_figure("trace-observability density $L\\,q_i$")
    before, after = results.trace_densities["before"], results.trace_densities["after"]
    _draw_profile(axes, before, COLOURS["baseline"], "Before")
    _draw_profile(axes, after, COLOURS["algorithm3"], "After Algorithm 3")
    axes.set_title("Normalised trace-observability profile", fontsize=10)
    return _finished(figure, axes)


def simulation_convergence(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-convergence`: each surrogate over its initial value."""
    figure, axes = new_figure("imbalance / initial imbalance", "optimiser step or weight update")
    surrogates = {
        "algorithm1": r"$\mathcal{E}_{inf}$",
        "algorithm2": r"$\mathcal{E}_{inf}$",
        "algorithm3": r"$\mathcal{E}_{obs}$",
    }
    for name, run in results.runs.items():
        history = np.asarray(run.history)
        label = f"{NAMES[name]} ({surrogates[name]})"
        axes.plot(history / history[0], color=COLOURS[name], label=label)
    axes.set_yscale("log")
    axes.set_title("Directly controlled surrogate imbalance", fontsize=10)
    return _finished(figure, axes)


def simulation_probe_errors(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-probe-bias`, with the exact values as lines."""
    figure, axes = new_figure("per cent of the true penalty", "probes $N_{probe}$")
    study = results.probes
    counts = np.asarray(study.counts)
    for sampled, exact, colour, label in (
        (study.bias, study.exact_bias, COLOURS["algorithm1"], "bias"),
        (study.deviation, study.exact_deviation, COLOURS["algorithm3"], "standard deviation"),
    ):
        axes.plot(counts, np.asarray(exact), color=colour, label=f"{label}, exact")
        axes.plot(
            counts, np.asarray(sampled), "o", color=colour, label=f"{label}, 1000 repetitions"
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:.0f}" for count in counts])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_title("Bias and single-batch deviation of the empirical penalty", fontsize=10)
    return _finished(figure, axes)


def _draw_profile(axes: Axes, density: object, colour: str, label: str) -> None:
    axes.plot(np.asarray(GRID.nodes), np.asarray(density), color=colour, label=label)
    axes.set_yscale("log")


def _finished(figure: Figure, axes: Axes) -> Figure:
    if axes.get_xlabel() == "position p":
        shade_boundaries(axes, DELTA)
    axes.legend(frameon=False, fontsize=8)
    return figure
