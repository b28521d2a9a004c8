"""Informed ablations: texts written out without parts, and the regression's own equations."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network

import lim_jax as lim
from lim_jax.attribution.method import Run
from lim_jax.attribution.methods import informed, leave_one_out, mask_gradient
from lim_jax.attribution.methods.method_table import method_named
from lim_jax.attribution.segments import answer_segments, context_segments, whole_answer
from lim_jax.attribution.shrunk_regression import STRENGTHS
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.language_model import LanguageModel
from lim_jax.prompts.contexts import tokenize_context
from lim_jax.prompts.documents import QUESTION, RenderedPrompt

LOSS = CausalLM.margin_loss
PIECES = ("a=1", "b=22", "c=3")
SPANS = ((0, 3, "first"), (4, 8, "second"), (9, 12, "third"))
CONTEXT = tokenize_context(RenderedPrompt("a=1 b=22 c=3 a=", SPANS), "17", loss="margin")
DOCUMENTS = ["Wren é.", "Owls sang.", "No."]


@pytest.fixture(scope="module")
def model():
    network = byte_network(64, depth=2, seed=3)
    return jax.tree.map(lambda leaf: 3 * leaf, network)  # parts act together, not only alone


@pytest.fixture(scope="module")
def score(model):
    def of_context(passes, context=CONTEXT, answer=None):
        answer = answer or [whole_answer(context)]
        scores = informed.method(passes).scores
        return scores(model, context, answer, context_segments(context), LOSS, Run())

    return of_context


def losses_of_text(model, text):
    """The losses of both tokens of the answer, of a text that was written without parts."""
    context = tokenize_context(RenderedPrompt(text), "17", loss="margin")
    (positions,) = np.nonzero(context.weights)
    arrays = (context.window[:-1], context.window[1:][positions], positions)
    ids, targets, positions = jax.device_put(arrays)

    @eqx.filter_jit
    def loss(model, row):
        return LOSS(model, model.embed(ids), Targets(targets, row, positions))

    return np.array([loss(model, row) for row in jnp.eye(2)]) / 2


def text_of(kept):
    """The prompt with some of its pieces, and all that stands between them."""
    first, second, third = (piece * keep for piece, keep in zip(PIECES, kept, strict=True))
    return f"{first} {second} {third} a="


@pytest.fixture(scope="module")
def log_odds(model):
    """Of each set of the documents the log odds of both tokens, halves of the answer's."""
    return {
        kept: -losses_of_text(model, text_of(kept))
        for kept in itertools.product((False, True), repeat=3)
    }


@pytest.mark.slow
def test_scores_lie_between_effects_in_all_sets_and_the_mask_gradient(model, score, log_odds):
    """Of three documents all eight sets are read: columns are orthogonal, so that each score is a
    mean of the document's effect over the sets and of its mask gradient, scaled to these effects by
    least squares. The effect counts the more the larger the gradient is."""
    answer = answer_segments(CONTEXT, None, "token")
    scores = score(16, answer=answer)
    known = mask_gradient.METHOD.scores(model, CONTEXT, answer, scores.parts, LOSS, Run())
    for row in range(2):
        effects = np.array(
            [
                sum((1 if kept[part] else -1) * odds[row] for kept, odds in log_odds.items()) / 4
                for part in range(3)
            ]
        )
        prior = known.by_part[row, :3]
        unknown = (np.abs(prior) / np.abs(prior).mean() + 1) / 2
        expected = []
        for strength in STRENGTHS:
            # Each effect is known to half of the noise's variance: eight texts, of a half each.
            spread = unknown + strength / 2
            slope = np.sum(prior * effects / spread) / np.sum(prior**2 / spread)
            if slope < 0:  # then nothing is known before, and all are as unknown
                expected.append(effects / (1 + strength / 2))
            else:
                weights = unknown / spread
                expected.append(weights * effects + (1 - weights) * slope * prior)
        found = scores.by_part[row, :3]
        assert min(np.abs(found - each).max() for each in expected) < 1e-9 * np.abs(found).max()
        assert (scores.errors[row, :3] > 0).all()


@pytest.mark.slow
def test_what_is_no_document_is_left_out_alone_and_has_no_error(score, model):
    scores = score(16)
    whole = losses_of_text(model, "a=1 b=22 c=3 a=").sum()
    without = losses_of_text(model, "a=1b=22c=3=").sum()  # what asks stays
    assert [part.within for part in scores.parts] == ["first", "second", "third", ""]
    np.testing.assert_allclose(scores.by_part[0, 3], without - whole, rtol=1e-9)
    assert np.isnan(scores.errors[0, 3])
    assert [*scores.errors_by_name()] == [(name, "part") for name in ("first", "second", "third")]


def test_errors_of_the_parts_of_an_answer_add_up_as_squares(score):
    scores = score(16, answer=answer_segments(CONTEXT, None, "token"))
    errors = scores.errors_by_name()
    expected = np.sqrt(np.sum(scores.errors[:, 1] ** 2))
    np.testing.assert_allclose(errors["second", "part"], expected, rtol=1e-12)
    assert scores.total_effect.shape == (2,)


