"""Is the middle lost less where layers read a state? A hybrid beside its attention-only twin.

``python -m benchmarks.validation.hybrids``, some seven minutes of one core, writes
docs/study/hybrids.json, which ``docs/pictures.py`` draws. Three of the hybrid's four layers are
gated delta rules; all else, seeds and batches too, is the same.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.validation.accounts import influence_record
from benchmarks.validation.figures import hybrid_beside_attention
from benchmarks.validation.findings_page import markdown_table
from benchmarks.validation.retrieval import KeyValueTask
from benchmarks.validation.retrievers import (
    Setting,
    examples_of_every_place,
    in_the_middle,
    over_seeds,
    scores_by_place,
    train_retrievers,
)
from lim_jax.results.tables import write_json

TWIN = Setting(KeyValueTask(12, 24, 12), width=64, heads=4, depth=4, steps=800, rate=1e-3)
SETTINGS = {"attention alone": TWIN, "hybrid": TWIN._replace(attention_every=4)}
SEEDS = 3
TESTS = 32
FIFTHS = 5
FILE = Path(__file__).parents[2] / "docs" / "study" / "hybrids.json"


def hybrid_record(setting: Setting) -> dict[str, Any]:
    """Return accuracy and influence by record, before training and after."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    test = examples_of_every_place(setting, TESTS, key=jax.random.key(1))

    def train_and_judge(setting: Setting) -> dict[str, Any]:
        """Train networks of a setting, and return their accuracy and influence."""
        models, _ = train_retrievers(setting, keys)
        accuracy = over_seeds(scores_by_place)(models, test).accuracy
        record = influence_record(setting, models, test)
        return {"accuracy": np.asarray(accuracy).tolist(), **record}

    return {"before": train_and_judge(setting._replace(steps=0)), **train_and_judge(setting)}


def hybrid_figure(records: dict[str, Any]) -> Figure:
    """Draw hybrids beside attention, with bands of two standard errors over seeds."""
    title = (
        f"{TWIN.task.records} records, {SEEDS} seeds: three of four layers read a state, or none"
    )
    return hybrid_beside_attention(records, title)


def in_fifths(by_record: Any) -> np.ndarray:
    """Return the mean of each fifth of the context, where a record has one density throughout."""
    values = np.asarray(by_record)
    repeated = np.repeat(values, FIFTHS, axis=-1)
    return repeated.reshape(*values.shape[:-1], FIFTHS, -1).mean(axis=-1)


def hybrid_table(records: dict[str, Any]) -> str:
    """Return a table of means over seeds, with their standard deviations but for the fifths."""

    def mean_and_deviation(values: Any) -> str:
        """Write the mean over seeds with the standard deviation."""
        values = np.asarray(values)
        return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"

    def fifths(record: Any) -> str:
        """Write the mean influence of each fifth of the records."""
        return " ".join(f"{v:.2f}" for v in in_fifths(record["margin_records"]).mean(axis=0))

    head = (
        "network", "accuracy", "in the middle", "LIM", "density by fifths", "before training"
    )  # fmt: skip
    return markdown_table(
        head,
        [
            (
                name,
                mean_and_deviation(np.mean(record["accuracy"], axis=1)),
                mean_and_deviation(in_the_middle(np.asarray(record["accuracy"]))),
                mean_and_deviation(record["margin_lim"]),
                fifths(record),
                fifths(record["before"]),
            )
            for name, record in records.items()
        ],
    )


if __name__ == "__main__":
    records = {name: hybrid_record(setting) for name, setting in SETTINGS.items()}
    write_json(FILE, records)
    print(hybrid_table(records))
