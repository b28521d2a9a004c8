"""Why a network uses what it uses: channels, cone masses, certificates."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lim_jax.adjoint.certificate import Certificate
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.grid import Regions
from lim_jax.plots.drawing import new_figure, shade_boundaries
from lim_jax.probes import Estimate
from lim_jax.studies.explanation import HOPS, Explanation

CHANNEL_COLOURS = ("#0072b2", "#e69f00", "#009e73")


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
        shade_boundaries(axes, float(result.influence.regions.delta))
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def hop_energies(result: Explanation, title: str) -> Figure:
    """Draw the influence energy over positions, and its parts by attention hops.

    Where a part is zero, as that of no hop is wherever no query is, it is not drawn.
    """
    figure, axes = new_figure("energy")
    positions, parts = np.asarray(result.influence.grid.nodes), np.asarray(result.hop_energies)
    axes.plot(positions, np.asarray(result.influence.energy), "k--", linewidth=0.8, label="all")
    for index, (name, part) in enumerate(zip(HOPS, parts, strict=True)):
        drawn = np.where(part > 0, part, np.nan)
        axes.plot(positions, drawn, ".-", clip_on=False, color=f"C{index}", label=name)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=10)
    shade_boundaries(axes, float(result.influence.regions.delta))
    axes.legend(frameon=False, fontsize=8)
    return figure


def cone_masses(masses: Mapping[str, Estimate], regions: Regions) -> Figure:
    """Draw cone masses on a logarithmic scale, with two standard errors to either side."""
    figure, axes = new_figure("cone mass")
    positions = np.asarray(regions.grid.nodes)
    for index, (name, mass) in enumerate(masses.items()):
        value, error = np.asarray(mass.value), 2 * np.asarray(mass.error)
        axes.plot(positions, value, color=f"C{index}", label=name)
        if np.isfinite(error).all():
            lower = np.maximum(value - error, value / 100)
            axes.fill_between(positions, lower, value + error, color=f"C{index}", alpha=0.25)
    axes.set_yscale("log")
    shade_boundaries(axes, float(regions.delta))
    axes.legend(frameon=False, fontsize=8)
    return figure


def certificate_margins(certificates: Sequence[Certificate], title: str) -> Figure:
    """Draw both sides of every inequality over the larger one, and each criterion's verdict."""
    figure, axes = new_figure("", "side over the larger side's size")
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
