"""Tables of what was measured and scored, by hand: what the files say of small numbers."""

import csv
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network, layer_of

import lim_jax as lim
from lim_jax.attribution import profile_run
from lim_jax.attribution.files import (
    tokens_table,
    write_contexts,
    write_measured,
    write_orders,
    write_scores,
)
from lim_jax.attribution.mean_scores import (
    MeanScore,
    ScoresOfContexts,
    cost_of_contexts,
    mean_scores_of_parts,
    score_contexts,
    scores_finding,
)
from lim_jax.attribution.method import Run, Scores, scores_by_token
from lim_jax.attribution.methods.ablations import sparse_regression
from lim_jax.attribution.orders import shuffled_shares
from lim_jax.attribution.parts import measured_contexts, shares_by_context
from lim_jax.attribution.profile_run import measure, require_fitting
from lim_jax.attribution.segments import Segment
from lim_jax.density.statistics import Influence
from lim_jax.prompts.contexts import Context, Span, tokenize_context
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.weights import FetchedLayers, LayerSource


def context(letters, **spans):
    """A context of one letter a token, asked at its last, with named parts at these places."""
    weights = np.eye(len(letters))[-1]
    named = tuple(Span(name, np.array(places)) for name, places in spans.items())
    return Context(np.arange(len(letters) + 1), weights, tuple(letters), named)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


CONTEXTS = [context("abcde", one=[0], two=[1, 2], question=[3]), context("xyz", one=[0])]
SCORES = [
    {("one", "part"): 1.0, ("two", "part"): -3.0, ("question", "part"): 8.0, ("", "rest"): 5.0},
    {("one", "part"): -2.0, ("", "rest"): 1.0},
]
TOKENS = [np.array([1.0, -4, 1, 8, 5]), np.array([-2.0, 1, 0])]


def scored(by_name, tokens=None, given=None):
    """Scores of a whole answer by named parts of its context, and by token."""
    parts = [Segment(name, (), np.zeros(0, int)) for name, _ in by_name]
    by_part = np.array([list(by_name.values())])
    by_token = None if tokens is None else tokens[None]
    return Scores([], parts, by_part, by_token, None if given is None else np.array([given]))


def records():
    scores = [scored(parts, tokens) for parts, tokens in zip(SCORES, TOKENS, strict=True)]
    return {record.name: record for record in mean_scores_of_parts(CONTEXTS, scores)}


def test_shares_of_scores_of_both_signs_are_of_the_documents_sizes():
    """On average a half and three, of seven halves; the question has no share."""
    by_name = records()
    assert list(by_name) == ["one", "two", "question", ""]
    assert by_name["one"].of_documents == pytest.approx(-0.5 / 3.5)
    assert by_name["two"].of_documents == pytest.approx(-3 / 3.5)
    assert by_name["question"].of_documents is None and by_name[""].of_documents is None
    assert by_name["one"].score == pytest.approx(-0.5) and by_name["one"].contexts == 2


def test_shares_of_scores_have_the_signs_of_the_scores_and_sizes_of_sum_one():
    """Though a small context, where the share is large, says the opposite of a large one."""
    contexts = [context("abcde", one=[0], two=[1, 2]), context("xyz", one=[0], two=[1])]
    scores = [
        scored({("one", "part"): -4.0, ("two", "part"): 8.0}),
        scored({("one", "part"): 1.0, ("two", "part"): 0.0}),
    ]
    shares = [part.of_documents for part in mean_scores_of_parts(contexts, scores)[:2]]
    assert shares == pytest.approx([-1.5 / 5.5, 4 / 5.5])


def test_parts_that_a_method_does_not_score_have_no_record(tmp_path):
    """As the question by a path; a document without tokens alone gives nothing where it stands."""
    contexts = [context("abcde", one=[0], two=[1, 2], question=[3], three=[]), CONTEXTS[1]]
    scores = [scored({("one", "part"): -1.0, ("two", "part"): -3.0}), scored(SCORES[1])]
    means = mean_scores_of_parts(contexts, scores)
    assert [(mean.name, mean.score, mean.contexts) for mean in means] == [
        ("one", -1.5, 2), ("two", -3.0, 1), ("three", 0.0, 1), ("", 1.0, 1),
    ]  # fmt: skip
    result = ScoresOfContexts("mask-path", contexts, scores, means)
    write_scores(result, "margin", tmp_path)
    rows = rows_of(tmp_path / "records_by_context.csv")
    assert [(row["context"], row["name"], float(row["score"])) for row in rows] == [
        ("0", "one", -1.0), ("0", "two", -3.0), ("0", "three", 0.0), ("1", "one", -2.0),
        ("1", "", 1.0),
    ]  # fmt: skip
    alone = ScoresOfContexts("mask-path", [], [], [mean for mean in means if not mean.name])
    assert scores_finding(alone) == "No named part has a score by mask-path."


