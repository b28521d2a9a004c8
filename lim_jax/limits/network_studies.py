"""A convergence study of any network, grids, depths and quantities, in one call."""

import csv
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

from lim_jax._atomic_files import write_file
from lim_jax._checks import (
    AnyPath,
    as_int,
    as_path,
    described,
    is_real,
    require,
    require_callable,
    require_kind,
)
from lim_jax._jit import filter_jit
from lim_jax.grid.measure import Grid, require_grid
from lim_jax.limits.attention_error import SMOOTH, PositionField, require_references
from lim_jax.limits.references import polynomial_twins, reliability_warning
from lim_jax.limits.refinement import largest, refine, require_refinements, rounding_error
from lim_jax.limits.rows import Row, names_by_remark, rates_table
from lim_jax.limits.schemes import Scheme, reference_flows, require_reference_flows
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.masks import AttentionMask, SwitchedMask
from lim_jax.network.slots import Field, State

Network = Callable[[State, Grid], PyTree]
Measure = Callable[[Any, Grid], Any]


class Quantity(NamedTuple):
    """A quantity of a network's result that a study measures, and its expected order.

    Parameters
    ----------
    value
        A function ``value(result, grid)`` of the network's result on a grid to an array: of one
        shape on every grid, or with a row for each position, which is compared at those of each
        refinement.
    order
        The power of 1/n with which its error is expected to fall; None if none is expected.
    bound
        A bound on its error, a function of the refinement; None if there is none.
    norm
        The size of an error, a function ``norm(gap, grid)`` of the difference as a NumPy array: by
        default `largest`, the largest absolute entry; or `mean_square`, or any.
    source
        Where order and bound are from: a few words for the table.
    """

    value: Measure
    order: float | int | None = None
    bound: Callable[[int], float] | None = None
    norm: Callable[[np.ndarray, Grid], float] = largest
    source: str = ""


