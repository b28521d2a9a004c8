"""An influence in lines of text: its averages over the regions, its indices, what is still open."""

import math
from typing import Any

from lim_jax.density.statistics import Influence
from lim_jax.grid.partition import REGIONS


def influence_table(influence: Influence, without_queries: Influence | None = None) -> str:
    """Lay out a density's regional averages and indices, and those without the queries if any."""
    rows = density_rows(influence, without_queries)
    return "\n".join([*regional_lines("", rows), *index_lines(influence, without_queries)])


def contexts_needed(influence: Influence, width: float = 0.1) -> int | None:
    """Estimate how many contexts bring two standard errors of LIM to `width`; None from one alone.

    Where |LIM| is above one, to `width` times |LIM|.
    """
    error = float(influence.index_errors().lim)
    lim = float(influence.indices().lim)
    if not math.isfinite(error):
        return None
    share = 2 * error / (width * max(1.0, abs(lim)))
    # A ratio that is whole but for rounding is whole.
    return max(2, math.ceil(float(influence.count) * share**2 * (1 - 1e-9)))


def density_rows(influence: Influence, without_queries: Influence | None) -> dict[str, Any]:
    """Return a density's regional averages with errors, and those without the queried tokens."""
    left_out = (
        {}
        if without_queries is None
        else _averages_with_errors("  queries left out", without_queries)
    )
    return {**_averages_with_errors("influence density", influence), **left_out}


def _averages_with_errors(name: str, influence: Influence) -> dict[str, Any]:
    """Return the regional averages of a density, and their errors if these are finite."""
    averages = influence.indices()[:3]
    errors = influence.index_errors()[:3]
    return {name: averages} | ({f"{name}, error": errors} if math.isfinite(errors[0]) else {})


def regional_lines(title: str, rows: dict[str, Any]) -> list[str]:
    """Lay out rows of numbers, one for each region, below the regions' names."""
    lines = [f"{title:26s} " + " ".join(f"{region:>10s}" for region in REGIONS)]
    for name, values in rows.items():
        lines.append(f"{name:26s} " + " ".join(f"{float(value):10.4g}" for value in values))
    return lines


def index_lines(influence: Influence, without_queries: Influence | None) -> list[str]:
    """Return the indices in lines: of all positions, and without those that are asked."""
    if without_queries is None:
        return [_index_line(influence)]
    lines = [_index_line(influence)]
    if not bool(influence.degenerate):
        share = 1 - float(without_queries.total / influence.total)
        lines.append(f"The queried tokens hold {share:.1%} of the influence.")
    return [*lines, f"Without: {_index_line(without_queries)}"]


def _index_line(influence: Influence) -> str:
    """Return LIM and the symmetric contrast in a line, and how many contexts LIM still needs."""
    if bool(influence.degenerate):
        return "There is no influence, and so no LIM and no symmetric contrast."
    indices = influence.indices()
    errors = influence.index_errors()
    count = int(influence.count)
    needed = contexts_needed(influence)
    error = ""
    more = ""
    if needed is not None:
        error = f" ± {float(errors.lim):.3f}"
        if bool(influence.alike):
            error += ", of contexts that all have one profile"
        if needed > count:
            within = "10 %" if abs(float(indices.lim)) > 1 else "±0.1"
            more = f": two errors within {within} would take some {needed - count} more contexts"
    return (
        f"LIM {float(indices.lim):+.3f}{error}, "
        f"symmetric contrast {float(indices.symmetric_contrast):+.3f}{more}"
    )
