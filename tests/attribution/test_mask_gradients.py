"""Parts of an answer by parts of documents: cuts by hand, scores beside derivatives of the loss."""

import csv

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.compilations import compilations
from reference.networks import byte_network

from lim_jax._argument_error import Refusal
from lim_jax.attribution import files, mask_gradients
from lim_jax.attribution.method import Run, scores_by_token
from lim_jax.attribution.methods import leave_one_out, mask_gradient, mask_path
from lim_jax.attribution.segments import (
    answer_segments,
    context_segments,
    document_numbers,
    document_segments,
    whole_answer,
)
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.foils import contrast_loss
from lim_jax.prompts.contexts import tokenize_context, tokenize_prompt
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.results import to_xarray
from lim_jax.results.tables import FILES, write_table
from lim_jax.weights import FetchedLayers, LayerSource

TEXT = "Wren é. Mr. X sang.\n\nOff 1.5 m. | Who?"
SPANS = ((0, 31, "birds"), (31, 34, "user 1"), (34, 38, "question"))
CONTEXT = tokenize_context(RenderedPrompt(TEXT, SPANS), " It is é. So.", loss="margin")
DOCUMENTS = document_segments(CONTEXT)
LOSS = CausalLM.margin_loss


@pytest.fixture(scope="module")
def model():
    return byte_network(64, depth=2, seed=3)


def texts(segments):
    return [segment.text for segment in segments]


def test_documents_are_cut_and_every_token_of_them_is_in_one_part():
    assert texts(DOCUMENTS) == ["Wren é. ", "Mr. X sang.\n\n", "Off 1.5 m."]
    assert texts(document_segments(CONTEXT, "paragraphs")) == [TEXT[:21], TEXT[21:31]]
    assert texts(document_segments(CONTEXT, "documents")) == [TEXT[:31]]
    tokens = document_segments(CONTEXT, "tokens")
    assert texts(tokens) == list(TEXT[:31])
    assert tokens[5].positions.tolist() == [5, 6], "a character of two bytes is one"
    for parts in ("documents", "paragraphs", "sentences", "tokens"):
        segments = document_segments(CONTEXT, parts)
        assert np.concatenate([segment.positions for segment in segments]).tolist() == list(
            range(32)
        )
        assert {segment.within for segment in segments} == {"birds"}


def test_a_document_in_two_stretches_is_cut_in_each():
    prompt = RenderedPrompt("One two. Three. | Four. Who?", ((0, 8, "a"), (18, 23, "a")))
    segments = document_segments(tokenize_context(prompt, " I"))
    assert texts(segments) == ["One two.", "Four."]
    assert segments[1].positions.tolist() == [*range(18, 23)]


def test_an_answer_is_cut_where_the_loss_asks():
    assert texts(answer_segments(CONTEXT, None, "sentence")) == [" It is é. ", "So."]
    assert texts(answer_segments(CONTEXT, None, "token")) == list(" It is é. So.")
    (whole,) = answer_segments(CONTEXT, None, "answer")
    assert whole.text == " It is é. So."
    assert whole.positions.tolist() == np.flatnonzero(CONTEXT.weights).tolist()


@pytest.mark.parametrize("parts", ["answer", "sentence"])
def test_an_answer_that_shows_no_character_is_one_part(parts):
    """As one that was cut within the bytes of its first character."""
    answer = np.array([0xC3], np.int32)
    context = tokenize_prompt(RenderedPrompt("Wren?", ((0, 4, "a"),))).with_answer(answer)
    (segment,) = answer_segments(context, None, parts)
    assert segment.positions.tolist() == [4] and not segment.text.strip("\N{REPLACEMENT CHARACTER}")


PARTS = [*answer_segments(CONTEXT, None, "token"), *answer_segments(CONTEXT, None, "answer")]


