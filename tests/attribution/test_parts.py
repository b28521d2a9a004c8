"""Parts of contexts and what they hold, by hand: energies and scores are small numbers."""

import numpy as np
import pytest

from lim_jax.attribution.answer_comparison import compare_answers, read_answers
from lim_jax.attribution.orders import average_orders, shuffled_shares
from lim_jax.attribution.parts import (
    context_names,
    is_document,
    iterate_parts,
    mean_shares,
    measured_contexts,
    shares_by_context,
)
from lim_jax.attribution.segments import document_numbers, document_segments
from lim_jax.attribution.token_text import group_tokens, in_text, most_in_words, sum_by_text
from lim_jax.prompts.contexts import Context, Span, tokenize_context
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.prompts.documents import RenderedPrompt


def context(letters, **spans):
    """A context of one letter a token, asked at its last, with named parts at these places."""
    weights = np.eye(len(letters))[-1]
    named = tuple(Span(name, np.array(places)) for name, places in spans.items())
    return Context(np.arange(len(letters) + 1), weights, tuple(letters), named)


TWO = context("abcd", one=[0], two=[1, 2])
ONE = context("efg", three=[0, 1])


def columns_of(part):
    """Return a part's score, tokens and share of the tokens, a row for each context."""
    return np.stack([part.scores, part.tokens, part.token_shares], axis=1)


def test_a_share_is_of_all_that_the_context_holds():
    shares = shares_by_context([TWO, ONE], [np.array([1.0, 2, 3, 4]), np.array([2.0, 2, 4])])
    held = {part.name: columns_of(part) for part in shares}
    nan = [np.nan] * 3
    np.testing.assert_array_equal(held["one"], [[0.1, 1, 1 / 4], nan])
    np.testing.assert_array_equal(held["two"], [[0.5, 2, 2 / 4], nan])
    np.testing.assert_array_equal(held["three"], [nan, [0.5, 2, 2 / 3]])
    np.testing.assert_array_equal(held[""], [[0.4, 1, 1 / 4], [0.5, 1, 1 / 3]])


def test_the_rest_stands_last_also_behind_parts_of_later_contexts():
    shares = shares_by_context([TWO, ONE], [np.ones(4), np.ones(3)])
    assert [part.name for part in shares] == ["one", "two", "three", ""]
    assert [part.kind for part in shares] == ["part"] * 3 + ["rest"]


def test_a_context_without_names_has_no_rest():
    assert list(iterate_parts(context("ab"))) == []
    (part,) = iterate_parts(context("ab", all=[0, 1]))
    assert part[0] == ("all", "part")


def test_the_question_and_messages_are_no_documents():
    names = ["a", "question", "user 2", "assistant 1", "user", ""]
    assert [name for name in names if is_document(name, "part")] == ["a", "user", ""]
    assert not is_document("a", "rest")


def test_records_are_means_over_the_contexts_that_have_them():
    other = context("xyz", one=[0], two=[1])
    contexts = [TWO, other]
    energies = [np.array([1.0, 2, 3, 4]), np.array([12.0, 2, 6])]
    records = mean_shares(shares_by_context(contexts, energies), contexts, energies)
    one, two, rest = records
    assert (one.name, one.kind, one.contexts, one.texts) == ("one", "part", 2, 2)
    np.testing.assert_allclose([one.share, two.share, rest.share], [0.35, 0.3, 0.35])
    np.testing.assert_allclose(one.error, 0.25)  # half of what 0.1 and 0.6 differ by
    assert two.tokens == 1.5 and two.of_tokens == pytest.approx((2 / 4 + 1 / 3) / 2)
    # Of the parts "bc" and "y" tokens hold 0.2, 0.3 and 0.1 of their contexts.
    assert two.most == "“c” 50 %, “b” 33 %, “y” 17 %"


def test_a_record_of_one_context_has_no_error_and_is_not_mixed_with_its_absence():
    energies = [np.ones(4), np.ones(3)]
    records = mean_shares(shares_by_context([TWO, ONE], energies), [TWO, ONE], energies)
    three = records[2]
    assert (three.name, three.contexts, three.texts, three.share) == ("three", 1, 1, 2 / 3)
    assert three.error == np.inf


def test_one_text_in_several_contexts_is_counted_once():
    contexts = [TWO, TWO]
    energies = [np.ones(4)] * 2
    records = mean_shares(shares_by_context(contexts, energies), contexts, energies)
    assert [record.texts for record in records] == [1, 1, 1]


