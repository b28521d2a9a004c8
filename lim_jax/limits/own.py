r"""A convergence study of one's own: any network, grids, depths and quantities, in one call.

The network is evaluated on a field of position at every refinement, and its limit by another
scheme: Gauss--Legendre panels where positions are refined, a tight solver where depth is. A limit
is never taken on trust: its own error is how far it is from itself at another resolution.
"""

import csv
import dataclasses
import inspect
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lim_jax._checks import (
    AnyPath,
    as_path,
    counted,
    described,
    require,
    require_callable,
    require_kind,
)
from lim_jax._errors import filter_jit
from lim_jax.grid.measure import Grid, require_grid
from lim_jax.limits.attention import SMOOTH, PositionField
from lim_jax.limits.references import doubt, polynomial_twins
from lim_jax.limits.refinement import largest, refine
from lim_jax.limits.rows import Row, rates_table, remarks
from lim_jax.limits.schemes import Scheme, reference_flows
from lim_jax.network.continuous import ContinuousFlow
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import Field, State
from lim_jax.network.span import Span, Spans

Network = Callable[[State, Grid], PyTree]
Measure = Callable[[Any, Grid], Any]

LEAST = 4  # a slope through fewer points says nothing


class Quantity(NamedTuple):
    r"""What a study measures of a network's result, and what is expected of it.

    Attributes
    ----------
    value
        ``value(result, grid)``: what the network gave on the grid, to an array. Either numbers,
        of one shape on every grid, or a field, with a row for each position. A field is compared at
        the positions of each refinement, to which its limit is interpolated.
    order
        The order that is expected of its error; None for none.
    bound
        A bound on its error, from the refinement; None for none.
    norm
        ``norm(gap, grid)``: an error's size, of NumPy arrays. `largest`, `mean_square`, or any.
    source
        Where order and bound are from, for one's own table.
    """

    value: Measure
    order: float | int | None = None
    bound: Callable[[int], float] | None = None
    norm: Callable[[np.ndarray, Grid], float] = largest
    source: str = ""


class Rates(tuple[Row, ...]):
    """The rows of a study: a sequence that prints as a table, and that figures take as it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return rates_table(self)

    @property
    def agree(self) -> bool:
        """Whether every order is the expected one, to 0.15, and no bound is broken."""
        return all(row.agrees for row in self)

    def to_csv(self, path: AnyPath | None = None) -> str:
        """All numbers as CSV, a line for each quantity and refinement; written where a path is."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["quantity", "source", "refinement", "error", "bound", "reference_error"]
            + ["expected_order", "order", "order_half_width", "doubt"]
        )
        for row in self:
            study, order = row.study, row.study.order
            bounds = study.bounds or [None] * len(study.errors)
            for refined in zip(study.refinements, study.errors, bounds, strict=True):
                fitted = [study.reference_error, row.expected, order.value, order.half_width]
                writer.writerow([row.name, study.source, *refined, *fitted, row.doubt])
        if path is not None:
            as_path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()


