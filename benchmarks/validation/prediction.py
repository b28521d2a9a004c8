r"""Does influence predict retrieval? Influence by record beside accuracy by the gold place.

And beside it the usual attributions, on the same networks and examples. Two questions are asked
of each. Its *profile* over records, averaged over all gold places: do records that a network looks
at, whichever it is asked for, retrieve better? And its value *at the gold record*: does it look
more at those that it retrieves, when it is asked for them?
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks.validation.intervals import Interval, bootstrap_interval, rank_correlation
from benchmarks.validation.retrievers import (
    ANSWER_LOSS,
    MARGIN_LOSS,
    PlaceScores,
    answer_batch,
    by_place,
    scores_by_place,
)
from lim_jax._jit import filter_jit
from lim_jax.attribution.gradients import (
    attention_rollout,
    gradient_times_input,
    integrated_gradients,
)
from lim_jax.density.adjoints import Loss, adjoint_energies
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.tasks.prompts import Example, record_weights

ByRecord = Float[Array | np.ndarray, "*seeds records"]
INFLUENCES = ("influence, cross-entropy", "influence, margin")
NORMALISED = "influence, normalised"
ATTRIBUTIONS = (
    *INFLUENCES, NORMALISED, "gradient times input", "integrated gradients", "occlusion",
    "attention rollout",
)  # fmt: skip
PROFILE = "profile"
AT_GOLD = "at the gold record"
SCORES = ("accuracy", "margin", "minus cross-entropy")


class RecordScores(NamedTuple):
    r"""How much each record matters, by every attribution, and how well it is retrieved.

    Of a trained network, or of several with a leading axis of seeds. The attributions' names are
    `ATTRIBUTIONS`. Influence is the records' part of the integral of :math:`\|P_0\|^2`: raw of the
    answer's cross-entropy and of its margin, as a ratio of means over examples; and normalised by
    example, over the records only. Where one answer is asked for, both losses have the same
    normalised influence, for the one's gradient is a multiple of the other's. The other
    attributions are of the margin, absolute values of a record's sum, and normalised by example.
    All are of mean one over the records; at gold, of all records and examples.

    Attributes
    ----------
    profile
        Of every record, over examples of all gold places.
    at_gold
        Of every record, over the examples that ask for it.
    scores
        By the gold place.
    """

    profile: Mapping[str, ByRecord]
    at_gold: Mapping[str, ByRecord]
    scores: PlaceScores


class Prediction(NamedTuple):
    """How an attribution and a score go together over the records.

    Attributes
    ----------
    attribution, of, score
        One of `ATTRIBUTIONS`, of its ``"profile"`` or ``"at the gold record"``, and one of
        `SCORES`.
    correlations
        Spearman's for every seed; NaN where one side is constant, as of a network that is always
        right.
    interval
        Their mean, with the bootstrap's interval over seeds; without those that are NaN.
    left_out
        How many these are.
    """

    attribution: str
    of: str
    score: str
    correlations: Float[np.ndarray, " seeds"]
    interval: Interval
    left_out: int

    def record(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        return {
            **self._asdict(),
            "correlations": self.correlations.tolist(),
            "interval": {name: float(end) for name, end in self.interval._asdict().items()},
        }


@filter_jit
def record_scores(model: CausalLM, examples: Example, *, steps: int = 16) -> RecordScores:
    """Attribute one network's answers to records, and judge them, by the same examples.

    Of several seeds at once ``eqx.filter_vmap(record_scores, in_axes=(eqx.if_array(0), None))``.

    Parameters
    ----------
    model
        Of `retrievers.train_retrievers`, one seed.
    examples
        With every gold place equally often (`retrievers.examples_of_every_place`), so that records
        are where they are in the first.
    steps
        Of integrated gradients.
    """
    ids, y = answer_batch(examples)
    gold, records = (jnp.asarray(part) for part in (examples.gold[:, 0], examples.records[0]))
    count = len(records) // 2
    raw = _energies(model, ids, y, records, count)

    def attribute(ids: Int[Array, " length"], y: Targets) -> dict[str, Float[Array, " records"]]:
        """Attribute one example's answer to its records."""
        return _attributions(model, ids, y, records, count, steps)

    by_name = {name: raw[name] / raw[name].mean() for name in INFLUENCES}
    shares = {NORMALISED: raw[INFLUENCES[1]], **jax.vmap(attribute)(ids, y)}
    by_name |= {name: values / values.mean(axis=1)[:, None] for name, values in shares.items()}
    rows = jnp.arange(len(gold))
    return RecordScores(
        {name: values.mean(axis=0) for name, values in by_name.items()},
        {name: by_place(values[rows, gold], gold, count) for name, values in by_name.items()},
        scores_by_place(model, examples),
    )


