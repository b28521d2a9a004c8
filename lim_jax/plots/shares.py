"""What documents hold of the influence, by the place at which they stand."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lim_jax.plots.drawing import legend_below, line_style, new_figure
from lim_jax.results.two_way import TwoWayShares


def shares_by_place(result: TwoWayShares, names: Sequence[str], title: str = "") -> Figure:
    """Draw each document's share of the influence by its place, and that of any document.

    The band is two standard errors to either side; a document is not drawn at places where no order
    has it.

    >>> from lim_jax.results import two_way_shares
    >>> shares = np.array([[[0.5, 0.25], [0.375, 0.5]]] * 2)
    >>> result = two_way_shares(shares, np.array([[[0, 1], [1, 0]]] * 2))
    >>> [line.get_label() for line in shares_by_place(result, ["a", "b"]).axes[0].lines]
    ['“a”', '“b”', 'any document ± 2 standard errors']
    """
    figure, axes = new_figure("share of the influence", "place of the document", title)
    places = np.arange(1, len(names) + 1)
    for number, (name, row) in enumerate(zip(names, np.asarray(result.table.value), strict=True)):
        style = line_style(number)
        style["linewidth"] = 0.7  # below that of any document
        # In quotation marks, which "any document" has not; dollars would begin a formula.
        axes.plot(places, row, **style, label=f"“{name}”".replace("$", r"\$"))
    (value, error), label = map(np.asarray, result.by_place), "any document"
    if np.isfinite(error).all():
        axes.fill_between(places, value - 2 * error, value + 2 * error, color="black", alpha=0.15,
                          linewidth=0)  # fmt: skip
        label = "any document ± 2 standard errors"
    axes.plot(places, value, color="black", linewidth=2, label=label)
    axes.set_xticks(places)
    axes.set_ylim(bottom=min(0.0, float(value.min())))
    legend_below(figure)
    return figure
