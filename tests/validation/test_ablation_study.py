"""Records taken out of a text: literal texts, whole contexts one by one, SciPy and closed forms."""

import sys

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.networks import byte_network
from scipy import stats

from benchmarks.validation import ablation_study
from benchmarks.validation.ablation_study import (
    Ablated,
    ablated_text,
    context_size,
    datamodeling_score,
    random_ablations,
    read_answers,
    sparse_regression,
    without_the_first,
)
from benchmarks.validation.document_study import Question, question_prompt
from benchmarks.validation.key_values import KeyValues, key_value_prompt
from lim_jax.models.causal import CausalLM
from lim_jax.tasks.prompts import join_pieces

PLACES = 60


@pytest.fixture(scope="module")
def model():
    return byte_network(PLACES, depth=2)


def every_set(records):
    """All sets of records, each once."""
    return (np.arange(2**records)[:, None] >> np.arange(records)) % 2 == 1


def test_ablations_are_distinct_sets_and_all_of_them_in_the_end():
    ablations = random_ablations(4, 16, seed=3)
    assert ablations.dtype == bool and sorted(ablations.tolist()) == sorted(every_set(4).tolist())
    assert random_ablations(100, 3, seed=0).shape == (3, 100)
    with pytest.raises(ValueError, match="count: got 17 sets of 4 records, expected 1 to 16"):
        random_ablations(4, 17, seed=0)
    some = random_ablations(10, 80, seed=3)
    assert some.shape == (80, 10) and len({tuple(row) for row in some.tolist()}) == 80
    assert (some != random_ablations(10, 80, seed=4)).any()
    # Each record is kept with probability one half: of 4,000 draws to within five errors.
    often = np.concatenate([random_ablations(10, 80, seed=seed) for seed in range(50)])
    np.testing.assert_allclose(often.mean(axis=0), 0.5, atol=5 * 0.5 / np.sqrt(4000))


def test_records_go_with_what_stands_before_them_and_numbers_stay():
    pairs = KeyValues((("a", "1"), ("b", "2"), ("c", "3")), 2)
    prompt = key_value_prompt(pairs)
    head = "A JSON object of keys and values:\n\n{"
    tail = '}\n\nThe value of the key "c" is "'
    for kept, left in (
        ([1, 1, 1], '"a": "1",\n "b": "2",\n "c": "3"'),
        ([1, 0, 1], '"a": "1",\n "c": "3"'),
        ([0, 1, 0], '"b": "2"'),
        ([0, 1, 1], '"b": "2",\n "c": "3"'),
        ([0, 0, 0], ""),
    ):
        assert ablated_text(prompt, np.array(kept, bool)) == head + left + tail
    ours = (("Rowan", "a tree."), ("Wren", "a bird."), ("Newt", "no fish."))
    asked = question_prompt(Question("what is a wren", ("bird",), ours, 1))
    text = ablated_text(asked, np.array([False, True, True]))
    assert text.endswith(
        "about it.\n\n[2] Wren: a bird.\n[3] Newt: no fish.\n\nQuestion: what is a wren\nAnswer:"
    )


@eqx.filter_jit
def all_logits(model, ids):
    return model.logits(ids)


def read(model, ids, answer):
    """One context alone: NumPy's own softmax of all its logits, and the highest of the first."""
    window = np.concatenate([ids, answer[:-1]])
    window = np.pad(window, (0, PLACES - len(window)))  # the rest is not seen
    logits = np.asarray(all_logits(model, jax.device_put(window)), float)[len(ids) - 1 :]
    shifted = (logits - logits.max(axis=1, keepdims=True))[: len(answer)]
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs[np.arange(len(answer)), answer].sum(), logits[0].argmax()


@pytest.fixture(scope="module")
def contexts():
    """Eleven, so that one call is not full, of lengths up to the last place."""
    rng = np.random.default_rng(0)
    lengths = (3, 58, 11, 12, 7, 30, 5, 29, 14, 2, 8)
    return [rng.integers(256, size=length).astype(np.int32) for length in lengths]


@pytest.mark.slow
def test_answers_are_those_of_each_context_alone(model, contexts, monkeypatch):
    """Of several lengths, in chunks of which one is not full."""
    monkeypatch.setattr(ablation_study, "TOKENS", (120, 120))
    answers = [np.array([65, 10, 7][: 1 + n % 3], np.int32) for n in range(11)]
    answers_read, likeliest = read_answers(model, contexts, answers, sizes=(32,))
    assert answers_read.shape == (11,) and answers_read.dtype == np.float64
    pairs = zip(contexts, answers, strict=True)
    expected, first = zip(*(read(model, *pair) for pair in pairs), strict=True)
    np.testing.assert_allclose(answers_read, expected, rtol=1e-10)
    assert likeliest.tolist() == list(first)
    more, _ = read_answers(model, contexts[:2], answers[:2], queries=5)
    np.testing.assert_allclose(more, answers_read[:2], rtol=1e-12)
    with pytest.raises(ValueError, match="ids: got 61 of them, expected at most 60"):
        read_answers(model, [np.zeros(59, np.int32)], [answers[2]])