def test_contexts_of_several_orders_are_numbered_within_their_line():
    names = context_names([TWO] * 4, orders=2)
    assert names == [f"context {number}, order {number % 2}" for number in range(4)]


def test_measured_contexts_know_the_first_place_that_asks():
    several = TWO._replace(weights=np.array([0, 0.5, 0, 0.5]), id="7")
    energies = [np.array([1.0, 1, 0, 2])]
    measured = measured_contexts([several], energies, shares_by_context([several], energies), 0.2)
    assert measured.asked == [1] and measured.names == ["7"] and measured.delta == 0.2
    assert measured.shares == {"one": [0.25], "two": [0.25]}, "the rest is no record"


def line(names, orders):
    """A line of documents of one letter each, in these orders, before a question."""
    contexts = []
    for order in orders:
        letters = "".join(names[number] for number in order) + "?"
        places = {names[number]: [place] for place, number in enumerate(order)}
        contexts.append(context(letters, **places))
    return ShuffledContexts(tuple(names), np.array(orders), tuple(contexts))


ORDERS = [[1, 0, 2], [0, 2, 1], [2, 1, 0]]
ENERGIES = [np.array([6.0, 1, 1, 2]), np.array([2.0, 2, 4, 2]), np.array([1.0, 3, 4, 2])]


def test_orders_of_a_line_are_averaged_and_their_parts_stand_as_in_the_line():
    """Of each order the energies sum to ten; the first shuffle begins with another document."""
    shuffled = line("ABC", ORDERS)
    alone, averaged, shares = average_orders([shuffled], ENERGIES)
    assert alone == [shuffled.contexts[0]]
    np.testing.assert_allclose(averaged[0], np.mean(ENERGIES, axis=0))
    assert [part.name for part in shares] == ["A", "B", "C", ""]
    held = [part.scores[0] for part in shares]
    # By order A holds 0.1, 0.2, 0.4; B 0.6, 0.4, 0.3; C 0.1, 0.2, 0.1.
    np.testing.assert_allclose(held, [0.7 / 3, 1.3 / 3, 0.4 / 3, 0.2])