@pytest.fixture(scope="module")
def slopes(model):
    """Minus the loss's derivatives, by JAX through the whole network on the unpadded context.

    The document loses weight but for the context's first token, which has no score; the question
    counts whole.
    """
    (query_positions,) = CONTEXT.weights.nonzero()
    inside = (0 < np.arange(CONTEXT.length)) & (np.arange(CONTEXT.length) < 32)
    weights = np.stack(
        [
            np.isin(query_positions, part.positions) * CONTEXT.weights[query_positions]
            for part in PARTS
        ]
    )
    ids, targets, places = jax.device_put(
        (CONTEXT.window[:-1], CONTEXT.window[1:][query_positions], query_positions)
    )

    def of_row(row, log_weights):
        y = Targets(targets, row / row.sum(), places, log_weights=log_weights, parts=numbers)
        return -row.sum() * LOSS(model, model.embed(ids), y)

    numbers = jax.device_put(document_numbers(CONTEXT))
    assert (np.asarray(numbers)[inside] >= 0).all() and (np.asarray(numbers)[~inside] < 0).all()
    at = jnp.where(inside, jnp.log(0.2), 0)
    gradients = eqx.filter_jit(jax.vmap(jax.grad(of_row, 1), (0, None)))
    derivatives = gradients(jax.device_put(weights), at)
    return np.where(np.arange(CONTEXT.length) > 0, derivatives, 0)


@pytest.fixture(scope="module")
def derivatives(slopes):
    """The slopes times the length of the way from the weight 0.04 to one in the log weight."""
    return np.log(25) * slopes


@pytest.mark.slow
def test_scores_are_derivatives_and_those_of_tokens_sum_to_the_answers(
    model, derivatives, monkeypatch
):
    """Fourteen rows in two batches, of which two are filled up."""
    monkeypatch.setattr(mask_gradients, "ROWS", 9)
    scores = mask_gradient.scores(model, CONTEXT, PARTS, DOCUMENTS, LOSS, Run())
    assert scores.by_token is not None
    assert np.abs(derivatives).max(axis=1).min() > 1e-6
    np.testing.assert_allclose(scores.by_token, derivatives, rtol=1e-9, atol=1e-14)
    *tokens, whole = scores.by_token
    np.testing.assert_allclose(np.sum(tokens, axis=0), whole, rtol=1e-9, atol=1e-14)
    for column, part in zip(scores.by_part.T, DOCUMENTS, strict=True):
        np.testing.assert_allclose(column, derivatives[:, part.positions].sum(axis=1), rtol=1e-9)


def test_a_context_of_one_token_has_losses_at_both_ends(model):
    """The token, to which attention goes back whatever it weighs, gives nothing."""
    prompt = RenderedPrompt("a", ((0, 1, "a"),))
    context = tokenize_context(prompt, "b", loss="margin")
    answer = [whole_answer(context)]
    without, whole = mask_gradients.losses_at_ends(model, context, answer, LOSS, Run())
    assert without.shape == (1,) and np.isfinite(whole).all()
    np.testing.assert_allclose(without, whole, rtol=1e-12)


@pytest.mark.slow
def test_gradients_at_other_weights_are_one_program_and_each_is_kept(model, tmp_path):
    """A run that stopped after two goes on at the third, and takes what it takes in one go."""
    inputs = model, CONTEXT, PARTS[:1], LOSS

    def stopping(items, **_):
        yield from items[:2]
        raise KeyboardInterrupt

    def counting(items, **options):
        bars.append((len(items), options))
        return items

    bars = []
    at = np.log([0.02, 0.1, 0.5])
    expected = mask_gradients.mask_gradients(*inputs, at, Run())
    assert np.abs(np.diff(expected, axis=0)).max() > 1e-6
    with compilations() as programs:
        more = mask_gradients.mask_gradients(*inputs, np.log([0.1, 0.02, 0.3, 0.5, 0.2]), Run())
    assert not programs
    np.testing.assert_array_equal(more[[1, 0, 3]], expected)
    with pytest.raises(KeyboardInterrupt):
        mask_gradients.mask_gradients(*inputs, at, Run(tmp_path, stopping))
    assert len(list(tmp_path.iterdir())) == 2
    again = mask_gradients.mask_gradients(*inputs, at, Run(tmp_path, counting))
    np.testing.assert_array_equal(again, expected)
    assert bars == [(3, {"desc": "mask gradients", "unit": "gradient"})]


