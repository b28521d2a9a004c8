"""The operations of a forward pass, and how many of them this machine makes in a second."""

import math
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from lim_jax._precision import computing
from lim_jax._products import linear
from lim_jax.adjoint.sites import attention_of
from lim_jax.cost.counting import operations
from lim_jax.models import CausalLM
from lim_jax.models.ids import CALL_IN_MEMORY
from lim_jax.network.experts import MixtureOfExperts
from lim_jax.network.field import SumOfFields
from lim_jax.network.gated_delta import KimiDelta
from lim_jax.network.layer_kinds import LayersByKind, kinds_of
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.weights import FetchedLayers

TIMED = 0.2  # seconds in which products are timed, of which the first are slow in a new process


def pass_operations(network: CausalLM, tokens: int) -> int:
    """Count a forward pass's operations: two for each weight and token, and those of reading."""
    layers = network.flow.layers
    width = network.embedding.shape[1]
    order = layers.order if isinstance(layers, LayersByKind) else network.flow.depth * (0,)
    reading = [
        _reading_operations(attention_of(kind), width, tokens) for kind in network.flow.kinds
    ]
    tokens_of_call = tokens + CALL_IN_MEMORY
    return 2 * layer_weights(network) * tokens_of_call + sum(reading[kind] for kind in order)


def _reading_operations(reader: Any, width: int, tokens: int) -> int:
    """Count the operations by which tokens read others: all pairs in attention, chunks of a state.

    The taps of a convolution are counted among the weights.
    """
    if isinstance(reader, SumOfFields):
        return sum(_reading_operations(part, width, tokens) for part in reader.sublayers)
    if isinstance(reader, CausalAttention):
        return 2 * width * tokens**2
    if not isinstance(reader, RecurrentMixer):
        return 0
    groups, size = reader.key.shape[-3:-1]
    heads, features = reader.value.shape[-3:-1]
    keys = (groups, tokens, size)
    by_head = (heads, tokens)
    decays = size if isinstance(reader, KimiDelta) else 1
    shapes = keys, keys, (*by_head, features), (*by_head, decays), by_head
    rows = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    program = jax.make_jaxpr(partial(reader.rule, starts=None, state=None))
    return operations(program(*rows))


def layer_weights(network: CausalLM) -> int:
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
        leaves = [leaf for leaf in jax.tree.leaves(node) if hasattr(leaf, "shape")]
        count += sum(math.prod(leaf.shape) for leaf in leaves)
        if is_mixture(node):
            of_all_experts = _count_weights(node.experts)
            of_chosen = of_all_experts * node.routing.top // node.router.shape[-2]
            count -= of_all_experts - of_chosen
    return count


def product_rate(width: int, compute: str | None) -> float:
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
