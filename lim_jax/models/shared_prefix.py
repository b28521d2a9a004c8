"""What several contexts begin with, read once: each of them is then read from where it goes on.

A causal network's states of the ids that stand first do not depend on those that follow.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lim_jax._jit import cached_jit
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.layerwise import STATES_IN_MEMORY
from lim_jax.models.padding import fitted_padding, known_length, padded_size
from lim_jax.network.kv_cache import Caches, Passed, Place, extend, has_kv_cache, prefill
from lim_jax.network.slots import State

Rows = Int[np.ndarray, "_ fields"]
# So many contexts at least share a prefix. Of SmolLM2 and 400 ids its programs took 6 s of one core
# to compile, and each context 1.7 s less (answers and mask gradients).
CONTEXTS = 5
MULTIPLE = 16  # of the places of texts
READ_AT_ONCE = 5  # readings of a prefix that are kept, as a path may take at different weights
KEPT_IN_MEMORY = 1 << 30  # bytes that layers keep of one of these at most


class Reading(NamedTuple):
    """What is to be read of a context.

    Attributes
    ----------
    rows
        The places that it may share, all before the first that is asked: of each its id and the
        number of its part, below zero for none.
    ids
        How many ids are read.
    places
        How many places there are in the end, with those of an answer that is given.
    """

    rows: Rows
    ids: int
    places: int


class CommonPrefix(NamedTuple):
    """How several contexts begin, and the sizes of arrays that serve all of them.

    Attributes
    ----------
    contexts
        Their numbers, one after another.
    rows
        The places that they share, as in `Reading`.
    rest
        How many ids are read after them at once, of each context.
    size
        The number of places for any of the contexts.
    """

    contexts: range
    rows: Rows
    rest: int
    size: int


class _Group(NamedTuple):
    """The numbers of contexts beside one another, and what they share.

    `longest` is the most places that one of them may share.
    """

    contexts: range
    rows: Rows
    longest: int


class ReadPrefix(eqx.Module):
    """What a network keeps of a common prefix, read once or with each of several weights of parts.

    Of texts that keep some of its places each array has a row for each text.

    Attributes
    ----------
    ids, parts
        The id and the part of each place, up to `CommonPrefix.size`; after the prefix zeros and
        numbers below zero.
    length
        The number of its ids.
    log_weights
        Of all parts in each reading, in which each reads itself as before; None where all tokens
        count whole.
    caches
        What layers keep; of several weights they stand along a first axis.
    states
        Of each weight the states before each layer, for derivatives; None where nobody asked.
    rest
        How many ids are read after the prefix at once.
    """

    ids: Int[Array, "*texts size"]
    parts: Int[Array, "*texts size"]
    length: Int[Array, "*texts"]
    log_weights: Float[Array, " weights"] | None
    caches: Caches
    states: Float[Array, "weights depth size width"] | None
    rest: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """The number of places of contexts that begin with the prefix."""
        return self.ids.shape[-1]

    def _identity(self) -> tuple[Any, ...]:
        """Return what a digest reads in place of this object: what was read, not what was found."""
        return self.ids, self.parts, self.length, self.log_weights, self.rest

    def rest_of(self, ids: Int[Array, " _"]) -> Int[Array, " rest"]:
        """Return the ids that are read after the prefix, of the ids in all places of a context."""
        return jax.lax.dynamic_slice_in_dim(ids, self.length, self.rest)

    def targets_of_rest(self, y: Targets) -> Targets:
        """Return the targets of a context, at places that are counted from the prefix's end."""
        assert y.positions is not None
        # Queries that fill up the arrays are at the first place, and have no weight.
        return y._replace(positions=jnp.maximum(y.positions - self.length, 0))


# ``prefix_of(number, log_weights, keep_states=...)``: what a context shares, read.
PrefixOf = Callable[..., ReadPrefix | None]
# Which of a context's places, or of those that it shares, each of several texts keeps.
Kept = Bool[np.ndarray, "texts places"]
# ``texts_of(number, kept)``: what several texts keep of what a context shares, read.
TextsOf = Callable[[int, Kept], ReadPrefix | None]


