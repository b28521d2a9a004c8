"""The page of an answer: its data beside the scores, and texts that are no markup."""

import base64
import re

import numpy as np
import pytest
from reference.pages import Read
from reference.sources import CONTEXT, SCRIPT, made_scores, written

from lim_jax._terminal import OBEYED
from lim_jax.attribution.method import Scores, scores_by_token
from lim_jax.attribution.segments import answer_segments, context_segments, document_segments
from lim_jax.attribution.together import Together
from lim_jax.attribution.token_text import readable
from lim_jax.prompts.contexts import tokenize_context
from lim_jax.prompts.documents import Document, RenderedPrompt, document_prompt
from lim_jax.report.sources import sources_page


def test_the_data_are_the_scores_of_what_is_shown_and_texts_are_escaped(tmp_path):
    scores = made_scores("sentence")
    page = Read(written(tmp_path / "page.html", "sentence"))
    by_token = scores.by_token
    assert by_token is not None
    data = page.json("data")
    names = [heading["inner"].strip() for heading in page.all("h3")]
    gave = {
        f"<i>{number}</i>": by_token[:, CONTEXT.spans[number].positions].sum()
        for number in range(6)
    }
    assert names == sorted(gave, key=lambda name: -gave[name]), "more than five, as the table"
    sentences = [part["inner"] for part in page.all("span", "part")]
    texts = {
        scores.parts[column].text: scores.by_part[:, column] for column in scores.documents.tolist()
    }
    assert len(sentences) == 8
    for sentence, column in zip(sentences, np.transpose(data["parts"]), strict=True):
        np.testing.assert_allclose(column, texts[sentence], rtol=1e-3)
    steps = np.frombuffer(base64.b64decode(data["steps"]), np.int8).reshape(2, -1)
    tokens = [token["inner"] for token in page.all("span", "t")]
    assert steps.shape[1] == len(tokens) == CONTEXT.length - 1, "é is one, of two bytes"
    shown = steps * np.transpose([data["scales"]])
    whole = by_token.sum(axis=1)
    np.testing.assert_allclose(shown.sum(axis=1), whole, atol=CONTEXT.length * max(data["scales"]))
    first = tokens.index("A")
    place = CONTEXT.spans[1].positions[0]
    error = np.abs(shown[:, first] - by_token[:, place])
    assert (error <= 0.51 * np.array(data["scales"])).all()
    (said,) = page.all("p", "finding")
    assert page.all("p")[0] == said, "before documents, which may be long"
    assert len(page.all("script")) == 2 and SCRIPT in said["text"]
    assert data["edges"] == [0.02, 0.06, 0.2, 0.6, 2]
    keys = [(key["data-shade"], key["inner"]) for key in page.all("span", "key")]
    assert keys[:2] == [("1", "+0.02"), ("2", "+0.06")] and keys[-1] == ("-5", "−2")
    assert len(keys) == 10


def test_what_is_within_two_errors_of_zero_has_no_shade_and_its_error_is_told():
    """Of the first part of the answer every other document; scores themselves stay as they are."""
    parts = context_segments(CONTEXT)
    answer = answer_segments(CONTEXT, None, "sentence")
    by_part = np.full((2, len(parts)), 0.5)
    by_part[1, :6] = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]  # the last gave most, and stands first
    errors = np.full((2, len(parts)), np.nan)
    errors[0, :6] = [0.25, 0.24, 0.26, 0.1, 0.3, 0.2]
    errors[1, :6] = 0.01
    scores = Scores(answer, parts, by_part, errors=errors)
    page = Read(sources_page(scores, CONTEXT, question="?", how="drawn"))
    data = page.json("data")
    names = [int(heading["inner"].strip()[len("<i>")]) for heading in page.all("h3")]
    np.testing.assert_allclose(np.array(data["errors"]), errors[:, names])
    assert names == [5, 4, 3, 2, 1, 0]
    np.testing.assert_allclose(np.array(data["parts"]), by_part[:, names])
    steps = np.frombuffer(base64.b64decode(data["steps"]), np.int8).reshape(2, -1)
    shaded = steps * np.transpose([data["scales"]])
    np.testing.assert_allclose(shaded.sum(axis=1), [3 * 0.5, 4.5], rtol=0.1)
    plain = Read(sources_page(scores._replace(errors=None), CONTEXT, question="?", how="drawn"))
    assert plain.json("data")["errors"] is None