def test_the_tokens_of_a_record_that_hold_most_are_those_that_speak_for_it():
    by_name = records()
    assert by_name["two"].most == "“c” 100 %"
    assert by_name["one"].most == "“a” 100 %"


def parts_of_scores(*scores):
    return [
        MeanScore(name, "part", score, 0.125, None, 1.0, 0.5, 2, 2, "")
        for name, score in zip("ab", scores, strict=True)
    ]


def test_a_finding_tells_the_least_score_only_where_it_speaks_against():
    rest = MeanScore("", "rest", 9.0, 0.5, None, 1.0, 0.5, 2, 2, "")
    said = [
        scores_finding(ScoresOfContexts("rollout", [], [], [*parts_of_scores(*scores), rest]))
        for scores in ((0.5, 0.25), (0.5, -0.25), (-0.5, -0.25))
    ]
    assert said == [
        "“a” has the largest score by rollout, +0.500 ± 0.125.",
        "“a” has the largest score by rollout, +0.500 ± 0.125. “b” has the least, -0.250 ± 0.125.",
        "“b” has the largest score by rollout, -0.250 ± 0.125.",
    ]


def test_a_finding_says_by_how_much_scores_may_miss_what_documents_give():
    """To either side: in the first context they are half a unit too large."""
    name = ("a", "part")
    scores = [scored({name: 1.5}, given=1.0), scored({name: 2.25}, given=2.5)]
    said = scores_finding(ScoresOfContexts("mask-path", [], scores, parts_of_scores(1.875, 0)))
    assert said.endswith(
        " All documents together give +1.750 on average; their scores add up to +1.875, and differ "
        "from it by at most 0.500 in a context."
    )


def overlapping(by_token, given):
    """Scores of a span and of another inside it, by token or, with a row of two, by part alone."""
    parts = [Segment("all", (), np.arange(3)), Segment("end", (), np.array([2]))]
    if len(by_token) == 2:
        return Scores([], parts, by_token[None], None, np.array([given]))
    return scores_by_token([], parts, by_token[None], np.array([given]))


def test_tokens_in_two_spans_add_up_once():
    scores = [overlapping(np.array([1.0, 2, 4, 8]), 7.5)]  # of the last, in none, nothing counts
    said = scores_finding(ScoresOfContexts("mask-path", [], scores, parts_of_scores(1.875, 0)))
    assert said.endswith("their scores add up to +7.000, and differ from it by at most 0.500 in "
                         "a context.")  # fmt: skip


def test_of_overlapping_spans_without_scores_of_tokens_no_sum_is_told():
    scores = [overlapping(np.array([7.0, 4]), 7.5)]
    said = scores_finding(ScoresOfContexts("informed", [], scores, parts_of_scores(1.875, 0)))
    assert said.endswith(
        " All documents together give +7.500 on average; spans overlap, so that their scores do "
        "not add up to it."
    )


def test_a_command_costs_what_the_context_of_the_most_parts_does():
    """A pass for each part left out, and one for the whole: of four parts and of two."""
    assert f"{cost_of_contexts(CONTEXTS[::-1], 'leave-one-out')}" == "5 passes"


def test_a_part_that_every_ablation_keeps_has_no_coefficient():
    kept = np.array([[1, 1], [1, 0], [1, 1], [1, 0]], bool)
    regression = sparse_regression(kept, np.array([3.0, 1.0, 3.0, 1.0]))
    # The feature is one half more or less than its mean: two, less the Lasso's 0.01 over it.
    np.testing.assert_allclose(regression, [0, 2 - 0.01 / 0.5], atol=1e-12)


def test_rows_of_contexts_say_how_their_influence_lies_in_regions(tmp_path):
    """Of five tokens the first and the last are the boundaries; a context of none has no shares."""
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    energies = [np.array([1.0, 2, 3, 0, 4]), np.zeros(5)]
    contexts = [CONTEXTS[0], context("vwxyz", one=[1])]
    influence = Influence.from_energies(
        jax.device_put(np.stack(energies)), regions, keep_examples=True
    )
    shares = shares_by_context(contexts, energies)
    measured = measured_contexts(contexts, energies, shares, 0.2)
    write_contexts(measured, influence, shares, range(0, 4, 2), tmp_path)
    first, second = rows_of(tmp_path / "contexts.csv")
    assert (first["context"], first["tokens"], first["asked"]) == ("0", "5", "4")
    names = "total", "share_left", "share_middle", "share_right"
    numbers = [float(first[name]) for name in names]
    np.testing.assert_allclose(numbers, [2.0, 0.1, 0.5, 0.4])
    assert [float(second[name]) for name in names] == [0] * 4
    assert second["context"] == "2", "numbered by the first of its two orders"
    records = rows_of(tmp_path / "records_by_context.csv")
    assert [(row["context"], row["name"]) for row in records] == [
        ("0", "one"),
        ("0", "two"),
        ("0", "question"),
        ("0", ""),
        ("2", "one"),
        ("2", ""),
    ]
    assert [float(records[1][name]) for name in ("share", "tokens", "of_tokens")] == [0.5, 2, 0.4]


