"""A model's own answer to a context: greedy decoding with a cache of keys, values and states."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from lim_jax._checks import (
    as_int,
    described,
    error_if_not_finite,
    require,
    require_indices,
    require_kind,
)
from lim_jax._jit import cached_jit
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.models.causal import CausalLM
from lim_jax.models.padding import Padding, padded_size
from lim_jax.models.shared_prefix import ReadPrefix, embed_after
from lim_jax.network.kv_cache import Caches, Place, extend, has_kv_cache, prefill

Row = Float[Array, " vocabulary"]


def answer(
    model: CausalLM,
    ids: Integer[Array | np.ndarray, " ids"],
    tokens: int = 32,
    end: Sequence[int] = (),
    *,
    padding: Padding | None = None,
    prefix: ReadPrefix | None = None,
) -> Int[Array, " answer"]:
    """Return the ids that a model answers with, each the likeliest after all before it.

    Logits are those of the whole context by `CausalLM.logits`, of which a cache keeps what layers
    need of earlier ids. The context is computed anew when rotary frequencies change that depend on
    its length, and for each id if the layers have no such cache, as by `network.heun`. Not under
    `jit`, since the number of ids depends on their values.

    Parameters
    ----------
    model
        The language model.
    ids
        The ids of the context, at least one.
    tokens
        The most ids of the answer.
    end
        Ids that end an answer, such as those of `LanguageModel.end_ids`: the first of them is the
        answer's last id. By default there are none, and the answer has as many ids as `tokens`
        says.
    padding
        A function from the length of context and answer to that to which they are padded; by
        default `padding.padded_length`. `padding.fitted_padding` is shorter, where all lengths are
        known.
    prefix
        What the context begins with, if the model has read it before (`shared_prefix.read_prefix`):
        then only the ids after it are read. None to read all of them.

    Returns
    -------
    Int[Array, " answer"]
        The ids of the answer, with the one that ends it.

    Raises
    ------
    ValueError
        If there are no ids, one is outside the vocabulary, or the context and the answer are longer
        than the positions that the network knows; if `padding` gives no positive integer, or the
        context does not begin with the `prefix` or fit its arrays.
    EquinoxRuntimeError
        If logits are not finite.

    Examples
    --------
    >>> from lim_jax.models.small_models import byte_model
    >>> model = byte_model(16, width=4, depth=1, key=jax.random.key(0))
    >>> answer(model, jnp.array([3, 1, 4]), tokens=5).shape
    (5,)
    """
    require_kind(model, CausalLM, "model", "Take it from models.load.")
    tokens = as_int(tokens, "tokens")
    ends = _ends(end)
    _require_context(model, ids, tokens)
    row = np.asarray(ids, np.int32)
    stop = len(ids) + tokens
    if prefix is not None:
        _require_prefix(prefix, row, tokens)
    while len(row) < stop and not (len(row) > len(ids) and int(row[-1]) in ends):
        steps = _steps(model, len(row), stop)
        size = padded_size(model, len(row) + steps - 1, padding)
        size = size if prefix is None else prefix.size
        # Length and steps are arrays, so that a program is compiled for the size alone.
        numbers = jax.device_put((np.pad(row, (0, size + 1 - len(row))), len(row), steps))
        end_ids = jax.device_put(np.array([*ends], np.int32))
        padded, length = _continue(model, *numbers, end_ids, prefix)
        row = np.asarray(padded)[: int(length)]
    return jax.device_put(row[len(ids) :])


def _steps(model: CausalLM, length: int, stop: int) -> int:
    """Return how many tokens to decode before rotary frequencies change; one without a cache."""
    if not has_kv_cache(model.flow):
        return 1
    return len(list(takewhile(partial(model.same_rope, length), range(length, stop))))


@cached_jit
def _continue(
    model: CausalLM,
    ids: Int[Array, " more"],
    length: Place,
    steps: Place,
    ends: Int[Array, " _"],
    prefix: ReadPrefix | None,
) -> tuple[Int[Array, " more"], Place]:
    """Return the ids with those put in that follow the first `length`, and the new length."""
    grid = token_grid(ids.shape[0] - 1, model.embedding.dtype)
    if prefix is None:
        logits, caches = prefill_logits(model, ids[:-1], length)
    else:
        place = prefix.length
        rest = prefix.rest_of(ids)
        logits, caches = extend_logits(model, rest, length - place, place, prefix.caches, grid)
    one = jnp.array(1)
    stop = length + steps

    def put(ids: Array, logits: Row, length: Place) -> tuple[Array, Place]:
        """Put the likeliest id behind the first `length`, and return the length plus one."""
        # The argmax of NaN would be some id, with no sign of the fault.
        likeliest = jnp.argmax(error_if_not_finite(logits, "logits")).astype(ids.dtype)
        return ids.at[length].set(likeliest), length + 1

    def is_unfinished(state: Any) -> Array:
        """Tell whether to decode another id: the last one ends nothing and there is room."""
        ids, length, _ = state
        return (length < stop) & ~jnp.isin(ids[length - 1], ends)

    def decode_next(state: Any) -> Any:
        """Decode one more id with the cache."""
        ids, length, caches = state
        logits, caches = extend_logits(model, ids[length - 1][None], one, length - 1, caches, grid)
        return *put(ids, logits, length), caches

    if caches is None:
        return put(ids, logits, length)
    return jax.lax.while_loop(is_unfinished, decode_next, (*put(ids, logits, length), caches))[:2]


def prefill_logits(
    model: CausalLM, ids: Int[Array, " size"], length: Place
) -> tuple[Row, Caches | None]:
    """Return the logits after the first `length` ids, and the caches, or None without any."""
    x = model.embed(ids)
    grid = token_grid(x.shape[0], x.dtype)
    if has_kv_cache(model.flow):
        state, caches, _ = prefill(model.flow, x, grid, length)
    else:
        state = model.flow(x, grid)
        caches = None
    return _logits(model, jax.lax.dynamic_slice_in_dim(state, length - 1, 1)), caches


def extend_logits(
    model: CausalLM,
    ids: Int[Array, " rows"],
    count: Place,
    place: Place,
    caches: Caches,
    grid: CellGrid,
) -> tuple[Row, Caches]:
    """Return the logits after the first `count` of more ids, and the caches extended by them."""
    x = embed_after(model, ids, place)
    state, caches, _ = extend(model.flow, x, place, caches, grid, count)
    return _logits(model, jax.lax.dynamic_slice_in_dim(state, count - 1, 1)), caches


def _logits(model: CausalLM, state: Float[Array, "1 width"]) -> Row:
    """Return the logits of one position's state."""
    return model.readout(state, token_grid(1, state.dtype))[0]


