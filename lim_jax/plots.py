"""Figures of result objects. Each function returns a `matplotlib.figure.Figure` to save or show."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lim_jax.channels import CHANNELS
from lim_jax.convergence import Curve, Row
from lim_jax.criteria import Certificate
from lim_jax.explain import Explanation
from lim_jax.grid import Regions
from lim_jax.influence import Influence
from lim_jax.paper import DELTA, GRID, Section4
from lim_jax.probes import Estimate

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
CHANNEL_COLOURS = ("#0072b2", "#e69f00", "#009e73")


def influence_profile(result: Influence) -> Figure:
    r"""Draw an influence density with its standard errors, its regions and its indices.

    The band is two standard errors over the data law to either side.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.paper import gate_influence
    >>> figure = influence_profile(gate_influence(jnp.zeros(48)))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['position p']
    """
    figure, axes = _figure("influence density m(p)")
    positions, density = np.asarray(result.grid.nodes), np.asarray(result.density)
    error = 2 * np.asarray(result.density_error)
    if np.isfinite(error).all():
        axes.fill_between(
            positions, density - error, density + error, color=COLOURS["algorithm1"], alpha=0.25
        )
    axes.plot(positions, density, color=COLOURS["algorithm1"])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    _shade_boundaries(axes, float(result.regions.delta))
    _draw_averages(axes, result.regions, np.asarray(result.regional_averages))
    found = result.indices()
    axes.set_title(
        f"gap {float(found.gap):+.3f}   LIM {float(found.lim):+.3f}   "
        f"SC {float(found.symmetric_contrast):+.3f}   (L = {result.grid.size})",
        fontsize=10,
    )
    axes.set_ylim(bottom=0)
    return figure


def simulation_influence_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-influence-profiles`: densities on a logarithmic scale."""
    figure, axes = _figure("influence density $L\\,m_i$")
    for name, row in results.table.items():
        _draw_profile(axes, row.density, COLOURS[name], NAMES[name])
    axes.set_title("Influence-density profiles", fontsize=10)
    return _finished(figure, axes)