def test_rows_of_tokens_have_positions_from_the_first_to_one(monkeypatch):
    """And the density within the context, whose mean is one."""
    pieces = CONTEXTS[0]._replace(tokens=("a", "", "é", "d", ""))
    rows = list(tokens_table(measured(monkeypatch, contexts=[pieces])[0]))
    numbers, indices, texts, pieces, positions, weights, energy, density = zip(*rows, strict=True)
    assert set(numbers) == {0} and indices == (0, 1, 2, 3, 4)
    assert texts == ("a", "é", "é", "d", "\N{REPLACEMENT CHARACTER}")
    assert pieces == ("", "1/2", "2/2", "", "")
    np.testing.assert_allclose(positions, [0.2, 0.4, 0.6, 0.8, 1])
    assert weights == (0, 0, 0, 0, 1) and energy == (1, 2, 3, 4, 5)
    np.testing.assert_allclose(density, np.array([1, 2, 3, 4, 5]) / 3)


ORDERS = np.array([[1, 0, 2], [0, 2, 1], [2, 1, 0]])


def line(names):
    contexts = [
        context(
            "".join(names[number] for number in order) + "?",
            **{names[number]: [place] for place, number in enumerate(order)},
        )
        for order in ORDERS
    ]
    return ShuffledContexts(tuple(names), ORDERS, tuple(contexts))


def test_tables_of_orders_name_the_document_at_each_place(tmp_path):
    rows = np.random.default_rng(0).random((6, 4))
    result = shuffled_shares([line("ABC"), line("ABC")], list(rows))
    write_orders(result, ["first", "second"], tmp_path)
    orders = rows_of(tmp_path / "orders.csv")
    assert [row["context"] for row in orders] == [f"{number}" for number in np.repeat(range(6), 3)]
    assert [row["place"] for row in orders] == ["1", "2", "3"] * 6
    assert [row["document"] for row in orders[:9]] == list("BACACBCBA")
    assert [row["id"] for row in orders[::9]] == ["first", "second"]
    shares = (rows[:, :3] / rows.sum(axis=1, keepdims=True)).ravel()
    np.testing.assert_allclose([float(row["share"]) for row in orders], shares)
    table = rows_of(tmp_path / "two_way.csv")
    assert [(row["document"], row["place"]) for row in table[:4]] == [
        ("A", "1"),
        ("A", "2"),
        ("A", "3"),
        ("B", "1"),
    ]
    # Each document stands once at each place of each line: both lines' mean, and half of what
    # they differ by, which is the error of a mean of two.
    by_name = {(row["document"], row["place"]): row for row in table}
    of_line = shares.reshape(2, 3, 3)
    for place in range(3):
        pair = of_line[:, list(ORDERS[:, place]).index(0), place]
        row = by_name["A", f"{place + 1}"]
        np.testing.assert_allclose(float(row["share"]), pair.mean(), rtol=1e-12)
        np.testing.assert_allclose(float(row["error"]), abs(pair[0] - pair[1]) / 2, rtol=1e-9)


NETWORK = byte_network(5)
ENERGY = {5: np.arange(1.0, 6), 3: np.array([2.0, 1, 1])}


def measured(monkeypatch, contexts_on_page=0, network=NETWORK, contexts=CONTEXTS, **options):
    """What is measured of contexts whose energies are known, and of how many these were asked."""
    calls = []

    def energies_of_ids(network, windows, **_):
        calls.append(len(windows))
        return [ENERGY[len(window) - 1] for window in windows]

    def accounts_of_contexts(network, windows, weights, **_):
        return [SimpleNamespace(energy=ENERGY[len(window) - 1]) for window in windows]

    monkeypatch.setattr(profile_run.models, "energies_of_ids", energies_of_ids)
    monkeypatch.setattr(profile_run, "accounts_of_contexts", accounts_of_contexts)
    return measure(network, contexts, "answer", contexts_on_page=contexts_on_page, **options), calls


@pytest.mark.parametrize("contexts_on_page, asked", [(0, [2]), (1, [1]), (2, [])])
def test_contexts_of_a_page_are_not_measured_twice(monkeypatch, contexts_on_page, asked):
    result, counts = measured(monkeypatch, contexts_on_page)
    assert counts == asked and len(result.accounts) == contexts_on_page
    for energy, length in zip(result.energies, (5, 3), strict=True):
        np.testing.assert_array_equal(energy, ENERGY[length])
    assert result.shuffled is None
    assert [record.name for record in result.records] == ["one", "two", "question", ""]