@pytest.mark.slow
def test_what_turns_by_its_length_is_not_padded(model, contexts, monkeypatch):
    answers = 3 * [np.array([65], np.int32)]
    chosen = [contexts[0], contexts[4], contexts[0] + 1]
    alike, _ = read_answers(model, chosen, answers)
    monkeypatch.setattr(CausalLM, "same_rope", lambda self, length, other: length == other)
    assert context_size(model, 9) == 9
    sizes = []
    whole = ablation_study._read

    def recorded(model, ids, y):
        sizes.append(ids.shape[1])
        return whole(model, ids, y)

    monkeypatch.setattr(ablation_study, "_read", recorded)
    found, _ = read_answers(model, chosen, answers)
    assert sizes == [3, 7]
    np.testing.assert_allclose(found, alike, rtol=1e-12)


def test_contexts_are_padded_to_a_multiple_within_the_known_places(model):
    assert [context_size(model, size) for size in (1, 8, 9, 57)] == [8, 8, 16, 60]
    shorter = eqx.tree_at(lambda one: one.positions, model, None, is_leaf=lambda x: x is None)
    shorter = CausalLM(**(vars(shorter) | {"trained": 20}))
    assert [context_size(shorter, size) for size in (9, 17, 21)] == [16, 20, 21]


def test_an_ablation_is_computed_once(model):
    pieces = [("ab", True), (" ", False), ("c", True), ("?", False)]
    prompts = [join_pieces(pieces, "", [0]), join_pieces(pieces[:1] + pieces[3:], "", [0])]
    answers = [np.array([66, 3], np.int32), np.array([9], np.int32)]
    calls = []

    def counting(contexts, answers, **options):
        calls.extend(
            (bytes(ids.tolist()).decode(), len(answer), options["name"])
            for ids, answer in zip(contexts, answers, strict=True)
        )
        return read_answers(model, contexts, answers, queries=2)

    of = Ablated(prompts, answers, None, counting)
    first, other = of(
        [np.array([[True, True], [False, True], [True, True]]), np.array([[True]])], name="some"
    )
    assert calls == [("ab c?", 2, "some"), ("c?", 2, "some"), ("ab?", 1, "some")]
    assert first[0] == first[2] != first[1] and other.shape == (1,)
    again, _ = of([np.array([[False, True], [True, False]]), np.array([[True]])], name="more")
    assert calls[3:] == [("ab?", 2, "more")] and again[0] == first[1]
    values = (
        ("ab c?", 0, first[0]),
        ("c?", 0, first[1]),
        ("ab?", 1, other[0]),
        ("ab?", 0, again[1]),
    )
    for text, prompt, value in values:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        np.testing.assert_allclose(value, read(model, ids, answers[prompt])[0], rtol=1e-10)


def test_the_highest_are_taken_out():
    sets = without_the_first(np.array([3, 0, 2, 1]), (1, 2, 4))
    assert sets.tolist() == [
        [True, True, True, False],
        [False, True, True, False],
        [False, False, False, False],
    ]


def test_the_datamodeling_score_is_scipys_correlation_of_the_sums():
    rng = np.random.default_rng(1)
    kept = rng.uniform(size=(12, 4)) < 0.5
    scores = rng.standard_normal((3, 4))
    values = rng.standard_normal(12)
    scores[1] = [0, 0, 1, 0]  # of which many sums tie
    score = datamodeling_score(scores, kept, values)
    for row, one in zip(scores, score, strict=True):
        sums = [sum(row[kept[j]]) for j in range(12)]
        expected = np.asarray(stats.spearmanr(sums, values))[0]
        np.testing.assert_allclose(one, expected, rtol=1e-12)
    assert datamodeling_score(0 * scores[0], kept, values) == 0
    assert datamodeling_score(scores[0], kept, 0 * values) == 0
    scores[1, 0], values[3] = np.nan, 2.0
    assert np.isnan(datamodeling_score(scores, kept, values)).tolist() == [0, 1, 0]
    values[3] = -np.inf
    assert np.isnan(datamodeling_score(scores[0], kept, values))


def test_the_regression_of_all_sets_is_a_soft_threshold():
    """Their features are orthonormal, so that a Lasso shrinks each coefficient by itself."""
    kept = every_set(4)
    tokens = 3
    strength = 0.1
    true = np.array([2.0, -1.5, 0.4, 0.0])
    logits = kept @ true - 1
    values = -np.log1p(np.exp(-logits))
    regression = sparse_regression(kept, values, tokens, strength=strength)
    standard = 0.5 * true / tokens  # a fair coin's deviation, and the logit over the tokens
    shrunk = np.sign(standard) * np.maximum(np.abs(standard) - strength, 0)
    assert (shrunk == 0).sum() == 2
    np.testing.assert_allclose(regression, tokens * shrunk / 0.5, atol=1e-7)
    published = sparse_regression(kept, values, tokens)
    expected = np.sign(standard) * np.maximum(np.abs(standard) - 0.01, 0) * tokens / 0.5
    np.testing.assert_allclose(published, expected, atol=1e-7)


def test_a_regression_knows_nothing_of_what_never_changes_and_takes_certain_answers():
    kept = np.concatenate([every_set(2), np.ones((4, 1), bool)], axis=1)
    regression = sparse_regression(kept, np.array([-9.0, -1.0, -8.0, 0.0]), 1)
    assert (
        regression[2] == 0 and np.isfinite(regression).all() and regression[0] > regression[1] > 0
    )


def test_a_regression_without_scikit_learn_names_the_extra(monkeypatch):
    kept = every_set(2)
    values = -np.ones(4)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r'pip install "lim_jax\[faithfulness\]"'):
        sparse_regression(kept, values, 1)
