"""The page of an answer in any script, by any tokenizer: no character is lost, none is doubled.

What no one would see has a mark: of these texts a soft hyphen, a mark of direction and a BOM.
"""

from typing import get_args

import numpy as np
import pytest
from reference.pages import Read
from reference.scripts import ANSWER, DOCUMENTS, QUESTION, TEXTS, TOKENIZERS

from lim_jax.attribution.method import scores_by_token
from lim_jax.attribution.segments import DocumentParts, answer_segments, document_segments
from lim_jax.prompts import document_prompt, named_documents, tokenize_context
from lim_jax.prompts.sentence_spans import sentences
from lim_jax.report.sources import sources_page

NAMES = [document.name for document in named_documents(DOCUMENTS)]
# These decode to another text than was encoded: letters are composed, made small, or unknown.
ALTERING = ("unigrams", "unigrams over spaces", "pieces of words", "GGUF, qwen2")
MARKS = str.maketrans({"\u00ad": "⟨ad⟩", "\u200e": "⟨200e⟩", "\ufeff": "⟨feff⟩"})


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenized_answer(request):
    """The name of a tokenizer, and an answer with its documents as it reads them."""
    tokenizer = TOKENIZERS[request.param]()
    prompt = document_prompt(DOCUMENTS, QUESTION)
    context = tokenize_context(prompt, f" {ANSWER}", tokenizer, loss="margin")
    return request.param, context, tokenizer


def shown(element, of_class):
    """What stands in the elements of a class that are inside of one."""
    inside = [one for one in element["inside"] if of_class in one.get("class", "").split()]
    return [one["inner"] for one in inside]


@pytest.mark.parametrize("parts", ["sentence", "token"])
def test_the_pages_texts_are_the_documents(tokenized_answer, parts):
    name, context, tokenizer = tokenized_answer
    answer = answer_segments(context, tokenizer, parts)
    scores = scores_by_token(answer, [], np.zeros((len(answer), context.length)))
    page = Read(sources_page(scores, context, question=QUESTION, how="drawn"))
    articles = {}
    for article in page.all("article"):
        (heading,) = (one for one in article["inside"] if one["tag"] == "h3")
        articles[" ".join(heading["inner"].split())] = article
    assert sorted(articles) == sorted(" ".join(one.split()) for one in NAMES)
    for one, text, document in zip(NAMES, TEXTS, DOCUMENTS, strict=True):
        article = articles[" ".join(one.split())]
        assert "".join(shown(article, "t")) == text.translate(MARKS)
        if name != "pairs over every edge":  # of which one may hold an end and a beginning
            title = f"{document.title}\n" * bool(document.title)
            cut = sentences(document.text)
            said = [title, *(document.text[start:end] for start, end in cut)]
            assert shown(article, "part") == [part.translate(MARKS) for part in said if part]
            assert "".join(shown(article, "title")) == title
    if name not in ALTERING:
        assert "".join(row["inner"] for row in page.all("span", "row")).strip() == ANSWER
    # The answer's last token was not read, with which its last letter may end.
    rest = "".join(shown(page.all("details")[0], "t"))
    assert "\ufffd" not in rest.removesuffix("\ufffd")


@pytest.mark.parametrize("parts", get_args(DocumentParts))
def test_parts_of_documents_are_the_documents(tokenized_answer, parts):
    """In every cut: each token is in one part, and the parts' texts are the document's."""
    _, context, _ = tokenized_answer
    segments = document_segments(context, parts)
    for span, text in zip(context.spans, TEXTS, strict=False):
        parts_of_document = [segment for segment in segments if segment.within == span.name]
        assert "".join(one.text for one in parts_of_document) == text == "".join(span.texts)
        assert (
            np.concatenate([one.positions for one in parts_of_document]).tolist()
            == span.positions.tolist()
        )
        assert all(len(one.texts) == one.positions.size for one in parts_of_document)