def test_contexts_are_padded_to_the_longest_of_those_that_are_measured(monkeypatch):
    """To 80 for 67 and 70 tokens; not to 96 for 90, which is on a page and measured there."""
    padded = []

    def energies_of_ids(network, windows, padding, **_):
        padded.extend(padding(len(window) - 1) for window in windows)
        return [np.ones(len(window) - 1) for window in windows]

    def accounts_of_contexts(network, windows, weights, **_):
        return [SimpleNamespace(energy=np.ones(len(window) - 1)) for window in windows]

    monkeypatch.setattr(profile_run.models, "energies_of_ids", energies_of_ids)
    monkeypatch.setattr(profile_run, "accounts_of_contexts", accounts_of_contexts)
    contexts = [context("a" * length, one=[0]) for length in (90, 67, 70)]
    measure(NETWORK, contexts, "answer", contexts_on_page=1)
    assert padded == [80, 80]


def test_of_weights_in_files_a_page_holds_no_energies(monkeypatch):
    layers = FetchedLayers(jnp.zeros(1), LayerSource(lambda _: layer_of(NETWORK.flow), 1))
    away = eqx.tree_at(lambda network: network.flow.layers, NETWORK, layers)
    assert measured(monkeypatch, 2, away)[1] == [2]


def test_of_documents_in_several_orders_records_name_the_tokens_of_all_of_them(monkeypatch):
    """While lines are averaged over their orders, and counted as one: of energies 2, 1 and 1."""
    contexts = [context("AB.", A=[0], B=[1]), context("BA,", B=[0], A=[1])]
    orders = [ShuffledContexts(("A", "B"), np.array([[0, 1], [1, 0]]), tuple(contexts))]
    result, _ = measured(monkeypatch, contexts=contexts, orders=orders)
    assert len(result.by_id.energies) == 1 and result.shuffled is not None
    first, second, rest = result.records
    assert (first.name, first.contexts, second.name) == ("A", 1, "B")
    assert first.share == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert rest.most == "“.” 50 %, “,” 50 %", "one of each order"


def test_lines_in_several_orders_are_numbered_by_the_first_of_each(monkeypatch, tmp_path):
    """As in tokens.csv, which has a context for each order."""
    contexts = [context("AB.", A=[0], B=[1]), context("BA,", B=[0], A=[1])]
    line = ShuffledContexts(("A", "B"), np.array([[0, 1], [1, 0]]), tuple(contexts))
    result, _ = measured(monkeypatch, contexts=2 * contexts, orders=[line, line])
    write_measured(result, None, tmp_path)
    assert [row["context"] for row in rows_of(tmp_path / "contexts.csv")] == ["0", "2"]
    tokens = rows_of(tmp_path / "tokens.csv")
    assert [row["context"] for row in tokens] == [f"{n}" for n in np.repeat(range(4), 3)]
    rows = rows_of(tmp_path / "profile.csv")
    # Of energies 2, 1 and 1 the density is three times the share.
    np.testing.assert_allclose([float(row["density"]) for row in rows], [1.5, 0.75, 0.75])
    document = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    assert [part["name"] for part in document["records"]] == ["A", "B", ""]


def test_scores_of_parts_are_kept_context_by_context(tmp_path):
    """And read again where they are asked for a second time."""
    network = byte_network(8, depth=1)
    prompts = [
        RenderedPrompt("a b ", ((0, 1, "a"), (2, 3, "b"))),
        RenderedPrompt("c ", ((0, 1, "c"),)),
    ]
    contexts = [tokenize_context(prompt, "x", loss="margin") for prompt in prompts]
    ask = partial(score_contexts, network, contexts, "margin", "leave-one-out", Run(tmp_path))
    first = ask().scores
    again = ask().scores
    assert [list(scores.by_name()) for scores in first] == [
        [("a", "part"), ("b", "part"), ("", "rest")],
        [("c", "part"), ("", "rest")],
    ]
    assert [scores.by_name() for scores in again] == [scores.by_name() for scores in first]


def test_contexts_fit_up_to_the_networks_length_and_its_last_word():
    words = NETWORK.embedding
    places = NETWORK.positions
    assert places is not None
    fitting = replace(NETWORK, embedding=words[:6], head=words[:6])
    require_fitting(fitting, CONTEXTS)
    with pytest.raises(ValueError, match="context: got 5 tokens, expected at most 4, the places"):
        require_fitting(replace(fitting, positions=places[:4]), CONTEXTS)
    with pytest.raises(ValueError, match="tokenizer: got the id 5, expected ids below 5"):
        require_fitting(replace(NETWORK, embedding=words[:5], head=words[:5]), CONTEXTS)