def simulation_observability_profiles(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-observability-profiles`: trace densities."""
    figure, axes = _figure("trace-observability density $L\\,q_i$")
    before, after = results.trace_densities["before"], results.trace_densities["after"]
    _draw_profile(axes, before, COLOURS["baseline"], "Before")
    _draw_profile(axes, after, COLOURS["algorithm3"], "After Algorithm 3")
    axes.set_title("Normalised trace-observability profile", fontsize=10)
    return _finished(figure, axes)


def simulation_convergence(results: Section4) -> Figure:
    """Draw the paper's `fig:simulation-convergence`: each surrogate over its initial value."""
    figure, axes = _figure("imbalance / initial imbalance", "optimiser step or weight update")
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
    figure, axes = _figure("per cent of the true penalty", "probes $N_{probe}$")
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


def channel_energies(result: Explanation, title: str) -> Figure:
    """Draw the influence density, and below it each channel's share of the channels' energy.

    Cross terms have no share; where the influence is not the sum of the energies they make the
    difference, which the dashed line shows.
    """
    figure = Figure(figsize=(7, 5), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    positions, total = np.asarray(result.influence.grid.nodes), float(result.influence.total)
    energies = np.asarray(result.channel_energies)
    upper.semilogy(positions, np.asarray(result.influence.density), "k", label="influence density")
    upper.semilogy(
        positions, energies.sum(axis=0) / (total or 1), "k--", linewidth=0.8, label="channels only"
    )
    shares = energies / np.maximum(energies.sum(axis=0), np.finfo(energies.dtype).tiny)
    lower.stackplot(positions, shares, labels=CHANNELS, colors=CHANNEL_COLOURS, alpha=0.8)
    lower.set_xlabel("position p")
    lower.set_ylabel("share of the energy")
    upper.set_title(title, fontsize=10)
    for axes in (upper, lower):
        _shade_boundaries(axes, float(result.influence.regions.delta))
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def cone_masses(masses: Mapping[str, Estimate], regions: Regions) -> Figure:
    """Draw cone masses on a logarithmic scale, with two standard errors to either side."""
    figure, axes = _figure("cone mass")
    positions = np.asarray(regions.grid.nodes)
    for index, (name, mass) in enumerate(masses.items()):
        value, error = np.asarray(mass.value), 2 * np.asarray(mass.error)
        axes.plot(positions, value, color=f"C{index}", label=name)
        if np.isfinite(error).all():
            lower = np.maximum(value - error, value / 100)
            axes.fill_between(positions, lower, value + error, color=f"C{index}", alpha=0.25)
    axes.set_yscale("log")
    _shade_boundaries(axes, float(regions.delta))
    axes.legend(frameon=False, fontsize=8)
    return figure


def certificate_margins(certificates: Sequence[Certificate], title: str) -> Figure:
    """Draw both sides of every inequality over the larger one, and each criterion's verdict."""
    figure, axes = _figure("", "side over the larger side's size")
    ticks: list[str] = []
    for certificate in certificates:
        verdict = "vacuous" if certificate.vacuous else "holds" if certificate.holds else "fails"
        for inequality in certificate.inequalities:
            row, sides = len(ticks), np.array([inequality.greater, inequality.lesser])
            sides = sides / (np.abs(sides).max() or 1)
            axes.plot(sides, (row, row), color="#999999", linewidth=1, zorder=1)
            axes.plot(sides[0], row, "o", color="#0072b2", label="must be greater")
            axes.plot(sides[1], row, "s", color="#cc3366", label="must be lesser")
            ticks.append(f"{certificate.name}: {verdict}")
    axes.set_yticks(range(len(ticks)), ticks, fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], frameon=False, fontsize=8, loc="lower left")
    return figure


def convergence_rates(rows: Sequence[Row], title: str) -> Figure:
    """Draw studies on logarithmic axes, with each one's fitted order and stated bound."""
    figure, axes = _figure("error", "refinement (tokens or layers)")
    for index, row in enumerate(rows):
        study, colour = row.study, f"C{index % 10}"
        label = f"{row.name}: {study.order.value:.2f}"
        style = ("o-", "s--", "^-.")[index // 10 % 3]  # ten colours, then another line
        axes.loglog(study.refinements, study.errors, style, color=colour, markersize=3, label=label)
        if study.bounds is not None:
            axes.loglog(study.refinements, study.bounds, ":", color=colour, linewidth=0.8)
    axes.set_title(f"{title} (dotted: stated bounds)", fontsize=10)
    axes.legend(frameon=False, fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.set_size_inches(11, 4.5)
    return figure


def error_against_cost(curves: Sequence[Curve], cost: str) -> Figure:
    """Draw what each method buys: errors against cost on logarithmic axes."""
    figure, axes = _figure("error", cost)
    for curve in curves:
        axes.loglog(curve.costs, curve.errors, "o-", markersize=3, label=curve.name)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _figure(ylabel: str, xlabel: str = "position p") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw_profile(axes: Axes, density: object, colour: str, label: str) -> None:
    axes.plot(np.asarray(GRID.nodes), np.asarray(density), color=colour, label=label)
    axes.set_yscale("log")


def _draw_averages(axes: Axes, regions: Regions, averages: np.ndarray) -> None:
    delta = float(regions.delta)
    ends = np.array([[0, delta], [delta, 1 - delta], [1 - delta, 1]])
    axes.hlines(averages, *ends.T, color="black", linewidth=1.2, label="regional averages")
    axes.legend(frameon=False, fontsize=8)


def _shade_boundaries(axes: Axes, delta: float) -> None:
    for start, stop in ((0, delta), (1 - delta, 1)):
        axes.axvspan(start, stop, color="black", alpha=0.05, linewidth=0)
    axes.set_xlim(0, 1)


def _finished(figure: Figure, axes: Axes) -> Figure:
    if axes.get_xlabel() == "position p":
        _shade_boundaries(axes, DELTA)
    axes.legend(frameon=False, fontsize=8)
    return figure