def common_prefixes(model: CausalLM, readings: Sequence[Reading]) -> list[CommonPrefix | None]:
    """Return what each context shares with those beside it, or None where that is not worth it.

    Contexts that stand beside one another share a prefix if it is at least half of what each may
    share, and they are at least `CONTEXTS`. None of them does where the network keeps nothing, its
    layers are fetched one by one, or its positions depend on the length.
    """
    prefixes: list[CommonPrefix | None] = [None] * len(readings)
    if not has_kv_cache(model.flow) or model.flow.is_offloaded:
        return prefixes
    groups = [group for group in _groups(readings) if len(group.contexts) >= CONTEXTS]
    # Both paddings fit lengths that several contexts have, as those of a group do.
    rests = [
        max(readings[number].ids for number in group.contexts) - len(group.rows) for group in groups
    ]
    padding_of_rests = fitted_padding(np.repeat(rests, CONTEXTS).tolist())
    rests = [padding_of_rests(rest) for rest in rests]
    places = [
        max(len(group.rows) + rest, *(readings[number].places for number in group.contexts))
        for group, rest in zip(groups, rests, strict=True)
    ]
    padding = fitted_padding(np.repeat(places, CONTEXTS).tolist())
    for group, rest, most in zip(groups, rests, places, strict=True):
        size = padded_size(model, most, padding)
        if size <= known_length(model) and model.same_rope(len(group.rows), size):
            contexts = group.contexts
            prefix = CommonPrefix(contexts, group.rows, rest, size)
            prefixes[contexts.start : contexts.stop] = [prefix] * len(contexts)
    return prefixes


def prefix_reader(model: CausalLM, readings: Sequence[Reading]) -> PrefixOf:
    """Return a function from a context's number to the prefix that it shares, or to None.

    A prefix is read when it is first asked for, with the log weights that its parts are to have,
    and kept until contexts ask for another.
    """
    prefixes = common_prefixes(model, readings)

    @lru_cache(maxsize=1)
    def reader_of(first: int) -> PrefixOf:
        """Return a function that reads the prefix of the contexts from this number on."""
        prefix = prefixes[first]
        assert prefix is not None

        @lru_cache(maxsize=READ_AT_ONCE)
        def read(log_weights: tuple[float, ...] | None, keep_states: bool) -> ReadPrefix | None:
            """Read the prefix, unless layers keep too much of it."""
            if not _fits_memory(model, prefix.size, len(log_weights or (0,))):
                return None
            return read_prefix(model, prefix, log_weights, keep_states=keep_states)

        return read

    def prefix_of(
        number: int, log_weights: tuple[float, ...] | None = None, *, keep_states: bool = False
    ) -> ReadPrefix | None:
        """Return the prefix of one context, read; None too where it would be too large."""
        prefix = prefixes[number]
        if prefix is None:
            return None
        states = len(log_weights or ()) * model.flow.depth * prefix.size * model.embedding.shape[1]
        if keep_states and states * model.embedding.dtype.itemsize > STATES_IN_MEMORY:
            return None
        return reader_of(prefix.contexts.start)(log_weights, keep_states)

    return prefix_of


def texts_reader(model: CausalLM, readings: Sequence[Reading]) -> TextsOf:
    """Return a function from a context's number to what texts keep of the prefix that it shares.

    The texts are read when they are first asked for, and kept until contexts ask for others.
    """
    prefixes = common_prefixes(model, readings)

    @lru_cache(maxsize=1)
    def reader_of(first: int) -> Callable[[bytes], ReadPrefix | None]:
        """Return a function that reads texts of the contexts from this number on."""
        prefix = prefixes[first]
        assert prefix is not None

        @lru_cache(maxsize=READ_AT_ONCE)
        def read(kept: bytes) -> ReadPrefix | None:
            """Read texts, unless layers keep too much of them."""
            rows = np.frombuffer(kept, bool).reshape(-1, len(prefix.rows))
            return read_texts(model, prefix, rows)

        return read

    def texts_of(number: int, kept: Kept) -> ReadPrefix | None:
        """Return what texts keep of the prefix of one context; None where there is none."""
        prefix = prefixes[number]
        if prefix is None:
            return None
        return reader_of(prefix.contexts.start)(kept[:, : len(prefix.rows)].tobytes())

    return texts_of


def read_prefix(
    model: CausalLM,
    prefix: CommonPrefix,
    log_weights: Sequence[float] | None = None,
    *,
    keep_states: bool = False,
) -> ReadPrefix:
    """Let a model read a common prefix, once or with each of several log weights of all parts."""
    length = len(prefix.rows)
    padding = (0, prefix.size - length)
    ids = np.pad(prefix.rows[:, 0].astype(np.int32), padding)
    parts = np.pad(prefix.rows[:, 1].astype(np.int32), padding, constant_values=-1)
    weights = None if log_weights is None else np.array(log_weights, model.embedding.dtype)
    inputs = jax.device_put((ids, parts, length, weights))
    read = _read_with_states if keep_states else _read
    caches, states = read(model, *inputs)
    return ReadPrefix(*inputs, caches=caches, states=states, rest=prefix.rest)


