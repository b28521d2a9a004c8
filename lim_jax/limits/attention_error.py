"""Tokens to the continuum: attention, measured on fields of position, the same for every grid."""

import math
from collections.abc import Callable, Sequence

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
from lim_jax.limits.refinement import Study, refine
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
        If `inside` or `delta` is out of its range, the two references have the same nodes, no token
        is in the left region of the smallest grid, or `states` that are stated to be smooth are not
        resolved as such at 25,600 points.

    Examples
    --------
    >>> from lim_jax.limits.fields import averaging_attention
    >>> states = lambda p: p[:, None]  # the average up to p errs by half of a cell
    >>> study = attention_studies(averaging_attention(), states, (5, 50), smooth=True)["every cell"]
    >>> study.verdict, [round(error, 9) for error in study.errors]
    ('measured', [0.1, 0.01])
    """
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
    require_references(references)
    got = f"{min(sizes)} tokens at delta = {delta}"
    expected = "a token in the left region"
    cure = "Take more tokens, or a larger delta."

    def in_left(size: int) -> int:
        return math.floor(exact_fraction(delta) * size)

    require(in_left(min(sizes)) >= 1, "sizes", got=got, expected=expected, cure=cure)
    if smooth:
        require_smooth(states)
    grids = {size: make_grid(size) for size in sizes}
    check, reference = references
    *of_sizes, of_check = _cell_errors(attention, states, [*grids.values(), check], reference)
    errors = dict(zip(grids, of_sizes, strict=True))
    own = float(of_check.max())
    interior = {size: grid._nodes() >= inside for size, grid in grids.items()}
    premises = smooth and make_grid is token_grid and not _beyond_the_theorem(attention)
    constant = attention_constant(attention, states) if premises else math.nan

    def study(label: str, claimed: float | None, measure: Callable, rate: Callable) -> Study:
        """Study one norm of the errors over all sizes, with a bound if the premises are stated."""
        return refine(
            f"eq:attention-{label}",
            claimed if premises else None,
            sizes,
            (measure(errors[size], interior[size]) for size in sizes),
            own,
            (lambda size: constant * rate(size)) if premises else None,
            sampled=True,
        )

    parts = {
        "inside": ("continuum-pointwise-error", 1.0, lambda e, ok: e[ok].max(), lambda n: 1 / n),
        "mean square": (
            "continuum-l2-error",
            1.0,
            lambda e, ok: np.sqrt((e[ok] ** 2).sum() / e.size),
            lambda n: 1 / n,
        ),
        "every cell": ("global-cell-error", None, lambda e, ok: e.max(), lambda n: 1 / n),
        "times i": (
            "global-cell-error",
            0.0,
            lambda e, ok: (np.arange(1, e.size + 1) * e).max(),
            lambda n: 1.0,
        ),
        "left region": (
            "left-regional-error",
            1.0,
            lambda e, ok: e[: in_left(e.size)].mean(),
            lambda n: (1 + math.log(in_left(n))) / in_left(n),
        ),
    }
    return {name: study(*part) for name, part in parts.items()}


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
    limit = _attended(attention, states, reference)
    attended = np.concatenate([_attended(attention, states, grid) for grid in grids])
    nodes = jnp.asarray(np.concatenate([grid.nodes for grid in grids]))
    errors = np.linalg.norm(attended - _interpolated(reference, limit, nodes), axis=1)
    return np.split(errors, np.cumsum([grid.size for grid in grids])[:-1])


@filter_jit
def _attended(attention: CausalAttention, states: PositionField, grid: Grid) -> State:
    x = states(grid.nodes)
    return attention(x, x, grid)


@filter_jit
def _interpolated(reference: Grid, values: State, nodes: Float[Array, " nodes"]) -> Array:
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
    cure = (
        "Take attention without them: the constant holds where keys know their position by the "
        "states alone."
    )
    got = " and ".join(beyond)
    require(not beyond, "attention", got=got, expected="attention without these", cure=cure)
    return float(_attention_constant(attention, states, jnp.linspace(0.0, 1.0, points)))


def _beyond_the_theorem(attention: CausalAttention) -> list[str]:
    """Name the features of this attention that the theorem does not cover."""
    kinds = getattr(attention.mask, "kinds", (attention.mask,))
    parts = [(kind, name) for kind in kinds for name in ("window", "chunk", "positions")]
    parts += [(attention, name) for name in ("scale", "cap", "sinks", "output_norm", "gate")]
    own = [] if type(attention) is CausalAttention else [type(attention).__name__]
    own += [] if attention.attend is causal_attention else ["attend"]
    return own + [name for part, name in parts if getattr(part, name) is not None]


@filter_jit
def _attention_constant(
    attention: CausalAttention, states: PositionField, p: Float[Array, " points"]
) -> Float[Array, ""]:
    """Compute :math:`C_R` with extremes over the points, from attention's keys and values."""

    def projections(p: Array) -> tuple[Array, Array, Array]:
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
