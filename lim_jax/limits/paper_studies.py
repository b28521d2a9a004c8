"""The paper's limits measured on one set of fields: the rows behind ``lim-jax rates``."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import AnyPath, as_int, described, require
from lim_jax._jit import filter_jit
from lim_jax._partial_runs import each_once
from lim_jax.grid.cells import graded_grid, midpoint_grid, token_grid
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import PanelGrid, gauss_grid
from lim_jax.limits import cones as in_cones
from lim_jax.limits import position as in_position
from lim_jax.limits.attention_error import SMOOTH, PositionField, attention_studies
from lim_jax.limits.fields import (
    WIDTH,
    averaging_attention,
    gaussian_attention,
    right_biased,
    smooth_labels,
    smooth_states,
    terminal_loss,
)
from lim_jax.limits.layers import LAYER_ROWS, depth_costs
from lim_jax.limits.refinement import (
    Study,
    refine_against,
    require_refinements,
    richardson,
)
from lim_jax.limits.rows import Curve, Row
from lim_jax.loss.readouts import BandReadout, Edges, LinearReadout, TokenwiseReadout
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.masks import AttentionMask
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.positions import Rotary

GRIDS = {"tokens": token_grid, "midpoints": midpoint_grid, "graded": graded_grid}
SIZES = (100, 200, 400, 800, 1600)
DEPTHS = (32, 64, 128, 256, 512, 1024)
QUICK = ("depth", "attention", "adjoint-2-layers", "loss", "averaging")

LOGARITHM = "the kernel 1/p makes P_0 grow like a power of log(1/q) at 0"
SLOWED = "P_0 grows like log(1/q)^M at 0: order 1/2 (global) or 1, up to powers of log L"
GRADING = "cells graded like p^3 resolve the logarithm at 0, and midpoints are of order 2"
PRINTED = "Jacobian blocks are K/L: the printed estimator tends to zero like 1/L^2"
DIVERGENT = "the cone mass grows like 1/q at 0: a doubling of tokens adds a constant to its average"
MIDPOINT = "half of a node's own cell makes prefix sums midpoint rules"


def measure(
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    sizes: Sequence[int] = (),
    seed: int = 0,
    checkpoint: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> tuple[list[Row], dict[str, list[Curve]]]:
    """Run every study and both error-against-cost comparisons, or some of the studies.

    These are the rows behind ``lim-jax rates``. Run it in float64, as that command does, by
    ``with jax.enable_x64(True):``.

    Parameters
    ----------
    quick
        Whether to take four refinements instead of five or six, tokens and the graded grid only,
        fewer readouts, and neither the rough fields, the perturbed controls, nor the comparisons.
    only
        Names of `groups`: these studies alone run, without the comparisons. By default all do.
    sizes
        The refinements of the studies in `only`, numbers of tokens or of layers: four at least,
        each larger than the one before. By default those of `groups`.
    seed
        The seed of the matrices, zero or more. The table's orders belong to seed 0; at others more
        refinements may be needed to see them.
    checkpoint
        A file that is read if it exists and written after each group of studies, from which an
        interrupted run continues, to the same numbers. By default nothing is written.
    progress
        A function that wraps the list of the groups' names, for example ``tqdm.tqdm``.

    Returns
    -------
    tuple[list[Row], dict[str, list[Curve]]]
        A row for each measured limit, and the curves of error against cost under ``"depth"`` and
        ``"position"``, none if `quick` or `only` is given.

    Raises
    ------
    ValueError
        If a name is not one of `groups`, `sizes` are given without names or are not such numbers,
        the seed is negative, or the checkpoint is that of another run.
    """
    as_int(seed, "seed", least=0)
    require_choice(only, sizes)
    every = groups(quick, seed)
    chosen = only or [name for name in every if not quick or name in QUICK]
    runs: dict[str, Callable[[], Iterable[Row | Curve]]] = {
        name: partial(every[name].rows, tuple(sizes) or every[name].sizes) for name in chosen
    }
    costs: dict[str, Callable[[], Iterable[Curve]]] = {}
    if not (quick or only):
        costs["cost-depth"] = partial(depth_costs, (8, *DEPTHS), seed)
        costs["cost-position"] = partial(position_costs, SIZES, seed)
    options = {"quick": quick, "only": list(only), "sizes": list(sizes), "seed": seed}
    run = {"function": "measure", "version": version("lim_jax"), **options}
    parts = {name: partial(_as_dictionaries, part) for name, part in {**runs, **costs}.items()}
    results = each_once(parts, checkpoint, run, progress)
    rows = [_row(row) for name in runs for row in results[name]]
    return rows, {
        name.removeprefix("cost-"): [Curve(**_with_tuples(curve)) for curve in results[name]]
        for name in costs
    }


class Group(NamedTuple):
    """Studies that are run together: a function from refinements to rows, and the refinements."""

    rows: Callable[[tuple[int, ...]], Iterator[Row]]
    sizes: tuple[int, ...]


def groups(quick: bool = False, seed: int = 0) -> dict[str, Group]:
    """Return the groups of studies by name, each with the refinements that it runs by default."""
    sizes = SIZES[:4] if quick else SIZES
    depths = DEPTHS[:4] if quick else DEPTHS
    queried = (200, 400, 800, 1600)
    return {
        "depth": Group(partial(LAYER_ROWS["depth"], quick=quick, seed=seed), depths),
        "attention": Group(partial(_attention_rows, quick=quick, seed=seed), sizes),
        "adjoint-2-layers": Group(partial(_adjoint_rows, depth=2, quick=quick, seed=seed), sizes),
        "loss": Group(partial(_terminal_rows, quick=quick, seed=seed), queried),
        "averaging": Group(_cesaro_rows, (*queried, 3200)),
        "adjoint-1-layer": Group(partial(_adjoint_rows, depth=1, quick=quick, seed=seed), sizes),
        "adjoint-3-layers": Group(partial(_adjoint_rows, depth=3, quick=quick, seed=seed), sizes),
        "singularity": Group(_singularity_rows, (50, 75, 100, 150, 198)),
        "queries": Group(partial(_query_density_rows, seed=seed), queried),
        "cone": Group(partial(_cone_rows, seed=seed), (80, 160, 320, 640)),
        "extrapolated": Group(partial(_extrapolated_rows, seed=seed), sizes),
        "rough": Group(_rough_rows, sizes),
        "controls": Group(partial(LAYER_ROWS["controls"], seed=seed), depths),
        "shadowing": Group(partial(LAYER_ROWS["shadowing"], seed=seed), depths),
        "adjoint-in-depth": Group(partial(LAYER_ROWS["adjoint-in-depth"], seed=seed), depths),
    }


def require_choice(only: Sequence[str], sizes: Sequence[int]) -> None:
    """Raise ValueError at unknown names, and at refinements too few or unordered for a slope."""
    every = groups()
    cure = "Pass some of these names, or leave it out for all studies."
    names = ", ".join(every)
    listed = isinstance(only, Sequence) and not isinstance(only, str)
    require(listed, "only", got=described(only), expected=f"a list of some of {names}", cure=cure)
    unknown = [str(name) for name in only if name not in every]
    require(not unknown, "only", got=", ".join(unknown), expected=f"some of {names}", cure=cure)
    counts = [as_int(size, "sizes") for size in sizes]
    if not counts:
        return
    require(
        bool(only),
        "sizes",
        got=f"{counts} of all studies",
        expected="numbers of tokens or layers of the studies in only",
        cure="Pass in `only` the studies they are for.",
    )
    require_refinements(counts, "sizes", "tokens or layers")


def _as_dictionaries(group: Callable[[], Iterable[Row | Curve]]) -> list[dict[str, Any]]:
    """Return the rows or curves of a group as dictionaries; `_row` and `Curve` turn them back."""
    return [
        result._asdict() | ({"study": result.study._asdict()} if isinstance(result, Row) else {})
        for result in group()
    ]


def _row(plain: dict[str, Any]) -> Row:
    """Make a row again from its plain form in a file."""
    return Row(**{**plain, "study": Study(**_with_tuples(plain["study"]))})


def _with_tuples(plain: dict[str, Any]) -> dict[str, Any]:
    """Replace lists by tuples, which JSON does not know."""
    return {name: tuple(part) if isinstance(part, list) else part for name, part in plain.items()}


def _one_layer(seed: int) -> CausalAttention:
    """Return the first layer of random attention."""
    return jax.tree.map(lambda leaf: leaf[0], gaussian_attention(seed))


def _attention_rows(sizes: tuple[int, ...], quick: bool, seed: int) -> Iterator[Row]:
    """Yield the rows of attention's error on tokens, midpoints, graded grids and rotary keys."""
    expected = {
        "tokens": (1, 1, 1, 0, 1),
        "midpoints": (2, 2, 1, 1, 1.8),
        "graded": (2, 2, 2, 1, 2),
    }
    for name, make_grid in GRIDS.items():
        if quick and name == "midpoints":
            continue
        studies = attention_studies(_one_layer(seed), smooth_states, sizes, make_grid, smooth=True)
        orders = zip(studies.items(), expected[name], expected["tokens"], strict=True)
        for (part, study), order, usual in orders:
            reason = MIDPOINT if order != usual else ""
            if (name, part) == ("midpoints", "left region"):
                reason = "order 2 up to log L: the error of cell i falls like 1/(L i)"
            yield Row(f"attention, {part}, {name}", study, order, reason)
    if quick:
        return
    # Rotary keys, for which [0, 1] stands for twelve tokens on every grid.
    mask = AttentionMask(positions=Rotary((1.0,), tokens=12))
    rotary = dataclasses.replace(_one_layer(seed), mask=mask)
    studies = attention_studies(rotary, smooth_states, sizes, smooth=True)
    for part in ("inside", "mean square", "every cell"):
        yield Row(f"rotary attention, {part}, tokens", studies[part], 1)