def _energies(
    model: CausalLM, ids: Array, y: Targets, records: Array, count: int
) -> dict[str, Float[Array, "examples records"]]:
    """Return the records' parts of both losses' total influence."""
    grid = token_grid(ids.shape[1], model.embedding.dtype)
    pools = record_weights(records, grid.weights, count)
    return {
        name: adjoint_energies(loss, model, (ids, y), grid) @ pools.T
        for name, loss in zip(INFLUENCES, (ANSWER_LOSS, MARGIN_LOSS), strict=True)
    }


def _attributions(
    model: CausalLM, ids: Array, y: Targets, records: Array, count: int, steps: int
) -> dict[str, Float[Array, " records"]]:
    """Return the other attributions of one example's margin, by record."""
    x = model.embed(ids)
    loss = CausalLM.margin_loss
    words = model.embedding
    assert isinstance(words, Array)  # of retrievers that were trained here
    # The average word, at the same place.
    baseline = x - words[ids] + words.mean(axis=0)[None]
    grid = token_grid(x.shape[0], x.dtype)
    sums = record_weights(records, jnp.ones_like(grid.weights), count)
    path = integrated_gradients(loss, model, x, y, baseline, steps=steps)
    return {
        "gradient times input": jnp.abs(sums @ gradient_times_input(loss, model, x, y)),
        "integrated gradients": jnp.abs(sums @ path),
        "occlusion": jnp.abs(_occlusion(loss, model, x, y, baseline, records, count)),
        "attention rollout": sums @ attention_rollout(model.flow, x, grid)[-1],
    }


def _occlusion(
    loss: Loss, model: CausalLM, x: Array, y: Targets, baseline: Array, records: Array, count: int
) -> Float[Array, " records"]:
    """Return by record what the loss gains where the record's states are the baseline's.

    Of images by Zeiler and Fergus, "Visualizing and understanding convolutional networks" (2014).
    """

    def without(number: Int[Array, ""]) -> Float[Array, ""]:
        """Compute the loss where a record's states are the baseline's."""
        return loss(model, jnp.where((records == number)[:, None], baseline, x), y)

    return jax.lax.map(without, jnp.arange(count, dtype=records.dtype)) - loss(model, x, y)


def predict(records: RecordScores) -> list[Prediction]:
    """Correlate every attribution with every score over the records, seed by seed.

    Parameters
    ----------
    records
        Of several seeds, with a leading axis.
    """
    accuracy, margin, cross_entropy = map(np.asarray, records.scores)
    scores = dict(zip(SCORES, (accuracy, margin, -cross_entropy), strict=True))
    return [
        _prediction(
            attribution,
            of,
            score,
            rank_correlation(np.asarray(by_attribution[attribution]), values),
        )
        for of, by_attribution in ((PROFILE, records.profile), (AT_GOLD, records.at_gold))
        for attribution in ATTRIBUTIONS
        for score, values in scores.items()
    ]


def _prediction(
    attribution: str, of: str, score: str, correlations: Float[np.ndarray, " seeds"]
) -> Prediction:
    finite = correlations[~np.isnan(correlations)]
    nothing = Interval(*np.full((3,), np.nan))
    interval = bootstrap_interval(finite) if len(finite) else nothing
    return Prediction(
        attribution, of, score, correlations, interval, len(correlations) - len(finite)
    )


def prediction_table(predictions: list[Prediction]) -> str:
    """Lay out correlations, an attribution in each row, with their intervals.

    After them, with a minus, how many seeds were left out, where there are some.
    """
    lines = []
    for of in (PROFILE, AT_GOLD):
        lines += [f"{of:38s}" + "".join(f"{score:>27s}" for score in SCORES)]
        for name in dict.fromkeys(prediction.attribution for prediction in predictions):
            row = [
                prediction
                for prediction in predictions
                if (prediction.attribution, prediction.of) == (name, of)
            ]
            lines += [
                f"  {name:36s}"
                + "".join(f"{_correlation_in_words(prediction):>27s}" for prediction in row)
            ]
    return "\n".join(lines)


def _correlation_in_words(prediction: Prediction) -> str:
    value, low, high = map(float, prediction.interval)
    if np.isnan(value):
        return "constant"
    fewer = f" -{prediction.left_out}" if prediction.left_out else ""
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]{fewer}"