def test_tokens_of_a_sentence_within_two_errors_of_zero_have_no_shade():
    """Errors of sentences are told of; those of other parts are no sentences' and not shown."""
    parts = document_segments(CONTEXT)
    answer = answer_segments(CONTEXT, None, "answer")
    by_token = np.ones((1, CONTEXT.length))
    sizes = np.array([part.positions.size for part in parts])
    errors = np.where(np.arange(len(parts)) % 2, 0.51, 0.49) * sizes[None]
    scores = scores_by_token(answer, parts, by_token)._replace(errors=errors)
    page = Read(sources_page(scores, CONTEXT, question="?", how="drawn"))
    data = page.json("data")
    steps = np.frombuffer(base64.b64decode(data["steps"]), np.int8)
    inside = sum(sizes[::2])
    others = CONTEXT.length - sum(sizes)
    (scale,) = data["scales"]
    rounding = 0.51 * scale * len(steps)
    np.testing.assert_allclose(steps.sum() * scale, inside + others, atol=rounding)
    assert sizes[1::2].sum() > 2 * rounding
    assert np.sort(np.ravel(data["errors"])) == pytest.approx(np.sort(errors[0]), rel=1e-3)
    assert sum(np.ravel(data["parts"])) == pytest.approx(sum(sizes))
    documents = document_segments(CONTEXT, "documents")
    scores = scores_by_token(answer, documents, by_token)
    of_documents = scores._replace(errors=np.full((1, len(documents)), 1e3))
    data = Read(sources_page(of_documents, CONTEXT, question="?", how="drawn")).json("data")
    assert data["errors"] is None and np.frombuffer(base64.b64decode(data["steps"]), np.int8).all()


def legend_of(page):
    """The paragraph that says what shades and numbers are, which stands on paper too."""
    (legend,) = page.all("p", "legend")
    return " ".join(legend["inner"].split())


def test_shares_are_per_cent_and_speak_neither_for_nor_against(tmp_path):
    """As those of influence, which have no sign; the numbers on the page are shares too."""
    parts = context_segments(CONTEXT)
    scores = Scores(answer_segments(CONTEXT, None, "answer"), parts, np.full((1, len(parts)), 0.1))
    page = Read(
        sources_page(
            scores, CONTEXT, question="?", how="drawn", unit="shares of the rollout", signed=False
        )
    )
    keys = [(key["data-shade"], key["inner"]) for key in page.all("span", "key")]
    assert keys == [("1", "2 %"), ("2", "6 %"), ("3", "20 %"), ("4", "60 %")]
    legend = legend_of(page)
    assert "against" not in legend, "a share has no sign"
    assert "Numbers are shares of the rollout." in legend
    assert page.json("data")["signed"] is False
    assert Read(written(tmp_path / "page.html", "answer")).json("data")["signed"] is True


def test_the_legend_says_what_numbers_and_errors_are(tmp_path):
    """On paper too, from which the hints on the keyboard are left out."""
    parts = context_segments(CONTEXT)
    answer = answer_segments(CONTEXT, None, "answer")
    with_errors = Scores(answer, parts, np.ones((1, len(parts))), errors=np.ones((1, len(parts))))
    legends = [
        legend_of(Read(page))
        for page in (
            written(tmp_path / "page.html", "answer"),
            sources_page(with_errors, CONTEXT, question="?", how="drawn"),
        )
    ]
    told = "After ± stands the error; a part within two errors of zero has no shade."
    for legend, has_errors in zip(legends, (False, True), strict=True):
        assert "Numbers are in log odds, on average over the answer's tokens." in legend
        assert (told in legend) == has_errors, "errors are explained where there are some"