class Rates(tuple[Row, ...]):
    """The rows of a study: a sequence that prints as a table and that figures accept."""

    __slots__ = ()

    def __str__(self) -> str:
        return rates_table(self)

    @property
    def agree(self) -> bool:
        """Whether every order is the expected one, to 0.15, and no bound is broken."""
        return all(row.agrees for row in self)

    def to_csv(self, path: AnyPath | None = None) -> str:
        """Return all numbers as CSV, by quantity and refinement; write them to `path` if given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["quantity", "source", "refinement", "error", "bound", "reference_error"]
            + ["expected_order", "order", "order_half_width", "reliability_warning"]
        )
        for row in self:
            study = row.study
            order = row.study.order
            bounds = study.bounds or [None] * len(study.errors)
            fitted = [study.reference_error, row.expected, order.value, order.half_width]
            for refined in zip(study.refinements, study.errors, bounds, strict=True):
                line = [row.name, study.source, *refined, *fitted, row.reliability_warning]
                writer.writerow(line)
        if path is not None:
            write_file(as_path(path), text.getvalue().encode())
        return text.getvalue()


def convergence_study(
    network: Field | Network,
    states: PositionField,
    grids: Grid | Sequence[Grid],
    quantities: Mapping[str, Quantity | Measure],
    *,
    depths: Sequence[int] | None = None,
    scheme: Scheme | None = None,
    references: Sequence[Grid] | Sequence[ContinuousFlow] | None = None,
) -> Rates:
    """Measure how fast quantities of a network converge as positions, layers or both are refined.

    Several grids refine positions: errors are against the same network on the reference grids.
    `depths` refine depth: the layers of each depth are samples of a `ContinuousFlow`'s control, and
    errors are against that flow, solved to 1e-13. With both, grid k goes with depth k. A warning
    says if references on panels are unreliable, as where a quantity picks rows or something has a
    kink.

    Parameters
    ----------
    network
        A field ``field(x, context, grid)``, which is applied once; a `ResidualFlow` or a
        `ContinuousFlow`; or any function ``network(x, grid)``, such as one that gives an adjoint.
    states
        The input as a field X(p), so that every grid samples the same one: from positions,
        (points,), to a row for each, (points, width).
    grids
        Four grids or more, of increasing size, or one fixed grid, if depth is refined.
    quantities
        By name, a `Quantity` or a function ``value(result, grid)``, of floats whose error is
        positive and finite. Names that agree up to a comma share a panel in figures.
    depths
        Four numbers of layers or more, rising, as many as there are grids if these are several. By
        default depth is not refined.
    scheme
        How a `ContinuousFlow`'s control becomes layers, if depth is refined; by default Euler's
        steps of the control at :math:`t_k`.
    references
        By default ``(gauss_grid(64), gauss_grid(96))``, for smooth fields; adjoints that are
        singular at 0 need ``position.SINGULAR_AT_ZERO``. The second gives the limit, the first its
        error. Three grids of sizes n, 2n and 4n are extrapolated at the expected order. If `grids`
        is one grid, pass two flows; by default the same flow solved by two methods.

    Returns
    -------
    Rates
        A sequence with a row for each quantity. Print it for a table; see `Rates.to_csv` for
        numbers and `plots.convergence_rates` for a figure.

    Raises
    ------
    ValueError
        If an argument is of another kind; there are fewer than four refinements, or they do not
        rise; the network has no limit, as with `Rotary` or `Alibi` without `tokens`; it has a
        window of so many positions and a grid is on panels, as references are by default; depths or
        a fixed grid come with a network that is not a `ContinuousFlow`; the references have one
        resolution, or are flows to another horizon; or a quantity changes its shape, is exact or
        not finite, or has no order by which to extrapolate.

    Examples
    --------
    The causal average of p is p/2, and on tokens it is (p + 1/L)/2:

    >>> rates = convergence_study(
    ...     lim.limits.averaging_attention(),
    ...     lambda p: p[:, None],
    ...     [lim.token_grid(n) for n in (10, 20, 40, 80)],
    ...     {"average": Quantity(lambda x, grid: x, order=1, bound=lambda n: 0.51 / n)},
    ... )
    >>> row = rates[0]
    >>> [round(error, 6) for error in row.study.errors], row.study.holds, rates.agree
    ([0.05, 0.025, 0.0125, 0.00625], True, True)
    >>> name, _, size, error, *_ = rates.to_csv().splitlines()[1].split(",")
    >>> name, size, round(float(error), 6)
    ('average', '10.0', 0.05)
    """
    require_callable(states, "states", "X(p), from positions to a row for each")
    if scheme is not None:
        require_kind(scheme, Scheme, "scheme", "Leave it out for Euler's steps.")
    measured = _as_quantities(quantities)
    runs = _network_runs(network, grids, depths, scheme)
    reference_runs = _reference_runs(network, grids, references, measured)
    values = {name: quantity.value for name, quantity in measured.items()}
    everything = [*runs.values(), *reference_runs]
    observed, twins = _observe(everything, states, values)
    fields = _fields(everything, observed)
    smooth = references is None and not isinstance(grids, Grid)
    observations = _Observations(runs, reference_runs, observed, twins, fields, smooth)
    rates = Rates(_row(name, quantity, observations) for name, quantity in measured.items())
    remarks = names_by_remark({row.name: row.reliability_warning for row in rates})
    for remark, names in remarks.items():
        warnings.warn(f"quantities {', '.join(names)}: {remark}.", stacklevel=2)
    return rates


class _NetworkRun(NamedTuple):
    network: Network
    grid: Grid


class _QuantityLimits(NamedTuple):
    """Limits of quantities: their values on one grid, or extrapolated from two."""

    parts: Sequence[tuple[Grid, dict[str, Array]]]
    fields: frozenset[str]

    def on(self, grid: Grid, name: str, order: float | int | None) -> np.ndarray:
        """Return the limit of a quantity; at the positions of a grid if it is a field."""
        *coarse, fine = (
            np.asarray(
                _interpolate_at(values[name], source, grid) if name in self.fields else values[name]
            )
            for source, values in self.parts
        )
        if not coarse:
            return fine
        assert order is not None
        return np.asarray((2**order * fine - coarse[0]) / (2**order - 1))


class _Observations(NamedTuple):
    """What every run of a study gave, each time by the names of quantities."""

    runs: dict[int, _NetworkRun]  # by refinement
    reference_runs: list[_NetworkRun]  # the finest last
    observed: list[dict[str, Array]]  # by the runs, and after them by the reference runs
    twins: list[dict[str, Array]]  # by cubics in place of the last two results; none on cells
    fields: frozenset[str]  # names of quantities that have a row for each position
    smooth: bool  # whether the reference runs are on the grids for smooth fields

    @property
    def references(self) -> list[tuple[Grid, dict[str, Array]]]:
        """The grid of each reference run, and what it gave."""
        grids = [run.grid for run in self.reference_runs]
        return list(zip(grids, self.observed[len(self.runs) :], strict=True))


def _row(name: str, quantity: Quantity, observations: _Observations) -> Row:
    """Compute one quantity's errors over the runs, and make its row with the fitted order."""
    runs = observations.runs
    by_runs = observations.observed[: len(runs)]
    references = observations.references
    limit = _QuantityLimits(references[1:], observations.fields)
    check = _QuantityLimits(references[:-1], observations.fields)

    def error(values: Array | np.ndarray, grid: Grid) -> float:
        """Compute the norm of the values' error on one grid."""
        exact = limit.on(grid, name, quantity.order)
        # On the host: JAX would compile for every size, each being a shape of its own.
        return float(quantity.norm(np.asarray(np.asarray(values) - exact), grid))

    errors = {
        refinement: error(values[name], run.grid)
        for (refinement, run), values in zip(runs.items(), by_runs, strict=True)
    }
    bounds = {}
    if quantity.bound is not None:
        bounds = {refinement: float(quantity.bound(refinement)) for refinement in runs}
    _require_measurable(name, errors, bounds)
    finest = list(runs.values())[-1].grid
    limit_error = error(check.on(finest, name, quantity.order), finest)
    magnitudes = np.asarray(np.abs(by_runs[-1][name]))
    order = None if quantity.order is None else float(quantity.order)
    study = refine(
        quantity.source,
        order,
        tuple(runs),
        errors.values(),
        limit_error,
        quantity.bound,
        rounding=rounding_error(magnitudes, float(quantity.norm(magnitudes, finest))),
    )
    warning = _reliability_warning(name, observations, limit_error)
    return Row(name, study, order, reliability_warning=warning)


