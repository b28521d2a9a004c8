"""How much memory the profile of a context takes, known before a network's weights are read."""

import math
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from lim_jax._checks import as_int, described, require
from lim_jax.models.causal import CausalLM
from lim_jax.models.layerwise import STATES_IN_MEMORY
from lim_jax.network.layer_kinds import kinds_of
from lim_jax.network.recurrent import RecurrentMixer

# Measured on a CPU with networks of 0.1, 1.2 and 6.7 billion weights (``benchmarks/sizes.py``).
PROCESS = 0.45 * 2**30  # bytes of the process and its programs
LAYERS_WHOLE = 0.8  # layers, beside the weights in memory, as they are copied and widened
LAYERS_OFFLOADED = 2.2  # layers, of weights in their files, as they are read and widened
SLICES = 3  # slices of the head, with their logits
TOKENS = 6  # numbers of every token in a layer at once
RECURRENT = 24  # the same in recurrent heads, of compiled programs
STATES_BY_LAYERS = 3  # a state is computed from two, or a gradient from a state and a gradient


class Memory(NamedTuple):
    """The peak memory of a process that profiles one context, in bytes, to some 15 per cent.

    Attributes
    ----------
    in_memory
        With the weights in memory (`models.load`).
    offloaded
        With the weights in their files (`models.open`).
    by_layers
        With the weights in their files and a checkpoint (`models.energies_of_ids`), which also
        keeps large states in files.
    """

    in_memory: float
    offloaded: float
    by_layers: float


def profile_memory(model: CausalLM, tokens: int) -> Memory:
    """Estimate the memory of the influence on a context, on a CPU and asked at every position.

    Parameters
    ----------
    model
        A model whose weights are in their files, of `models.open`.
    tokens
        How many tokens all contexts have that are measured at once.

    Returns
    -------
    Memory
        The peak memory in bytes with the weights in memory, with them in their files, and so with a
        checkpoint.

    Raises
    ------
    ValueError
        If the model's weights are not left in their files, or `tokens` is no positive whole number.
    """
    tokens = as_int(tokens, "tokens")
    offloaded = isinstance(model, CausalLM) and model.flow.is_offloaded
    require(
        offloaded,
        "model",
        got=described(model),
        expected="a model whose weights are in their files",
        cure="Take it from models.open.",
    )
    sizes = [_bytes(kind) for kind in model.flow.kinds]
    width = model.embedding.shape[1]
    layer = max(sizes)
    depths = [layers.depth for layers in kinds_of(model.flow.layers)]
    all_layers = sum(size * count for size, count in zip(sizes, depths, strict=True))
    number = model.embedding.dtype.itemsize
    depth = model.flow.depth
    constants = sum(_bytes(part) for part in (model.positions, model.norm, model.head_bias))
    tables = [table for table in (model.embedding, model.head) if table is not None]
    rows = sum(math.prod(table.shape) * number for table in tables)
    words = model.words_at_once(tokens)
    state = number * tokens * width
    slices = SLICES * words * (width + tokens)
    numbers_per_token = max(map(_numbers_of_token, model.flow.kinds))
    beside = PROCESS + constants + number * (numbers_per_token * tokens + slices)
    states = (depth + 1) * state
    # The next layer of each kind is read ahead.
    layers_in_memory = sum(sizes) + (LAYERS_OFFLOADED - 1) * layer
    return Memory(
        in_memory=beside + states + all_layers + rows + LAYERS_WHOLE * layer,
        offloaded=beside + states + layers_in_memory,
        by_layers=beside
        + layers_in_memory
        + (states if states <= STATES_IN_MEMORY else STATES_BY_LAYERS * state),
    )


def _numbers_of_token(layer: PyTree) -> int:
    """Estimate how many numbers a layer holds for each token at once."""

    def is_recurrent(node: Any) -> bool:
        """Tell whether a node is a recurrent mixer."""
        return isinstance(node, RecurrentMixer)

    widest = max(max(leaf.shape, default=1) for leaf in jax.tree.leaves(layer))
    nodes = filter(is_recurrent, jax.tree.leaves(layer, is_leaf=is_recurrent))
    heads = [math.prod(node.value.shape[:2]) for node in nodes]
    return max(TOKENS * widest, RECURRENT * sum(heads))


def _bytes(tree: PyTree) -> int:
    """Return the size in bytes of a pytree's arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