@pytest.mark.parametrize("parts", ["documents", "paragraphs", "sentences"])
def test_a_title_stands_once_above_its_document(parts):
    """It is a part where sentences are scored, else of the first part; scores stay whole."""
    documents = [
        Document("Åre", "It snows.\n\nÅre\nthaws."),
        Document("Text", "Åre\nis said here."),
    ]
    prompt = document_prompt(documents, "Where?")
    context = tokenize_context(prompt, " Åre")
    segments = context_segments(context, parts)
    by_part = np.arange(1.0, 1 + len(segments))[None]
    scores = Scores(answer_segments(context), segments, by_part)
    page = Read(sources_page(scores, context, question="?", how="drawn"))
    shown = " ".join(article["inner"] for article in page.all("article"))
    assert [shown.count(word) for word in ("Åre", "Text", "snows", "said")] == [3, 1, 1, 1], shown
    data = page.json("data")
    np.testing.assert_allclose(data["parts"], by_part[:, scores.documents])


@pytest.mark.parametrize("title", ["Wren ", " Wren", "Owl\tBarn", "# Two\n## lines", "\u202eabc"])
def test_a_title_of_what_cannot_be_seen_stands_once(title):
    """The name beside it has the number alone, where several documents have the title."""
    for count, numbers in ((1, []), (2, ["(document 1)", "(document 2)"])):
        documents = [Document(title, f"{number} x\u202ey.") for number in range(count)]
        context = tokenize_context(document_prompt(documents, "Where?"), " Å")
        parts = context_segments(context, "sentences")
        by_part = np.ones((1, len(parts)))
        scores = Scores(answer_segments(context), parts, by_part)
        html = sources_page(scores, context, question="Who\u202e?", how="drawn")
        page = Read(html)
        shown = [one["inner"] for one in page.all("bdi", "number")]
        assert shown == numbers
        titles = [one["inner"] for one in page.all("span", "title")]
        assert titles == [readable(f"{title}\n")] * count
        assert OBEYED.search(re.sub("[\n\t]", "", html)) is None and "⟨202e⟩" in html


def test_tokens_that_show_nothing_of_a_title_are_not_taken_for_it():
    """A letter of several tokens that begins a document counts with its first, titled or not."""
    documents = [Document("Å", "Éa."), Document("", "Éire.")]
    context = tokenize_context(document_prompt(documents, "Where?"), " Å")
    parts = document_segments(context, "paragraphs")
    by_part = np.array([[part.positions.size for part in parts]], float)
    scores = Scores(answer_segments(context), parts, by_part)
    page = Read(sources_page(scores, context, question="?", how="drawn"))
    texts = [part["inner"] for part in page.all("span", "part")]
    assert texts == ["Éa.", "Éire."]
    data = page.json("data")
    steps = np.frombuffer(base64.b64decode(data["steps"]), np.int8).tolist()
    shown = dict(zip([token["inner"] for token in page.all("span", "t")], steps, strict=True))
    assert shown["É"] == pytest.approx(2 * shown["a"], abs=1), "each token of these counts one"


NAMES = (f"</script>{SCRIPT}", 'it\'s "so", “so” & so', "السوق")
SUFFICES = "one of these suffices: "
NEEDED = "needed together with "
OF_THE_WHOLE = "Framed words beside a document's name speak of the whole answer."


def page_of_groups(losses):
    """The page of six documents, of which `NAMES` are the second, the fourth and the last."""
    spans = list(CONTEXT.spans)
    for at, name in zip((1, 3, 5), NAMES, strict=True):
        spans[at] = spans[at]._replace(name=name)
    context = CONTEXT._replace(spans=tuple(spans))
    together = Together(NAMES[: len(losses).bit_length() - 1], np.array(losses))
    by_part = np.arange(8.0)[None]
    scores = Scores(answer_segments(context), context_segments(context), by_part)
    groups = together.groups
    return Read(sources_page(scores, context, question="?", how="drawn", groups=groups))


