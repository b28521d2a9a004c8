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
from lim_jax._errors import filter_jit
from lim_jax.attribution import ablations
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.tasks.prompts import Prompt, encode_text

Kept = Bool[Array | np.ndarray, "ablations _"]
Values = Float[Array | np.ndarray, " _"]
AT_ONCE = 8  # contexts in a program's call
STEP = 8  # of the sizes that they are padded to


def random_ablations(records: int, count: int, seed: int) -> Bool[np.ndarray, "count records"]:
    """Distinct sets of records that are kept, each of all sets as likely as any other.

    So a record is kept with probability 1/2, and parts of what is drawn have no set in common.

    Parameters
    ----------
    records
        How many there are, at most 20.
    count
        How many sets.
    seed
        For `numpy.random.default_rng`.

    Examples
    --------
    >>> random_ablations(2, 4, seed=0).sum(axis=0).tolist()
    [2, 2]
    """
    sets = 2**records
    rng = np.random.default_rng(seed)
    drawn = rng.choice(sets, count, replace=False)
    return (drawn[:, None] >> np.arange(records)) % 2 == 1


def ablated_text(prompt: Prompt, kept: Bool[Array | np.ndarray, " records"]) -> str:
    """A prompt's text without some of its records.

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
    >>> from lim_jax.tasks.prompts import laid_out
    >>> pieces = [("{", False), ("a", True), (", ", False), ("b", True), ("; ", False), ("c", True)]
    >>> prompt = laid_out([*pieces, ("}", False)], "", [0])
    >>> ablated_text(prompt, np.array([True, False, True]))
    '{a; c}'
    >>> ablated_text(prompt, np.array([False, True, True]))
    '{b; c}'
    """
    text, spans = prompt.text, prompt.spans
    ends = [0, *(end for _, end in spans)]
    before, after = text[: spans[0][0]], text[spans[-1][1] :]
    chosen = np.flatnonzero(kept)
    parts = [
        text[spans[number][0] if rank == 0 else ends[number] : spans[number][1]]
        for rank, number in enumerate(chosen)
    ]
    return before + "".join(parts) + after


def answer_log_probabilities(
    model: CausalLM,
    contexts: Sequence[Integer[Array | np.ndarray, " _"]],
    answer: Integer[Array | np.ndarray, " answer"],
    *,
    queries: int | None = None,
) -> Float[np.ndarray, " contexts"]:
    r"""The log-probability of one answer after each of some contexts, :math:`\sum_t\log p(y_t)`.

    Contexts of similar lengths go together, padded on the right to a multiple of 8, some at a time;
    logits are those of the answer's places alone.

    Parameters
    ----------
    model
        Any.
    contexts
        The ids of each, at least one.
    answer
        Ids, at least one.
    queries
        To pad the answer to, so that one program serves answers of several lengths.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> contexts, answer = [jnp.array([3, 1, 4]), jnp.array([1])], jnp.array([5, 9])
    >>> answer_log_probabilities(model, contexts, answer).shape
    (2,)
    """
    asked = len(answer)
    more = 0 if queries is None else queries - asked
    dtype = np.dtype(model.embedding.dtype)
    targets = np.pad(np.asarray(answer, np.int32), (0, more))
    weights = np.pad(np.full(asked, 1 / asked, dtype), (0, more))
    rows = [np.concatenate([ids, answer[:-1]]).astype(np.int32) for ids in contexts]
    found = np.zeros(len(rows), dtype)
    for numbers, size in _together(model, [len(row) for row in rows]):
        # The last chunk is filled with its own first row, so that the program is that of the rest.
        filled = [*numbers, *numbers[:1] * (AT_ONCE - len(numbers))]
        ids = np.stack([np.pad(rows[number], (0, size - len(rows[number]))) for number in filled])
        first = np.array([len(contexts[number]) - 1 for number in filled], np.int32)
        losses = _losses(model, *jax.device_put((ids, first, targets, weights)))
        found[numbers] = -asked * np.asarray(losses)[: len(numbers)]
    return found


@filter_jit
def _losses(
    model: CausalLM,
    ids: Int[Array, "rows size"],
    first: Int[Array, " rows"],
    targets: Int[Array, " queries"],
    weights: Float[Array, " queries"],
) -> Float[Array, " rows"]:
    """The answer's mean cross-entropy after each context; `first` is the place before it."""
    steps = jnp.where(weights > 0, jnp.arange(targets.shape[0]), 0)

    def of_row(ids: Int[Array, " size"], first: Int[Array, ""]) -> Float[Array, ""]:
        places = first + steps.astype(first.dtype)
        return model.loss(model.embed(ids), Targets(targets, weights, places))

    return jax.vmap(of_row)(ids, first)


