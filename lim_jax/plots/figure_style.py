"""What figures share: colours, dashes and markers, scales, errors, and the marks of regions."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lim_jax._atomic_files import saying_what_is_lacking
from lim_jax._checks import described, require, require_text
from lim_jax.grid.partition import Regions

POSITION = "position p (part of the context)"
# Okabe and Ito's colours, told apart by colour-blind readers too; and in grey by dash and marker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (6, 2)), (0, (3, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class ShownFigure(Figure):
    """A figure of so many inches, that a notebook shows whether or not it has pyplot."""

    def __init__(self, width: float | int, height: float | int):
        """Make an empty figure of this size in inches."""
        super().__init__(figsize=(width, height), dpi=150, layout="constrained")

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG, for a notebook."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


class End(NamedTuple):
    """Where a line ends, and what is written there."""

    x: float
    y: float
    text: str
    colour: str


def require_drawable(values: Any, name: str) -> None:
    """Raise ValueError for NaN and infinity, which figures leave out without a word."""
    numbers = np.asarray(values)
    finite = np.issubdtype(numbers.dtype, np.number) and bool(np.isfinite(numbers).all())
    require(
        finite,
        name,
        got="NaN or infinite values" if numbers.dtype.kind in "fc" else described(values),
        expected="finite numbers",
        cure="Find where they come from: a figure would leave them out.",
    )


def line_style(index: int) -> dict[str, Any]:
    """Return the colour, dash and marker of one of a figure's lines.

    Seven colours are told apart by colour-blind readers too, and in grey by dash and marker; a
    colour that comes again has another dash and marker.

    Parameters
    ----------
    index
        The number of the line, from 0.

    Returns
    -------
    dict[str, Any]
        The options ``color``, ``linestyle``, ``marker``, ``markersize`` and ``linewidth`` of
        ``Axes.plot``.

    Examples
    --------
    >>> line_style(0)["color"], line_style(1)["marker"]
    ('#0072b2', 's')
    """
    round_of_colours = index // len(COLOURS)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + round_of_colours) % len(DASHES)],
        "marker": MARKERS[(index + round_of_colours) % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 1.3,
    }


def new_figure(ylabel: str, xlabel: str = POSITION, title: str = "") -> tuple[Figure, Axes]:
    """Create a figure with one pair of axes, over position by default.

    Parameters
    ----------
    ylabel
        The label of the ordinate.
    xlabel
        The label of the abscissa, by default "position p (part of the context)".
    title
        The heading above the axes, by default none; dollars begin no formula in it.

    Returns
    -------
    tuple[Figure, Axes]
        The figure, 7 by 4 inches, which a notebook shows, and its axes.

    Examples
    --------
    >>> figure, axes = new_figure("density")
    >>> axes.get_xlabel()
    'position p (part of the context)'
    """
    figure = ShownFigure(7, 4)
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    set_heading(axes, title)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def set_heading(axes: Axes, heading: str) -> None:
    """Write a heading above the axes, in as many lines as it needs; dollars begin no formula."""
    axes.set_title(literal(heading), fontsize=10, wrap=True)


def headed(title: str, length: int, count: int | None = None, left_out: int = 0) -> str:
    """Return a title with the numbers of positions, of examples, and of positions left out."""
    require_text(title, "title")
    size = f"{length} positions" + (f", n = {count}" if count is not None else "")
    size += f", {left_out} left out" if left_out else ""
    return f"{title} ({size})" if title else size


def legend_below(figure: Figure, *handles: Any, columns: int = 4) -> None:
    """Put the legend below the axes, where it hides no data.

    Parameters
    ----------
    figure
        The figure, which is changed.
    *handles
        Lines and patches to name, each with its label; by default all of the figure's axes that
        have a label. Of several with one label the last stands in the legend.
    columns
        The number of columns, four at most by default.

    Returns
    -------
    None
        The legend is in the figure.
    """
    entries = list(handles) or [
        handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]
    ]
    named = {str(handle.get_label()): handle for handle in entries}
    figure.legend(
        handles=list(named.values()),
        loc="outside lower center",
        ncols=min(columns, len(named)),
        frameon=False,
        fontsize=8,
    )


def fit_scale(axes: Axes, *, log: bool) -> None:
    """Fit the ordinates to all that is drawn so far: on a logarithmic scale, or from zero on."""
    axes.autoscale(axis="y")
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def error_band(value: np.ndarray, error: np.ndarray, *, log: bool) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the band of two standard errors; on logarithmic axes :math:`v\,e^{\pm 2\sigma/v}`."""
    if not log:
        return value - 2 * error, value + 2 * error
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.where(value > 0, np.exp(2 * error / value), np.nan)
    return value / factor, value * factor