def _require_measurable(name: str, errors: dict[int, float], bounds: dict[int, float]) -> None:
    """Raise ValueError unless a quantity's errors are positive and finite, and no bound negative.

    Errors and bounds come by refinement.
    """
    negative = [f"{bound} at {n}" for n, bound in bounds.items() if not bound >= 0]
    require(
        not negative,
        f"quantities[{name!r}].bound",
        got=", ".join(negative),
        expected="nothing below zero, as errors are positive",
        cure="Pass a function of the refinement, such as lambda n: 0.51 / n.",
    )
    unfit = [
        f"an error of {error} at {n}" for n, error in errors.items() if not 0 < error < math.inf
    ]
    require(
        not unfit,
        f"quantities[{name!r}]",
        got=", ".join(unfit),
        expected="positive finite errors",
        cure="Leave it out: what is exact, or not finite, has no order of convergence.",
    )


def _reliability_warning(name: str, observations: _Observations, limit_error: float) -> str:
    """Say why a quantity's limit may not be relied on, by its largest value; nothing if it may."""
    panels = [run.grid for run in observations.reference_runs[-2:]]
    twins = [values[name] for values in observations.twins]
    cubic_change = _largest_change(twins, panels, name in observations.fields)
    size = max(float(np.abs(values[name]).max()) for values in observations.observed)
    limit_change = limit_error / size if observations.smooth else 0.0
    dtype = observations.observed[-1][name].dtype
    return reliability_warning(cubic_change / size, limit_change, dtype)


def _largest_change(twins: list[Array], grids: list[Grid], field: bool) -> float:
    """Return the largest difference of a quantity between two grids; zero if there are no twins."""
    if not twins:
        return 0.0
    first = _interpolate_at(twins[0], *grids) if field else twins[0]
    second = twins[1]
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, and warns of nothing
        return float(np.abs(np.asarray(first) - np.asarray(second)).max())


@filter_jit
def _interpolate_at(values: Array, source: Grid, target: Grid) -> Array:
    """Interpolate values of one grid at another's nodes."""
    return source.interpolate(values, target.nodes)


@filter_jit  # all in one program: one program each would take longer to compile
def _observe(
    runs: Sequence[_NetworkRun], states: PositionField, values: dict[str, Measure]
) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Measure every quantity of each run's result, and of cubics that replace the last two."""
    grids = [run.grid for run in runs]
    results = [network(states(grid.nodes), grid) for network, grid in runs]

    def measured(results: list[PyTree], grids: list[Grid]) -> list[dict[str, Array]]:
        """Measure every quantity of each result."""
        return [
            {name: jnp.asarray(value(result, grid)) for name, value in values.items()}
            for result, grid in zip(results, grids, strict=True)
        ]

    twins = polynomial_twins(results[-2:], grids[-2:])
    return measured(results, grids), measured(twins, grids[-2:] if twins else [])


