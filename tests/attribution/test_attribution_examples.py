"""What small functions of the room give, written down by hand."""

import numpy as np

from lim_jax.attribution.answer import AnswerPart, answer_finding
from lim_jax.attribution.answer_comparison import compare_answers, shown_answer
from lim_jax.attribution.mean_scores import MeanScore, ScoresOfContexts, scores_finding
from lim_jax.attribution.parts import context_names
from lim_jax.attribution.segments import Segment, document_numbers, document_segments
from lim_jax.attribution.token_text import (
    group_tokens,
    in_text,
    most_in_words,
    readable,
    sum_by_text,
)
from lim_jax.attribution.without_parts import without_parts
from lim_jax.prompts import tokenize_context
from lim_jax.prompts.documents import RenderedPrompt

SPANS = ((0, 4, "first"), (4, 8, "second"), (8, 12, "third"))


def test_a_context_without_a_part_closes_up_and_knows_the_parts_that_are_left():
    context = tokenize_context(RenderedPrompt("a=1 b=2 c=3 a=", SPANS), "1")
    parts = [Segment(name, (), np.arange(start, end)) for start, end, name in SPANS]
    left = without_parts(context, parts, np.array([True, False, True]))
    assert bytes(left.window.tolist()) == b"a=1 c=3 a=1" and "".join(left.tokens) == "a=1 c=3 a="
    assert left.weights.nonzero()[0].tolist() == [9]
    assert {span.name: span.positions.tolist() for span in left.spans} == {
        "first": [0, 1, 2, 3],
        "third": [4, 5, 6, 7],
    }


def test_answer_finding():
    parts = [
        AnswerPart("a", "document", 0.3, 0.75, 40, 0.4, ""),
        AnswerPart("b", "document", 0.1, 0.25, 60, 0.6, ""),
    ]
    assert answer_finding(parts, "Wren") == (
        "The answer “Wren” comes from “a” most of all: it holds 75 % of what the 2 documents hold, "
        "with 40 of their 100 tokens. They hold 40 % of the whole influence."
    )
    parts[1] = parts[1]._replace(score=-1.6)
    assert answer_finding(parts, "Wren", signed=True) == (
        "The answer “Wren” comes from “a” most of all: +0.30, with 40 of 100 tokens of documents. "
        "Against it speaks “b” most: -1.60."
    )


def test_compare_answers():
    parts = [{"name": name, "kind": "document", "score": 0.5} for name in "ab"]
    about = {"question": "", "method": "mask-path", "foil": "", "cut": False, "given": None}
    first = {**about, "answer": "Wren", "parts": parts}
    second = {**about, "answer": "Owl", "parts": [{**parts[0], "score": -1.0}]}
    said = """first: “Wren”
second: “Owl”
Of the documents of both “a” changed most, from +0.500 to -1.000.
Only in first: “b” (+0.500).

score   first  second  difference
“a”    +0.500  -1.000      -1.500
“b”    +0.500"""
    assert str(compare_answers(first, second)) == said


def test_context_names():
    context = tokenize_context(RenderedPrompt("Wren. Who sings?", ((6, 16, "question"),)), " She")
    assert (
        context_names([context._replace(id="7"), tokenize_context(RenderedPrompt("Who?"), " She")])
    ) == ["“Who sings?” (id 7)", "context 1"]


def test_scores_finding():
    parts = [
        MeanScore(name, "part", score, 0.125, score, 2, 0.1, 9, 1, "")
        for name, score in (("a", -0.5), ("b", 1.5))
    ]
    assert (scores_finding(ScoresOfContexts("mask-gradient", [], [], parts))) == (
        "“b” has the largest score by mask-gradient, +1.500 ± 0.125. "
        "“a” has the least, -0.500 ± 0.125."
    )


def test_document_segments():
    prompt = RenderedPrompt("Up. Down. Who?", ((0, 9, "a"), (10, 14, "question")))
    assert (
        [(part.within, part.text) for part in document_segments(tokenize_context(prompt, " I"))]
    ) == [
        ("a", "Up. "),
        ("a", "Down."),
    ]


def test_document_numbers():
    assert (
        document_numbers(
            tokenize_context(RenderedPrompt("Up. Who?", ((0, 3, "a"),)), " I")
        ).tolist()
    ) == [-2, 0, 0, -1, -1, -1, -1, -1, -1]


def test_group_tokens():
    assert (group_tokens(["n", "", "é", "!", ""])) == [
        ("n", [0]),
        ("é", [1, 2]),
        ("!", [3]),
        ("�", [4]),
    ]


def test_sum_by_text():
    assert (sum_by_text(["a", "", "é", "a"], [1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3])) == {
        "a": 5.0,
        "é": 5.0,
    }


def test_most_in_words():
    assert (
        most_in_words({" the": 1.0, "Wren": 6.0, "\n": 0.5, ".": 0.5})
    ) == "“Wren” 75 %, “ the” 12 %, “⏎” 6 %"


def test_tokens_that_hold_nothing_are_not_among_those_that_hold_most():
    assert most_in_words({"⏎": 1.0, "school": 0.0, "The": 0.0}) == "“⏎” 100 %"
    assert most_in_words({"a": 1.0, "b": 1e-3, "c": 0.0}) == "“a” 100 %, “b” 0.1 %"


def test_in_text():
    shown = {" the": " the", "  ": "··", ".\n": ".⏎\n", "\x00": "⟨00⟩", "": "�"}
    # Spaces of any width and what joins letters are marked only where nothing else is to be seen.
    shown |= {"\u00a0!": "\u00a0!", "\u3000": "·", "می\u200c": "می\u200c", "\u200d": "⟨200d⟩"}
    assert {token: in_text(token) for token in shown} == shown


def test_readable():
    """What a terminal would obey has a mark, and what no one sees; joiners of letters stay."""
    assert readable("a\tb\n\u00a0می\u200cخ\u200f\u2068 👩\u200d👧\x1b[1m\r\u202b\u2028") == (
        "a\tb\n\u00a0می\u200cخ⟨200f⟩⟨2068⟩ 👩\u200d👧⟨1b⟩[1m␍⟨202b⟩\u2028"
    )


def test_shown_answer():
    """Three dots behind an answer that was cut, with those that it ends with."""
    cut = {"It is": "It is...", "It is. ": "It is...", "Well..": "Well...", "So...": "So..."}
    cut |= {"So…": "So…", "¿Sí?": "¿Sí?...", "a\nb": "a b..."}
    assert {text: shown_answer(text, True) for text in cut} == cut
    assert shown_answer("It is. ", False) == "It is."
