"""Networks that learn from lessons: their tokens, their batches, how they are judged and kept."""

from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.validation.lessons import (
    Lesson,
    answers_risk,
    batch_of,
    share_right,
    tokenizer_of,
    train,
)
from benchmarks.validation.trained_support import SAYS_UNKNOWN, drawn_lesson
from lim_jax.models import LanguageModel


def made_lessons():
    """Three lessons, of two answers, of one of a word and of one of two digits."""
    return [
        Lesson(
            ["Ann is 17.\n\nQuestion: Who is Ann?\nAnswer:", "\n\nQuestion: Who?\nAnswer:"],
            [" 17", " unknown"],
        ),
        Lesson(["Ben is old.\n\nQuestion: Who?\nAnswer:"], [" unknown"]),
        Lesson(["Ben is 4.\n\nQuestion: Who?\nAnswer:"], [" 81"]),
    ]


def tokenizer_of_lessons(lessons):
    texts = [text for lesson in lessons for part in lesson for text in part]
    return tokenizer_of(texts)


def test_a_batch_asks_for_each_token_of_answers_and_their_ends():
    lessons = made_lessons()
    tokenizer = tokenizer_of_lessons(lessons)
    ids, y = batch_of(lessons, tokenizer)
    assert tokenizer.token_to_id("<end>") == 0 and y.positions is not None
    for lesson, row, *asked in zip(lessons, ids, y.targets, y.positions, y.weights, strict=True):
        targets, positions, weights = (part[asked[2] > 0] for part in asked)
        whole = "".join(p + a for p, a in zip(*lesson, strict=True))
        assert tokenizer.decode(row.tolist()) == whole
        assert row[row > 0].tolist() == tokenizer.encode(whole).ids, "as `ask` reads it"
        assert tokenizer.decode(targets.tolist()) == "".join(lesson.answers)
        assert (targets == 0).sum() == len(lesson.answers) and targets[-1] == 0
        assert row[positions + 1].tolist() == targets.tolist()
        assert (np.diff(positions) == 1).sum() == len(positions) - len(lesson.answers)
        np.testing.assert_allclose(weights, 1 / len(targets), rtol=1e-6)
    assert len(ids) == 3 and ids.dtype == y.targets.dtype == y.positions.dtype == np.int32


class Peeks(eqx.Module):
    """A network that gives the next id, but for one id, for which it gives an end."""

    never: Any
    words: int = eqx.field(static=True)

    def logits(self, ids):
        following = jnp.roll(ids, -1)
        return jax.nn.one_hot(jnp.where(following == self.never, 0, following), self.words)


def test_a_lesson_is_right_where_all_of_its_answer_is():
    lessons = made_lessons()
    tokenizer = tokenizer_of_lessons(lessons)

    def share(never):
        network = Peeks(np.int32(tokenizer.get_vocab()[never]), tokenizer.get_vocab_size())
        return share_right(LanguageModel(cast(Any, network), tokenizer), lessons)

    shares = [share(word) for word in ("Question", "Ġunknown", "Ġ17", "Ġ81")]
    np.testing.assert_allclose(shares, [1, 1 / 3, 2 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax's schedules divide counts
def test_a_network_learns_its_lessons_and_is_kept(tmp_path):
    """Its answers become likelier, and a second call reads what the first left."""
    draw = partial(drawn_lesson, SAYS_UNKNOWN)
    key = jax.random.key(0)
    model = train("a network", draw, 40, tmp_path, key)
    (tmp_path / "other").mkdir()
    untaught = train("a network", draw, 1, tmp_path / "other", key)
    batch = batch_of([draw(number) for number in range(32)], model.tokenizer)
    before, after = (float(answers_risk(one.network, *batch)) for one in (untaught, model))
    assert after < 0.8 * before
    again = train("a network", draw, 40, tmp_path, key)
    for leaf, kept in zip(
        jax.tree.leaves(model.network), jax.tree.leaves(again.network), strict=True
    ):
        np.testing.assert_array_equal(leaf, kept)
    assert model.end_ids == (0,) and model.name == "a network"