class _Applied(eqx.Module):
    """A network that applies a field once."""

    field: Field

    def __call__(self, x: State, grid: Grid) -> State:
        """Apply the field to the state, which is its own context."""
        return self.field(x, x, grid)


def _as_network(network: Any) -> Network:
    """Return a flow or ``network(x, grid)`` as it is; wrap a ``field(x, context, grid)``."""
    if isinstance(network, ResidualFlow | ContinuousFlow):
        return network
    signature = "network(x, grid) or field(x, context, grid)"
    require_callable(network, "network", signature)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(network).parameters.values()
    arguments = [a.name for a in every if a.kind in kinds and a.default is a.empty]
    require(
        len(arguments) in (2, 3),
        "network",
        got=f"a function of ({', '.join(arguments)})",
        expected=f"a flow, or a function {signature}",
        cure="Pass a flow, or such a function; refine a control through ContinuousFlow(control).",
    )
    return network if len(arguments) == 2 else _Applied(network)


def _solutions(network: Any) -> tuple[Network, Network]:
    """Return the network to run and one to check it: a continuous flow by two solvers."""
    if not isinstance(network, ContinuousFlow):
        return _as_network(network), _as_network(network)
    other, solved = reference_flows(network.control, network.horizon, network.profile)
    return solved, other


def _network_runs(
    network: Any, grids: Any, depths: Any, scheme: Scheme | None
) -> dict[int, _NetworkRun]:
    """Return every network to run and its grid, by number of positions or of layers."""
    if depths is None:
        require(
            not isinstance(grids, Grid) and scheme is None,
            "depths",
            got=f"None, with {'one grid' if isinstance(grids, Grid) else 'a scheme'}",
            expected="numbers of layers",
            cure=(
                "Pass numbers of layers in depths; to refine positions pass four grids of "
                "increasing size and no scheme."
            ),
        )
        solved, _ = _solutions(network)
        return {size: _NetworkRun(solved, grid) for size, grid in _by_size(grids, network).items()}
    layers = _by_depth(network, depths, Scheme() if scheme is None else scheme)
    if isinstance(grids, Grid):
        return {depth: _NetworkRun(flow, grids) for depth, flow in layers.items()}
    by_size = _by_size(grids, network)
    require(
        len(by_size) == len(layers),
        "depths",
        got=f"{len(layers)} depths and {len(by_size)} grids",
        expected="as many grids as depths, or one grid",
        cure="Pass a grid for each depth: grid k goes with depth k.",
    )
    pairs = zip(by_size.items(), layers.values(), strict=True)
    return {size: _NetworkRun(flow, grid) for (size, grid), flow in pairs}


def _as_list(values: Any) -> list:
    """Return a sequence as a list, and anything else as a list of one."""
    return list(values) if isinstance(values, Sequence) else [values]


def _grids(values: Any, name: str) -> list[Grid]:
    """Return one grid or several as a list; raise ValueError at anything else."""
    for grid in _as_list(values):
        require_grid(grid, name)
    return _as_list(values)


def _by_size(grids: Any, network: Any) -> dict[int, Grid]:
    """Return the grids by size; raise ValueError unless they refine, with positions fixed."""
    grid_list = _grids(grids, "grids")
    require_refinements([grid.size for grid in grid_list], "grids", "positions")
    field = network.control(jnp.array(0.0)) if isinstance(network, ContinuousFlow) else network
    masks = jax.tree.leaves(
        field, is_leaf=lambda node: isinstance(node, AttentionMask | SwitchedMask)
    )
    kinds = [kind for mask in masks for kind in getattr(mask, "kinds", (mask,))]
    encodings = [kind.positions for kind in kinds if isinstance(kind, AttentionMask)]
    unfixed = [each for each in encodings if each is not None and each.tokens is None]
    names = " and ".join(dict.fromkeys(type(each).__name__ for each in unfixed))
    require(
        not unfixed,
        "network",
        got=f"{names} with tokens=None",
        expected="positions that are counted alike on every grid, not by its own number of them",
        cure=f"Pass how many tokens [0, 1] stands for: {names}(..., tokens=...).",
    )
    return {grid.size: grid for grid in grid_list}


def _by_depth(network: Any, depths: Any, scheme: Scheme) -> dict[int, Network]:
    """Return the recursions of a continuous flow by depth; raise ValueError for other networks."""
    require(
        isinstance(network, ContinuousFlow),
        "network",
        got=described(network),
        expected="a ContinuousFlow, whose control gives the layers of every depth",
        cure="Make one of a single field by ContinuousFlow(lambda time: field).",
    )
    counts = [as_int(depth, "depths") for depth in _as_list(depths)]
    require_refinements(counts, "depths", "layers")
    parts = network.horizon, network.profile
    return {depth: scheme.recursion(network.control, depth, *parts) for depth in counts}


