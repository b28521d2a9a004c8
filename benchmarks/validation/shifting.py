"""Position shift: networks trained at one length are asked in contexts that are longer.

They count places by turning queries and keys, so that a context may have more records than any
in training. What matters to them there, and what do they still retrieve?
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from benchmarks.validation.prediction import NORMALISED, predict, record_scores
from benchmarks.validation.retrievers import (
    Retrievers,
    Setting,
    examples_of_every_place,
    over_seeds,
    scores_by_place,
)

FACTORS = (1, 2)  # records in a context, over those of training


def in_longer_contexts(setting: Setting, factor: int) -> Setting:
    """Return the setting with `factor` times as many records in a context.

    Examples
    --------
    >>> in_longer_contexts(Setting(rotary=True), 2).task.records
    32
    """
    task = setting.task
    return setting._replace(task=task._replace(records=factor * task.records))


def shift_record(
    setting: Setting, models: Retrievers, *, test: int, attributed: int, key: Key[Array, ""]
) -> dict[str, Any]:
    """Judge networks of all seeds at the length of training and at twice it.

    Parameters
    ----------
    setting, models
        Of `retrievers.train_retrievers`, with ``rotary=True``.
    test, attributed
        Examples of each gold place for accuracy, and for attributions.
    key
        For the examples.

    Returns
    -------
    dict
        By ``"<n> records"``: accuracy by seed and gold place, the profile of influence by seed and
        record (of the margin, normalised by example), and rank correlations as of
        `prediction.predict`.
    """
    test_key, attributions_key = jax.random.split(key)
    by_length = {}
    for factor in FACTORS:
        at = in_longer_contexts(setting, factor)
        examples = examples_of_every_place(at, test, key=test_key)
        scores = eqx.filter_jit(over_seeds(scores_by_place))(models, examples)
        attributed_examples = examples_of_every_place(at, attributed, key=attributions_key)
        record_values = over_seeds(record_scores)(models, attributed_examples)
        by_length[f"{at.task.records} records"] = {
            "accuracy": np.asarray(scores.accuracy).tolist(),
            "influence": np.asarray(record_values.profile[NORMALISED]).tolist(),
            "predictions": [prediction.record() for prediction in predict(record_values)],
        }
    return by_length
