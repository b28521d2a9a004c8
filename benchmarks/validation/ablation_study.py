r"""Which records does an answer hang on? Records taken out of the text, which is read again.

Two measures of an attribution, by Cohen-Wang, Shah, Georgiev and Madry, "ContextCite: attributing
model generation to context" (2024), and their sparse regression. As there, what is left of a text
stays as it is: a record goes with what stands between it and the record before, and numbers of
documents are not counted anew.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from benchmarks.validation.intervals import rank_correlation
from benchmarks.validation.stopwatch import Stopwatch
from lim_jax._checks import require
from lim_jax._jit import filter_jit
from lim_jax.attribution.methods import ablations
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.padding import padded_size
from lim_jax.tasks.prompts import Prompt, encode_text

Kept = Bool[Array | np.ndarray, "ablations _"]
Values = Float[Array | np.ndarray, " _"]
TOKENS = (2**15, 2**11)  # in a program's call: of an accelerator, of a CPU
STEP = 8  # of the sizes that they are padded to


def random_ablations(records: int, count: int, seed: int) -> Bool[np.ndarray, "count records"]:
    """Draw distinct sets of records that are kept, each of all sets as likely as any other.

    So a record is kept with probability 1/2, and parts of what is drawn have no set in common.

    Parameters
    ----------
    records
        How many there are.
    count
        How many sets, of all ``2**records``.
    seed
        For `numpy.random.default_rng`.

    Examples
    --------
    >>> random_ablations(2, 4, seed=0).sum(axis=0).tolist()
    [2, 2]
    """
    require(
        0 < count <= 2**records,
        "count",
        got=f"{count} sets of {records} records",
        expected=f"1 to {2**records}",
        cure="Take fewer sets: there are no more that differ.",
    )
    rng = np.random.default_rng(seed)
    by_bytes = {}
    while len(by_bytes) < count:
        rows = rng.integers(2, size=(count, records)).astype(bool)
        by_bytes |= {row.tobytes(): row for row in rows if row.tobytes() not in by_bytes}
    return np.stack(list(by_bytes.values())[:count])


def ablated_text(prompt: Prompt, kept: Bool[Array | np.ndarray, " records"]) -> str:
    """Return a prompt's text without some of its records.

    What stands between two records goes with the later one; before the first that is kept nothing
    stands but what stands before all of them.

    Parameters
    ----------
    prompt
        Such as the room tasks makes.
    kept
        Of each record, whether it stays.

    Examples
    --------
    >>> from lim_jax.tasks.prompts import join_pieces
    >>> pieces = [("{", False), ("a", True), (", ", False), ("b", True), ("; ", False), ("c", True)]
    >>> prompt = join_pieces([*pieces, ("}", False)], "", [0])
    >>> ablated_text(prompt, np.array([True, False, True]))
    '{a; c}'
    >>> ablated_text(prompt, np.array([False, True, True]))
    '{b; c}'
    """
    text = prompt.text
    spans = prompt.spans
    ends = [0, *(end for _, end in spans)]
    before = text[: spans[0][0]]
    after = text[spans[-1][1] :]
    numbers = np.flatnonzero(kept)
    parts = [
        text[spans[number][0] if rank == 0 else ends[number] : spans[number][1]]
        for rank, number in enumerate(numbers)
    ]
    return before + "".join(parts) + after


def read_answers(
    model: CausalLM,
    contexts: Sequence[Integer[Array | np.ndarray, " _"]],
    answers: Sequence[Integer[Array | np.ndarray, " _"]],
    *,
    sizes: Sequence[int] = (),
    queries: int | None = None,
    watch: Stopwatch | None = None,
    name: str = "contexts",
) -> tuple[Float[np.ndarray, " contexts"], Int[np.ndarray, " contexts"]]:
    r"""Return answers' :math:`\sum_t\log p(y_t)` after contexts, and the likeliest first id.

    Contexts of similar lengths go together, padded on the right, some at a time; logits are those
    of the answers' places alone.

    Parameters
    ----------
    model
        Any.
    contexts
        The ids of each, at least one.
    answers
        The ids of each, at least one.
    sizes
        To pad contexts and answers to, so that few programs serve many; none for the longest.
    queries
        To pad answers to, so that one program serves answers of several lengths.
    watch, name
        Counts the seconds of contexts, under a name.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> contexts, answers = [jnp.array([3, 1, 4]), jnp.array([1])], 2 * [jnp.array([5, 9])]
    >>> logs, likeliest = read_answers(model, contexts, answers)
    >>> logs.shape, likeliest.shape
    ((2,), (2,))
    """
    queries = max(map(len, answers)) if queries is None else queries
    watch = Stopwatch() if watch is None else watch
    rows = [
        np.concatenate([ids, answer[:-1]]) for ids, answer in zip(contexts, answers, strict=True)
    ]
    log_probabilities = np.zeros(len(rows), np.dtype(model.embedding.dtype))
    likeliest = np.zeros(len(rows), np.int32)
    for numbers, size in _chunks(model, [len(row) for row in rows], sizes):
        ids = np.stack([_pad(rows[number], size) for number in numbers])
        y = targets_of(
            model, [contexts[n] for n in numbers], [answers[n] for n in numbers], queries
        )
        # What fills a chunk up is no work of any method.
        logs, first = watch(name, len(set(numbers)), _read, model, jax.device_put(ids), y)
        log_probabilities[numbers], likeliest[numbers] = logs, first
    return log_probabilities, likeliest


def targets_of(
    model: CausalLM,
    contexts: Sequence[Integer[Array | np.ndarray, " _"]],
    answers: Sequence[Integer[Array | np.ndarray, " _"]],
    queries: int,
) -> Targets:
    """Return the targets of answers after contexts, with a leading axis of these."""
    dtype = np.dtype(model.embedding.dtype)
    weights = [_pad(np.full(len(answer), 1 / len(answer), dtype), queries) for answer in answers]
    positions = [
        _pad(np.arange(len(answer), dtype=np.int32) + len(ids) - 1, queries)
        for ids, answer in zip(contexts, answers, strict=True)
    ]
    targets = [_pad(np.asarray(answer, np.int32), queries) for answer in answers]
    return Targets(*jax.device_put(tuple(map(np.stack, (targets, weights, positions)))))


def _pad(row: np.ndarray, size: int) -> np.ndarray:
    return np.pad(row, (0, size - len(row)))


@filter_jit
def _read(
    model: CausalLM, ids: Int[Array, "rows size"], y: Targets
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    """Return the answers' log-probabilities, and the likeliest id at the first place asked."""

    def read_row(ids: Int[Array, " size"], y: Targets) -> tuple[Float[Array, ""], Int[Array, ""]]:
        """Return the log probability of one text's answer, and the likeliest first token."""
        x = model.embed(ids)
        grid = token_grid(ids.shape[0], x.dtype)
        logits = model.readout(model.flow(x, grid)[y.positions], grid)
        logs = jnp.take_along_axis(jax.nn.log_softmax(logits), y.targets[:, None], axis=1)[:, 0]
        return jnp.sum(jnp.where(y.weights > 0, logs, 0)), jnp.argmax(logits[0])

    return jax.vmap(read_row)(ids, y)


