r"""Section 4 of the paper: one function for each table and figure, and the figures it prints.

The model is a residual flow whose only layer is causal attention with zero queries: its attention
matrix is the Cesàro matrix of `eq:simulation-causal-matrix`. Trainable gates scale the input, and
the loss is linear in the terminal state. Everything is computed by the library's own functions in
JAX's current default precision; the paper's digits need float64.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jaxtyping import Array, Float

from lim_jax.density.measurement import influence
from lim_jax.density.statistics import Indices, Influence
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import boundary_regions, regional_averages
from lim_jax.network.field import CausalAttention
from lim_jax.network.flow import ResidualFlow
from lim_jax.observability.gramian import (
    ObservedTokens,
    condition_numbers,
    gramian_traces,
    observability_gramians,
)
from lim_jax.observability.trace_estimates import gaussian_probe_moments, probed_traces
from lim_jax.training.balancing import influence_discrepancy
from lim_jax.training.observing import trace_penalty
from lim_jax.training.reweighting import reweight_positions

LENGTH, WIDTH, DEPTH = 48, 4, 12
DELTA = 0.2
GRID = token_grid(LENGTH)
SEED = 20260717
PROBE_COUNTS = (1, 2, 4, 8, 16, 32)
REPETITIONS = 1000
REGION_NAMES = ("left", "middle", "right")
TABLE_COLUMNS = (
    "left",
    "middle",
    "right",
    "gap",
    "symmetric_contrast",
    "lim",
    "influence_imbalance",
    "Z",
)
# tab:simulation-remedy-results
PRINTED_TABLE = {
    "baseline": "3.2269 0.1417 1.3479 1.2062 0.8097 0.8949 9.2503 4.1487",
    "algorithm1": "1.0163 0.9960 0.9958 -0.0002 -0.0001 -0.0002 0.0002 9.7981",
    "algorithm2": "3.0303 0.1631 1.4804 1.3173 0.8015 0.8898 8.5348 3.8028",
    "algorithm3": "2.8192 0.6671 0.1794 -0.4877 -0.5761 -2.7181 1.3952 1.7226",
}
# The text around the table, of sec:simulations.
PRINTED_TEXT = {
    "change algorithm2_imbalance_decrease": "7.7%",
    "change algorithm3_Z": "41.5%",
    "observability imbalance before": "39.4921",
    "observability imbalance after": "0.3392",
    "observability trace_averages before left": "0.2905",
    "observability trace_averages before middle": "0.0351",
    "observability trace_averages before right": "4.6041",
    "observability trace_averages after left": "1.6292",
    "observability trace_averages after middle": "0.8788",
    "observability trace_averages after right": "0.7343",
    "condition_number left mean": "171.1",
    "condition_number middle mean": "36.7",
    "condition_number right mean": "16.6",
    "condition_number left min": "76.5",
    "condition_number left max": "482.8",
    "condition_number middle min": "20.8",
    "condition_number middle max": "70.2",
    "condition_number right min": "1.03",
    "condition_number right max": "20.2",
    "observability penalty": "0.3438",
    "probe 1 bias": "44.0%",
    "probe 32 bias": "1.0%",
    "probe 1 std": "216.3%",
    "probe 32 std": "24.4%",
}

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]
State = Float[Array, "length width"]
Objective = Callable[[Profile], tuple[Scalar, Scalar]]


def _profile(time: Scalar) -> Scalar:
    r"""The factor :math:`\alpha = 2` of `eq:simulation-residual-propagator`, as :math:`\zeta`."""
    return jnp.full_like(time, 2.0)


def cesaro_flow() -> ResidualFlow:
    r"""The linear flow :math:`B^M`, :math:`B = I + \varepsilon\alpha\,(C\otimes S)`.

    `eq:simulation-residual-propagator`. Zero queries make attention the Cesàro average C of
    `eq:simulation-causal-matrix`; its value
    matrix is S of `eq:simulation-feature-mixing`.

    Examples
    --------
    >>> cesaro_flow().depth
    12
    """
    mixing = jnp.array(
        [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    )
    zeros = jnp.zeros((1, 1, WIDTH))
    layer = CausalAttention(eqx.nn.Identity(), zeros, zeros, mixing[None], jnp.eye(WIDTH)[None])
    layers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (DEPTH, *leaf.shape)), layer)
    return ResidualFlow(layers, horizon=1.0, profile=_profile)


def gated(gates: Profile, x: State) -> State:
    r"""Apply the input gates :math:`D(u)` of `eq:simulation-input-gate`."""
    return jnp.exp(gates)[:, None] * x


def terminal_covector(weights: Profile) -> State:
    r"""The covector r of `eq:simulation-terminal-covector`, with weights on its uniform part.

    Unit weights give the paper's covector; Algorithm 2 moves them.
    """
    final_share = 0.85
    queries = (1 - final_share) / LENGTH * weights
    return jnp.outer(queries.at[-1].add(final_share), jnp.array([1, 0.5, -0.3, 0.2]))


def _loss(params: tuple[Profile, Profile], x: State, y: None) -> Scalar:
    r""":math:`\langle r, \Phi D(u) x\rangle`, whose input gradient is :math:`p_0`.

    `eq:simulation-influence-profile`.
    """
    gates, weights = params
    return jnp.vdot(terminal_covector(weights), cesaro_flow()(gated(gates, x), GRID))


def gate_influence(gates: Profile, weights: Profile | None = None) -> Influence:
    """The positional influence of the gated flow: one example, since its loss is linear.

    Examples
    --------
    >>> round(float(gate_influence(jnp.zeros(48)).indices().left), 4)
    3.2269
    """
    return _gate_influence(gates, jnp.ones_like(gates) if weights is None else weights)


@jax.jit
def _gate_influence(gates: Profile, weights: Profile) -> Influence:
    batch = (jnp.zeros((1, LENGTH, WIDTH)), None)
    return influence(_loss, (gates, weights), batch, GRID, boundary_regions(GRID, DELTA))


def influence_imbalance(density: Profile) -> Scalar:
    r""":math:`\mathcal E_{inf} = \int (m - 1)^2` of `eq:simulation-imbalance-metrics`.

    Examples
    --------
    >>> float(influence_imbalance(jnp.ones(48)))
    0.0
    """
    return 2 * influence_discrepancy(density, 1.0, GRID)


@jax.jit
def gate_gramians(gates: Profile) -> Float[Array, "length width width"]:
    r"""The Gramians of `eq:simulation-observability-gramian`: the final token is observed.

    The gates scale the input, so :math:`G_i(u) = e^{2u_i}\,G_i(0)`.
    """
    with jax.ensure_compile_time_eval():  # once, not at every step of an optimiser of the gates
        ungated = _ungated_gramians()
    return jnp.exp(2 * gates)[:, None, None] * ungated


@jax.jit
def _ungated_gramians() -> Float[Array, "length width width"]:
    final_token = ObservedTokens(cesaro_flow(), GRID, jnp.array([LENGTH - 1]))
    return observability_gramians(final_token, jnp.zeros((LENGTH, WIDTH)), 1.0 / DEPTH)


def trace_density(gates: Profile) -> Profile:
    """The normalised traces of `eq:simulation-normalized-observability`, as a density."""
    traces = gramian_traces(gate_gramians(gates))
    return traces / (GRID.weights @ traces)


def algorithm1_objective(gates: Profile) -> tuple[Scalar, Scalar]:
    r""":math:`J_1` of `eq:simulation-algorithm1-objective`, and the imbalance that it controls."""
    imbalance = influence_imbalance(gate_influence(gates).density)
    return 0.12 / (2 * LENGTH) * jnp.sum(gates**2) + 15 / 2 * imbalance, imbalance


def algorithm3_objective(gates: Profile) -> tuple[Scalar, Scalar]:
    r""":math:`J_3` of `eq:simulation-algorithm3-objective`, and the imbalance that it controls.

    That is :math:`\mathcal E_{obs}` of `eq:simulation-imbalance-metrics`.
    """
    imbalance = trace_penalty(trace_density(gates), GRID)
    return 1.0 / (2 * LENGTH) * jnp.sum(gates**2) + 0.5 / 2 * imbalance, imbalance


class GateRun(NamedTuple):
    """Where an optimiser of the gates stopped.

    Attributes
    ----------
    gates
        The gates u, or Algorithm 2's loss weights.
    objective
        The objective there.
    history
        The surrogate that the algorithm controls, before the first step and after each.
    """

    gates: Profile
    objective: Scalar
    history: Float[Array, " steps"]


@partial(jax.jit, static_argnums=0)
def _slope(objective: Objective, gates: Profile) -> tuple[tuple[Scalar, Scalar], Profile]:
    """The value and the controlled imbalance, and the gradient: what both optimisers ask for."""
    return jax.value_and_grad(objective, has_aux=True)(gates)


def adam_run(objective: Objective, learning_rate: float) -> GateRun:
    """Take 400 Adam steps from u = 0, and evaluate after the last, as the paper does.

    A loop in Python: not for use under `jax.jit`.
    """
    optimiser = optax.adam(learning_rate)

    @jax.jit
    def move(gates, state, gradient):
        updates, state = optimiser.update(gradient, state)
        return gates + updates, state

    gates = jnp.zeros(LENGTH)
    state, history = optimiser.init(gates), []
    for _ in range(400):
        (_, imbalance), gradient = _slope(objective, gates)
        gates, state = move(gates, state, gradient)
        history.append(imbalance)
    (value, imbalance), _ = _slope(objective, gates)
    return GateRun(gates, value, jnp.stack([*history, imbalance]))


def minimiser(objective: Objective, start: Profile) -> GateRun:
    """Descend from `start` to a stationary point by L-BFGS, until rounding stops it.

    Raises
    ------
    RuntimeError
        Where the gradient does not fall below a tenth of the root of the rounding unit.
    """
    tolerance = math.sqrt(jnp.finfo(start.dtype).eps) / 10

    def value_and_slope(gates: np.ndarray) -> tuple[float, np.ndarray]:
        (value, _), gradient = _slope(objective, jnp.asarray(gates, start.dtype))
        return float(value), np.asarray(gradient, float)

    found = scipy.optimize.minimize(
        value_and_slope, np.asarray(start, float), jac=True, method="L-BFGS-B",
        options={"gtol": tolerance / math.sqrt(LENGTH), "ftol": 0, "maxcor": 20},
    )  # fmt: skip
    gates = jnp.asarray(found.x, start.dtype)
    (value, imbalance), gradient = _slope(objective, gates)
    if not np.linalg.norm(gradient) <= tolerance:
        raise RuntimeError(
            f"minimiser: L-BFGS did not converge ({found.message}); start elsewhere."
        )
    return GateRun(gates, value, imbalance[None])


@jax.jit
def algorithm2_run() -> GateRun:
    """Take 160 outer updates of the loss weights, and evaluate after the last."""
    options = {"target": 1.0, "grid": GRID, "rate": 0.5, "smallest": 0.15, "largest": 8.0}

    def update(weights: Profile, _: None) -> tuple[Profile, Scalar]:
        density = gate_influence(jnp.zeros(LENGTH), weights).density
        return reweight_positions(weights, density, **options), influence_imbalance(density)

    weights, history = jax.lax.scan(update, jnp.ones(LENGTH), length=160)
    final = influence_imbalance(gate_influence(jnp.zeros(LENGTH), weights).density)
    return GateRun(weights, final, jnp.append(history, final))


class Row(NamedTuple):
    r"""One row of the paper's table (`tab:simulation-remedy-results`), with its profile.

    `Z` is Euclidean, :math:`\sum_i \|E_i^* p_0\|^2`, which is the density's total over L.
    """

    indices: Indices
    imbalance: Scalar
    Z: Scalar
    density: Profile


def table_row(result: Influence) -> Row:
    """Summarise an influence as the table does.

    Examples
    --------
    >>> round(float(table_row(gate_influence(jnp.zeros(48))).Z), 4)
    4.1487
    """
    imbalance = influence_imbalance(result.density)
    return Row(result.indices(), imbalance, result.total / LENGTH, result.density)


class Summary(NamedTuple):
    """Mean, smallest and largest of a profile over E_L, E_M and E_R."""

    mean: Float[Array, "3"]
    smallest: Float[Array, "3"]
    largest: Float[Array, "3"]


def regional_condition_numbers() -> Summary:
    """Condition numbers of the baseline Gramians, over regions as point sets.

    The gates rescale each Gramian, so these hold for every gate
    (`eq:simulation-condition-number-invariance`).
    """
    regions = boundary_regions(GRID, DELTA, "points")
    numbers = condition_numbers(gate_gramians(jnp.zeros(LENGTH)))
    member = regions.weights > 0
    return Summary(
        regional_averages(numbers, regions),
        jnp.where(member, numbers[None, :], jnp.inf).min(axis=1),
        jnp.where(member, numbers[None, :], -jnp.inf).max(axis=1),
    )


class ProbeStudy(NamedTuple):
    """Bias and deviation of the empirical penalty, relative to the true one, by probe count."""

    penalty: Scalar
    counts: Float[Array, " counts"]
    bias: Float[Array, " counts"]
    deviation: Float[Array, " counts"]
    exact_bias: Float[Array, " counts"]
    exact_deviation: Float[Array, " counts"]


def probe_study() -> ProbeStudy:
    """Estimate the baseline penalty with common Gaussian probes, 1000 times for each count.

    Beside the sampled figures stand the exact ones, which the paper does not give: a sample of
    1000 of so heavy a tail is off by several per cent.
    """
    gramians = gate_gramians(jnp.zeros(LENGTH))
    penalty = trace_penalty(gramian_traces(gramians), GRID)
    stream = np.random.default_rng(SEED)

    @jax.jit
    @jax.vmap
    def estimate(probes):
        return trace_penalty(probed_traces(gramians, probes), GRID)

    rows = []
    for count in PROBE_COUNTS:
        probes = stream.standard_normal((REPETITIONS, count, WIDTH))
        estimates = estimate(jnp.asarray(probes, gramians.dtype)) / penalty
        exact = gaussian_probe_moments(gramians, GRID, count)
        rows.append(
            (
                estimates.mean() - 1,
                estimates.std(ddof=1),
                exact.bias / penalty,
                exact.deviation / penalty,
            )
        )
    columns = (jnp.stack(column) for column in zip(*rows, strict=True))
    return ProbeStudy(penalty, jnp.array(PROBE_COUNTS, gramians.dtype), *columns)


class Section4(NamedTuple):
    """All results of section 4.

    Attributes
    ----------
    table
        ``baseline`` and ``algorithm1`` to ``algorithm3``.
    minimiser
        ``algorithm1`` and ``algorithm3`` at the minimum of their objectives, where the paper's
        400 steps of Adam do not arrive.
    objectives
        The objectives at these minima.
    runs
        The three optimisations.
    trace_densities
        Normalised trace profiles, ``before`` and ``after`` Algorithm 3.
    condition_numbers, probes
        As computed by `regional_condition_numbers` and `probe_study`.
    """

    table: dict[str, Row]
    minimiser: dict[str, Row]
    objectives: dict[str, Scalar]
    runs: dict[str, GateRun]
    trace_densities: dict[str, Profile]
    condition_numbers: Summary
    probes: ProbeStudy


def section4(progress: Callable[[Collection], Iterable] = iter) -> Section4:
    """Compute every table and figure of section 4 (`sec:simulations`).

    Parameters
    ----------
    progress
        Wraps the collection of stages that is iterated over, as `tqdm.tqdm` does.
    """
    stages = {
        "algorithm1": lambda: _optimised(algorithm1_objective, 0.04),
        "algorithm2": algorithm2_run,
        "algorithm3": lambda: _optimised(algorithm3_objective, 0.03),
        "condition numbers": regional_condition_numbers,
        "probes": probe_study,
    }
    done = {name: jax.block_until_ready(compute()) for name, compute in progress(stages.items())}
    (first, first_minimum), (third, third_minimum) = done["algorithm1"], done["algorithm3"]
    second, zeros = done["algorithm2"], jnp.zeros(LENGTH)
    return Section4(
        table={
            "baseline": table_row(gate_influence(zeros)),
            "algorithm1": table_row(gate_influence(first.gates)),
            "algorithm2": table_row(gate_influence(zeros, second.gates)),
            "algorithm3": table_row(gate_influence(third.gates)),
        },
        minimiser={
            "algorithm1": table_row(gate_influence(first_minimum.gates)),
            "algorithm3": table_row(gate_influence(third_minimum.gates)),
        },
        objectives={
            "algorithm1": first_minimum.objective,
            "algorithm3": third_minimum.objective,
        },
        runs={"algorithm1": first, "algorithm2": second, "algorithm3": third},
        trace_densities={"before": trace_density(zeros), "after": trace_density(third.gates)},
        condition_numbers=done["condition numbers"],
        probes=done["probes"],
    )


def _optimised(objective: Objective, learning_rate: float) -> tuple[GateRun, GateRun]:
    """Where Adam stops after 400 steps, and the minimum beyond."""
    run = adam_run(objective, learning_rate)
    return run, minimiser(objective, run.gates)


def summary(results: Section4) -> dict[str, Any]:
    """Lay out all numbers of section 4 as plain floats, unrounded, ready for JSON."""
    first, third = results.runs["algorithm1"].history, results.runs["algorithm3"].history
    second = results.runs["algorithm2"].history
    regions = boundary_regions(GRID, DELTA)
    probes = results.probes
    minimiser_rows = {
        name: _row_summary(row) | {"objective": float(results.objectives[name])}
        for name, row in results.minimiser.items()
    }
    return {
        "table": {name: _row_summary(row) for name, row in results.table.items()},
        "minimiser": minimiser_rows,
        "observability": {
            "imbalance": {"before": float(third[0]), "after": float(third[-1])},
            "trace_averages": {
                when: _by_region(regional_averages(density, regions))
                for when, density in results.trace_densities.items()
            },
            "penalty": float(probes.penalty),
        },
        "condition_number": {
            region: {"mean": float(mean), "min": float(smallest), "max": float(largest)}
            for region, mean, smallest, largest in zip(
                REGION_NAMES, *results.condition_numbers, strict=True
            )
        },
        "probe": {
            str(int(count)): {
                "bias": float(bias),
                "std": float(deviation),
                "bias_exact": float(exact_bias),
                "std_exact": float(exact_deviation),
            }
            for count, bias, deviation, exact_bias, exact_deviation in zip(*probes[1:], strict=True)
        },
        "change": {
            "algorithm1_imbalance": float(first[-1] / first[0]),
            "algorithm2_imbalance_decrease": float(1 - second[-1] / second[0]),
            "algorithm3_Z": float(results.table["algorithm3"].Z / results.table["baseline"].Z),
        },
    }


def _row_summary(row: Row) -> dict[str, float]:
    found = {name: float(value) for name, value in row.indices._asdict().items()}
    return found | {"influence_imbalance": float(row.imbalance), "Z": float(row.Z)}


def _by_region(values: Float[Array, "3"]) -> dict[str, float]:
    return dict(zip(REGION_NAMES, map(float, values), strict=True))


class Comparison(NamedTuple):
    """One figure of the paper beside ours; `agrees` to every digit that is printed."""

    name: str
    printed: str
    ours: float
    difference: float
    agrees: bool


def compare(numbers: dict[str, Any]) -> list[Comparison]:
    """Hold `summary`'s numbers against every figure that the paper prints in section 4.

    Examples
    --------
    >>> next(printed_figures())
    (('table', 'baseline', 'left'), '3.2269')
    """
    return [_compared(numbers, path, printed) for path, printed in printed_figures()]


def _compared(numbers: dict[str, Any], path: tuple[str, ...], printed: str) -> Comparison:
    value: Any = numbers
    for key in path:
        value = value[key]
    digits = len(printed.rstrip("%").partition(".")[2])
    percent = printed.endswith("%")
    theirs = float(printed.rstrip("%")) / (100 if percent else 1)
    rounded = f"{value:.{digits}{'%' if percent else 'f'}}"
    return Comparison(" ".join(path), printed, value, value - theirs, rounded == printed)


def printed_figures() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every figure that the paper prints, as a path into `summary` and the printed text."""
    for row, printed in PRINTED_TABLE.items():
        for column, text in zip(TABLE_COLUMNS, printed.split(), strict=True):
            yield ("table", row, column), text
    for path, printed in PRINTED_TEXT.items():
        yield tuple(path.split()), printed