def study(
    network: Field | Network,
    states: PositionField,
    grids: Grid | Sequence[Grid],
    quantities: Mapping[str, Quantity | Measure],
    *,
    depths: Sequence[int] | None = None,
    scheme: Scheme | None = None,
    references: Sequence[Grid] | Sequence[ContinuousFlow] | None = None,
) -> Rates:
    r"""Measure how fast quantities of a network converge as positions, layers or both are refined.

    Positions are refined where several grids are given: errors are against the same network on the
    reference grids. Depth is refined where `depths` are given: the layers of each depth are samples
    of a `ContinuousFlow`'s control, and errors are against that flow, solved to 1e-13. With both,
    grid k goes with depth k. Print the result for a table with fitted orders, `to_csv` for the
    numbers, `plots.convergence_rates(result, title)` for a figure.

    References on panels are tested. A warning and `Row.doubt` say where a quantity of one cubic, in
    place of all arrays with an axis of positions that the network gave, is not the same on both: it
    picks rows. And where `references` are those of smooth fields, and half of a limit's digits
    differ between them: something has a kink.

    Parameters
    ----------
    network
        A field of two slots ``field(x, context, grid)``, applied once; a `ResidualFlow` or a
        `ContinuousFlow`; or any function ``network(x, grid)``, such as one that gives an adjoint.
    states
        The input as a field X(p), so that every grid samples the same one.
    grids
        Four grids or more, of increasing size; or one grid, held fixed, where depth is refined.
    quantities
        By name, a `Quantity` or a function ``value(result, grid)``. What stands before a comma in
        a name is its topic: figures draw a topic in one panel.
    depths
        As many numbers of layers, increasing.
    scheme
        How a control becomes layers; by default `Scheme()`, which is Euler's.
    references
        By default ``(gauss_grid(64), gauss_grid(96))``, for smooth fields; adjoints that are
        singular at 0 need ``position.SINGULAR_AT_ZERO``. Of two grids the last gives the limit,
        the first its error. Two that are finer than all others, of the same kind, serve a field
        that knows no panels. Three of sizes n, 2n and 4n give it by extrapolation at the expected
        order (`richardson`), from the last two; from the first two its error. On one grid they are
        two flows in place of `reference_flows`.

    Raises
    ------
    ValueError
        Where nothing is refined, or too seldom for a slope; where keys turn by the grid's own
        count of positions (`Rotary` without `tokens`), which has no limit, or a window is asked for
        on panels; where a quantity is no array of floats, neither of one shape nor a field, not
        finite, or without any error at a refinement.

    Examples
    --------
    The causal average of p is p/2, and on tokens it is (p + 1/L)/2:

    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.limits.fields import averaging_attention
    >>> found = study(
    ...     averaging_attention(),
    ...     lambda p: p[:, None],
    ...     [token_grid(n) for n in (10, 20, 40, 80)],
    ...     {"average": Quantity(lambda x, grid: x, order=1, bound=lambda n: 0.51 / n)},
    ... )
    >>> row = found[0]
    >>> [round(error, 6) for error in row.study.errors], row.study.holds, found.agree
    ([0.05, 0.025, 0.0125, 0.00625], True, True)
    >>> print(found.to_csv().splitlines()[1][:26])
    average,,10.0,0.0500000000
    """
    require_callable(states, "states", "X(p), from positions to a row for each")
    if scheme is not None:
        require_kind(scheme, Scheme, "scheme", "Leave it out for Euler's steps.")
    measured = _as_quantities(quantities)
    runs = _runs(network, grids, depths, scheme)
    known = _reference_runs(network, grids, references, measured)
    values = {name: quantity.value for name, quantity in measured.items()}
    everything = [*runs.values(), *known]
    fields = _fields(everything, states, values)
    observed, twins = _observed(everything, states, values)
    found = dict(zip(runs, observed, strict=False))
    parts = [(run.grid, of) for run, of in zip(known, observed[len(runs) :], strict=True)]
    check, limit = _Limit(parts[:-1], fields), _Limit(parts[1:], fields)
    finest = list(runs.values())[-1].grid
    panels = [run.grid for run in known[-2:]]
    smooth = references is None and not isinstance(grids, Grid)

    def row(name: str, quantity: Quantity) -> Row:
        def error(values: Array | np.ndarray, grid: Grid) -> float:
            exact = limit.on(grid, name, quantity.order)
            # On the host: each size is a shape of its own, which JAX would compile for.
            return float(quantity.norm(np.asarray(np.asarray(values) - exact), grid))

        errors = {n: error(found[n][name], run.grid) for n, run in runs.items()}
        _require_errors(name, errors)
        own = error(check.on(finest, name, quantity.order), finest)
        order = None if quantity.order is None else float(quantity.order)
        made = refine(quantity.source, order, tuple(runs), errors.__getitem__, own, quantity.bound)
        of_cubic = _change([of[name] for of in twins], panels, name in fields)
        size = max(float(np.abs(of[name]).max()) for of in observed)
        why = doubt(of_cubic / size, own / size if smooth else 0.0, observed[-1][name].dtype)
        return Row(name, made, order, doubt=why)

    rates = Rates(row(name, quantity) for name, quantity in measured.items())
    for remark, names in remarks({row.name: row.doubt for row in rates}).items():
        warnings.warn(f"quantities {', '.join(names)}: {remark}.", stacklevel=2)
    return rates


def _change(twins: list[Array], grids: list[Grid], field: bool) -> float:
    """How far a quantity of one field is from itself on two grids; zero where there are none."""
    if not twins:
        return 0.0
    first, second = _carried(twins[0], *grids) if field else twins[0], twins[1]
    with np.errstate(invalid="ignore"):  # of what no quantity has a number
        return float(np.abs(np.asarray(first) - np.asarray(second)).max())


class _Run(NamedTuple):
    """A network on a grid."""

    network: Network
    grid: Grid


class _Limit(NamedTuple):
    """Limits of quantities, from their values on one grid; or on two, to be extrapolated."""

    parts: Sequence[tuple[Grid, dict[str, Array]]]
    fields: frozenset[str]

    def on(self, grid: Grid, name: str, order: float | int | None) -> np.ndarray:
        """The limit of a quantity, at the positions of a grid where it is a field."""
        *coarse, fine = (
            np.asarray(
                _carried(values[name], source, grid) if name in self.fields else values[name]
            )
            for source, values in self.parts
        )
        if not coarse:
            return fine
        assert order is not None
        return np.asarray((2**order * fine - coarse[0]) / (2**order - 1))