def _reference_runs(
    network: Any, grids: Any, references: Any, quantities: Mapping[str, Quantity]
) -> list[_NetworkRun]:
    """Return the runs that give the limits and their errors, the finest last."""
    solved, other = _solutions(network)
    if isinstance(grids, Grid):
        flows = [other, solved] if references is None else _as_list(references)
        require_reference_flows(flows, network.horizon)
        return [_NetworkRun(flow, grids) for flow in flows]
    reference_grids = _grids(SMOOTH if references is None else references, "references")
    sizes = [grid.size for grid in reference_grids]
    two = len(reference_grids) == 2
    require(
        two or (len(reference_grids) == 3 and sizes[1:] == [2 * size for size in sizes[:-1]]),
        "references",
        got=f"grids of {sizes} positions",
        expected="two grids, or three of sizes n, 2n and 4n",
        cure=(
            "Pass two, of which the last gives the limit and the first its error, or three to "
            "extrapolate."
        ),
    )
    unknown = [name for name, quantity in quantities.items() if quantity.order is None]
    require(
        two or not unknown,
        "quantities",
        got=f"no order of {', '.join(unknown)}",
        expected="the order of each, by which its limit is extrapolated",
        cure="Pass Quantity(value, order=1), or two references.",
    )
    for name, quantity in quantities.items():
        require(
            two or (quantity.order is not None and quantity.order > 0),
            f"quantities[{name!r}].order",
            got=f"{quantity.order}",
            expected="a positive one, by which its limit is extrapolated",
            cure="Pass two references: without an order there is no limit to extrapolate to.",
        )
    if two:
        require_references(reference_grids)
    return [
        _NetworkRun(other if two and not k else solved, grid)
        for k, grid in enumerate(reference_grids)
    ]


def _as_quantities(quantities: Any) -> dict[str, Quantity]:
    """Return quantities by name, each a `Quantity`; raise ValueError unless all are valid."""
    mapping = isinstance(quantities, Mapping)
    require(
        mapping and len(quantities) > 0,
        "quantities",
        got="none" if mapping else described(quantities),
        expected="quantities by name, at least one",
        cure='Pass for example {"state": lambda x, grid: x}.',
    )
    measured = {
        name: quantity if isinstance(quantity, Quantity) else Quantity(quantity)
        for name, quantity in quantities.items()
    }
    for name, quantity in measured.items():
        require_callable(quantity.value, f"quantities[{name!r}]", "value(result, grid)")
        require_callable(quantity.norm, f"quantities[{name!r}].norm", "norm(gap, grid)")
        if quantity.bound is not None:
            require_callable(quantity.bound, f"quantities[{name!r}].bound", "bound(refinement)")
        require(
            quantity.order is None or (is_real(quantity.order) and abs(quantity.order) < math.inf),
            f"quantities[{name!r}].order",
            got=described(quantity.order),
            expected="a finite number, or None",
            cure=(
                "Pass the power of 1/n with which errors fall, 1 or 2, or None if you do not know "
                "it."
            ),
        )
    return measured


def _fields(runs: Sequence[_NetworkRun], observed: Sequence[dict[str, Array]]) -> frozenset[str]:
    """Find which quantities are fields of position; the others must have one shape."""

    def is_field(name: str) -> bool:
        """Tell whether a quantity has a row for each position; raise ValueError at other shapes."""
        arrays = [np.asarray(array[name]) for array in observed]
        by_size = {run.grid.size: array for run, array in zip(runs, arrays, strict=True)}
        shapes, rows = ({array.shape[n:] for array in by_size.values()} for n in (0, 1))
        field = len(rows) == 1 and all(array.shape[:1] == (n,) for n, array in by_size.items())
        floats = all(jnp.issubdtype(array.dtype, jnp.floating) for array in by_size.values())
        require(
            floats and (field or len(shapes) == 1),
            f"quantities[{name!r}]",
            got=", ".join(f"{array.dtype} {array.shape} on {n}" for n, array in by_size.items()),
            expected="floats of one shape on every grid, or a field with a row for each position",
            cure="Average over positions, or read a field off at some: grid.interpolate.",
        )
        return len(shapes) > 1

    return frozenset(name for name in observed[0] if is_field(name))