def draw_with_errors(
    axes: Axes, x: np.ndarray, value: Any, error: Any, name: str, style: dict[str, Any], log: bool
) -> None:
    """Draw a line, with two standard errors to either side if all are finite."""
    value = np.asarray(value)
    error = np.asarray(error)
    if np.isfinite(error).all():
        band = error_band(value, error, log=log)
        axes.fill_between(x, *band, color=style["color"], alpha=0.2, linewidth=0)
        name = f"{name} ± 2 standard errors"
    axes.plot(x, positive_part(value) if log else value, **style, label=literal(name))


def literal(name: str) -> str:
    """Return a name for matplotlib in which dollars begin no formula."""
    # Not by parse_math=False, which matplotlib forgets where it wraps a text into lines.
    return name.replace("$", r"\$")


def positive_part(values: np.ndarray) -> np.ndarray:
    """Put NaN, which is not drawn, in place of values that a logarithmic axis cannot show."""
    return np.where(values > 0, values, np.nan)


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's name beside its end, right of the axes and clear of one another."""
    low, high = np.log(axes.get_ylim())
    lines = max(end.text.count("\n") + 1 for end in ends)
    distance = min((lines + 0.5) / 20, 1 / len(ends))  # twenty lines of text have room
    sorted_ends = sorted(ends, key=lambda end: end.y)
    steps = distance * np.arange(len(ends))
    heights_of_ends = (np.log([end.y for end in sorted_ends]) - low) / (high - low)
    # Each is pushed above the one before it; and down again where it would leave the axes.
    heights = np.maximum.accumulate(heights_of_ends - steps) + steps
    heights = np.minimum(heights, 1 - steps[::-1])
    for end, height in zip(sorted_ends, heights.tolist(), strict=True):
        axes.annotate(
            literal(end.text),
            xy=(end.x, end.y),
            xytext=(1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            color=end.colour,
            annotation_clip=False,
            arrowprops=dict(arrowstyle="-", color=end.colour, linewidth=0.5, relpos=(0, 0.5)),
        )


def draw_averages(axes: Axes, regions: Regions, averages: np.ndarray) -> None:
    """Draw regional averages as lines over their regions."""
    delta = float(regions.delta)
    ends = np.array([[0, delta], [delta, 1 - delta], [1 - delta, 1]])
    axes.hlines(averages, *ends.T, color="black", linewidth=1.2, label="regional averages")


def shade_boundaries(axes: Axes, delta: float) -> None:
    """Shade the left and the right region of [0, 1]."""
    for start, stop in ((0, delta), (1 - delta, 1)):
        axes.axvspan(start, stop, color="black", alpha=0.05, linewidth=0)
    axes.set_xlim(0, 1)


def save_figure(figure: Any, folder: Path, name: str) -> None:
    """Write a figure as ``name.png`` and ``name.svg``; letters that its font lacks are boxes.

    The same figure gives the same files: no date, and no random names inside.
    """
    for kind in ("png", "svg"):
        file = folder / f"{name}.{kind}"
        with (
            saying_what_is_lacking(file),
            warnings.catch_warnings(),
            rc_context({"svg.hashsalt": name}),
        ):
            # One for each letter; docs/commands.md says how to choose another font.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            figure.savefig(file, metadata={"Date": None})