@pytest.mark.slow
def test_rows_of_a_path_take_as_many_gradients_as_add_up(model, monkeypatch, tmp_path):
    """Each row's scores sum to what the document gave its part, by the whole network's losses."""
    monkeypatch.setattr(mask_path, "NODES", 3)
    monkeypatch.setattr(mask_path, "SHOWN", 0.0)
    taken = []
    measured = mask_path.mask_gradients

    def counted(model, context, answer, loss, log_weights, run):
        taken.append((len(log_weights), len(answer)))
        return measured(model, context, answer, loss, log_weights, run)

    monkeypatch.setattr(mask_path, "mask_gradients", counted)
    sharp = jax.tree.map(lambda leaf: 3 * leaf, model)
    rows = PARTS[-4:]
    scores = mask_path.scores(sharp, CONTEXT, rows, DOCUMENTS, LOSS, Run(tmp_path))
    (query_positions,) = CONTEXT.weights.nonzero()
    ids, targets, places = jax.device_put(
        (CONTEXT.window[:-1], CONTEXT.window[1:][query_positions], query_positions)
    )
    numbers = jax.device_put(document_numbers(CONTEXT))

    @jax.jit
    def loss(network, row, log_weight):
        log_weights = jnp.where(numbers >= 0, log_weight, 0)
        y = Targets(targets, row / row.sum(), places, log_weights=log_weights, parts=numbers)
        return row.sum() * LOSS(network, network.embed(ids), y)

    assert scores.total_effect is not None and scores.by_token is not None
    sums = scores.by_token.sum(axis=1)
    for row, added, total_effect in zip(rows, sums, scores.total_effect, strict=True):
        weights = jnp.asarray(
            np.isin(query_positions, row.positions) * CONTEXT.weights[query_positions]
        )
        expected = loss(sharp, weights, np.log(1e-3)) - loss(sharp, weights, 0.0)
        np.testing.assert_allclose(total_effect, expected, rtol=1e-8)
        assert abs(added - total_effect) <= abs(total_effect) / 20
    nodes = [count for count, _ in taken]
    assert nodes == [3, 4, 8, 16, 32][: len(taken)] and len(taken) > 1, "nodes between the others"
    left = [rows for _, rows in taken]
    assert left[0] == 4 and left == sorted(left, reverse=True) and scores.note == ""
    monkeypatch.setattr(mask_path, "MOST_NODES", 3)
    once = mask_path.scores(sharp, CONTEXT, rows, DOCUMENTS, LOSS, Run())
    assert once.total_effect is not None and once.by_token is not None
    off = np.abs(once.by_token.sum(axis=1) - once.total_effect)
    far = mask_path.is_unresolved(once.by_token.sum(axis=1), once.total_effect)
    assert far.any() and f"For {far.sum()} of 4 parts of the answer" in once.note
    assert f"by {off[far].max():.2f} at most" in once.note


@pytest.mark.parametrize("nodes", [1, 3, 7, 15])
def test_a_rule_integrates_powers_of_the_weights_root_over_the_log_weight(nodes):
    """Times that root: of an interpolating rule on n nodes all below the n-th are exact."""
    rule = mask_path.nested_rule(nodes)
    assert np.all(rule.log_weights > np.log(1e-3)) and np.all(rule.log_weights < 0)
    roots = np.exp(rule.log_weights / 2)
    for power in range(1, nodes + 1):
        exact = 2 / power * (1 - 1e-3 ** (power / 2))
        np.testing.assert_allclose(rule.shares @ roots**power, exact, rtol=1e-11)
    finer = mask_path.nested_rule(2 * nodes + 1)
    np.testing.assert_allclose(finer.log_weights[1::2], rule.log_weights, rtol=1e-12)


def test_a_note_counts_the_parts_that_do_not_add_up():
    """Of three the second, by half a unit, and the third, by one."""
    by_token = np.array([[1.0, 2], [0.5, 0], [1, 1]])
    note = mask_path._note(by_token, np.array([3.0, 1, 3]))
    assert note.startswith("For 2 of 3 parts of the answer, after 63 gradients, ")
    assert note.endswith("by 1.00 at most.")


def test_what_is_not_shown_is_not_missed():
    """A twentieth of what was given, or half of the second decimal that is printed."""
    sums = np.array([-0.897, -0.84, 0.004, 0.008])
    effects = np.array([-0.809, -0.809, 0.0, 0.002])
    assert mask_path.is_unresolved(sums, effects).tolist() == [True, False, False, True]