def read_texts(model: CausalLM, prefix: CommonPrefix, kept: Kept) -> ReadPrefix | None:
    """Let a model read what each of several texts keeps of a common prefix; what is left closes up.

    None where layers would keep too much, or positions depend on the length.
    """
    lengths = kept.sum(axis=1)
    places = int(lengths.max()) + prefix.rest
    size = min(-(-places // MULTIPLE) * MULTIPLE, prefix.size)
    same_rope = all(model.same_rope(length, size) for length in lengths.tolist())
    if not same_rope or not _fits_memory(model, size, len(kept)):
        return None
    ids = np.zeros((len(kept), size), np.int32)
    for row, places_of_text in zip(ids, kept, strict=True):
        left = prefix.rows[places_of_text, 0]
        row[: len(left)] = left
    inputs = jax.device_put((ids, np.full_like(ids, -1), lengths))
    caches = _read_rows(model, *inputs)
    return ReadPrefix(*inputs, log_weights=None, caches=caches, states=None, rest=prefix.rest)


def _fits_memory(model: CausalLM, size: int, readings: int) -> bool:
    """Tell whether what layers keep of so many readings of one size fits into `KEPT_IN_MEMORY`."""

    def keep(ids: Int[Array, " size"]) -> Caches:
        """Return what layers keep of one reading."""
        x = model.embed(ids)
        return prefill(model.flow, x, token_grid(size, x.dtype)).caches

    kept = jax.eval_shape(keep, jax.ShapeDtypeStruct((size,), np.int32))
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)]
    return readings * sum(sizes) <= KEPT_IN_MEMORY


def weigh_parts(grid: CellGrid, log_weight: Float[Array, ""], parts: Int[Array, " _"]) -> CellGrid:
    """Weigh all parts of a context alike; each reads itself as before."""
    return grid.weighted(log_weights_of_parts(log_weight, parts, grid.weights.dtype), parts)


def log_weights_of_parts(
    log_weight: Float[Array, ""] | float, parts: Int[Array, " length"], dtype: Any
) -> Float[Array, " length"]:
    """Return a log weight for each token: that of all parts, and zero for a token of no part."""
    return jnp.where(parts >= 0, log_weight, 0).astype(dtype)


def pass_rest(
    model: CausalLM, prefix: ReadPrefix, caches: Caches, ids: Int[Array, " size"], grid: CellGrid
) -> Passed:
    """Pass the ids of a context after its prefix through the network, with one of its caches."""
    x = embed_after(model, prefix.rest_of(ids), prefix.length)
    return extend(model.flow, x, prefix.length, caches, grid)


def embed_after(model: CausalLM, ids: Int[Array, " rows"], place: Place) -> State:
    """Embed ids that follow others: the first of them stands at `place`."""
    # A row of these ids, whose context began so many places before it.
    weights = jnp.ones(ids.shape, model.embedding.dtype)
    return model.embed(ids, Targets(ids, weights, starts=jnp.broadcast_to(-place, ids.shape)))


@cached_jit
def _read(model: CausalLM, *prefix: Any) -> tuple[Caches, None]:
    """Compute what layers keep of the first ids."""
    return _pass_prefix(model, *prefix).caches, None


@cached_jit
def _read_with_states(model: CausalLM, *prefix: Any) -> tuple[Caches, Array]:
    """Compute what layers keep of the first ids, and their states before each layer."""
    passed = _pass_prefix(model, *prefix)
    return passed.caches, passed.states


@cached_jit
def _read_rows(
    model: CausalLM,
    ids: Int[Array, "texts size"],
    parts: Int[Array, "texts size"],
    lengths: Int[Array, " texts"],
) -> Caches:
    """Compute what layers keep of each of several texts."""

    def read(text: tuple[Array, Array, Array]) -> Caches:
        """Compute what layers keep of one text."""
        return _pass_prefix(model, *text, None).caches

    return jax.lax.map(read, (ids, parts, lengths))


def _pass_prefix(
    model: CausalLM,
    ids: Int[Array, " size"],
    parts: Int[Array, " size"],
    length: Place,
    log_weights: Float[Array, " weights"] | None,
) -> Passed:
    """Pass the first ids through the network, with each of the weights of parts."""
    x = model.embed(ids)
    grid = token_grid(len(ids), x.dtype)
    if log_weights is None:
        return prefill(model.flow, x, grid, length)

    def weighted(log_weight: Float[Array, ""]) -> Passed:
        """Pass them with one weight of all parts."""
        return prefill(model.flow, x, weigh_parts(grid, log_weight, parts), length)

    return jax.lax.map(weighted, log_weights)


def _groups(readings: Sequence[Reading]) -> list[_Group]:
    """Group contexts with those before them while at least half of each is what all share."""
    groups: list[_Group] = []
    for number, reading in enumerate(readings):
        if groups:
            contexts, rows, longest = groups[-1]
            common = rows[: _count_common(rows, reading.rows)]
            longest = max(longest, len(reading.rows))
            if 2 * len(common) >= longest > 0:
                groups[-1] = _Group(range(contexts.start, number + 1), common, longest)
                continue
        groups.append(_Group(range(number, number + 1), reading.rows, len(reading.rows)))
    return groups


def _count_common(first: Rows, second: Rows) -> int:
    """Count the rows with which both begin."""
    length = min(len(first), len(second))
    differs = (first[:length] != second[:length]).any(axis=1)
    return int(differs.argmax()) if differs.any() else length