def _chunks(
    model: CausalLM, lengths: Sequence[int], sizes: Sequence[int]
) -> list[tuple[list[int], int]]:
    """Return which rows go together, and the size that they are padded to."""
    padded_sizes = sorted({*sizes, context_size(model, max(lengths))})
    if not all(model.same_rope(size, length) for size in padded_sizes for length in lengths):
        padded_sizes = sorted(set(lengths))
    groups: dict[int, list[int]] = {size: [] for size in padded_sizes}
    for row, length in enumerate(lengths):
        groups[next(size for size in padded_sizes if size >= length)].append(row)
    chunks = []
    for size, rows in groups.items():
        count = max(1, TOKENS[jax.default_backend() == "cpu"] // size)
        for start in range(0, len(rows), count):
            chunk = rows[start : start + count]
            # Filled up with its own first row, so that the program is that of the rest.
            chunks.append((chunk + chunk[:1] * (count - len(chunk)), size))
    return chunks


def context_size(model: CausalLM, length: int) -> int:
    """Return the number of places to which a context is padded: the next multiple of 8.

    Within the limits of `padding.padded_size`, and finer than its own lengths: texts of one kind
    are read often.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> context_size(model, 9), context_size(model, 17)
    (16, 20)
    """
    return padded_size(model, length, lambda length: -(-length // STEP) * STEP)


def ids_of_texts(texts: Sequence[str], tokenizer: Any = None) -> list[Int[np.ndarray, " _"]]:
    """Return the ids of texts, which a tokenizer reads side by side; of None, bytes of UTF-8."""
    if tokenizer is None:
        return [encode_text(text).ids for text in texts]
    return [np.asarray(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(list(texts))]


class Ablated:
    """The log-probabilities of some prompts' answers without records, each computed only once.

    Parameters
    ----------
    prompts
        Whose records are taken out.
    answers
        Of each, the ids.
    tokenizer
        The model's own, which reads each text anew; None where ids are bytes of UTF-8.
    read
        `read_answers` of a model, for contexts and answers.

    Examples
    --------
    >>> from functools import partial
    >>> from lim_jax.models import byte_model
    >>> from lim_jax.tasks.prompts import join_pieces
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> prompt = join_pieces([("a", True), (" ", False), ("b", True), ("?", False)], "", [0])
    >>> of = Ablated([prompt], [np.array([97])], None, partial(read_answers, model))
    >>> [one.shape for one in of([np.array([[True, True], [False, True]])])]
    [(2,)]
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        answers: Sequence[Integer[Array | np.ndarray, " _"]],
        tokenizer: Any,
        read: Callable[..., tuple[np.ndarray, np.ndarray]],
    ):
        self._prompts, self._answers, self._tokenizer = prompts, answers, tokenizer
        self._read = read
        self._known: dict[tuple[int, bytes], float] = {}

    def __call__(self, kept: Sequence[Kept], **options: Any) -> list[Float[np.ndarray, " _"]]:
        """Return a number for each row of each prompt's `kept`; options are of `read`."""
        rows = [[(n, np.asarray(row).tobytes()) for row in part] for n, part in enumerate(kept)]
        new = [row for row in dict.fromkeys(sum(rows, [])) if row not in self._known]
        if new:
            texts = [ablated_text(self._prompts[n], np.frombuffer(row, bool)) for n, row in new]
            contexts = ids_of_texts(texts, self._tokenizer)
            values, _ = self._read(contexts, [self._answers[n] for n, _ in new], **options)
            self._known.update(zip(new, values.tolist(), strict=True))
        return [np.array([self._known[row] for row in part]) for part in rows]


def without_the_first(
    ranking: Integer[Array | np.ndarray, " records"], counts: Sequence[int]
) -> Bool[np.ndarray, "counts records"]:
    """Return the ablations without the records that rank highest.

    Parameters
    ----------
    ranking
        The records' numbers, the highest first.
    counts
        How many are taken out.

    Examples
    --------
    >>> without_the_first(np.array([2, 0, 1]), [1, 2]).tolist()
    [[True, True, False], [False, True, False]]
    """
    ranks = np.argsort(np.asarray(ranking))
    return ranks[None, :] >= np.asarray(counts)[:, None]


def datamodeling_score(
    scores: Float[Array | np.ndarray, "*methods records"], kept: Kept, values: Values
) -> Float[np.ndarray, "*methods"]:
    r"""Compute the linear datamodeling score: how scores of what is kept order log-probabilities.

    .. math:: \rho\Bigl(\sum_r \mathbf 1_r^{(j)}\,\tau_r,\; \log p^{(j)}\Bigr)_j

    with :math:`\rho` Spearman's rank correlation over the ablations. Log-probabilities and logits
    of probabilities, which the paper of ContextCite takes, are in the same order, and so give the
    same. Zero where sums or log-probabilities are all alike, for these order nothing; NaN where
    something is not finite.

    Parameters
    ----------
    scores
        :math:`\tau`, one for each record.
    kept
        The ablations, none of which the scores may have been fitted on.
    values
        The answer's log-probabilities.

    Examples
    --------
    >>> kept = np.array([[True, False], [False, True], [True, True]])
    >>> float(datamodeling_score(np.array([2.0, 1.0]), kept, np.array([-2.0, -3.0, -1.0])))
    1.0
    """
    sums = np.asarray(scores) @ np.asarray(kept).T.astype(float)
    repeated_values = np.broadcast_to(np.asarray(values), sums.shape)
    constant = (np.ptp(sums, axis=-1) == 0) | (np.ptp(repeated_values, axis=-1) == 0)
    return np.where(constant, 0, rank_correlation(sums, repeated_values))


def sparse_regression(
    kept: Kept, values: Values, tokens: int, *, strength: float = 0.01
) -> Float[np.ndarray, " records"]:
    r"""Fit ContextCite: a Lasso from which records are kept to the logit of the probability.

    The logit :math:`\log p - \log(1 - p)`, over the answer's number of tokens, on features of mean
    zero and variance one; the coefficients are in the units of the logit and of the features again.
    As its authors have it, with their strength.

    Parameters
    ----------
    kept, values
        Ablations, and the answer's log-probabilities.
    tokens
        Of the answer.
    strength
        :math:`\alpha` of `sklearn.linear_model.Lasso`.

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn, of the extra ``faithfulness``.
    """
    logits = logits_of(values) / tokens
    return tokens * ablations.sparse_regression(np.asarray(kept), logits, strength)


def logits_of(values: Values) -> Float[np.ndarray, " ablations"]:
    """Return the logits of probabilities, by their logarithms.

    >>> logits_of(np.log([0.5, 0.9])).round(2).tolist()
    [0.0, 2.2]
    """
    logs = np.asarray(values, float)
    # Where single precision says that the answer is certain the logit is that of its last digit.
    logs = np.minimum(logs, -np.finfo(np.float32).eps)
    return logs - np.log(-np.expm1(logs))