def test_shares_of_places_and_documents_are_told_by_the_documents_own_numbers():
    second = line("CAB", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])  # the same names in another order
    shares = shuffled_shares([line("ABC", ORDERS), second], ENERGIES * 2)
    assert shares.names == ("A", "B", "C") and shares.same
    assert shares.documents[0].tolist() == ORDERS
    assert shares.documents[1].tolist() == [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
    np.testing.assert_allclose(shares.shares[0, 0], [0.6, 0.1, 0.1])


def test_documents_of_other_names_are_told_by_their_number_in_the_line():
    shares = shuffled_shares([line("ABC", ORDERS), line("ABD", ORDERS)], ENERGIES * 2)
    assert shares.names == ("document 1", "document 2", "document 3") and not shares.same
    assert shares.documents.tolist() == [ORDERS, ORDERS]


def test_documents_of_one_name_and_other_texts_are_not_the_same():
    other = line("ABC", ORDERS)
    tokens = [one._replace(tokens=tuple("xyz?")) for one in other.contexts]
    shares = shuffled_shares(
        [line("ABC", ORDERS), other._replace(contexts=tuple(tokens))], ENERGIES * 2
    )
    assert shares.names == ("A", "B", "C") and not shares.same


def segments(text, *spans, parts="sentences"):
    """Places and texts of the parts of one document, whose ends are in characters."""
    prompt = RenderedPrompt(text, tuple((*span, "a") for span in spans))
    pieces = document_segments(tokenize_context(prompt, " I"), parts)
    return [(part.text, part.positions.tolist()) for part in pieces]


def test_a_sentence_may_begin_with_a_character_of_many_bytes():
    """Its text is at the last of its tokens, and all of them are of the new sentence."""
    assert segments("One. Été.", (0, 9)) == [
        ("One. ", [0, 1, 2, 3, 4]),
        ("Été.", [5, 6, 7, 8, 9, 10]),
    ]
    assert segments("So. 雨。雨。", (0, 8)) == [
        ("So. ", [0, 1, 2, 3]),
        ("雨。", [4, 5, 6, 7, 8, 9]),
        ("雨。", [10, 11, 12, 13, 14, 15]),
    ]


def test_tokens_of_a_document_that_make_no_character_are_of_its_last_part():
    """As where a document's last character ends in a token behind it."""
    cut = tokenize_context(RenderedPrompt("Up. Né", ((0, 6, "a"),)), " I")
    short = cut._replace(spans=(Span("a", np.arange(6)),))
    assert [part.positions.tolist() for part in document_segments(short)] == [[0, 1, 2, 3], [4, 5]]


def test_a_document_in_two_stretches_has_parts_in_each():
    assert segments("Up. On. | In.", (0, 7), (10, 13)) == [
        ("Up. ", [0, 1, 2, 3]),
        ("On.", [4, 5, 6]),
        ("In.", [10, 11, 12]),
    ]


def numbers(text, *spans):
    return document_numbers(tokenize_context(RenderedPrompt(text, spans), " I")).tolist()


def test_only_a_document_that_begins_the_context_has_a_first_token_of_its_own():
    first = numbers("Up On", (0, 2, "a"), (3, 5, "b"))
    assert first == [-2, 0, -1, 1, 1, -1]
    assert numbers("Hi Up", (3, 5, "a")) == [-1, -1, -1, 0, 0, -1]
    asked = numbers("Who Up", (0, 3, "question"), (4, 6, "a"))
    assert asked == [-1, -1, -1, -1, 0, 0, -1]


def test_tokens_of_one_text_are_held_together_and_pieces_with_their_character():
    texts = ["a", "", "é", "a", ""]
    held = sum_by_text(texts, [1.0, 2.0, 4.0, 8.0, 16.0], [0, 2, 3, 4])
    assert held == {"a": 9.0, "é": 4.0, "\N{REPLACEMENT CHARACTER}": 16.0}
    assert group_tokens(["a", ""]) == [("a", [0]), ("\N{REPLACEMENT CHARACTER}", [1])]
    assert most_in_words({"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}) == "“b” 40 %, “d” 30 %, “c” 20 %"


def test_white_space_is_shown_where_there_is_nothing_else():
    assert [in_text(token) for token in (" a", "  ", " \n", "\t", "\x07")] == [
        " a",
        "··",
        "·⏎\n",
        "⇥",
        "⟨07⟩",
    ]


def answer(scores, **more):
    """What answer.json holds of parts with these scores, of kinds by their names."""
    kinds = {"": "rest", "question": "question"}
    parts = [
        {"name": name, "kind": kinds.get(name, "document"), "score": score}
        for name, score in scores.items()
    ]
    about = {"question": "Who?", "answer": "Wren", "cut": False, "foil": "", "given": None}
    about["method"] = "mask-path"
    return {**about, **more, "parts": parts}


def test_answers_are_compared_part_by_part_the_second_less_the_first():
    first = answer({"a": 1.0, "": 0.5, "question": 0.25, "b": 0.5}, given=2.0)
    second = answer({"question": 0.5, "c": 0.125, "a": 1.25, "": 0.5, "b": -1.0}, given=-1.0)
    compared = compare_answers(first, second, ("old", "new"))
    rows = {part.name: part[2:5] for part in compared.parts}
    assert list(rows) == ["a", "b", "c", "question", ""]
    assert rows["b"] == (0.5, -1.0, -1.5) and rows["a"] == (1.0, 1.25, 0.25)
    assert compared.finding.splitlines()[2:] == [
        "Of the documents of both “b” changed most, from +0.500 to -1.000.",
        "Only in new: “c” (+0.125).",
        "All documents together give +2.00 and -1.00 of log odds.",
    ]


def digested(texts, **more):
    """An answer from documents of these names, whose digests are their texts, each scored."""
    record = answer({name: score for name, (_, score) in texts.items()}, **more)
    for part in record["parts"]:
        part["digest"] = texts[part["name"]][0]
    return record


def test_documents_of_two_answers_are_paired_by_their_texts():
    """Their numbers, which may be their names, change where another document is left out."""
    first = digested(
        {
            "document 1": ("wren", 1.0),
            "Barn (document 2)": ("owl", 0.5),
            "document 3": ("crow", 0.25),
        }
    )
    second = digested({"document 1": ("owl", 0.75), "document 2": ("crow", 0.125)})
    compared = compare_answers(first, second, ("all", "few"))
    assert str(compared).splitlines()[2:] == [
        "Of the documents of both “Barn (document 2)” (in few “document 1”) changed most, from "
        "+0.500 to +0.750.",
        "Only in all: “document 1” (+1.000).",
        "",
        "score                                         all     few  difference",
        "“document 1”                               +1.000",
        "“Barn (document 2)” (in few “document 1”)  +0.500  +0.750      +0.250",
        "“document 3” (in few “document 2”)         +0.250  +0.125      -0.125",
    ]
    assert [part.second_name for part in compared.parts] == ["", "document 1", "document 2"]


def test_a_document_whose_text_was_changed_is_the_same_by_its_title():
    first = digested({"town": ("old", 1.0), "port": ("sea", 0.5)})
    second = digested({"port": ("sea", 0.5), "town": ("new", 0.75)})
    assert compare_answers(first, second).finding.splitlines()[2:] == [
        "Of the documents of both “town” changed most, from +1.000 to +0.750."
    ]


@pytest.mark.parametrize("name", ["document 1", "Barn (document 1)"])
def test_two_texts_under_one_number_are_two_documents(name):
    first = digested({name: ("old", 1.0), "port": ("sea", 0.5)})
    second = digested({"port": ("sea", 0.5), name: ("new", 0.75)})
    assert compare_answers(first, second).finding.splitlines()[2:] == [
        "Of the documents of both none changed.",
        f"Only in first: “{name}” (+1.000).",
        f"Only in second: “{name}” (+0.750).",
    ]
    with pytest.raises(ValueError, match="other documents.* by their texts"):
        compare_answers(digested({name: ("old", 1.0)}), digested({name: ("new", 1.0)}))


def test_documents_of_one_text_are_paired_by_name_where_they_can_be():
    first = digested({"b": ("same", 1.0), "a": ("same", 0.5)})
    second = digested({"a": ("same", 0.25), "c": ("same", 0.75)})
    pairs = {(part.name, part.second_name): part[2:4] for part in compare_answers(first, second)[2]}
    assert pairs == {("a", ""): (0.5, 0.25), ("b", "c"): (1.0, 0.75)}


def test_documents_are_paired_by_name_where_an_answer_says_nothing_of_texts():
    first = digested({"a": ("old", 1.0), "b": ("sea", 0.5)})
    compared = compare_answers(first, answer({"a": 0.5, "b": 0.5}))
    assert [part[:4] for part in compared.parts] == [
        ("a", "document", 1.0, 0.5),
        ("b", "document", 0.5, 0.5),
    ]


def test_it_is_said_first_that_two_answers_are_to_different_questions():
    first = answer({"a": 1.0})
    assert "questions" not in compare_answers(first, first).finding
    second = answer({"a": 0.5}, question="Who\nsings?")
    said, *_ = compare_answers(first, second).finding.splitlines()
    assert said == "They answer different questions: “Who?” and “Who sings?”."


def test_it_is_said_that_two_answers_are_compared_with_different_foils():
    """Their scores are of other odds."""
    first = answer({"a": 1.0}, foil="Owl")
    assert "foils" not in compare_answers(first, first).finding
    second = answer({"a": 0.5}, foil="Bar\nowl", question="Who sings?")
    said = compare_answers(first, second).finding.splitlines()
    assert said[0].startswith("They answer different questions")
    assert said[1] == "They are compared with different foils: “Owl” and “Bar owl”."


def test_scores_that_are_zero_in_all_digits_shown_did_not_change():
    """Whatever their signs."""
    compared = compare_answers(answer({"a": 1e-4}), answer({"a": -1e-4}))
    assert "Of the documents of both none changed." in compared.finding
    assert compared.rows[1] == ["“a”", "+0.000", "+0.000", "+0.000"]


@pytest.mark.parametrize(
    "second, message",
    [
        (answer({"a": 1.0}, foil="Owl"), "got scores by mask-path, against a foil"),
        (answer({"a": 1.0}, method="mask-gradient"), "got scores by mask-gradient"),
        (answer({"question": 1.0, "": 0.5}), "got an answer from other documents"),
    ],
)
def test_answers_that_have_nothing_to_compare_are_refused(second, message):
    with pytest.raises(ValueError, match=message):
        compare_answers(answer({"a": 1.0, "question": 0.5, "": 0.5}), second)


def test_answers_are_read_where_both_folders_have_one(tmp_path):
    """Where one alone has, the two are of different commands."""
    profile = tmp_path / "profile"
    profile.mkdir()
    assert read_answers(profile, profile) == []
    (tmp_path / "answer.json").write_text("{}", encoding="utf-8")
    for folders, name in (((tmp_path, profile), "second"), ((profile, tmp_path), "first")):
        with pytest.raises(ValueError, match=f"{name}: got .*profile, which has no answer.json"):
            read_answers(*folders)
