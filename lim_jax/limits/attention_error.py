"""Tokens to the continuum: attention, measured on fields of position, the same for every grid."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import as_int, described, require
from lim_jax._jit import filter_jit
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import gauss_grid
from lim_jax.grid.partition import exact_fraction
from lim_jax.limits.premises import require_smooth
from lim_jax.limits.refinement import Study, refine, require_rising
from lim_jax.network.attention import causal_attention
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import State

PositionField = Callable[[Float[Array, " points"]], Float[Array, "points features"]]
MakeGrid = Callable[[int], Grid]
References = tuple[Grid, Grid]

# The last is the reference, the first tells its error.
SMOOTH = (gauss_grid(64), gauss_grid(96))


def attention_studies(
    attention: CausalAttention,
    states: PositionField,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
    *,
    inside: float = 0.2,
    delta: float = 0.2,
    references: References = SMOOTH,
    smooth: bool = False,
) -> dict[str, Study]:
    r"""Compare finite attention with the Volterra operator (`thm:attention-continuum-error`).

    The norms :math:`e_i` of the cells' errors give five studies:

    - ``inside``: the largest over :math:`p_i \ge` `inside`
      (`eq:attention-continuum-pointwise-error`);
    - ``mean square``: their root mean square (`eq:attention-continuum-l2-error`), which counts
      the cells from `inside` on and divides by the number of all cells;
    - ``every cell``: the largest of all. The theorem's C/i is no rate at the first cells; the
      bound here is its proof's, where the factor :math:`p_i` that it drops from the numerator
      cancels the denominator's;
    - ``times i``: the largest :math:`i\,e_i`, bounded (`eq:attention-global-cell-error`);
    - ``left region``: the mean over :math:`i \le \delta L` (`eq:attention-left-regional-error`).

    Bounds are those of the theorem with `attention_constant`, whose extremes are over samples: they
    are measured, and neither hold nor are broken. Bounds and claimed orders are stated on tokens,
    for states that are continuously differentiable (`smooth`), the theorem's premise, and keys that
    know no positions, and None elsewhere.

    Parameters
    ----------
    attention
        One attention sublayer, whose arrays have no layer axis.
    states
        The input as a field X(p): from positions, (points,), to a row for each, (points, width).
    sizes
        The refinements L: numbers of positions, for which `make_grid` makes the grids. A fitted
        order takes four or more.
    make_grid
        From a size to its grid; by default `token_grid`, the only one on which anything is claimed.
    inside
        The position above 0 and below 1 from which ``inside`` and ``mean square`` count cells.
    delta
        The width :math:`\delta` of the left region, above 0 and 1 at most; as for
        `grid.boundary_regions` a float stands for the decimal that it prints.
    references
        Two grids for the continuum: the second gives the limit, the first tells its error. Their
        panels must separate the jumps of `states`. By default 64 and 96 Gauss nodes on one panel,
        for smooth states.
    smooth
        Whether you state that the states are continuously differentiable. By default nothing is
        stated, and nothing claimed.

    Returns
    -------
    dict[str, Study]
        The five studies by the names above, of errors in the Euclidean norm of the features.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, `inside` or `delta` is out of its range, the two
        references have the same nodes, a grid has no position in the left region or from `inside`
        on, or `states` that are stated to be smooth are not resolved as such at 25,600 points.

    Examples
    --------
    >>> from lim_jax.limits.fields import averaging_attention
    >>> states = lambda p: p[:, None]  # the average up to p errs by half of a cell
    >>> study = attention_studies(averaging_attention(), states, (5, 50), smooth=True)["every cell"]
    >>> study.verdict, [round(error, 9) for error in study.errors]
    ('measured', [0.1, 0.01])
    """
    require_rising(sizes, "sizes")
    _require_regions(inside, delta)
    require_references(references)
    if smooth:
        require_smooth(states)
    grids = {size: make_grid(size) for size in sizes}
    _require_cells(inside, delta, grids)
    check, reference = references
    *norms, check_norms = _cell_errors(attention, states, [*grids.values(), check], reference)
    premises = smooth and make_grid is token_grid and not _beyond_the_theorem(attention)
    errors = _CellErrors(
        sizes,
        dict(zip(grids, norms, strict=True)),
        {size: grid._nodes() >= inside for size, grid in grids.items()},
        float(check_norms.max()),
        attention_constant(attention, states) if premises else None,
    )
    return {
        "inside": errors.largest_inside(),
        "mean square": errors.mean_square_inside(),
        "every cell": errors.largest(),
        "times i": errors.largest_times_number(),
        "left region": errors.left_mean(delta),
    }


class _CellErrors(NamedTuple):
    """The norms of all cells' errors by size, each method a study of one of their norms."""

    sizes: Sequence[int]
    norms: dict[int, np.ndarray]
    inside: dict[int, np.ndarray]  # which cells are
    reference_error: float
    constant: float | None  # the theorem's, or None where its premises are not stated

    def largest_inside(self) -> Study:
        """Study the largest error inside."""
        largest = [self.norms[size][self.inside[size]].max() for size in self.sizes]
        return self._study("continuum-pointwise-error", 1.0, largest, lambda size: 1 / size)

    def mean_square_inside(self) -> Study:
        """Study the root of the squares inside over the number of all cells."""
        inside = [self.norms[size][self.inside[size]] for size in self.sizes]
        counts = [self.norms[size].size for size in self.sizes]
        means = [np.sqrt((e**2).sum() / n) for e, n in zip(inside, counts, strict=True)]
        return self._study("continuum-l2-error", 1.0, means, lambda size: 1 / size)

    def largest(self) -> Study:
        """Study the largest error of all cells."""
        largest = [self.norms[size].max() for size in self.sizes]
        return self._study("global-cell-error", None, largest, lambda size: 1 / size)

    def largest_times_number(self) -> Study:
        """Study the largest product of a cell's number, from 1, and its error."""
        norms = [self.norms[size] for size in self.sizes]
        largest = [(np.arange(1, e.size + 1) * e).max() for e in norms]
        return self._study("global-cell-error", 0.0, largest, lambda size: 1.0)

    def left_mean(self, delta: float) -> Study:
        """Study the mean over the left region's cells."""
        norms = [self.norms[size] for size in self.sizes]
        means = [e[: _cells_on_the_left(delta, e.size)].mean() for e in norms]

        def rate(size: int) -> float:
            """Return the mean of 1/i over the left cells, from above."""
            count = _cells_on_the_left(delta, size)
            return (1 + math.log(count)) / count

        return self._study("left-regional-error", 1.0, means, rate)

    def _study(
        self,
        label: str,
        claimed: float | None,
        errors: Iterable[np.floating],
        rate: Callable[[int], float],
    ) -> Study:
        """Study errors of all sizes, with a claimed order and a bound where premises are stated."""
        constant = self.constant
        return refine(
            f"eq:attention-{label}",
            None if constant is None else claimed,
            self.sizes,
            errors,
            self.reference_error,
            None if constant is None else (lambda size: constant * rate(size)),
            sampled=True,
        )


