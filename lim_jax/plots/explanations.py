"""Why a network uses what it uses: channels, cone masses, certificates."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lim_jax._checks import require, require_kind, require_several, require_text
from lim_jax.adjoint.certificate import Certificate, Inequality
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.explanations.account import HOPS
from lim_jax.explanations.explanation import Explanation
from lim_jax.grid.measure import require_on_grid
from lim_jax.grid.partition import Regions, require_regions
from lim_jax.plots import figure_style
from lim_jax.plots.profile import DENSITY
from lim_jax.probes import Estimate
from lim_jax.results.scales import spans_decades

FROM = "Take it from explanations.explain."
CHANNEL_COLOURS = ("#0072b2", "#e69f00", "#009e73")
VERDICTS = {
    "held": "#009e73",
    "failed": "#d55e00",
    "failed elsewhere": "#e69f00",
    "vacuous": "#777777",
}


def channel_energies(result: Explanation, title: str) -> Figure:
    """Draw the influence density, each channel's share of the channels' energy, and cross terms.

    Cross terms, over the channels' energies, are -1 where the channels cancel and 0 where they are
    orthogonal; the dashed line above is the density without them.

    Parameters
    ----------
    result
        The explanation, by `explanations.explain`.
    title
        The heading of the figure, which adds the numbers of positions and of contexts.

    Returns
    -------
    Figure
        The figure, of three panels over position.

    Raises
    ------
    ValueError
        If `result` is not an Explanation, an energy is NaN or infinite, or `title` is not a string.
    """
    require_kind(result, Explanation, "result", FROM)
    figure_style.require_drawable(result.channel_energies, "result.channel_energies")
    figure = figure_style.ShownFigure(7, 7)
    upper, middle, lower = figure.subplots(3, sharex=True, height_ratios=(3, 2, 2))
    positions = np.asarray(result.influence.grid.nodes)
    total = float(result.influence.total)
    energies = np.asarray(result.channel_energies)
    channel_sum = energies.sum(axis=0)
    density = np.asarray(result.influence.density)
    only = channel_sum / (total or 1)
    upper.plot(positions, density, "k", label="influence density")
    upper.plot(positions, only, "k--", linewidth=0.8, label="density without cross terms")
    figure_style.fit_scale(upper, log=spans_decades(density, only))
    upper.set_ylabel(DENSITY, fontsize=8)
    some = np.maximum(channel_sum, np.finfo(energies.dtype).tiny)
    middle.stackplot(positions, energies / some, labels=CHANNELS, colors=CHANNEL_COLOURS, alpha=0.8)
    middle.set_ylabel("share of the channels'\nenergies (no unit)", fontsize=8)
    cross_terms = (np.asarray(result.influence.energy) - channel_sum) / some
    lower.bar(
        positions, cross_terms, width=0.7 / len(positions), color="#cc79a7", label="cross terms"
    )
    lower.axhline(0, color="black", linewidth=0.8)
    lower.set_ylim(-1.05, max(0.25, 1.1 * cross_terms.max()))
    lower.set_ylabel("cross terms over the\nchannels' energies (no unit)", fontsize=8)
    lower.set_xlabel(figure_style.POSITION)
    heading = figure_style.headed(title, result.influence.grid.size, int(result.influence.count))
    figure_style.set_heading(upper, heading)
    for axes in (upper, middle, lower):
        figure_style.shade_boundaries(axes, float(result.influence.regions.delta))
        axes.spines[["top", "right"]].set_visible(False)
    figure_style.legend_below(figure, columns=3)
    return figure


def hop_energies(result: Explanation, title: str) -> Figure:
    """Draw the influence energy over positions, and its parts by attention hops.

    The scale is logarithmic. The energies of the parts need not sum to that of all, as the parts
    may cancel.

    Parameters
    ----------
    result
        The explanation, by `explanations.explain`.
    title
        The heading of the figure, which adds the numbers of positions and of contexts.

    Returns
    -------
    Figure
        The figure, with a line for each number of hops and a dashed one for all.

    Raises
    ------
    ValueError
        If `result` is not an Explanation, an energy is NaN or infinite, or `title` is not a string.
    """
    require_kind(result, Explanation, "result", FROM)
    figure_style.require_drawable(result.hop_energies, "result.hop_energies")
    figure, axes = figure_style.new_figure(r"mean energy $E\|P(p)\|^2$ (loss$^2$ per state$^2$)")
    positions = np.asarray(result.influence.grid.nodes)
    parts = np.asarray(result.hop_energies)
    axes.plot(positions, np.asarray(result.influence.energy), "k--", linewidth=0.8, label="all")
    for index, (name, part) in enumerate(zip(HOPS, parts, strict=True)):
        style = figure_style.line_style(index)
        axes.plot(positions, figure_style.positive_part(part), **style, clip_on=False, label=name)
    axes.set_yscale("log")
    heading = figure_style.headed(title, result.influence.grid.size, int(result.influence.count))
    figure_style.set_heading(axes, heading)
    figure_style.shade_boundaries(axes, float(result.influence.regions.delta))
    figure_style.legend_below(figure, columns=5)
    return figure


def cone_masses(masses: Mapping[str, Estimate], regions: Regions, title: str = "") -> Figure:
    """Draw cone masses on a logarithmic scale, with two standard errors of their logarithms.

    Parameters
    ----------
    masses
        By name, the mass C(p) at each position, a density over p, with its standard error, such as
        `average_cone_mass` returns.
    regions
        The regions of the grid on which the masses were measured; the boundaries are shaded.
    title
        The heading of the figure, by default none. The number of positions is added.

    Returns
    -------
    Figure
        The figure, with a line for each mass.

    Raises
    ------
    ValueError
        If `regions` is not Regions, `masses` is empty or has another kind of value than an Estimate
        with a finite number for each position, or `title` is not a string.
    """
    require_regions(regions)
    require_kind(masses, Mapping, "masses", "Pass them by name.")
    require(
        len(masses) > 0,
        "masses",
        got="none",
        expected="one or more",
        cure="Pass at least one by name.",
    )
    for mass in masses.values():
        require_kind(mass, Estimate, "masses", "Take them from average_cone_mass.")
        require_on_grid(mass.value, regions.grid, "masses", "length")
        figure_style.require_drawable(mass.value, "masses")
    heading = figure_style.headed(title, regions.grid.size)
    figure, axes = figure_style.new_figure("cone mass C(p) (a density over p)", title=heading)
    positions = np.asarray(regions.grid.nodes)
    for index, (name, mass) in enumerate(masses.items()):
        figure_style.draw_with_errors(
            axes, positions, mass.value, mass.error, name, figure_style.line_style(index), log=True
        )
    axes.set_yscale("log")
    figure_style.shade_boundaries(axes, float(regions.delta))
    figure_style.legend_below(figure, columns=2)
    return figure


def certificate_margins(certificates: Sequence[Certificate], title: str) -> Figure:
    """Draw both sides of every inequality over the larger one, and each one's verdict.

    It is "held" where premises and all inequalities hold, "failed" where this one does not, "failed
    elsewhere" where another or a premise does not, "vacuous" where nothing on the other side could
    have made it hold. An infinite side is drawn at one, and a finite one beside it at zero.

    Parameters
    ----------
    certificates
        The certificates, such as `Explanation.certificates`.
    title
        The heading of the figure.

    Returns
    -------
    Figure
        The figure, with a row for each inequality.

    Raises
    ------
    ValueError
        If `certificates` is not a sequence of certificates, at least one, or `title` not a string.
    """
    require_several(certificates, Certificate, "certificates", "Pass those of an Explanation.")
    require_text(title, "title")
    rows = [(claim, sides) for claim in certificates for sides in claim.inequalities]
    figure, axes = figure_style.new_figure(
        "", "each side over the larger one's size (no unit)", title
    )
    figure.set_size_inches(10, 1.4 + 0.55 * len(rows))
    for row, (certificate, inequality) in enumerate(rows):
        colour = VERDICTS[_verdict(certificate, inequality)]
        sides = _over_the_larger(np.array([inequality.greater, inequality.lesser]))
        axes.plot(sides, (row, row), color=colour, linewidth=2, zorder=1)
        axes.plot(sides[0], row, "o", color=colour, label="must be greater")
        axes.plot(sides[1], row, "s", color=colour, markerfacecolor="white", label="must be lesser")
    ticks = axes.set_yticks(
        range(len(rows)),
        [figure_style.literal(_inequality_label(*row)) for row in rows],
        fontsize=7.5,
    )
    for tick, row in zip(ticks, rows, strict=True):
        tick.label1.set_color(VERDICTS[_verdict(*row)])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(0, color="black", linewidth=0.6, zorder=0)
    mark = partial(Line2D, [], [], color="black", linestyle="")
    verdicts = {_verdict(*row) for row in rows}
    named = [Patch(color=colour, label=word) for word, colour in VERDICTS.items()]
    patches = [patch for patch in named if patch.get_label() in verdicts]
    figure_style.legend_below(
        figure,
        mark(marker="o", label="must be greater"),
        mark(marker="s", markerfacecolor="white", label="must be lesser"),
        *patches,
        columns=6,
    )
    return figure


def _over_the_larger(sides: np.ndarray) -> np.ndarray:
    """Divide both sides by the larger one's size; beside an infinite side, others are zero."""
    infinite = np.isinf(sides)
    if infinite.any():
        return np.where(infinite, np.sign(sides), 0.0)
    return sides / (np.abs(sides).max() or 1)


def _verdict(certificate: Certificate, inequality: Inequality) -> str:
    """Name the verdict on an inequality, a key of `VERDICTS`."""
    if certificate.vacuous:
        return "vacuous"
    if certificate.holds:
        return "held"
    return "failed elsewhere" if inequality.holds else "failed"


def _inequality_label(certificate: Certificate, inequality: Inequality) -> str:
    """Return an inequality's label: its criterion, the side if it is of one, verdict, statement."""
    sides = [side for side in ("left", "right") if f"({side})" in inequality.statement]
    name = ", ".join((certificate.name, *sides))
    verdict = _verdict(certificate, inequality)
    if np.isinf([inequality.greater, inequality.lesser]).any():
        verdict += ", of an infinite side"
    return f"{name}: {verdict}\n{inequality.statement}"
