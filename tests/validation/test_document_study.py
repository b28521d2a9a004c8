"""Questions over documents: each whole and once, the gold one where it should be."""

import re

import pytest

from benchmarks.validation.document_study import Question, question_prompt
from lim_jax.tasks import encode

DOCUMENTS = tuple((f"Title {letter}", f"About {letter}.\nAnd: more.") for letter in "pqrst")


@pytest.mark.parametrize("place", [0, 2, 4, None])
@pytest.mark.parametrize("gold", [0, 3])
def test_documents_are_numbered_in_order_with_gold_at_its_place(gold, place):
    data = Question("what is it", ("this one", "that"), DOCUMENTS, gold)
    prompt = question_prompt(data, place)
    at = gold if place is None else place
    assert prompt.gold == (at,) and prompt.answer == " this one"
    records = [prompt.text[start:end] for start, end in prompt.spans]
    numbers, titles, texts = zip(
        *(re.fullmatch(r"\[(\d+)\] (Title .): (.*)", one, re.DOTALL).groups() for one in records),  # pyright: ignore[reportOptionalMemberAccess]
        strict=True,
    )
    assert numbers == ("1", "2", "3", "4", "5")
    documents = list(zip(titles, texts, strict=True))
    assert documents[at] == DOCUMENTS[gold]
    assert [one for one in documents if one != DOCUMENTS[gold]] == [
        document for document in DOCUMENTS if document != DOCUMENTS[gold]
    ]
    assert prompt.text.endswith("\nQuestion: what is it\nAnswer:")
    # In bytes a place is a character here, and a record's places are its own.
    places = encode(prompt).records
    for number, record in enumerate(records):
        spelt = "".join(prompt.text[i] for i in (places == number).nonzero()[0])
        assert spelt == record