def _cells_on_the_left(delta: float, size: int) -> int:
    """Return how many of so many cells the left region holds."""
    return math.floor(exact_fraction(delta) * size)


def _require_regions(inside: float, delta: float) -> None:
    """Raise ValueError unless both are parts of [0, 1]."""
    require(
        0 < inside < 1,
        "inside",
        got=f"{inside}",
        expected="a position above 0 and below 1",
        cure="Try 0.2: the theorem holds from this position on.",
    )
    require(
        0 < delta <= 1,
        "delta",
        got=f"{delta}",
        expected="a width above 0, and 1 at most",
        cure="Try 0.2: delta is the width of the left region.",
    )


def _require_cells(inside: float, delta: float, grids: Mapping[int, Grid]) -> None:
    """Raise ValueError unless every grid has a cell in the left region, and one inside."""
    for size, grid in grids.items():
        require(
            _cells_on_the_left(delta, grid.size) >= 1,
            "sizes",
            got=f"{size} tokens at delta = {delta}",
            expected="a token in the left region",
            cure="Take more tokens, or a larger delta.",
        )
        require(
            bool((grid._nodes() >= inside).any()),
            "sizes",
            got=f"{size} positions at inside = {inside}",
            expected="a position from there on",
            cure="Take more positions, or a smaller number for inside.",
        )


def require_references(references: Sequence[Grid]) -> None:
    """Raise ValueError if the grid that tells the reference's error is the reference itself."""
    check, reference = references
    require(
        not np.array_equal(check._nodes(), reference._nodes()),
        "references",
        got=f"{described(reference)} twice",
        expected="two grids, of which the first tells the error of the second",
        cure="Pass two resolutions, such as (gauss_grid(64), gauss_grid(96)).",
    )