def test_scores_are_kept_in_a_table_and_as_labelled_arrays(tmp_path):
    answer = PARTS[:2]
    rng = np.random.default_rng(0)
    by_token = rng.normal(size=(2, CONTEXT.length))
    scores = scores_by_token(answer, context_segments(CONTEXT, "sentences"), by_token)
    write_table(tmp_path / "matrix.csv", FILES["matrix.csv"], files._matrix(scores))
    with (tmp_path / "matrix.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    data = to_xarray(scores, tokens=CONTEXT.tokens)
    assert data.text.values[:4].tolist() == list("Wren")
    assert data.answer_part.values.tolist() == [" ", "I"]
    assert data.part.values[1] == "Mr. X sang.\n\n"
    assert data.within.values.tolist() == [*["birds"] * 3, "user 1", "question", ""]
    expected = [by_token[1, a:b].sum() for a, b in ((0, 9), (9, 22), (22, 32))]
    np.testing.assert_allclose(data.score.values[1, :3], expected)
    np.testing.assert_array_equal(data.score_of_position, by_token)
    np.testing.assert_allclose([float(row["score"]) for row in rows[3:]], expected)
    assert rows[4]["said"] == "I" and rows[4]["name"] == "birds" and rows[4]["tokens"] == "13"
    assert rows[4]["text"] == data.part.values[1] and rows[4]["part"] == "1"


@pytest.mark.slow
def test_layers_in_files_are_read_at_most_twice_and_not_again_from_a_checkpoint(
    model, slopes, tmp_path
):
    reads = []

    def read(index):
        reads.append(index)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[index], model.flow.layers)

    layers = FetchedLayers(jnp.zeros(1), LayerSource(read, model.flow.depth))
    away = eqx.tree_at(lambda model: model.flow.layers, model, layers)
    reads.clear()
    gradients = mask_gradients.mask_gradients
    at = np.log([0.2])
    for _ in range(2):
        (by_token,) = gradients(away, CONTEXT, PARTS[-1:], LOSS, at, Run(tmp_path))
        jax.effects_barrier()
        np.testing.assert_allclose(by_token, slopes[-1:], rtol=1e-9, atol=1e-14)
    with pytest.raises(Refusal, match="checkpoint: got .*, of function"):
        gradients(away, CONTEXT, PARTS[:1], LOSS, at, Run(tmp_path))
    assert len(reads) <= 4


def test_parts_that_are_not_there_are_refused():
    with pytest.raises(Refusal, match="parts: got 'word'"):
        answer_segments(CONTEXT, None, "word")
    with pytest.raises(Refusal, match="document_parts: got 'pages'"):
        document_segments(CONTEXT, "pages")
    foil = tokenize_context(RenderedPrompt(TEXT, SPANS), " It", loss="contrast", foil=" No")
    with pytest.raises(Refusal, match="parts: got an answer with a foil"):
        answer_segments(foil)


def test_all_parts_of_a_context_are_those_of_documents_then_others_and_the_rest():
    parts = [(part.within, part.text) for part in context_segments(CONTEXT)]
    others = [("user 1", " | "), ("question", "Who?"), ("", " It is é. So"[:0])]
    assert parts[0] == ("birds", TEXT[:31]) and parts[1:3] == others[:2]
    rest = context_segments(CONTEXT)[-1]
    assert rest.label == ("", "rest") and rest.positions.tolist() == [*range(39, CONTEXT.length)]


@pytest.mark.parametrize("method", [mask_gradient, mask_path, leave_one_out])
def test_answers_of_other_lengths_have_one_program(model, method):
    """Answers of 5 and of 9 tokens are padded to 16, as their contexts are to one length."""
    of_five, of_nine = (
        tokenize_context(RenderedPrompt(TEXT, SPANS), answer, loss="margin")
        for answer in (" She.", " It sang.")
    )

    def score(context):
        answer = answer_segments(context, None, "answer")
        parts = document_segments(context, "documents")
        return method.scores(model, context, answer, parts, LOSS, Run()).by_part

    score(of_five)
    with compilations() as compiled:
        score(of_nine)
    assert not compiled


def test_a_path_over_a_foil_adds_up_to_what_the_document_gives(model, monkeypatch):
    """Each of fifteen gradients counts for its share, also where the whole answer has one loss."""
    monkeypatch.setattr(mask_path, "NODES", 15)
    sharp = jax.tree.map(lambda leaf: 3 * leaf, model)
    context = tokenize_context(RenderedPrompt(TEXT, SPANS), " It", loss="contrast", foil=" He")
    documents = document_segments(context, "documents")
    whole = [whole_answer(context)]
    scores = mask_path.scores(sharp, context, whole, documents, contrast_loss, Run())
    effect = np.asarray(scores.total_effect).item()
    assert abs(effect) > 0.1
    np.testing.assert_allclose(scores.by_part.sum(), effect, rtol=0.05)
