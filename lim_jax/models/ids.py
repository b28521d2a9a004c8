"""Which positions of token ids matter to a model, for contexts of any lengths.

Contexts are padded on the right, where a causal network's adjoint is zero.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from lim_jax._checks import (
    ARRAYS,
    AnyPath,
    as_int,
    as_numbers,
    described,
    require,
    require_callable,
    require_indices,
    require_kind,
    require_text,
)
from lim_jax._digest import digest
from lim_jax._jit import cached_jit
from lim_jax._partial_runs import checkpoint_folder, once
from lim_jax.density.adjoints import Loss, LossOfIds, adjoint_energies, check_finite
from lim_jax.density.statistics import Influence
from lim_jax.grid.cells import token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.partition import Regions, require_regions
from lim_jax.loss.query_weights import teacher_forcing
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.layerwise import STATES_IN_MEMORY, energies_by_layers, states_size

PerPosition = Float[Array | np.ndarray, " _"]
ByToken = Float[Array | np.ndarray, "_ ..."]
Windows = Sequence[Integer[Array | np.ndarray, " _"]]
Ask = Callable[[int], PerPosition] | Sequence[PerPosition | Contrast]
Padding = Callable[[int], int]  # from a context's length to that to which it is padded
# A context as a program takes it, on the host: its ids, targets, the scale of its energies, and
# the part of each of its tokens, -1 for none.
Padded = tuple[Array | np.ndarray, Targets | Contrast, Array | np.ndarray, Array | np.ndarray]
# Scores of one context's tokens, or other numbers of it: of a loss of ids, a model, ids, what is
# asked and the part of each token. One number for each token, or a row of them.
Scores = Callable[[LossOfIds, CausalLM, Any, Any, Any], Float[Array, "_ ..."]]
SHORTEST = 16
LONG = 1024
QUERIES = 32  # to so many at least places that are asked are padded: most answers share programs
ASK = "Take loss.teacher_forcing, loss.last_token, or another function of the length."
# Measured with SmolLM2 and a Llama of its size on one core. A call reads all weights, which costs
# what some more tokens do: 30 to 70 of them from memory, 90 from half precision, 150 to 300 from
# files. So a token of 16 alone costs 3.0 times one in a batch of 512, of 128 alone 1.15 times;
# batches of 1,024 are 3 % faster still, and hold twice the logits.
TOKENS_AT_ONCE = 512
CALL_IN_MEMORY = 32
CALL_WITH_READING = 128


def influence_of_ids(
    model: CausalLM,
    windows: Windows,
    regions: Regions,
    *,
    ask: Ask = teacher_forcing,
    loss: Loss = CausalLM.loss,
    keep_examples: bool = False,
) -> Influence:
    """Measure the influence of contexts of ids, each with the id after it.

    A window of l + 1 ids is a context of l, whose targets are the ids after each. What is compiled
    depends on `ids.padded_length` alone: some ten programs serve all contexts up to a thousand ids.
    Position is the share of a context's own length, and examples have equal weight.

    Parameters
    ----------
    model
        The language model, of `models.load`, `models.open` or `byte_model`.
    windows
        An array of ids for each example; at least one, of two ids or more. `contexts` makes them of
        a padded batch or packed rows.
    regions
        Regions of the grid of the result, such as ``boundary_regions(token_grid(100), 0.2)``.
    ask
        A function from a context's length to its query weights, `loss.teacher_forcing`, the
        default, `loss.last_token`, or another; or a list with the weights of each context, one for
        each position, of sum one; or a list of each context's `Contrast`: its window is then the
        prompt, and any id.
    loss
        `CausalLM.loss`, the default, `CausalLM.margin_loss`, `CausalLM.own_margin_loss`, or another
        ``loss(model, x, y)`` of embedded states and `Targets`; or `contrast_loss`, where `ask` has
        a `Contrast` for each context.
    keep_examples
        Whether the result keeps the energies of every example, an array of
        ``(examples, positions of the regions' grid)``.

    Returns
    -------
    Influence
        The mean of the contexts' energies on the regions' grid, with its scatter: the density, the
        total and the regional averages.

    Raises
    ------
    ValueError
        If there are no windows, or one is no array of at least two ids; if they are one array of
        rows, of which some may be padded; if weights or masks do not fit the contexts.
    EquinoxRuntimeError
        If an id is outside the vocabulary.
    """
    require_regions(regions)
    energies = [
        _carry(_shares(length, energy, regions), energy)
        for length, energy in _rows_by_context(model, windows, ask, loss)
    ]
    return Influence.from_energies(jnp.stack(energies), regions, keep_examples=keep_examples)


def energies_of_ids(
    model: CausalLM,
    windows: Windows,
    *,
    ask: Ask = teacher_forcing,
    loss: Loss = CausalLM.loss,
    checkpoint: AnyPath | None = None,
    run: str = "",
    padding: Padding | None = None,
    progress: Callable[[list], Iterable] = iter,
    progress_of_layers: Callable[[list], Iterable] = iter,
) -> list[Float[np.ndarray, " _"]]:
    r"""Measure the energies :math:`\|P_0(p_i)\|^2` of every context's own tokens, on its own grid.

    Energies are densities: a token's part of the context's total Z is its energy over the context's
    length. `influence_of_ids` carries them to a common grid, and averages.

    With a checkpoint a run may be interrupted at any moment: called again with the same arguments
    it measures the contexts that are left, and gives the same numbers, bit for bit. So it does with
    more windows after the same ones, up to rounding if those make a batch with contexts that were
    measured alone. Contexts whose states between all layers are more than 256 MiB go on at a layer:
    each state is in a file, one at a time in memory (`CausalLM.loss` and `margin_loss`).

    Parameters
    ----------
    model
        The language model, of `models.load`, `models.open` or `byte_model`.
    windows
        An array of ids for each context, with the id after it; at least one, of two ids or more.
    ask
        A function from a context's length to its query weights, `loss.teacher_forcing`, the
        default, `loss.last_token`, or another; or a list with the weights of each context, one for
        each position, of sum one; or a list of each context's `Contrast`: its window is then the
        prompt, and any id.
    loss
        `CausalLM.loss`, the default, `CausalLM.margin_loss`, `CausalLM.own_margin_loss`, or another
        ``loss(model, x, y)`` of embedded states and `Targets`; or `contrast_loss`, where `ask` has
        a `Contrast` for each context.
    checkpoint
        A folder for a file of each context's energies; None for none.
    run
        A name of yours for a checkpoint whose loss or model has functions or classes of your own:
        what they compute is not compared. Take another name when they change.
    padding
        A function from a context's length to that to which it is padded; by default
        `ids.padded_length`. `ids.fitted_padding` of all lengths is shorter, where these are known.
    progress
        A wrapper of the list of windows, for example ``tqdm.tqdm``.
    progress_of_layers
        A wrapper of the list of layers of a batch that goes on at a layer.

    Returns
    -------
    list of Float[np.ndarray, " _"]
        One array for each context, with an energy for each of its tokens.

    Raises
    ------
    ValueError
        If there are no windows, or one is no array of at least two ids; if weights or masks do not
        fit the contexts; if `padding` gives no positive integer; if the checkpoint is of another
        model, loss, windows, query weights or `run`, or has a damaged file.
    EquinoxRuntimeError
        If an id is outside the vocabulary.
    """
    rows = _rows_by_context(
        model,
        windows,
        ask,
        loss,
        checkpoint=checkpoint,
        run=run,
        padding=padding,
        progress=progress,
        progress_of_layers=progress_of_layers,
    )
    return [np.asarray(energies)[:length] for length, energies in rows]


def scores_of_ids(
    scores: Scores,
    model: CausalLM,
    windows: Windows,
    *,
    ask: Ask = teacher_forcing,
    loss: Loss = CausalLM.loss,
    scores_name: str = "",
    parts: Sequence[Int[np.ndarray, " _"]] | None = None,
    checkpoint: AnyPath | None = None,
    run: str = "",
    padding: Padding | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> list[Float[np.ndarray, "_ ..."]]:
    """Compute other scores of every context, in the batches and checkpoints of `energies_of_ids`.

    Of each token of a context `parts` has the number of its part, -1 for none. Checkpoints know
    `scores` by `scores_name`, without which a library must have them. The other arguments are those
    of `energies_of_ids`.
    """
    rows = _rows_by_context(
        model,
        windows,
        ask,
        loss,
        scores=scores,
        scores_name=scores_name,
        parts=parts,
        checkpoint=checkpoint,
        run=run,
        padding=padding,
        progress=progress,
    )
    return [np.asarray(row)[:length] for length, row in rows]


def require_window(window: Any, name: str) -> None:
    """Raise ValueError unless this is an array of at least two integers."""
    require_indices(window, name)
    require(
        window.shape[0] > 1,
        name,
        got="one id",
        expected="a context and the id after it",
        cure="Pass more ids: the last one of a window is only a target.",
    )


def padded_length(length: int) -> int:
    """Return the padded length of a context: 16, 24, 32, 48, 64, 96, ..., and then finer steps.

    >>> [padded_length(length) for length in (5, 17, 24, 25, 1000, 1025, 3745)]
    [16, 24, 24, 32, 1024, 1152, 3840]
    """
    if length > LONG:  # to run a program takes longer than to compile it: an eighth more at most
        step = 1 << ((length - 1).bit_length() - 4)
        return -(-length // step) * step
    double = max(SHORTEST, 1 << (length - 1).bit_length())
    return double if length > 3 * double // 4 or double == SHORTEST else 3 * double // 4


def fitted_padding(lengths: Iterable[int]) -> Padding:
    """Return a shorter padding for contexts of these lengths, in no more programs.

    Where two or more have one `padded_length`, it is the longest of them in multiples of 16. Others
    keep theirs, for which another run may have compiled a program.

    >>> padding = fitted_padding([392, 411, 402, 700])
    >>> [padding(length) for length in (392, 411, 412, 700)]
    [416, 416, 512, 768]
    """
    longest: dict[int, int] = {}
    shared = set()
    for length in lengths:
        size = padded_length(length)
        if size in longest:
            shared.add(size)
        longest[size] = max(length, longest.get(size, 0))

    def padded(length: int) -> int:
        """Return the padded length of a context."""
        size = padded_length(length)
        if size not in shared or length > longest[size]:
            return size
        return min(size, -(-longest[size] // SHORTEST) * SHORTEST)

    return padded


def padded_queries(queries: int) -> int:
    """Return the number to which places that are asked are padded, at least `QUERIES`."""
    return padded_length(max(QUERIES, queries))


def padded_size(model: CausalLM, length: int, padding: Padding | None = None) -> int:
    """Return the length to which a model's contexts are padded: that of `padding` or less."""
    padding = padded_length if padding is None else padding
    require_callable(padding, "padding", "from a length to the padded one")
    # Not longer at all if the rotary frequencies depend on the length.
    size = max(length, min(as_int(padding(length), "padding"), known_length(model)))
    return size if model.same_rope(size, length) else length


def known_length(model: CausalLM) -> int:
    """Return the most places that a model knows or was trained on; of others a great number."""
    limit = None if model.limit is None else model.limit[0]
    return min((most for most in (limit, model.trained) if most is not None), default=sys.maxsize)


def _ask_by_context(ask: Ask, windows: Windows) -> Any:
    """Return each context's query weights or contrast; raise ValueError if their number differs."""
    ask_by_context: Any = [ask(len(window) - 1) for window in windows] if callable(ask) else ask
    listed = isinstance(ask_by_context, (list, tuple, *ARRAYS))
    require(
        listed and len(ask_by_context) == len(windows),
        "ask",
        got=f"weights of {len(ask_by_context)} contexts" if listed else described(ask),
        expected=f"those of {len(windows)}, or a function of a context's length",
        cure=ASK,
    )
    return ask_by_context


def _rows_by_context(
    model: CausalLM,
    windows: Windows,
    ask: Ask = teacher_forcing,
    loss: Loss = CausalLM.loss,
    *,
    scores: Scores | None = None,
    scores_name: str = "",
    parts: Sequence[Int[np.ndarray, " _"]] | None = None,
    checkpoint: AnyPath | None = None,
    run: str = "",
    padding: Padding | None = None,
    progress: Callable[[list], Iterable] = iter,
    progress_of_layers: Callable[[list], Iterable] = iter,
) -> Iterator[tuple[int, ByToken]]:
    """Yield each context's length, and its scores or, without `scores`, its energies."""
    require_kind(model, CausalLM, "model", "Load one: models.load(folder).")
    _require_windows(windows)
    require_text(run, "run")
    ask_by_context = _ask_by_context(ask, windows)
    loss_of_ids = LossOfIds(_embed, loss)
    labels = parts or [np.full(len(window) - 1, -1, np.int32) for window in windows]
    contexts = [
        _pad(model, *context, padding)
        for context in zip(windows, ask_by_context, labels, strict=True)
    ]
    folder = None if checkpoint is None else checkpoint_folder(checkpoint)
    about = {}
    if folder is not None:
        about = {
            "function": _function(scores, scores_name),
            "loss": _loss_name(loss),
            "run": run,
            "parameters": digest((loss_of_ids, model), named=run != ""),
        }

    def measure_batch(numbers: list[int]) -> Float[np.ndarray, "contexts length ..."]:
        """Compute the scores or energies of a batch of contexts."""
        ids, y, scale, labels = _stack(contexts, numbers)
        if scores is not None:
            return np.asarray(_scores(scores, loss_of_ids, model, ids, y, labels))
        few = states_size(model, ids) <= STATES_IN_MEMORY
        if folder is None or few or not (isinstance(loss, LossOfLogits) and isinstance(y, Targets)):
            return np.asarray(_energy(loss_of_ids, model, ids, y, scale))
        states = folder / digest((ids, y))
        energies = energies_by_layers(loss, model, ids, y, states, about, progress_of_layers)
        return energies * np.asarray(scale)[:, None]

    def run_of(number: int) -> dict[str, Any]:
        """Return what tells a context's file from those of other runs and contexts."""
        inputs = [windows[number], ask_by_context[number]]
        if parts is not None:
            inputs.append(parts[number])
        return {**about, "context": digest(tuple(inputs))}

    is_offloaded = model.flow.is_offloaded
    batches = _batches(contexts, CALL_WITH_READING if is_offloaded else CALL_IN_MEMORY)
    batch_of = {number: numbers for numbers in batches for number in numbers}
    rows: dict[int, ByToken] = {}
    for number in progress(list(range(len(windows)))):
        if number not in rows:
            numbers = batch_of[number]
            if folder is None:
                distinct = dict.fromkeys(numbers)  # the last one may fill the batch up
                rows |= dict(zip(distinct, measure_batch(numbers), strict=False))
            else:
                rows |= _stored_rows(folder, numbers, run_of, measure_batch)
        yield len(windows[number]) - 1, rows.pop(number)


def _stored_rows(
    folder: Path,
    numbers: list[int],
    run_of: Callable[[int], dict[str, Any]],
    measure_batch: Callable[[list[int]], Float[np.ndarray, "contexts length ..."]],
) -> dict[int, ByToken]:
    """Return the rows of a batch from their files; without one of these the batch is computed."""

    @cache
    def batch() -> Float[np.ndarray, "contexts length ..."]:
        """Compute the batch at the first row that no file has."""
        return measure_batch(numbers)

    def measure(row: int) -> ByToken:
        """Return one row of the batch."""
        return batch()[row]

    return {
        number: once(folder / f"{number}", run_of(number), partial(measure, row))
        for row, number in enumerate(dict.fromkeys(numbers))
    }


def _batches(contexts: Sequence[Padded], call: int) -> list[list[int]]:
    """Group contexts of equal shapes into batches."""
    by_shapes: dict[Any, list[int]] = {}
    for number, context in enumerate(contexts):
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(context))
        by_shapes.setdefault(shapes, []).append(number)
    return [
        batch
        for numbers in by_shapes.values()
        for batch in _cut(numbers, len(contexts[numbers[0]][0]), call)
    ]