def comparison_table(comparisons: list[Comparison]) -> str:
    """Lay out the paper's figures beside ours."""
    lines = [f"{'figure':44s} {'paper':>9s} {'ours':>12s} {'difference':>11s}"]
    for name, printed, ours, difference, agrees in comparisons:
        shown = f"{100 * ours:.4f}%" if printed.endswith("%") else f"{ours:.6f}"
        mark = "" if agrees else "   DIFFERS"
        lines.append(f"{name:44s} {printed:>9s} {shown:>12s} {difference:+11.1e}{mark}")
    return "\n".join(lines)


def beyond_the_paper(numbers: dict) -> str:
    """Lay out what `summary` holds and the paper does not print: minima and exact probe figures."""
    lines = ["", "Beyond the paper: the minima that 400 Adam steps do not reach"]
    for name, row in numbers["minimiser"].items():
        lines.append(
            f"  {name}: objective {row['objective']:.4f}, influence imbalance "
            f"{row['influence_imbalance']:.4f}, LIM {row['lim']:.4f}, Z {row['Z']:.4f}"
        )
    lines.append("and the probe study's exact values beside the sampled ones")
    for count, row in numbers["probe"].items():
        lines.append(
            f"  {count:>2s} probes: bias {row['bias']:7.2%} (exact {row['bias_exact']:7.3%}), "
            f"deviation {row['std']:7.1%} (exact {row['std_exact']:7.1%})"
        )
    return "\n".join([*lines, ""])
