"""How long measuring takes, and how many contexts can be explained in that time."""

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lim_jax import models
from lim_jax._precision import computing
from lim_jax._products import linear
from lim_jax.adjoint.sites import attention_of, reads_by_softmax
from lim_jax.cost.counting import operations
from lim_jax.density.adjoints import Loss
from lim_jax.density.statistics import Influence
from lim_jax.explanations.influence_table import contexts_needed
from lim_jax.explanations.windows import QueryWeights, Windows, regions_without_queries
from lim_jax.grid.partition import Regions
from lim_jax.models import CausalLM
from lim_jax.models.ids import CALL_IN_MEMORY, fitted_padding, padded_size
from lim_jax.network.experts import MixtureOfExperts
from lim_jax.network.field import SumOfFields
from lim_jax.network.gated_delta import KimiDelta
from lim_jax.network.layer_kinds import LayersByKind, kinds_of
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.results.context_energies import influence_of_contexts
from lim_jax.weights import FetchedLayers

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
TIMED = 0.2  # seconds in which products are timed, of which the first are slow in a new process
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

    Without `chosen` as many as make two standard errors of LIM less than 10 %, or as take
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
        count = min(FIRST_LOOK, most)
        if count < most:
            pooled = measure(0, count)
            while count + FIRST_LOOK <= most and _too_wide(pooled):
                pooled = pooled.merge(measure(count, FIRST_LOOK))
                count += FIRST_LOOK
    seconds = COMPILING + GRADIENTS * each * count
    heads = min(HEADS, sum(named[:count]))
    if heads:
        seconds += COMPILING_HEADS + each * heads
    length = max(len(window) - 1 for window in windows)
    return TimeBudget(
        count, seconds, _certificate_seconds(network_and_loss.network, length, count, each)
    )


def _influence(
    network_and_loss: NetworkAndLoss, windows: Windows, chosen: slice, regions: Regions
) -> Influence:
    """Measure the influence of some contexts, without the queries unless these fill a region."""
    rows = list(map(np.asarray, windows[chosen]))
    weights = list(map(np.asarray, network_and_loss.weights[chosen]))
    energies = models.energies_of_ids(
        network_and_loss.network, rows, ask=weights, loss=network_and_loss.loss
    )
    measured_regions = regions_without_queries(network_and_loss.weights, regions) or regions
    return influence_of_contexts(energies, measured_regions)


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
    twice = network.flow.is_offloaded
    measured = ENERGIES / 3 * cost * sum(passes if twice else passes[contexts_on_page:])
    total = measured + PAGE * sum(passes[:contexts_on_page]) + sum(passes[:contexts_to_answer])
    width = network.embedding.shape[1]
    compute = compute or network.flow.compute
    each = 1 / _product_rate(width, None)
    product = each if compute is None else 1 / _product_rate(width, compute)
    return COMPILING + total * (product + (1 / PASS_RATE - 1) * each)


def pass_operations(network: CausalLM, tokens: int) -> int:
    """Count a forward pass's operations: two for each weight and token, and those of reading."""
    layers = network.flow.layers
    width = network.embedding.shape[1]
    order = layers.order if isinstance(layers, LayersByKind) else network.flow.depth * (0,)
    reading = [
        _reading_operations(attention_of(kind), width, tokens) for kind in network.flow.kinds
    ]
    tokens_of_call = tokens + CALL_IN_MEMORY
    return 2 * _layer_weights(network) * tokens_of_call + sum(reading[kind] for kind in order)


def _reading_operations(reader: Any, width: int, tokens: int) -> int:
    """Count the operations by which tokens read others: all pairs in attention, chunks of a state.

    The taps of a convolution are counted among the weights.
    """
    if isinstance(reader, SumOfFields):
        return sum(_reading_operations(part, width, tokens) for part in reader.sublayers)
    if not isinstance(reader, RecurrentMixer):
        return 2 * width * tokens**2 if isinstance(reader, CausalAttention) else 0
    groups, size = reader.key.shape[-3:-1]
    heads, features = reader.value.shape[-3:-1]
    keys = (groups, tokens, size)
    by_head = (heads, tokens)
    decays = size if isinstance(reader, KimiDelta) else 1
    shapes = keys, keys, (*by_head, features), (*by_head, decays), by_head
    rows = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    program = jax.make_jaxpr(partial(reader.rule, starts=None, state=None))
    return operations(program(*rows))


def _layer_weights(network: CausalLM) -> int:
    """Count the weights that a token meets in all layers, at least one."""
    flow = network.flow
    counts = []
    for layers, kind in zip(kinds_of(flow.layers), flow.kinds, strict=True):
        # Layers that are fetched show the shapes of one.
        each = layers.depth if isinstance(layers, FetchedLayers) else 1
        counts.append(each * _count_weights(kind))
    return sum(counts) or 1


def _count_weights(layer: Any) -> int:
    """Count the weights that a token meets: of experts, those that are chosen for it."""

    def is_mixture(node: Any) -> bool:
        """Tell whether a node is a mixture of experts."""
        return isinstance(node, MixtureOfExperts)

    count = 0
    for node in jax.tree.leaves(layer, is_leaf=is_mixture):
        if is_mixture(node):
            experts = node.router.shape[-2]
            every = _count_weights(node.experts)
            count -= every - every * node.routing.top // experts
        count += sum(
            math.prod(leaf.shape) for leaf in jax.tree.leaves(node) if hasattr(leaf, "shape")
        )
    return count


def _product_rate(width: int, compute: str | None) -> float:
    """Measure how many operations a second this machine makes at best in products with a matrix."""
    tokens = jnp.ones((2048, width), "float32")
    matrix = jnp.ones((4 * width, width), "float32")
    with computing(compute):
        product = jax.jit(linear).trace(matrix, tokens).lower().compile()
    jax.block_until_ready(product(matrix, tokens))  # the first call takes longer
    seconds = []
    until = perf_counter() + TIMED
    while not seconds or perf_counter() < until:
        begun = perf_counter()
        jax.block_until_ready(product(matrix, tokens))
        seconds.append(perf_counter() - begun)
    return 2 * tokens.size * len(matrix) / min(seconds)


def _certificate_seconds(network: CausalLM, length: int, contexts: int, gradient: float) -> float:
    """Estimate the seconds of all certificates: of norms, of pairs of positions, of cone masses."""
    flow = network.flow
    weights = _layer_weights(network)
    width = network.embedding.shape[1]
    pairs = 2 * contexts * length**3 * flow.depth**2 * width
    masses = 60 * min(contexts, MASSES) * length**2 * flow.depth * width**2
    rate = 6 * weights * length / gradient
    blocks = pairs + masses if reads_by_softmax(flow) else 0
    return NORMS * gradient * contexts + blocks / rate


def describe_contexts(lengths: Sequence[int], orders: int = 0) -> str:
    """Say how many contexts there are, of how many tokens, and in how many orders of each line."""
    spread = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else lengths[0]
    contexts = "1 context" if len(lengths) == 1 else f"{len(lengths)} contexts"
    description = f"{contexts} of {spread} tokens"
    return f"{description}, {orders} orders of each line" if orders > 0 else description


def duration(seconds: float) -> str:
    """Write seconds in words, as seconds, minutes or hours."""
    if seconds < 90:
        whole_seconds = max(1, round(seconds, -1 if seconds >= 10 else 0))
        return "1 second" if whole_seconds == 1 else f"{whole_seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