@filter_jit
def _carried(values: Array, source: Grid, target: Grid) -> Array:
    return source.interpolate(values, target.nodes)


@filter_jit  # of all at once: a program each would take longer to compile
def _observed(
    runs: Sequence[_Run], states: PositionField, values: dict[str, Measure]
) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Every quantity of what each network gives on its grid; and of a cubic on the last two."""
    grids = [run.grid for run in runs]
    results = [network(states(grid.nodes), grid) for network, grid in runs]

    def measured(results: list[PyTree], grids: list[Grid]) -> list[dict[str, Array]]:
        return [
            {name: jnp.asarray(value(result, grid)) for name, value in values.items()}
            for result, grid in zip(results, grids, strict=True)
        ]

    twins = polynomial_twins(results[-2:], grids[-2:])
    return measured(results, grids), measured(twins, grids[-2:] if twins else [])


class _Applied(eqx.Module):
    """A field as a network: applied once."""

    field: Field

    def __call__(self, x: State, grid: Grid) -> State:
        return self.field(x, x, grid)


def _as_network(network: Any) -> Network:
    """A function of a state and a grid, from a field or a flow."""
    if isinstance(network, ResidualFlow | ContinuousFlow):
        return network
    signature = "network(x, grid) or field(x, context, grid)"
    require_callable(network, "network", signature)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [
        name
        for name, parameter in inspect.signature(network).parameters.items()
        if parameter.kind in kinds and parameter.default is parameter.empty
    ]
    require(
        len(taken) in (2, 3),
        "network",
        got=f"a function of ({', '.join(taken)})",
        expected=f"a flow, or a function {signature}",
        cure="A control is refined through ContinuousFlow(control).",
    )
    return network if len(taken) == 2 else _Applied(network)


def _solutions(network: Any) -> tuple[Network, Network]:
    """The network, and the same by another solver where it has one."""
    if not isinstance(network, ContinuousFlow):
        return _as_network(network), _as_network(network)
    other, solved = (
        dataclasses.replace(flow, profile=network.profile)
        for flow in reference_flows(network.control, network.horizon)
    )
    return solved, other


def _runs(network: Any, grids: Any, depths: Any, scheme: Scheme | None) -> dict[int, _Run]:
    """What is computed at each refinement: its number of positions, or else of layers."""
    require(
        depths is not None or not (isinstance(grids, Grid) or scheme),
        "depths",
        got=f"None, with {'one grid' if isinstance(grids, Grid) else 'a scheme'}",
        expected="numbers of layers",
        cure="Or refine positions: pass four grids of increasing size, and no scheme.",
    )
    if depths is None:
        solved, _ = _solutions(network)
        return {size: _Run(solved, grid) for size, grid in _by_size(grids, network).items()}
    layers = _by_depth(network, depths, scheme or Scheme())
    if isinstance(grids, Grid):
        return {depth: _Run(flow, grids) for depth, flow in layers.items()}
    by_size = _by_size(grids, network)
    require(
        len(by_size) == len(layers),
        "depths",
        got=f"{len(layers)} depths and {len(by_size)} grids",
        expected="as many of both, or one grid",
        cure="Grid k goes with depth k.",
    )
    pairs = zip(by_size.items(), layers.values(), strict=True)
    return {size: _Run(flow, grid) for (size, grid), flow in pairs}


def _listed(values: Any) -> list:
    """The entries of a list; of anything else a list of it alone."""
    return list(values) if isinstance(values, Sequence) else [values]


def _by_size(grids: Any, network: Any) -> dict[int, Grid]:
    """Grids by their sizes; refuses those that no slope goes through, and what has no limit."""
    known = _listed(grids)
    for grid in known:
        require_grid(grid, "grids")
    _require_refinements([grid.size for grid in known], "grids", "positions")
    field = network.control(jnp.array(0.0)) if isinstance(network, ContinuousFlow) else network
    spans = jax.tree.leaves(field, is_leaf=lambda node: isinstance(node, Span | Spans))
    kinds = [kind for span in spans for kind in getattr(span, "kinds", (span,))]
    places = [kind.places for kind in kinds if isinstance(kind, Span) and kind.places is not None]
    require(
        all(known.tokens is not None for known in places),
        "network",
        got="keys that turn by each grid's own number of positions (Rotary with tokens=None)",
        expected="keys that turn as fast on every grid",
        cure="Say how many tokens [0, 1] stands for: Rotary(frequencies, tokens=...).",
    )
    return {grid.size: grid for grid in known}


def _by_depth(network: Any, depths: Any, scheme: Scheme) -> dict[int, Network]:
    """Recursions whose layers are a control's, by their depths."""
    require(
        isinstance(network, ContinuousFlow),
        "network",
        got=described(network),
        expected="a ContinuousFlow, whose control gives the layers of every depth",
        cure="Of one field that is ContinuousFlow(lambda time: field).",
    )
    whole = [counted(depth, "depths") for depth in _listed(depths)]
    _require_refinements(whole, "depths", "layers")
    recursions = (scheme.recursion(network.control, depth, network.horizon) for depth in whole)
    profiled = [dataclasses.replace(flow, profile=network.profile) for flow in recursions]
    return dict(zip(whole, profiled, strict=True))


