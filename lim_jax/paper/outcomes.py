"""Section 4 of the paper: one function for each table and figure, and all of them at once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._jit import cached_jit
from lim_jax.density.statistics import Indices, Influence
from lim_jax.grid.measure import Scalar
from lim_jax.grid.partition import REGIONS, boundary_regions, regional_averages
from lim_jax.observability.gramian import condition_numbers, gramian_traces
from lim_jax.observability.trace_estimates import gaussian_probe_moments, probed_traces
from lim_jax.paper.algorithms import (
    GateRun,
    Objective,
    adam_run,
    algorithm1_objective,
    algorithm2_run,
    algorithm3_objective,
    minimiser,
)
from lim_jax.paper.simulation import (
    DELTA,
    GRID,
    LENGTH,
    WIDTH,
    PerPosition,
    gate_gramians,
    gate_influence,
    influence_imbalance,
    trace_density,
)
from lim_jax.training.gramian_penalties import trace_penalty

SEED = 20260717
PROBE_COUNTS = (1, 2, 4, 8, 16, 32)
REPETITIONS = 1000


class Row(NamedTuple):
    """One row of the paper's table (`tab:simulation-remedy-results`), with its profile."""

    indices: Indices
    imbalance: Scalar
    Z: Scalar  # Euclidean: the density's total over L
    density: PerPosition


def table_row(result: Influence) -> Row:
    """Make a row of the paper's table from an influence."""
    imbalance = influence_imbalance(result.density)
    return Row(result.indices(), imbalance, result.total / LENGTH, result.density)


class Summary(NamedTuple):
    """Mean, smallest and largest of a profile over E_L, E_M and E_R."""

    mean: Float[Array, "3"]
    smallest: Float[Array, "3"]
    largest: Float[Array, "3"]


@cached_jit
def regional_condition_numbers() -> Summary:
    """Compute condition numbers, of any gates (`eq:simulation-condition-number-invariance`)."""
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
    """Estimate the baseline penalty with common Gaussian probes, 1000 times for each count."""
    gramians = gate_gramians(jnp.zeros(LENGTH))
    penalty = trace_penalty(gramian_traces(gramians), GRID)
    stream = np.random.default_rng(SEED)

    @jax.jit
    @jax.vmap
    def estimate(probes):
        """Compute the penalty of traces estimated from probes."""
        return trace_penalty(probed_traces(gramians, probes), GRID)

    rows = []
    for count in PROBE_COUNTS:
        probes = stream.standard_normal((REPETITIONS, count, WIDTH))
        estimates = estimate(jnp.asarray(probes, gramians.dtype)) / penalty
        exact = gaussian_probe_moments(gramians, GRID, count)
        sampled = estimates.mean() - 1, estimates.std(ddof=1)
        rows.append((*sampled, exact.bias / penalty, exact.deviation / penalty))
    columns = (jnp.stack(column) for column in zip(*rows, strict=True))
    return ProbeStudy(penalty, jnp.array(PROBE_COUNTS, gramians.dtype), *columns)


class Section4(NamedTuple):
    """All results of section 4."""

    table: dict[str, Row]  # "baseline" and "algorithm1" to "algorithm3"
    minimiser: dict[str, Row]  # of "algorithm1" and "algorithm3", beyond the 400 steps of Adam
    objectives: dict[str, Scalar]  # there
    runs: dict[str, GateRun]
    trace_densities: dict[str, PerPosition]  # "before" and "after" Algorithm 3
    condition_numbers: Summary
    probes: ProbeStudy


def section4(progress: Callable[[Collection], Iterable] = iter) -> Section4:
    """Compute every table and figure of section 4 (`sec:simulations`).

    The paper's digits need float64, by ``with jax.enable_x64(True):``.

    Parameters
    ----------
    progress
        A function that wraps the five stages, for example ``tqdm.tqdm``. By default nothing is
        reported.

    Returns
    -------
    Section4
        The rows of the table, the minima beyond Adam's steps, the runs of the three algorithms, the
        trace densities, the condition numbers and the study of probes. `plots` draws the figures.
    """
    stages = {
        "algorithm1": lambda: _optimise(algorithm1_objective, 0.04),
        "algorithm2": algorithm2_run,
        "algorithm3": lambda: _optimise(algorithm3_objective, 0.03),
        "condition numbers": regional_condition_numbers,
        "probes": probe_study,
    }
    done = {name: jax.block_until_ready(compute()) for name, compute in progress(stages.items())}
    first, first_minimum = done["algorithm1"]
    third, third_minimum = done["algorithm3"]
    minima = {"algorithm1": first_minimum, "algorithm3": third_minimum}
    second = done["algorithm2"]
    zeros = jnp.zeros(LENGTH)
    return Section4(
        table={
            "baseline": table_row(gate_influence(zeros)),
            "algorithm1": table_row(gate_influence(first.gates)),
            "algorithm2": table_row(gate_influence(zeros, second.gates)),
            "algorithm3": table_row(gate_influence(third.gates)),
        },
        minimiser={name: table_row(gate_influence(run.gates)) for name, run in minima.items()},
        objectives={name: run.objective for name, run in minima.items()},
        runs={"algorithm1": first, "algorithm2": second, "algorithm3": third},
        trace_densities={"before": trace_density(zeros), "after": trace_density(third.gates)},
        condition_numbers=done["condition numbers"],
        probes=done["probes"],
    )


def _optimise(objective: Objective, learning_rate: float) -> tuple[GateRun, GateRun]:
    """Run 400 steps of Adam, and from where they end go on to the minimum."""
    run = adam_run(objective, learning_rate)
    return run, minimiser(objective, run.gates)


def summary(results: Section4) -> dict[str, Any]:
    """Lay out all numbers of section 4 as plain floats, unrounded, ready for JSON."""
    first, second, third = (results.runs[f"algorithm{number}"].history for number in (1, 2, 3))
    regions = boundary_regions(GRID, DELTA)
    probes = results.probes
    extremes = ("mean", "min", "max")
    figures = ("bias", "std", "bias_exact", "std_exact")
    return {
        "table": {name: _row_summary(row) for name, row in results.table.items()},
        "minimiser": {
            name: _row_summary(row) | {"objective": float(results.objectives[name])}
            for name, row in results.minimiser.items()
        },
        "observability": {
            "imbalance": {"before": float(third[0]), "after": float(third[-1])},
            "trace_averages": {
                when: _floats(REGIONS, regional_averages(density, regions))
                for when, density in results.trace_densities.items()
            },
            "penalty": float(probes.penalty),
        },
        "condition_number": {
            region: _floats(extremes, numbers)
            for region, *numbers in zip(REGIONS, *results.condition_numbers, strict=True)
        },
        "probe": {
            str(int(count)): _floats(figures, numbers)
            for count, *numbers in zip(*probes[1:], strict=True)
        },
        "change": {
            "algorithm1_imbalance": float(first[-1] / first[0]),
            "algorithm2_imbalance_decrease": float(1 - second[-1] / second[0]),
            "algorithm3_Z": float(results.table["algorithm3"].Z / results.table["baseline"].Z),
        },
    }


def _floats(names: Sequence[str], numbers: Iterable[Any]) -> dict[str, float]:
    """Name numbers and convert them to Python floats."""
    return dict(zip(names, map(float, numbers), strict=True))


def _row_summary(row: Row) -> dict[str, float]:
    """Return the indices, the imbalance and Z of a row by their names."""
    numbers = *row.indices, row.imbalance, row.Z
    return _floats((*Indices._fields, "influence_imbalance", "Z"), numbers)
