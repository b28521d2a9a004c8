"""Documents laid out: each under a name of its own, whole and once, with the question after."""

import pytest

from lim_jax.prompts import Document, document_prompt, named_documents, tokenize_context
from lim_jax.prompts.documents import RenderedPrompt, title_size


def parts(laid):
    return {name: laid.text[start:end] for start, end, name in laid.spans}


def test_every_document_is_a_part_under_its_name():
    documents = [Document("One", "Text of it."), Document("", "Other\n\ntext."), Document("3", "T")]
    prompt = document_prompt(documents, "what is it")
    assert prompt.text == (
        "One\nText of it.\n\nOther\n\ntext.\n\n3\nT\n\nQuestion: what is it\nAnswer:"
    )
    assert parts(prompt) == {
        "One": "One\nText of it.",
        "document 2": "Other\n\ntext.",
        "3": "3\nT",
        "question": "what is it",
    }
    assert not prompt.marked


@pytest.mark.parametrize(
    "titles, names",
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "b"], ["a (document 1)", "a (document 2)", "b"]),
        (["question", ""], ["question (document 1)", "document 2"]),
        (
            ["the rest", "answer", "user 2", "tool 10", "user 2 (document 3)", "ruser 2"],
            [
                "the rest (document 1)",
                "answer (document 2)",
                "user 2 (document 3) (document 3)",
                "tool 10 (document 4)",
                "user 2 (document 3) (document 5)",
                "ruser 2",
            ],
        ),
        (["", "document 1"], ["document 1 (document 1)", "document 1 (document 2)"]),
        (
            ["a", "a", "a (document 1)"],
            ["a (document 1) (document 1)", "a (document 2)", "a (document 1) (document 3)"],
        ),
    ],
)
def test_no_two_documents_are_of_one_name(titles, names):
    named = named_documents([Document(title, "text") for title in titles])
    assert [one.name for one in named] == names
    assert [one.title for one in named] == titles


def test_names_stay_with_documents_in_another_order():
    named = named_documents([Document("", "first"), Document("", "second")])
    prompt = document_prompt(named[::-1], "what")
    assert list(parts(prompt).items())[:2] == [("document 2", "second"), ("document 1", "first")]


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    "documents, message",
    [
        ([], "documents: got none, expected a list of Document"),
        ([("a", "b")], "documents: got tuple at index 0, expected a list of Document"),
        ([Document("a", "b"), Document("a", " ")], "documents, document 2: got .*not empty"),
        ([Document(3, "b")], "documents, document 1: got .*expected a title and a text"),  # pyright: ignore
    ],
)
def test_what_is_no_document_is_refused(documents, message):
    with pytest.raises(ValueError, match=message):
        document_prompt(documents, "what")


@pytest.mark.usefixtures("as_users_run")
def test_empty_questions_and_spans_outside_the_text_are_refused():
    with pytest.raises(ValueError, match="question: got ' ', expected a text that is not"):
        document_prompt([Document("a", "b")], " ")
    with pytest.raises(ValueError, match="context: got the span .*<= 3"):
        tokenize_context(RenderedPrompt("ab", ((0, 4, "a"),)), "c")
    with pytest.raises(ValueError, match="loss: got .all., expected .next-token."):
        tokenize_context(RenderedPrompt("ab"), "c", loss="all")  # pyright: ignore


@pytest.mark.parametrize("title", ["Birds\tof prey", "Two\nlines", "a\x1b[31m", "Wren"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_title_is_known_by_its_name_whatever_letters_it_has(title, copies):
    """A name shows marks in place of what a terminal obeys; of several alike a number follows."""
    documents = named_documents([Document(title, "A bird.\nIt sings.")] * copies)
    prompt = document_prompt(documents, "who?")
    for start, end, name in prompt.spans[:copies]:
        assert title_size(name, prompt.text[start:end]) == len(title) + 1
    assert title_size(documents[0].name, "A bird.\nIt sings.") == 0
