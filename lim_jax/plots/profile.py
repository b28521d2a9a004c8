"""Influence densities."""

import numpy as np
from matplotlib.figure import Figure

from lim_jax._checks import described, require
from lim_jax.density import Influence
from lim_jax.plots.drawing import draw_averages, new_figure, shade_boundaries

COLOUR = "#0072b2"


def influence_profile(result: Influence) -> Figure:
    r"""Draw an influence density with its standard errors, its regions and its indices.

    The band is two standard errors over the data law to either side. Positions left out are not
    drawn; the dotted line is the uniform density over the others.

    Raises
    ------
    ValueError
        Where the result is no `Influence`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.studies.paper import gate_influence
    >>> figure = influence_profile(gate_influence(jnp.zeros(48)))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['position p']
    """
    require(
        isinstance(result, Influence),
        "result",
        got=described(result),
        expected="an Influence",
        cure="Measure it with lim.influence, or make it of energies: Influence.from_energies.",
    )
    figure, axes = new_figure("influence density m(p)")
    weights, left_out = np.asarray(result.regions.kept_weights), len(result.regions.left_out)
    kept = weights > 0
    positions, density = np.asarray(result.grid.nodes)[kept], np.asarray(result.density)[kept]
    error = 2 * np.asarray(result.density_error)[kept]
    if np.isfinite(error).all():
        axes.fill_between(positions, density - error, density + error, color=COLOUR, alpha=0.25)
    axes.plot(positions, density, color=COLOUR)
    axes.axhline(1 / weights.sum(), color="black", linewidth=0.8, linestyle=":")
    shade_boundaries(axes, float(result.regions.delta))
    draw_averages(axes, result.regions, np.asarray(result.regional_averages))
    found = result.indices()
    axes.set_title(
        f"gap {float(found.gap):+.3f}   LIM {float(found.lim):+.3f}   "
        f"SC {float(found.symmetric_contrast):+.3f}   (L = {result.grid.size}"
        + (f", {left_out} left out)" if left_out else ")"),
        fontsize=10,
    )
    axes.set_ylim(bottom=0)
    return figure