def test_too_few_passes_leave_the_mask_gradient_alone(score, model):
    scores = score(6)
    known = mask_gradient.METHOD.scores(model, CONTEXT, scores.answer, scores.parts, LOSS, Run())
    np.testing.assert_array_equal(scores.by_part, known.by_part)
    assert scores.errors is None
    assert scores.note == (
        "Scores are those of the mask gradient alone: 6 passes leave no texts beside it, 7 would."
    )
    assert score(1).note.startswith("Scores are those of the mask gradient alone: 1 pass leaves no")
    assert score(7).errors is not None and not score(7).note


def test_documents_are_scored_where_nothing_else_is_a_part(score, model):
    """As beside other parts, which are left out one at a time."""
    expected = score(16)
    parts = expected.parts[:3]
    found = informed.method(16).scores(model, CONTEXT, expected.answer, parts, LOSS, Run())
    np.testing.assert_array_equal(found.by_part, expected.by_part[:, :3])
    assert found.by_part.shape == (1, 3) and len(expected.parts) > 3


def test_other_parts_are_left_out_one_at_a_time(score, model):
    """The question and the rest, as `leave_one_out` does it."""
    spans = (*SPANS, (12, 15, QUESTION))
    context = tokenize_context(RenderedPrompt("a=1 b=22 c=3 a=", spans), "17", loss="margin")
    scores = score(16, context)
    assert [part.label for part in scores.parts[3:]] == [(QUESTION, "part"), ("", "rest")]
    cut = scores.answer, scores.parts
    alone = leave_one_out.scores(model, context, *cut, LOSS, Run()).by_part
    np.testing.assert_allclose(scores.by_part[:, 3:], alone[:, 3:], rtol=1e-9)
    assert abs(alone[0, 3] - alone[0, 4]) > 1e-3


def test_a_run_with_files_goes_on(score, model, tmp_path):
    """Texts of each kind have a folder of their own."""
    expected = score(24)
    cut = expected.answer, expected.parts
    for _ in range(2):
        found = informed.method(24).scores(model, CONTEXT, *cut, LOSS, Run(tmp_path))
        np.testing.assert_array_equal(found.by_part, expected.by_part)


def test_a_document_that_is_alone_is_left_out(score, model):
    """Its effect has no other documents to differ with, and no error."""
    context = tokenize_context(RenderedPrompt("a=1 b=22 c=3 a=", SPANS[1:2]), "17", loss="margin")
    scores = score(16, context)
    gained = losses_of_text(model, "a=1  c=3 a=") - losses_of_text(model, "a=1 b=22 c=3 a=")
    np.testing.assert_allclose(scores.by_part[0, 0], gained.sum(), rtol=1e-9)
    assert scores.errors is None and scores.total_effect is not None


@pytest.mark.parametrize(
    ("passes", "answer", "texts"),
    [(16, 1, (22, False)), (16, 3, (14, False)), (4, 1, (0, False)), (19, 1, (28, False)),
     (20, 1, (30, True)), (21, 2, (28, False)), (22, 2, (30, True))],
)  # fmt: skip
def test_texts_are_what_the_mask_gradient_leaves_of_the_passes(passes, answer, texts):
    """It takes three passes, and two more for each part of the answer; a text half of one. Seven
    texts without sets of documents are whole ones, and read where sixteen halves are left."""
    many = informed.texts_of_passes(passes, answer), informed.leaves_sets(passes, answer)
    assert many == texts
    assert informed.cost(passes, answer).total == max(passes, 3 + 2 * answer)


def test_a_budget_is_taken_by_the_method_that_has_one():
    assert method_named("informed", 9).cost(4, 1).total == 9
    with pytest.raises(ValueError, match="passes: got 8 with the method 'rollout'"):
        method_named("rollout", 8)
    with pytest.raises(ValueError, match="passes: got 0"):
        method_named("informed", 0)


def test_ask_takes_a_budget_and_shows_errors():
    network = byte_network(96, depth=1, seed=3)
    answered = lim.ask(LanguageModel(network), "Who sang?", DOCUMENTS, answer="It", passes=12)
    assert answered.method == "informed"
    head, *rows = answered.table.splitlines()
    assert head.split()[:3] == ["part", "score", "error"]
    errors = {part.kind: part.error for part in answered.parts}
    assert errors["document"] is not None and errors["question"] is None
    assert f"±{answered.parts[0].error:.3f}" in rows[0] and "±" not in rows[-1]
    assert answered.record()["parts"][0]["error"] == answered.parts[0].error
    without = lim.ask(
        LanguageModel(network), "Who sang?", DOCUMENTS, answer="It", method="mask-gradient"
    )
    assert without.method == "mask-gradient" and "error" not in without.table