def _together(model: CausalLM, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
    """Which rows go together, and the size that they are padded to."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    chunks = [order[start : start + AT_ONCE] for start in range(0, len(order), AT_ONCE)]
    sizes = [context_size(model, lengths[chunk[-1]]) for chunk in chunks]
    pairs = list(zip(chunks, sizes, strict=True))
    if all(model.same_rope(size, lengths[row]) for chunk, size in pairs for row in chunk):
        return pairs
    return [([row], lengths[row]) for row in order]


def context_size(model: CausalLM, length: int) -> int:
    """To how many places a context is padded: the next multiple of 8.

    But no more than the network knows or was made for, and not at all where rows of other lengths
    turn otherwise. Finer than `models.padded_size`, for texts of one kind that are read often.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> context_size(model, 9), context_size(model, 17)
    (16, 20)
    """
    learned = None if model.positions is None else model.positions.shape[0]
    known = [most for most in (learned, model.trained) if most is not None]
    size = max(length, min([-(-length // STEP) * STEP, *known]))
    return size if model.same_rope(size, length) else length


def ablating(
    model: CausalLM,
    prompt: Prompt,
    answer: Integer[Array | np.ndarray, " answer"],
    tokenizer: Any = None,
    *,
    queries: int | None = None,
) -> Callable[[Kept], Float[np.ndarray, " ablations"]]:
    """A function of ablations to the answer's log-probabilities, that computes each only once.

    Parameters
    ----------
    model, answer, queries
        As in `answer_log_probabilities`.
    prompt
        Whose records are taken out.
    tokenizer
        The model's own, which reads each text anew; None where ids are bytes of UTF-8.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> from lim_jax.tasks.prompts import laid_out
    >>> model = byte_model(20, width=4, depth=1, key=jax.random.key(0))
    >>> prompt = laid_out([("a", True), (" ", False), ("b", True), ("?", False)], "", [0])
    >>> of = ablating(model, prompt, np.array([97]))
    >>> of(np.array([[True, True], [False, True]])).shape
    (2,)
    """
    known: dict[tuple[bool, ...], float] = {}

    def of(kept: Kept) -> Float[np.ndarray, " ablations"]:
        rows = [tuple(row) for row in np.asarray(kept).tolist()]
        new = [row for row in dict.fromkeys(rows) if row not in known]
        if new:
            texts = [ablated_text(prompt, np.array(row)) for row in new]
            contexts = [encode_text(text, tokenizer).ids for text in texts]
            found = answer_log_probabilities(model, contexts, answer, queries=queries)
            known.update(zip(new, found.tolist(), strict=True))
        return np.array([known[row] for row in rows])

    return of


def without_the_first(
    ranking: Integer[Array | np.ndarray, " records"], counts: Sequence[int]
) -> Bool[np.ndarray, "counts records"]:
    """The ablations without the records that rank highest.

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
    places = np.argsort(np.asarray(ranking))
    return places[None, :] >= np.asarray(counts)[:, None]


def datamodeling_score(
    scores: Float[Array | np.ndarray, "*methods records"], kept: Kept, values: Values
) -> Float[np.ndarray, "*methods"]:
    r"""The linear datamodeling score: how scores of what is kept order the log-probabilities.

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
    judged = np.broadcast_to(np.asarray(values), sums.shape)
    alike = (np.ptp(sums, axis=-1) == 0) | (np.ptp(judged, axis=-1) == 0)
    return np.where(alike, 0, rank_correlation(sums, judged))


def sparse_regression(
    kept: Kept, values: Values, tokens: int, *, strength: float = 0.01
) -> Float[np.ndarray, " records"]:
    r"""ContextCite: a Lasso from which records are kept to the logit of the answer's probability.

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
    logs = np.asarray(values, float)
    # Where single precision says that the answer is certain the logit is that of its last digit.
    logs = np.minimum(logs, -np.finfo(np.float32).eps)
    logits = (logs - np.log(-np.expm1(logs))) / tokens
    return tokens * ablations.sparse_regression(np.asarray(kept), logits, strength)