def _ends(end: Any) -> set[int]:
    """Return the ids that end an answer as a set; raise ValueError unless they are ids."""
    listed = isinstance(end, Iterable)
    cure = "Take LanguageModel.end_ids."
    require(listed, "end", got=described(end), expected="ids, none or several", cure=cure)
    return {as_int(number, "end", least=0, cure=cure) for number in end}


def _require_context(model: CausalLM, ids: Any, tokens: int) -> None:
    """Raise ValueError unless ids are in the vocabulary and context and answer fit the limit."""
    require_indices(ids, "ids")
    last = model.vocabulary - 1
    outside = [number for number in np.unique(np.asarray(ids)).tolist() if not 0 <= number <= last]
    require(
        not outside,
        "ids",
        got=f"{outside[:3]}",
        expected=f"numbers from 0 to {last}, the model's vocabulary",
        cure="Take the model's own tokenizer.",
    )
    stop = len(ids) + tokens
    most, why = model.limit or (stop, "")
    require(
        stop <= most + 1,
        "tokens",
        got=f"a context and an answer of {stop} ids",
        expected=f"at most {most + 1}: a context has at most {most}, {why}",
        cure="Cut it, or ask for fewer tokens.",
    )


def _require_prefix(prefix: ReadPrefix, ids: Int[np.ndarray, " ids"], tokens: int) -> None:
    """Raise ValueError unless ids begin with a prefix, and its arrays hold them and an answer."""
    length = int(prefix.length)
    begins = np.array_equal(ids[:length], np.asarray(prefix.ids)[:length])
    rest = len(ids) - length
    fits = 0 < rest <= prefix.rest and len(ids) + tokens - 1 <= prefix.size
    got = "ids that begin otherwise"
    if begins:
        got = f"{rest} ids after it and an answer of {tokens}"
    require(
        begins and fits,
        "prefix",
        got=got,
        expected=f"its {length} ids, 1 to {prefix.rest} more, and {prefix.size} places at most",
        cure="Take the one that common_prefixes names for this context.",
    )
