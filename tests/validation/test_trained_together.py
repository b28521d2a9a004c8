"""The study of documents together with a network that needs two: lessons, questions, the page."""

import csv
import re

import numpy as np
import pytest
from reference.as_users import ROOT

from benchmarks.validation import together_page, trained_together
from benchmarks.validation.lessons import BATCH
from benchmarks.validation.trained_together import drawn_lesson, drawn_question

FLOORS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
DOORS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}


def halves_in(text, person):
    """The floors and the doors that sentences of a text say of a person."""
    floors = re.findall(rf"{person} sleeps on floor (\w+)\.", text)
    doors = re.findall(rf"{person} sleeps behind the (\w+) door\.", text)
    return {FLOORS[word] for word in floors}, {DOORS[word] for word in doors}


def expected_room(text, person):
    """What a text says of a person's room: its number where both halves stand there."""
    floors, doors = halves_in(text, person)
    if floors and doors:
        (floor,), (door,) = floors, doors
        return f"{floor}0{door}"
    return "unknown"


def questions_of(lesson):
    """The documents of a lesson, and its questions with their answers."""
    documents, *_ = lesson.prompts[0].partition("\n\nQuestion: ")
    questions = [prompt.split("Question: ")[1] for prompt in lesson.prompts]
    assert all(question.endswith("?\nAnswer:") for question in questions)
    assert all(answer[0] == " " for answer in lesson.answers)
    return documents, [
        (question.removesuffix("\nAnswer:"), answer[1:])
        for question, answer in zip(questions, lesson.answers, strict=True)
    ]


def test_a_lesson_names_a_room_where_both_halves_of_it_are_stated():
    halves = []
    for number in range(300):
        documents, questions = questions_of(drawn_lesson(number))
        ((person, room),) = [
            (question.split()[-2], answer)
            for question, answer in questions
            if question.startswith("In which room")
        ]
        assert room == expected_room(documents, person)
        floors, doors = halves_in(documents, person)
        halves.append((len(floors), len(doors)))
    assert {*halves} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert 0.4 < np.mean([half == (1, 1) for half in halves]) < 0.7
    assert 0.1 < np.mean([half == (0, 1) for half in halves]) < 0.3
    assert 0.1 < np.mean([half == (1, 0) for half in halves]) < 0.3


def test_a_lesson_asks_for_facts_that_its_documents_state_and_for_one_that_none_does():
    unknown = []
    copied = []
    for number in range(300):
        documents, questions = questions_of(drawn_lesson(number))
        facts = [asked for asked in questions if not asked[0].startswith("In which room")]
        count = trained_together.COUNTS[number // BATCH % len(trained_together.COUNTS)]
        assert len(facts) == min(3, count + 1)
        for question, answer in facts:
            person = re.findall(r"does (\w+)|did (\w+)|What does (\w+)", question)[0]
            (name,) = {word for word in person if word}
            said = [line for line in documents.splitlines() if f"{name} " in line]
            assert (answer == "unknown") == (not said)
            assert all(line.endswith(f"{answer}.") for line in said)
            unknown.append(not said)
        copied.append("As everybody here knows, " in documents)
    assert 0.2 < np.mean(unknown) < 0.5 and 0.15 < np.mean(copied) < 0.35


@pytest.mark.parametrize("seed", range(6))
def test_the_evidence_of_each_kind_stands_where_it_is_said_to(seed):
    for kind, count in (("one", 1), ("copy", 2), ("halves", 2)):
        drawn = drawn_question(kind, seed)
        texts = {document.title: document.text for document in drawn.documents}
        assert len(texts) == 4 + count and len(drawn.evidence) == count
        evidence = [texts[title] for title in drawn.evidence]
        assert len({*evidence}) == count, "a copy says the same in other words"
        others = [text for title, text in texts.items() if title not in drawn.evidence]
        if kind == "halves":
            person = drawn.question.split()[-2]
            assert drawn.answer == expected_room("\n".join(evidence), person) != "unknown"
            assert all(expected_room(text, person) == "unknown" for text in evidence)
            assert not any("sleeps" in text for text in others)
        else:
            assert all(text.endswith(f" {drawn.answer}.") for text in evidence)
            assert not any(drawn.answer in re.findall(r"\w+", text) for text in others)


def test_another_seed_draws_another_question():
    for kind in ("one", "copy", "halves"):
        drawn = [drawn_question(kind, seed) for seed in range(6)]
        assert len({one.question for one in drawn}) > 3, kind
        assert len({one.evidence for one in drawn}) > 3, "documents are in an order of its own"


def test_other_documents_say_things_of_other_kinds_of_others():
    drawn = drawn_question("one", 3)
    (title,) = drawn.evidence
    words = [document.text.split() for document in drawn.documents]
    assert len({text[0] for text in words}) == len({text[1] for text in words}) == 5
    (evidence,) = [document.text for document in drawn.documents if document.title == title]
    assert evidence.split()[0] in drawn.question


def test_the_network_is_judged_by_questions_that_are_not_asked(monkeypatch):
    monkeypatch.setattr(trained_together, "TESTS", 3)
    lessons = trained_together.unseen_lessons()
    assert len(lessons) == 3
    for number, lesson in enumerate(lessons):
        drawn = drawn_question("halves", 1000 + number)
        ((prompt,), (answer,)) = lesson
        assert prompt.endswith(f"\n\nQuestion: {drawn.question}\nAnswer:")
        assert all(f"{document.title}\n{document.text}\n" in prompt for document in drawn.documents)
        assert answer == f" {drawn.answer}"


def test_the_page_is_that_of_its_table():
    folder = ROOT / "docs" / "study"
    with (folder / "trained_together.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    page = (folder / "trained_together.md").read_text(encoding="utf-8")
    (right,) = re.findall(r"names the room of (\d+)%", page)
    about = trained_together.about_of(int(right) / 100, 72)
    table = trained_together.TABLE
    assert together_page.page_of(rows, trained_together.TITLE, about, table) == page