def _cut(numbers: list[int], length: int, call: int) -> list[list[int]]:
    """Cut numbers into batches of one size, filled up by the last, or of one each if cheaper."""
    # Costs are in tokens, and each call costs `call` tokens more. One program serves all batches.
    # Seven contexts of 128 go in two batches of four, for 2 (32 + 4 128) is less than 7 (32 + 128).
    size = max(1, TOKENS_AT_ONCE // length)
    calls = -(-len(numbers) // size)
    if calls * (call + size * length) > len(numbers) * (call + length):
        size = 1
    filled = numbers + (size - 1) * numbers[-1:]
    return [filled[start : start + size] for start in range(0, len(numbers), size)]


def _stack(
    contexts: Sequence[Padded], numbers: Sequence[int]
) -> tuple[Array, Targets | Contrast, Array, Array]:
    """Stack a batch of contexts on the device, with one query each if no more have weight."""
    chosen = [contexts[number] for number in numbers]
    ids, y, *others = jax.tree.map(lambda *leaves: np.stack(leaves), *chosen)
    if isinstance(y, Targets) and not y.weights[:, 1:].any():
        # Each asks at one place, and a matrix times a vector is read once, not laid out anew.
        y = jax.tree.map(lambda part: part[:, :1], y)
    return jax.device_put((ids, y, *others))


def _function(scores: Scores | None, scores_name: str) -> str:
    """Return the name of the computed function for checkpoint files."""
    if scores is None:
        return "energies_of_ids"
    return scores_name or digest(scores)


def _loss_name(loss: Loss) -> str:
    """Return the name of a loss for checkpoint files."""
    if isinstance(loss, LossOfLogits):
        return loss.name
    return getattr(loss, "__qualname__", type(loss).__qualname__)


def _require_windows(windows: Windows) -> None:
    """Raise ValueError unless windows are a non-empty list of arrays of two or more ids."""
    rows = isinstance(windows, Sequence) and not isinstance(windows, str) and len(windows) > 0
    require(
        rows,
        "windows",
        got=described(windows),
        expected="a list of arrays of ids, at least one",
        cure="Pass contexts(ids, mask=mask) for rows with padding, list(ids) for rows without any.",
    )
    for window in windows:
        require_window(window, "windows")


def _embed(model: CausalLM, ids: Int[Array, " length"], y: Targets | Contrast) -> Array:
    """Embed one context's ids."""
    return model.embed(ids, y if isinstance(y, Targets) else None)


def _pad(
    model: CausalLM,
    window: Any,
    ask: PerPosition | Contrast,
    parts: Int[np.ndarray, " _"],
    padding: Padding | None,
) -> Padded:
    """Pad a context's ids, parts and queries; only positions of non-zero weight are queried."""
    # The head reads only the positions whose weights are not zero. Padding has id zero, and queries
    # that fill up the arrays are at the first position, with weight zero.
    row = np.asarray(window)
    length = len(row) - 1
    size = padded_size(model, length, padding)
    more = (0, 0)
    if isinstance(ask, Contrast):
        size, more = _contrast_sizes(model, ask, length, size)
    dtype = model.embedding.dtype
    # Energies are densities, and the padded grid's cells are narrower than the context's own.
    scale: Any = np.asarray((length / size) ** 2, dtype)
    ids = _fill(row[:-1], size)
    labels = _fill(np.asarray(parts) + 1, size) - 1
    if isinstance(ask, Contrast):
        return ids, _pad_contrast(ask, length, size, more, dtype), scale, labels
    expected = f"weights of shape {(length,)}, one for each place of the context"
    weights = as_numbers(ask, "ask", expected=expected, cure=ASK).astype(dtype)
    require(
        weights.shape == (length,),
        "ask",
        got=f"weights of shape {weights.shape}",
        expected=expected,
        cure=ASK,
    )
    positions = np.flatnonzero(weights)
    queries = min(size, padded_queries(len(positions)))
    targets = (_fill(part, queries) for part in (row[1:][positions], weights[positions], positions))
    return ids, Targets(*targets), scale, labels


def _contrast_sizes(
    model: CausalLM, ask: Contrast, length: int, size: int
) -> tuple[int, tuple[int, int]]:
    """Return the sizes of a prompt's row and of both continuations: powers of two, or their own.

    They are their own where padding would change rotary frequencies or end behind the last place.
    """
    counts = len(ask.answer), len(ask.foil)
    answer, foil = (1 << (count - 1).bit_length() for count in counts)
    most = known_length(model)
    # A continuation stands right after the prompt, in a row that has room for both arrays.
    fits = all(
        length + more - 1 <= most and model.same_rope(length + count - 1, size + more - 1)
        for count, more in zip(counts, (answer, foil), strict=True)
    )
    return (size, (answer, foil)) if fits else (length, counts)


def _pad_contrast(
    ask: Contrast, length: int, size: int, more: tuple[int, int], dtype: Any
) -> Contrast:
    """Pad continuations to the sizes `more` with weight zero, and the prompt's mask to `size`."""
    *continuations, after = (np.asarray(field) for field in ask[:5])
    require(
        int(after) == length,
        "ask",
        got=f"a contrast after {int(after)} ids",
        expected=f"after {length}",
        cure="Make the window of the prompt and any id after it.",
    )
    answer, foil, *weights = map(_fill, continuations, 2 * more)
    answer_weights, foil_weights = (values.astype(dtype) for values in weights)
    log_weights = _pad_places(ask.log_weights, length, size, 0)
    labels = _pad_places(ask.parts, length, size, -1)
    if log_weights is not None:
        log_weights = log_weights.astype(dtype)
    return Contrast(answer, foil, answer_weights, foil_weights, after, log_weights, labels)


def _pad_places(places: Any, length: int, size: int, padding: int) -> Any:
    """Pad a contrast's numbers of each place of the prompt, if it has any."""
    if places is None:
        return None
    require(
        places.shape == (length,),
        "ask",
        got=f"a contrast with a mask of shape {places.shape}",
        expected=f"{(length,)}, one number for each id of the prompt",
        cure="Pass log_weights and parts of the prompt's own length.",
    )
    return np.pad(np.asarray(places), (0, size - length), constant_values=padding)


def _shares(length: int, energy: PerPosition, regions: Regions) -> Array:
    """Return the context cells' shares of the regions' cells, with zeros for its padding."""
    shares = carrying_shares(token_grid(length), regions.grid)
    return jax.device_put(_fill(shares.astype(energy.dtype), energy.shape[0]))


def _fill(values: np.ndarray, size: int) -> Any:
    """Pad the last axis with zeros to a size."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])


@cached_jit
def _energy(
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, "contexts length"],
    y: Targets | Contrast,
    scale: Float[Array, " contexts"],
) -> Float[Array, "contexts length"]:
    """Compute the energies of a batch, scaled from the padded grid to each context's own."""
    grid = token_grid(ids.shape[1], model.embedding.dtype)
    return adjoint_energies(loss, model, (ids, y), grid) * scale[:, None]


@cached_jit
def _scores(
    scores: Scores,
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, "contexts length"],
    y: Targets | Contrast,
    parts: Int[Array, "contexts length"],
) -> Float[Array, "contexts _ ..."]:
    """Compute the scores of a batch, and check that they are finite."""

    def score_context(ids: Any, y: Any, parts: Any) -> Array:
        """Compute the scores of one context."""
        return scores(loss, model, ids, y, parts)

    if len(ids) == 1:  # traced once: a batch would be traced anew
        rows = score_context(*jax.tree.map(lambda leaf: leaf[0], (ids, y, parts)))[None]
    else:
        rows = jax.vmap(score_context)(ids, y, parts)
    return check_finite(rows, (ids, y), None, rows)


@jax.jit
def _carry(
    shares: Float[Array, "positions length"], energy: Float[Array, " length"]
) -> Float[Array, " positions"]:
    """Carry a context's energies over to the cells of the regions' grid."""
    return shares @ energy
