r"""What a model itself says after a context: its likeliest id, and after that the next.

Keys and values of the context are kept (`network.keeping`), so that an id costs its own row. Logits
are those of the whole context, `CausalLM.logits`.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from lim_jax._checks import (
    counted,
    described,
    guarded_finite,
    require,
    require_indices,
    require_kind,
)
from lim_jax._errors import filter_jit
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.ids import padded_size
from lim_jax.network.keeping import Kept, Place, advanced, flowed, keeps

Row = Float[Array, " vocabulary"]


def answer(
    model: CausalLM,
    ids: Integer[Array | np.ndarray, " ids"],
    tokens: int = 32,
    end: Sequence[int] = (),
) -> Int[Array, " answer"]:
    """The ids that a model answers with, each the likeliest after all before it.

    One program for all contexts of a `padded_length`, whatever is asked for. Where how tokens turn
    depends on the context's length (`CausalLM.same_rope`) the context is computed anew as that
    changes, and for each id where a network's layers keep no keys and values, such as those of
    `network.heun`. Not under `jit`: how many ids there are depends on them.

    Parameters
    ----------
    model
        From `causal.load`, or any other.
    ids
        The context, at least one.
    tokens
        How many ids there are at most.
    end
        Ids that end the answer, as its last: those of a publisher's `end_ids`.

    Raises
    ------
    ValueError
        Where ids are none, or outside the vocabulary, or with the answer more than the places that
        the network knows.
    EquinoxRuntimeError
        Where logits are not finite.

    Examples
    --------
    >>> from lim_jax.models.language import byte_model
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> answer(model, jnp.array([3, 1, 4]), tokens=5).shape
    (5,)
    """
    require_kind(model, CausalLM, "model", "Take it from models.load.")
    _require_ids(model, ids)
    ends = _ends(end)
    row, stop = np.asarray(ids, np.int32), len(ids) + counted(tokens, "tokens")
    _require_places(model, stop - 1)
    while len(row) < stop and not (len(row) > len(ids) and int(row[-1]) in ends):
        steps = _alike(model, len(row), stop)
        size = padded_size(model, len(row) + steps - 1)
        # Numbers of the device: a program is compiled for the size alone.
        numbers = jax.device_put((np.pad(row, (0, size + 1 - len(row))), len(row), steps))
        found, length = _continued(model, *numbers, jax.device_put(np.array([*ends], np.int32)))
        row = np.asarray(found)[: int(length)]
    return jax.device_put(row[len(ids) :])


def _alike(model: CausalLM, length: int, stop: int) -> int:
    """How many further ids one pass over the context, of a length, serves."""
    if not keeps(model.flow):
        return 1
    alike = takewhile(lambda other: model.same_rope(length, other), range(length, stop))
    return len(list(alike))


@filter_jit
def _continued(
    model: CausalLM, ids: Int[Array, " more"], length: Place, steps: Place, ends: Int[Array, " _"]
) -> tuple[Int[Array, " more"], Place]:
    """Ids with those put in that follow the first `length`, and how many there are then."""
    logits, kept = prefill_logits(model, ids[:-1], length)
    grid, stop = token_grid(ids.shape[0] - 1, logits.dtype), length + steps

    def put(ids: Array, logits: Row, length: Place) -> tuple[Array, Place]:
        # Of NaN the argument of the maximum would be some id.
        likeliest = jnp.argmax(guarded_finite(logits, "logits")).astype(ids.dtype)
        return ids.at[length].set(likeliest), length + 1

    def goes_on(state: Any) -> Array:
        ids, length, _ = state
        return (length < stop) & ~jnp.isin(ids[length - 1], ends)

    def one_more(state: Any) -> Any:
        ids, length, kept = state
        logits, kept = decode_logits(model, ids[length - 1], length - 1, kept, grid)
        return *put(ids, logits, length), kept

    if kept is None:
        return put(ids, logits, length)
    return jax.lax.while_loop(goes_on, one_more, (*put(ids, logits, length), kept))[:2]


def prefill_logits(
    model: CausalLM, ids: Int[Array, " size"], length: Place
) -> tuple[Row, Kept | None]:
    """The logits after the first ids, and all keys and values, or None where none are kept."""
    x = model.embed(ids)
    grid = token_grid(x.shape[0], x.dtype)
    state, kept = flowed(model.flow, x, grid) if keeps(model.flow) else (model.flow(x, grid), None)
    return _logits(model, jax.lax.dynamic_slice_in_dim(state, length - 1, 1)), kept


def decode_logits(
    model: CausalLM, one: Int[Array, ""], place: Place, kept: Kept, grid: CellGrid
) -> tuple[Row, Kept]:
    """The logits after one id more, which stands at a place, and keys and values with its own."""
    # Its context began so many places before this row.
    alone = Targets(one[None], jnp.ones(1, grid.weights.dtype), starts=-place[None])
    state, kept = advanced(model.flow, model.embed(one[None], alone), place, kept, grid)
    return _logits(model, state), kept


def _logits(model: CausalLM, state: Float[Array, "1 width"]) -> Row:
    return model.readout(state, token_grid(1, state.dtype))[0]


def _ends(end: Any) -> set[int]:
    several, cure = isinstance(end, Iterable), "Take models.end_ids(path)."
    require(several, "end", got=described(end), expected="ids, none or several", cure=cure)
    return {counted(one, "end", least=0, cure=cure) for one in end}


def _require_ids(model: CausalLM, ids: Any) -> None:
    require_indices(ids, "ids")
    last = model.vocabulary - 1
    outside = [one for one in np.unique(np.asarray(ids)).tolist() if not 0 <= one <= last]
    require(
        not outside,
        "ids",
        got=f"{outside[:3]}",
        expected=f"numbers from 0 to {last}, the model's vocabulary",
        cure="Take the model's own tokenizer.",
    )


def _require_places(model: CausalLM, length: int) -> None:
    places = length if model.positions is None else model.positions.shape[0]
    require(
        length <= places,
        "tokens",
        got=f"a context and an answer of {length + 1} ids",
        expected=f"at most {places + 1}: the network knows {places} places",
        cure="Cut the context, or ask for fewer tokens.",
    )