def _cell_errors(
    attention: CausalAttention, states: PositionField, grids: list[Grid], reference: Grid
) -> list[np.ndarray]:
    """Compute the norm of attention's error at every node of each grid."""
    limit = _attend(attention, states, reference)
    attended = np.concatenate([_attend(attention, states, grid) for grid in grids])
    nodes = jnp.asarray(np.concatenate([grid.nodes for grid in grids]))
    errors = np.linalg.norm(attended - _interpolate(reference, limit, nodes), axis=1)
    return np.split(errors, np.cumsum([grid.size for grid in grids])[:-1])


@filter_jit
def _attend(attention: CausalAttention, states: PositionField, grid: Grid) -> State:
    """Apply the attention to the states at a grid's nodes."""
    x = states(grid.nodes)
    return attention(x, x, grid)


@filter_jit
def _interpolate(reference: Grid, values: State, nodes: Float[Array, " nodes"]) -> Array:
    """Interpolate values on the reference grid to other positions."""
    return reference.interpolate(values, nodes)


def attention_constant(
    attention: CausalAttention, states: PositionField, points: int = 801
) -> float:
    r"""Measure the constant :math:`C_R` of `thm:attention-continuum-error` for one smooth field.

    By `eq:score-bounded-lipschitz-from-bounded-assumption`, `eq:riemann-attention-error` and
    `eq:attention-two-denominator-lower-bounds` cell i errs by at most :math:`C_R/L`, with the
    extremes over so many `points`, two at least:

    .. math:: C_R = \max_p \sum_h \frac{\max_q|\partial_q (e^S W_O v)| +
              \max_q |W_O v|\,\max_q|\partial_q e^S|}{2\min_q e^S}, \qquad q \le p.
    """
    points = as_int(points, "points", least=2)
    beyond = _beyond_the_theorem(attention)
    require(
        not beyond,
        "attention",
        got=" and ".join(beyond),
        expected="attention without these",
        cure=(
            "Take attention without them: the constant holds where keys know their position by the "
            "states alone."
        ),
    )
    return float(_attention_constant(attention, states, jnp.linspace(0.0, 1.0, points)))


def _beyond_the_theorem(attention: CausalAttention) -> list[str]:
    """Name the features of this attention that the theorem does not cover."""
    kinds = getattr(attention.mask, "kinds", (attention.mask,))
    parts = [(kind, name) for kind in kinds for name in ("window", "chunk", "positions")]
    parts += [(attention, name) for name in ("scale", "cap", "sinks", "output_norm", "gate")]
    beyond = [] if type(attention) is CausalAttention else [type(attention).__name__]
    beyond += [] if attention.attend is causal_attention else ["attend"]
    return beyond + [name for part, name in parts if getattr(part, name) is not None]


@filter_jit
def _attention_constant(
    attention: CausalAttention, states: PositionField, p: Float[Array, " points"]
) -> Float[Array, ""]:
    """Compute :math:`C_R` with extremes over the points, from attention's keys and values."""

    def projections(p: Array) -> tuple[Array, Array, Array]:
        """Compute each head's queries, keys and projected values at positions."""
        x = states(p)
        query = attention.queries(x, None)
        sources = attention.sources(x, None)
        key, value = (by_head(grouped, query.shape[0]) for grouped in sources)
        return query, key, jnp.einsum("hdv,hlv->hld", attention.output, value)

    (query, key, value), (_, key_slope, value_slope) = jax.jvp(
        projections, (p,), (jnp.ones_like(p),)
    )
    past = p[None, :] <= p[:, None]

    def largest(values: Array) -> Array:
        """Return each row's largest value over its past."""
        return jnp.where(past, values, 0).max(axis=1)

    def head(q: Array, k: Array, v: Array, dk: Array, dv: Array) -> Array:
        """Compute one head's quotient in :math:`C_R` at every p."""
        scale = math.sqrt(q.shape[1])
        scores = jnp.where(past, q @ k.T / scale, -jnp.inf)
        mass = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        slope = mass * (q @ dk.T) / scale
        # |m' v + m v'| over features, without the (points, points, width) array.
        square = (
            slope**2 * (v**2).sum(axis=1)[None, :]
            + 2 * slope * mass * (v * dv).sum(axis=1)[None, :]
            + mass**2 * (dv**2).sum(axis=1)[None, :]
        )
        numerator = jnp.sqrt(largest(square))
        sizes = jnp.broadcast_to(jnp.linalg.norm(v, axis=1)[None, :], past.shape)
        lowest = jnp.where(past, mass, jnp.inf).min(axis=1)
        return (numerator + largest(sizes) * largest(jnp.abs(slope))) / (2 * lowest)

    return jax.vmap(head)(query, key, value, key_slope, value_slope).sum(axis=0).max()
