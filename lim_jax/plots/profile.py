"""Influence densities, and the shares of documents by place."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lim_jax._checks import described, require, require_kind
from lim_jax.density.statistics import Influence
from lim_jax.grid.partition import Regions
from lim_jax.plots import figure_style
from lim_jax.probes import Estimate
from lim_jax.results.context_energies import ComparedInfluences
from lim_jax.results.scales import spans_decades
from lim_jax.results.two_way import TwoWayShares

Column = Float[np.ndarray, " positions"]
DENSITY = "influence density m(p) (per unit of p)"


def influence_profile(result: Influence, title: str = "") -> Figure:
    """Draw an influence density with its standard errors, its regions and its indices.

    The band is two standard errors over the data law to either side; over more than two decades the
    scale is logarithmic, and the band that of the logarithm. The dotted line is the uniform
    density.

    Parameters
    ----------
    result
        The influence, by `lim.influence` or `Influence.from_energies`.
    title
        The heading of the figure, by default none. The numbers of positions, of examples and of
        positions left out are added to it, and the indices stand below.

    Returns
    -------
    Figure
        The figure, to save or show.

    Raises
    ------
    ValueError
        If `result` is not an Influence, its density is NaN or infinite, or `title` is not a string.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.paper.simulation import gate_influence
    >>> figure = influence_profile(gate_influence(jnp.zeros(48)), "gates, linear loss")
    >>> figure.axes[0].get_title().splitlines()[0]
    'gates, linear loss (48 positions, n = 1)'
    """
    require_kind(
        result,
        Influence,
        "result",
        "Measure it with lim.influence, or make it of energies: Influence.from_energies.",
    )
    figure, axes = figure_style.new_figure(DENSITY)
    draw_densities(axes, {"density": result})
    weights = np.asarray(result.regions.kept_weights)
    left_out = len(result.regions.left_out)
    uniform = 1 / weights.sum()
    axes.axhline(uniform, color="black", linewidth=0.8, linestyle=":", label="uniform")
    figure_style.draw_averages(axes, result.regions, np.asarray(result.regional_averages))
    heading = figure_style.headed(title, result.grid.size, int(result.count), left_out)
    figure_style.set_heading(axes, f"{heading}\n{_indices(result)}")
    figure_style.legend_below(figure)
    return figure


def influence_difference(
    compared: ComparedInfluences, names: Sequence[str] = ("first", "second"), title: str = ""
) -> Figure:
    """Draw two influence densities, and below them the second minus the first."""
    figure = figure_style.ShownFigure(7, 6)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    draw_densities(upper, dict(zip(names, compared[:2], strict=True)))
    upper.set_ylabel(DENSITY)
    change = compared.change
    has_weight = np.asarray(compared.first.regions.kept_weights) > 0
    columns = change.regions.grid.nodes, change.density, change.density_error
    _draw_signed(lower, *(np.asarray(column)[has_weight] for column in columns))
    figure_style.shade_boundaries(lower, float(change.regions.delta))
    lower.set_ylabel(figure_style.literal(f"{names[1]} minus {names[0]}"))
    lower.set_xlabel(figure_style.POSITION)
    counts = " and ".join(str(int(influence.count)) for influence in compared[:2])
    heading = f"{counts} contexts, {change.pairs or 0} in both"
    figure_style.set_heading(upper, f"{title}\n{heading}" if title else heading)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure_style.legend_below(figure)
    return figure


def signed_density(density: Estimate, regions: Regions, contexts: int, title: str) -> Figure:
    """Draw a signed profile by position; the band is two standard errors to either side."""
    figure_style.require_drawable(density.value, "density")
    figure, axes = figure_style.new_figure("signed profile (of the loss, per unit of p)")
    grid = regions.grid
    _draw_signed(axes, *map(np.asarray, (grid.nodes, *density)))
    figure_style.shade_boundaries(axes, float(regions.delta))
    figure_style.set_heading(axes, figure_style.headed(title, grid.size, contexts, 0))
    return figure


def _draw_signed(axes: Axes, positions: Column, values: Column, errors: Column) -> None:
    """Draw a line with its band, and a dotted line at zero."""
    if np.isfinite(errors).all():
        band = figure_style.error_band(values, errors, log=False)
        axes.fill_between(positions, *band, color="black", alpha=0.2, linewidth=0)
    axes.plot(positions, values, color="black", linewidth=1.3)
    axes.axhline(0, color="black", linewidth=0.8, linestyle=":")


def draw_densities(axes: Axes, results: Mapping[str, Influence]) -> None:
    """Draw influence densities under their names on one pair of axes, each with its band.

    The band is two standard errors to either side. Where the densities span more than two decades,
    the scale is logarithmic.

    Parameters
    ----------
    axes
        The axes to draw on, such as those of `new_figure`, which are changed.
    results
        By name, the influences; positions that their regions leave out are not drawn.

    Returns
    -------
    None
        The lines, and shades over the boundary regions, are on the axes.

    Raises
    ------
    ValueError
        If `results` are no influences by name, or none, or a density is NaN or infinite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.paper.simulation import gate_influence
    >>> from lim_jax.plots import new_figure
    >>> figure, axes = new_figure("density")
    >>> results = {f"gate {u}": gate_influence(u * jnp.ones(48)) for u in (0.0, 1.0)}
    >>> draw_densities(axes, results)
    >>> [line.get_label() for line in axes.lines]
    ['gate 0.0', 'gate 1.0']
    """
    by_name = isinstance(results, Mapping) and len(results) > 0
    require(
        by_name,
        "results",
        got="none" if isinstance(results, Mapping) else described(results),
        expected="influences by name, at least one",
        cure='Pass for example {"trained": lim.influence(...)}.',
    )
    for name, result in results.items():
        require_kind(result, Influence, f"results[{name!r}]", "Take what lim.influence returns.")
    has_weight = {
        name: np.asarray(result.regions.kept_weights) > 0 for name, result in results.items()
    }
    density = {
        name: np.asarray(result.density)[has_weight[name]] for name, result in results.items()
    }
    figure_style.require_drawable(np.concatenate(list(density.values())), "results")
    log = spans_decades(*density.values())
    for index, (name, result) in enumerate(results.items()):
        positions = np.asarray(result.grid.nodes)[has_weight[name]]
        error = np.asarray(result.density_error)[has_weight[name]]
        figure_style.draw_with_errors(
            axes, positions, density[name], error, name, figure_style.line_style(index), log=log
        )
    figure_style.fit_scale(axes, log=log)
    for delta in {float(result.regions.delta) for result in results.values()}:
        figure_style.shade_boundaries(axes, delta)


def _indices(result: Influence) -> str:
    """Return the gap, LIM and the symmetric contrast in a line, with errors that are finite."""
    if bool(result.degenerate):
        return "no influence, and so no indices"
    indices = result.indices()
    errors = result.index_errors()
    names = {"gap": "gap", "lim": "LIM", "symmetric_contrast": "SC"}
    words = []
    for field, name in names.items():
        value = float(getattr(indices, field))
        error = float(getattr(errors, field))
        words.append(f"{name} {value:+.3f}" + (f" ± {error:.3f}" if np.isfinite(error) else ""))
    return "   ".join(words)


def shares_by_place(result: TwoWayShares, names: Sequence[str], title: str = "") -> Figure:
    """Draw each document's share of the influence by its place, and any document's with a band."""
    figure, axes = figure_style.new_figure("share of the influence", "place of the document", title)
    places = np.arange(1, len(names) + 1)
    for number, (name, row) in enumerate(zip(names, np.asarray(result.table.value), strict=True)):
        style = figure_style.line_style(number)
        style["linewidth"] = 0.7  # below that of any document
        # In quotation marks, which "any document" has not.
        axes.plot(places, row, **style, label=figure_style.literal(f"“{name}”"))
    every = {"color": "black", "linewidth": 2}
    figure_style.draw_with_errors(axes, places, *result.by_place, "any document", every, log=False)
    axes.set_xticks(places)
    axes.set_ylim(bottom=min(0.0, float(result.by_place.value.min())))
    figure_style.legend_below(figure)
    return figure