def _require_refinements(numbers: list[int], name: str, what: str) -> None:
    require(
        len(numbers) >= LEAST and numbers == sorted(set(numbers)),
        name,
        got=f"{numbers} {what}",
        expected=f"{LEAST} refinements or more, each finer than the one before",
        cure="A slope through fewer says nothing; double each.",
    )


def _reference_runs(
    network: Any, grids: Any, references: Any, quantities: Mapping[str, Quantity]
) -> list[_Run]:
    """What the limits are taken from: two runs, or three to extrapolate."""
    solved, other = _solutions(network)
    if isinstance(grids, Grid):
        flows = [other, solved] if references is None else _listed(references)
        require(
            len(flows) == 2 and all(isinstance(flow, ContinuousFlow) for flow in flows),
            "references",
            got=", ".join(map(described, flows)) or "none",
            expected="two depth flows where positions are not refined",
            cure="The last gives the limit, the first its error, on the same grid.",
        )
        return [_Run(flow, grids) for flow in flows]
    known = _listed(SMOOTH if references is None else references)
    for grid in known:
        require_grid(grid, "references")
    sizes = [grid.size for grid in known]
    require(
        len(known) == 2 or sizes[1:] == [2 * size for size in sizes[:-1]] and len(known) == 3,
        "references",
        got=f"grids of {sizes} positions",
        expected="two grids, or three of sizes n, 2n and 4n",
        cure="The last of two gives the limit, the first its error; three are extrapolated.",
    )
    unknown = [name for name, quantity in quantities.items() if quantity.order is None]
    require(
        len(known) == 2 or not unknown,
        "quantities",
        got=f"no order of {', '.join(unknown)}",
        expected="the order of each, by which its limit is extrapolated",
        cure="Pass Quantity(value, order=1), or two references.",
    )
    return [_Run(other if len(known) == 2 and not k else solved, g) for k, g in enumerate(known)]


def _as_quantities(quantities: Any) -> dict[str, Quantity]:
    require(
        isinstance(quantities, Mapping) and len(quantities) > 0,
        "quantities",
        got=described(quantities) if not isinstance(quantities, Mapping) else "none",
        expected="quantities by name, at least one",
        cure='Pass for example {"state": lambda x, grid: x}.',
    )
    found = {
        name: quantity if isinstance(quantity, Quantity) else Quantity(quantity)
        for name, quantity in quantities.items()
    }
    for name, quantity in found.items():
        require_callable(quantity.value, f"quantities[{name!r}]", "value(result, grid)")
    return found


def _fields(
    runs: Sequence[_Run], states: PositionField, values: dict[str, Measure]
) -> frozenset[str]:
    """Which quantities are fields of position; refuses those that are no numbers either."""
    shapes, _ = eqx.filter_eval_shape(_observed, runs, states, values)

    def is_field(name: str) -> bool:
        given = {run.grid.size: made[name] for run, made in zip(runs, shapes, strict=True)}
        known, rows = ({made.shape[n:] for made in given.values()} for n in (0, 1))
        field = len(rows) == 1 and all(made.shape[:1] == (n,) for n, made in given.items())
        require(
            all(jnp.issubdtype(made.dtype, jnp.floating) for made in given.values())
            and (field or len(known) == 1),
            f"quantities[{name!r}]",
            got=", ".join(f"{made.dtype} {made.shape} on {n}" for n, made in given.items()),
            expected="floats of one shape on every grid, or a field with a row for each position",
            cure="Average over positions, or read a field off at some: grid.interpolate.",
        )
        return len(known) > 1

    return frozenset(name for name in values if is_field(name))


def _require_errors(name: str, errors: Mapping[int, float]) -> None:
    bad = {n: error for n, error in errors.items() if not 0 < error < math.inf}
    require(
        not bad,
        f"quantities[{name!r}]",
        got=", ".join(f"an error of {error} at {n}" for n, error in bad.items()),
        expected="positive finite errors",
        cure="What is exact, or not finite, has no order of convergence: leave it out.",
    )
