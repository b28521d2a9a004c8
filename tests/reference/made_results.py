"""Results of every kind, made by hand of unequal numbers and odd sizes: nothing to compile."""

from functools import cache

import jax
import numpy as np
from numpy.typing import DTypeLike

import lim_jax as lim
from lim_jax.adjoint import Channels, RegionalChannels
from lim_jax.adjoint.certificate import Certificate, Inequality, Premise
from lim_jax.density import Indices, Influence
from lim_jax.explanations import Explanation
from lim_jax.limits.refinement import Study
from lim_jax.limits.rows import Curve, Row
from lim_jax.probes import Estimate
from lim_jax.results.comparison import Comparison
from lim_jax.results.context_energies import (
    ComparedContexts,
    ComparedInfluences,
    ComparedShares,
    MeasuredContexts,
)
from lim_jax.training import TrainingPath

LENGTH = 7
LAYERS = 4
WIDTH = 2
EXAMPLES = 5
GRID = lim.graded_grid(LENGTH)
REGIONS = lim.boundary_regions(GRID, "1/3").without([0, 2])


def numbers(seed, *shape, dtype: DTypeLike = float):
    values = np.exp(np.random.default_rng(seed).standard_normal(shape))
    return jax.device_put(values.astype(dtype))


def influence(regions=REGIONS, keep_examples=True, dtype: DTypeLike = float, examples=EXAMPLES):
    energies = numbers(0, examples, regions.grid.size, dtype=dtype)
    return Influence.from_energies(energies, regions, keep_examples=keep_examples)


PREMISES = Premise("a > 0", 0.1, True), Premise("b is finite", np.inf, False)
CERTIFICATES = (
    Certificate(
        "one of them", "eq:one", PREMISES, (Inequality("l > u", 1 / 3, 0.1, 1e-9),),
        "it is so", (Inequality("x > y", 3.0, 2.0, 1e-9),), "never here",
    ),
    Certificate(
        "another", "eq:two", (),
        (Inequality("p > q", 5.0, 4.0, 0.1), Inequality("r > s", 7.0, 1.0, 0.1)),
        "so it is", (Inequality("v > w", 9.0, 3.0, 0.1),),
    ),
)  # fmt: skip
STUDY = Study(
    "thm:mine", None, (2.0, 4.0, 8.0, 16.0, 32.0), (1.0, 0.5, 0.26, 0.12, 0.06), None, 1e-9
)
BOUNDED = Study(
    "thm:yours", 1.5, (3.0, 6.0, 12.0, 24.0), (1.0, 0.3, 0.13, 0.04), (2.0, 1.0, 0.5, 0.25), 0.0
)
ROWS = [Row("mine, at the left", STUDY, 1.0), Row("yours", BOUNDED, 1.5, "smoother than asked")]


def channels():
    return Channels(
        numbers(1),
        numbers(2, LAYERS + 1),
        numbers(3, LAYERS + 1, LENGTH, WIDTH),
        numbers(4, LAYERS + 1, LENGTH, WIDTH),
        numbers(5, LAYERS, LENGTH, WIDTH),
        numbers(6, LAYERS, LENGTH, WIDTH),
    )


def explanation():
    regions = lim.boundary_regions(GRID, "1/3")
    return Explanation(
        1,
        influence(regions),
        influence(),
        numbers(7, 3, LENGTH),
        numbers(8, 3, LENGTH),
        numbers(9, 4, LENGTH),
        RegionalChannels(numbers(10, EXAMPLES, 3, 3, 3)),
        numbers(11, LAYERS - 1, 2),
        Estimate(numbers(12), numbers(13)),
        CERTIFICATES,
        (numbers(14, LENGTH), numbers(15, LENGTH + 1)),
    )


def training_path():
    params = {"weights": numbers(14, 3, 2), "shifts": [numbers(15, 3), None]}
    return TrainingPath(GRID, numbers(16, 3), params, numbers(17, 3), numbers(18, 3, LENGTH))


def measured_contexts():
    energies = [numbers(21, 4), numbers(22, 5)]
    return MeasuredContexts(["a", "b"], energies, [2, 4], {"key": [0.25, 0.5]}, 0.25)


def comparison():
    indices, errors = (Indices(*(numbers(seed + part) for part in range(6))) for seed in (30, 40))
    return Comparison(
        REGIONS,
        True,
        numbers(23, LENGTH),
        numbers(24, LENGTH),
        numbers(25),
        numbers(26),
        indices,
        errors,
        EXAMPLES,
    )


def compared_contexts():
    first, second, change = (Estimate(numbers(seed), numbers(seed + 1)) for seed in (50, 52, 54))
    influences = ComparedInfluences(influence(), influence(), comparison())
    return ComparedContexts(
        2, influences, None, {"key": ComparedShares(first, second, change, (2, 2), 2)}
    )


MAKERS = {
    "influence": influence,
    "one example": lambda: influence(examples=1),
    "comparison": comparison,
    "measured contexts": measured_contexts,
    "channels": channels,
    "explanation": explanation,
    "training path": training_path,
    "certificates": lambda: list(CERTIFICATES),
    "study": lambda: STUDY,
    "rows": lambda: ROWS,
    "curves": lambda: {"a": Curve("Euler", (1.0, 2.0), (0.5, float("nan")))},
    "estimate": lambda: Estimate(numbers(19, 3), jax.device_put(np.full(3, np.inf))),
}
KINDS = list(MAKERS)


@cache
def of_kind(kind):
    """A result, made when a test asks for it."""
    return MAKERS[kind]()
