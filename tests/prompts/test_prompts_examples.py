"""What small functions of the room give, written down by hand."""

import numpy as np

from lim_jax.prompts.contexts import Span, positions_by_name
from lim_jax.prompts.prompt_files import read_lines
from lim_jax.prompts.sentence_spans import paragraphs, sentences


def test_positions_by_name():
    spans = Span("b", np.array([4, 5])), Span("a", np.array([0])), Span("b", np.array([1, 4]))
    assert ({name: places.tolist() for name, places in positions_by_name(spans).items()}) == {
        "b": [1, 4, 5],
        "a": [0],
    }


def test_sentences():
    text = "Dr. Smith paid $3.14. Why? It is so."
    assert ([text[start:end] for start, end in sentences(text)]) == [
        "Dr. Smith paid $3.14. ",
        "Why? ",
        "It is so.",
    ]


def test_paragraphs():
    assert (paragraphs("One\nline.\n\nTwo.")) == [(0, 11), (11, 15)]


def test_read_lines(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(
        '{"documents": [{"text": "Wrens sing."}], "question": "Who?"}', encoding="utf-8"
    )
    (line,) = read_lines(path)
    assert (line.prompt.text) == "Wrens sing.\n\nQuestion: Who?\nAnswer:"