@filter_jit
def _last_output(attention: CausalAttention, grid: Grid) -> Array:
    """Apply the attention to smooth states, and return its output at the last position."""
    x = smooth_states(grid.nodes)
    return grid.interpolate(attention(x, x, grid), jnp.ones(1))[0]


def _extrapolated_rows(sizes: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the row of attention at the last position, extrapolated from two sizes."""
    attention = _one_layer(seed)
    values = map(richardson(lambda size: _last_output(attention, token_grid(size))), sizes)
    references = (_last_output(attention, grid) for grid in SMOOTH)
    source = "eq:attention-continuum-pointwise-error"
    study = refine_against(source, sizes, values, references)
    reason = "two sizes cancel the first-order term"
    yield Row("attention, last position, Richardson", study, 2, reason)


def _rough_rows(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Yield the rows of fields that are not smooth: a power of p, a jump, jumps at all scales."""

    def studies(
        states: PositionField, make_grid: Callable, breaks: tuple[float, ...]
    ) -> dict[str, Study]:
        """Study averaging attention on states, with panels that break where the states do."""
        panels = PanelGrid(breaks=breaks, order=8), PanelGrid(breaks=breaks, order=12)
        return attention_studies(averaging_attention(), states, sizes, make_grid, references=panels)

    halves = [0.5**k for k in range(40, -1, -1)]
    holder = studies(lambda p: p[:, None] ** 0.6, token_grid, (0.0, *halves))
    reason = (
        "a field in H^1 is Hölder of order above 1/2 only, and the first cell sees p^0.6 itself"
    )
    every_cell = "rough field, p^0.6 (in H^1), every cell, tokens"
    yield Row(every_cell, holder["every cell"], 0.6, reason)
    yield Row("rough field, p^0.6 (in H^1), inside, tokens", holder["inside"], 1)
    # Sizes with factors two and five only: the jump always divides a cell by thirds.
    jump = studies(
        lambda p: jnp.where(p < 1 / 3, 0.0, 1.0)[:, None] + p[:, None],
        midpoint_grid,
        (0.0, 1 / 3, 1.0),
    )
    reason = "the cell that the jump divides is given to one side: order 1, not the midpoints' 2"
    yield Row("rough field, a jump at 1/3, inside, midpoints", jump["inside"], 1, reason)
    breaks = [math.sqrt(0.5) * half for half in halves[10:]]

    def jumping(p: Float[Array, " points"]) -> Float[Array, "points 1"]:
        """Return a sign that changes at every break."""
        side = jnp.searchsorted(jnp.asarray(breaks), p, side="left") % 2
        return (1.0 - 2.0 * side)[:, None]

    jumps = studies(jumping, token_grid, (0.0, *breaks, 1.0))
    reason = "some cell among the first is always divided by a jump: C/i is attained at fixed i"
    every_cell = "rough field, jumps at all scales, every cell, tokens"
    yield Row(every_cell, jumps["every cell"], 0, reason)


def _terminal_rows(sizes: tuple[int, ...], quick: bool, seed: int) -> Iterator[Row]:
    """Yield the rows of the loss, and of the terminal adjoint through several readouts."""
    fields = smooth_states, smooth_labels, sizes
    for name, make_grid in GRIDS.items():
        if quick and name != "tokens":
            continue
        study = in_position.loss_study(*fields, make_grid, lipschitz=True)
        order = 1 if name == "tokens" else 2
        yield Row(f"loss, {name}", study, order, "" if order == 1 else MIDPOINT)
    weight = _readout_weight(seed)
    linear = LinearReadout(weight)
    tokenwise = TokenwiseReadout(lambda z: jnp.tanh(z @ weight) @ weight)
    for name, limit in {"linear": linear, "tanh network": tokenwise}.items():
        if quick and name != "linear":
            continue
        study = in_position.terminal_adjoint_study(
            lambda size, limit=limit: limit, limit, *fields, lipschitz=True
        )
        yield Row(f"terminal adjoint, {name} readout", study, 1)
    reasons: dict[Edges, str] = {
        "reflecting": "",
        "zero": "rows and columns lose mass at the ends: an O(1) error on a few tokens",
        "renormalised": "columns still lose mass at the ends: an O(1) error on a few tokens",
    }
    for edges, reason in reasons.items():
        if quick and edges == "renormalised":
            continue
        study = in_position.terminal_adjoint_study(
            lambda size, edges=edges: BandReadout(weight, 8 / size, edges),
            linear,
            *fields,
            lipschitz=True,
        )
        name = f"terminal adjoint, window of 16 tokens, {edges} edges"
        yield Row(name, study, 0.5 if reason else 1, reason)


def _readout_weight(seed: int) -> Float[Array, "3 3"]:
    """Draw the matrix of a linear readout."""
    return jnp.asarray(np.random.default_rng(1 + seed).standard_normal((WIDTH, WIDTH)))


# Slopes of the input adjoint's parts by depth, at these lengths. The error of the first cell is
# that of log^M(1/q), so up to constants it is log^(M-1)(L) L^(-1/2) in the mean square; averages
# err by powers of log L over L: where a slope is below 1/2 or 1, it rises there with L.
ADJOINT_SEEDS = {1: 1, 2: 0, 3: 0}
ADJOINT_ORDERS: dict[int, dict[str, dict[str, float]]] = {
    1: {
        "tokens": {"inside": 1, "global": 0.5, "density": 0.85, "regional averages": 1},
        "midpoints": {"inside": 2, "global": 0.5, "density": 0.85, "regional averages": 1},
        "graded": {"inside": 2, "global": 1, "density": 1, "regional averages": 2},
    },
    2: {
        "tokens": {"inside": 1, "global": 0.3, "density": 0.6, "regional averages": 0.6},
        "midpoints": {"inside": 2, "global": 0.3, "density": 0.6, "regional averages": 0.6},
        "graded": {"global": 1, "density": 1, "regional averages": 2},
    },
    3: {"graded": {"regional averages": 2}},
}


def _adjoint_rows(sizes: tuple[int, ...], depth: int, quick: bool, seed: int) -> Iterator[Row]:
    """Yield the rows of the input adjoint and influence of a network of `depth` layers."""
    flow = ResidualFlow(gaussian_attention(ADJOINT_SEEDS[depth] + seed, depth))
    for name, expected in ADJOINT_ORDERS[depth].items():
        if quick and name == "midpoints":
            continue
        studies = in_position.input_adjoint_studies(
            flow, terminal_loss, smooth_states, sizes, GRIDS[name]
        )
        for part, order in expected.items():
            if (name, part) == ("graded", "regional averages"):
                reason = GRADING
            elif order == 1:
                reason = ""
            elif order < 1:
                reason = SLOWED
            else:
                reason = MIDPOINT
            label = "P_0" if part in ("inside", "global") else "influence"
            layers = "1 layer" if depth == 1 else f"{depth} layers"
            where = f"{label}, {part}, {layers}, {name}"
            yield Row(where, studies[part], order, reason)


def _cone_rows(sizes: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the rows of the cone mass: at three positions, as printed, and on the left."""
    layer = _one_layer(seed)
    for name, make_grid in GRIDS.items():
        study = in_cones.cone_mass_study(layer, smooth_states, sizes, make_grid)
        order, reason = (1, "") if name == "tokens" else (2, MIDPOINT)
        yield Row(f"cone mass, at 1/4 1/2 3/4, {name}", study, order, reason)
    halves = [size // 2 for size in sizes]
    fewer = [3 * size // 8 for size in sizes]
    study = in_cones.printed_cone_mass_study(layer, smooth_states, halves)
    yield Row("cone mass, as printed, tokens", study, 2, PRINTED)
    study = in_cones.left_cone_mass_study(layer, smooth_states, fewer)
    yield Row("cone mass, left average's growth by doubling, tokens", study, 0, DIVERGENT)


def _singularity_rows(halvings: tuple[int, ...]) -> Iterator[Row]:
    """Yield the rows of the input adjoint's growth towards position 0, of one to three layers."""
    for depth in (1, 2, 3):
        layers = jax.tree.map(lambda *same: jnp.stack(same), *[averaging_attention()] * depth)
        flow = ResidualFlow(layers, horizon=float(depth))
        study = in_position.singularity_study(
            flow,
            lambda x, grid: inner(jnp.ones_like(x), x, grid),
            lambda p: jnp.zeros((p.size, 1)),
            halvings=halvings,
        )
        name = f"growth of P_0 in log(1/q), averaging, {depth} layer{'s' if depth > 1 else ''}"
        yield Row(name, study, -depth, LOGARITHM)


def _query_density_rows(sizes: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the rows of the loss and the terminal adjoint under right-biased queries."""
    biased = {"query_density": right_biased, "lipschitz": True}
    fields = (smooth_states, smooth_labels, sizes)
    linear = LinearReadout(_readout_weight(seed))
    study = in_position.loss_study(*fields, **biased)
    yield Row("loss, tokens, right-biased queries", study, 1)
    study = in_position.terminal_adjoint_study(lambda size: linear, linear, *fields, **biased)
    yield Row("terminal adjoint, linear readout, right-biased queries", study, 1)


def _cesaro_rows(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Yield the row of causal averaging against its closed form."""
    yield Row("averaging, closed form, tokens", in_position.cesaro_study(2.0, sizes), 1)


def position_costs(sizes: Iterable[int], seed: int = 0) -> list[Curve]:
    """Measure errors of regional averages of influence against the number of positions."""
    sizes = tuple(sizes)
    flow = ResidualFlow(gaussian_attention(seed, 2))

    @filter_jit
    def averages(grid: Grid) -> Array:
        """Return the regional averages of the input density on one grid."""
        return in_position.influence_of_field(flow, terminal_loss, smooth_states, grid)[2]

    curves: dict[str, dict[float, Array]] = {
        name: {size: averages(make_grid(size)) for size in sizes}
        for name, make_grid in GRIDS.items()
    }
    extrapolated = richardson(lambda size: averages(token_grid(size)))
    curves["Richardson on tokens"] = {1.5 * size: extrapolated(size // 2) for size in sizes}
    panels = {8.0 * n: averages(gauss_grid(8, panels=n)) for n in (4, 8, 12, 16, 20)}
    curves["Gauss-Legendre panels"] = panels
    exact = averages(in_position.SINGULAR_AT_ZERO[1])
    return [Curve.against(exact, name, values) for name, values in curves.items()]