def marks(page):
    """What is marked beside the name of each document with a mark."""
    groups = {}
    for article in page.all("article"):
        name = next(one for one in article["inside"] if one["tag"] == "span")["inner"]
        inside = [one for one in article["inside"] if one.get("class") == "group"]
        assert all(one["dir"] == "ltr" for one in inside)
        if inside:
            groups[name] = [one["inner"] for one in inside]
    return groups


@pytest.mark.parametrize(
    "losses, expected",
    [
        ((0, 0.2, 0.1, 3), {NAMES[k]: [f"{SUFFICES}“{NAMES[0]}” or “{NAMES[1]}”"] for k in (0, 1)}),
        (
            (0, 0.1, 0, 0.2, 0.05, 0.1, 0.15, 2.5),
            {name: [f"{SUFFICES}“{NAMES[0]}”, “{NAMES[1]}” or “{NAMES[2]}”"] for name in NAMES},
        ),
        ((0, 3, 3, 3), {NAMES[k]: [f"{NEEDED}“{NAMES[1 - k]}”"] for k in (0, 1)}),
        (
            (0, 2, 2.1, 2.1, 1.9, 2.2, 2.2, 2.3),
            {
                NAMES[0]: [f"{NEEDED}“{NAMES[1]}” and “{NAMES[2]}”"],
                NAMES[1]: [f"{NEEDED}“{NAMES[0]}” and “{NAMES[2]}”"],
                NAMES[2]: [f"{NEEDED}“{NAMES[0]}” and “{NAMES[1]}”"],
            },
        ),
        (
            (0, 0.1, 0.6, 3, 0.65, 1, 0.7, 3.5),
            {
                NAMES[0]: [f"{SUFFICES}“{NAMES[0]}” or “{NAMES[1]}”"],
                NAMES[1]: [f"{SUFFICES}“{NAMES[0]}” or “{NAMES[1]}”", f"{NEEDED}“{NAMES[2]}”"],
                NAMES[2]: [f"{NEEDED}“{NAMES[1]}”"],
            },
        ),
    ],
)
def test_what_suffices_or_is_needed_together_is_marked_beside_names(losses, expected):
    """Each name that a mark has runs in its own direction, and is no markup."""
    page = page_of_groups(losses)
    assert marks(page) == expected
    for group in page.all("span", "group"):
        quoted = [one["inner"] for one in group["inside"] if one["tag"] == "bdi"]
        assert len(quoted) == len(group["inside"]) and set(quoted) <= {*NAMES}
        assert all(f"“{name}”" in group["inner"] for name in quoted) and quoted
    assert len(page.all("script")) == 2
    assert OF_THE_WHOLE in page.all("p", "hint")[0]["text"]


def test_where_nothing_is_said_of_documents_together_none_is_marked(tmp_path):
    for page in (page_of_groups((0, 1.5, 1.4, 2.9)), Read(written(tmp_path / "page", "token"))):
        assert marks(page) == {} and "Framed" not in page.all("p", "hint")[0]["text"]


def test_four_thousand_tokens_by_fifty_are_below_two_megabytes():
    documents = tuple(f"Sentence {number} of a document." for number in range(150))
    text = " ".join(documents)
    prompt = RenderedPrompt(text, ((0, len(text), "long"),))
    context = tokenize_context(prompt, " " + "a" * 49, loss="margin")
    answer = answer_segments(context, None, "token")
    assert context.length > 4000 and len(answer) == 50
    drawn = np.random.default_rng(0).normal(size=(50, context.length))
    page = sources_page(scores_by_token(answer, [], drawn), context, question="?", how="drawn")
    assert len(page.encode()) < 1_000_000
