"""How long measuring takes, and how many contexts can be explained in that time."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import jax
import numpy as np

from lim_jax import models
from lim_jax.adjoint.sites import reads_by_softmax
from lim_jax.attribution.operations import layer_weights, pass_operations, product_rate
from lim_jax.density.adjoints import Loss
from lim_jax.density.common_grid import energies_of_tokens, influence_of_contexts
from lim_jax.density.statistics import Influence
from lim_jax.explanations.influence_table import contexts_needed
from lim_jax.explanations.windows import (
    QueryWeights,
    Windows,
    regions_of_unasked,
    unasked_tokens,
)
from lim_jax.grid.partition import Regions
from lim_jax.models import CausalLM
from lim_jax.models.padding import fitted_padding, padded_size

FIRST_LOOK = 16  # contexts of a first look, and of every further one
# Measured with SmolLM2 on 200 tokens: an explanation takes the time of 3.5 gradients, and 15 s to
# compile; the bounds on all layers' norms that of 35.
SECONDS = 60.0
GRADIENTS = 4
COMPILING = 15.0
NORMS = 35
# Contexts whose heads are told by named part: a gradient of each, and 4 s to compile.
HEADS = 16
COMPILING_HEADS = 4.0
# Of one context, in passes forward: its energies, and what a page shows of it. A pass makes its
# operations at some two thirds of the rate of a large product.
ENERGIES = 4.5
PAGE = 9.0
PASS_RATE = 0.65
MASSES = 4  # contexts of an average cone mass: exact norms of every block settle it


class NetworkAndLoss(NamedTuple):
    """A network, and what is asked of it: a row of weights for each context, of its own length."""

    network: CausalLM
    weights: QueryWeights
    loss: Loss = CausalLM.loss


class TimeBudget(NamedTuple):
    """How many contexts are explained, in how many seconds, and how many more certificates take."""

    contexts: int
    seconds: float
    certificate_seconds: float


def choose_contexts(
    network_and_loss: NetworkAndLoss,
    windows: Windows,
    regions: Regions,
    chosen: int | None,
    named: Sequence[bool] = (),
) -> TimeBudget:
    """Choose how many contexts to explain, by how long a gradient of one takes.

    Without `chosen` as many as make two standard errors of LIM less than 0.1, or as take
    `SECONDS`, at least two. `named` are those of which heads are told too.
    """

    def measure(start: int, count: int) -> Influence:
        """Measure the influence of some contexts, and wait for the result."""
        rows = slice(start, start + count)
        return jax.block_until_ready(_influence(network_and_loss, windows, rows, regions))

    measure(0, 1)  # compiles
    begun = perf_counter()
    measure(0, 1)
    each = perf_counter() - begun
    count = chosen
    if count is None:
        most = int(min(len(windows), max(2, SECONDS / (GRADIENTS * each))))
        count = _enough_contexts(measure, most)
    seconds = COMPILING + GRADIENTS * each * count
    heads = min(HEADS, sum(named[:count]))
    if heads:
        seconds += COMPILING_HEADS + each * heads
    length = max(len(window) - 1 for window in windows)
    return TimeBudget(
        count, seconds, _certificate_seconds(network_and_loss.network, length, count, each)
    )


def _enough_contexts(measure: Callable[[int, int], Influence], most: int) -> int:
    """Return how many contexts tell LIM well, looking at a few more each time, at most `most`.

    ``measure(start, count)`` is the influence of so many contexts from a first one on.
    """
    if most <= FIRST_LOOK:
        return most
    count = FIRST_LOOK
    pooled = measure(0, count)
    while count + FIRST_LOOK <= most and _too_wide(pooled):
        pooled = pooled.merge(measure(count, FIRST_LOOK))
        count += FIRST_LOOK
    return count


def _influence(
    network_and_loss: NetworkAndLoss, windows: Windows, chosen: slice, regions: Regions
) -> Influence:
    """Measure the influence of some contexts, without the queries unless one has nothing else.

    The regions are those of all contexts, so that influences of some can be merged.
    """
    rows = list(map(np.asarray, windows[chosen]))
    weights = list(map(np.asarray, network_and_loss.weights[chosen]))
    energies = models.energies_of_ids(
        network_and_loss.network, rows, ask=weights, loss=network_and_loss.loss
    )
    unasked = unasked_tokens(len(windows), network_and_loss.weights, regions)
    rest_regions = regions_of_unasked(unasked, regions)
    if rest_regions is None:
        return influence_of_contexts(energies, regions)
    return influence_of_contexts(energies_of_tokens(energies, unasked[chosen]), rest_regions)


def _too_wide(influence: Influence) -> bool:
    """Tell whether LIM would take more contexts than were measured to be known well."""
    needed = contexts_needed(influence)
    return needed is None or needed > int(influence.count)


def estimate_seconds(
    network: CausalLM,
    lengths: Sequence[int],
    contexts_on_page: int,
    contexts_to_answer: int = 0,
    cost: int = 3,
    *,
    compute: str | None = None,
) -> float:
    """Estimate the seconds that contexts take, from their operations and the rate of a product.

    The first `contexts_on_page` are measured for a page, others take `cost` passes; the first
    `contexts_to_answer` are answered before. Products are made in `compute`, without it as the
    network makes them, and all else in float32.
    """
    padding = fitted_padding(lengths)
    passes = [pass_operations(network, padded_size(network, length, padding)) for length in lengths]
    # Weights that are left in their files are read for a page and for energies.
    is_measured_twice = network.flow.is_offloaded
    measured = passes if is_measured_twice else passes[contexts_on_page:]
    of_energies = ENERGIES / 3 * cost * sum(measured)
    of_page = PAGE * sum(passes[:contexts_on_page])
    total = of_energies + of_page + sum(passes[:contexts_to_answer])
    width = network.embedding.shape[1]
    compute = compute or network.flow.compute
    seconds_in_full = 1 / product_rate(width, None)  # of one operation of a product
    seconds = seconds_in_full if compute is None else 1 / product_rate(width, compute)
    return COMPILING + total * (seconds + (1 / PASS_RATE - 1) * seconds_in_full)


def _certificate_seconds(network: CausalLM, length: int, contexts: int, gradient: float) -> float:
    """Estimate the seconds of all certificates: of norms, of pairs of positions, of cone masses."""
    flow = network.flow
    weights = layer_weights(network)
    width = network.embedding.shape[1]
    # For each position the joint cone multiplies and adds each feature of all pairs of layers and
    # positions.
    pairs = 2 * contexts * length**3 * flow.depth**2 * width
    # Some ten steps of conjugate gradients for each block, each of three products with a matrix.
    masses = 10 * 3 * 2 * min(contexts, MASSES) * length**2 * flow.depth * width**2
    # A gradient is as three passes forward, of two operations for each weight and token.
    rate = 3 * 2 * weights * length / gradient
    blocks = pairs + masses if reads_by_softmax(flow) else 0
    return NORMS * gradient * contexts + blocks / rate
