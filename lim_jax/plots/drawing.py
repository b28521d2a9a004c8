"""What figures share: axes over position, and the marks of regions on them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lim_jax.grid import Regions


def new_figure(ylabel: str, xlabel: str = "position p") -> tuple[Figure, Axes]:
    """One pair of axes, over position unless something else is said."""
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_averages(axes: Axes, regions: Regions, averages: np.ndarray) -> None:
    """Draw regional averages as lines over their regions."""
    delta = float(regions.delta)
    ends = np.array([[0, delta], [delta, 1 - delta], [1 - delta, 1]])
    axes.hlines(averages, *ends.T, color="black", linewidth=1.2, label="regional averages")
    axes.legend(frameon=False, fontsize=8)


def shade_boundaries(axes: Axes, delta: float) -> None:
    """Shade the left and the right region of [0, 1]."""
    for start, stop in ((0, delta), (1 - delta, 1)):
        axes.axvspan(start, stop, color="black", alpha=0.05, linewidth=0)
    axes.set_xlim(0, 1)
