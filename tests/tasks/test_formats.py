"""Readers of publishers' files, on small files of our own in the same format."""

import gzip
import json

import pytest

from lim_jax.tasks import (
    KeyValues,
    NeedleQuestion,
    Question,
    key_value_prompt,
    question_prompt,
    read_key_values,
    read_needle_set,
    read_questions,
)

PAIRS = {"ordered_kv_records": [["k1", "v1"], ["k2", "v2"], ["k3", "v3"]], "key": "k2",
         "value": "v2"}  # fmt: skip
OTHER = {"ordered_kv_records": [["é", "1"], ["b", "2"]], "key": "é", "value": "1", "id": 7}
ASKED = {
    "question": "who keeps bees",
    "answers": ["the smith", "Ann"],
    "ctxs": [
        {"id": "3", "title": "Mill", "text": "The miller bakes.", "isgold": False, "score": "1.5"},
        {"title": "Forge", "text": "Ann, the smith,\nkeeps bees.", "isgold": True},
        {"title": "Inn", "text": "The host sings.", "hasanswer": False},
    ],
    "nq_annotated_gold": {"title": "Forge"},
}
NEEDLES = [
    {
        "id": "07", "reasoning_type": "x", "system_prompt": "", "needle": "{CHAR} owns a {1}.",
        "questions": {"near": "Who has a {1}?", "far": "Who could go {2}?"},
        "character_set": ["Ada", "Emmy"],
        "tests": {
            "A": {"input_args": ["boat", "sailing"]}, "B": {"input_args": ["kiln", "potting"]},
        },
    },
    {
        "id": "08", "needle": "The {1} is {2}.", "questions": {"near": "What is the {1}?"},
        "tests": {"A": {"input_args": ["door", "red"], "gold_answers": ["red", "reddish"]}},
        "character_set": ["Ada"],
    },
]  # fmt: skip


def lines(path, *records):
    """Of JSON, the last without an end and an empty one between; compressed as the name says."""
    text = "\n\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["kv.jsonl", "kv.jsonl.gz"])
def test_key_value_pairs_are_read(tmp_path, name):
    found = read_key_values(lines(tmp_path / name, PAIRS, OTHER))
    assert found == [
        KeyValues((("k1", "v1"), ("k2", "v2"), ("k3", "v3")), 1),
        KeyValues((("é", "1"), ("b", "2")), 0),
    ]
    assert key_value_prompt(found[0], 2).gold == (2,)


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.jsonl.gz"])
def test_questions_are_read_with_their_documents(tmp_path, name):
    # A text may hold what Python takes for the end of a line and JSON does not.
    odd = ASKED | {"question": "who\u2028sings", "answers": ["host"]}
    first, second = read_questions(lines(tmp_path / name, ASKED, odd))
    documents = (
        ("Mill", "The miller bakes."),
        ("Forge", "Ann, the smith,\nkeeps bees."),
        ("Inn", "The host sings."),
    )
    assert first == Question("who keeps bees", ("the smith", "Ann"), documents, 1)
    assert second == Question("who\u2028sings", ("host",), documents, 1)
    prompt = question_prompt(first, 0)
    assert prompt.text.index("Forge") < prompt.text.index("Mill") < prompt.text.index("Inn")


def test_needles_are_read_with_every_question_of_every_test(tmp_path):
    path = tmp_path / "needle_set.json"
    path.write_text(json.dumps(NEEDLES))
    names = ("Ada", "Emmy")
    assert read_needle_set(path) == [
        NeedleQuestion("07_A_near", "{CHAR} owns a boat.", "Who has a boat?", names),
        NeedleQuestion("07_B_near", "{CHAR} owns a kiln.", "Who has a kiln?", names),
        NeedleQuestion("07_A_far", "{CHAR} owns a boat.", "Who could go sailing?", names),
        NeedleQuestion("07_B_far", "{CHAR} owns a kiln.", "Who could go potting?", names),
        NeedleQuestion("08_A_near", "The door is red.", "What is the door?", ("red", "reddish")),
    ]


@pytest.mark.parametrize(
    "read, good, change, message",
    [
        (read_key_values, PAIRS, {"ordered_kv_records": [["a"]]}, "ordered_kv_records as a list"),
        (read_key_values, PAIRS, {"ordered_kv_records": []}, "ordered_kv_records as a list"),
        (read_key_values, PAIRS, {"key": 3}, "got key = 3, expected key as a text"),
        (read_key_values, PAIRS, {"value": "v1"}, "got k2: v1, expected one of the pairs"),
        (read_questions, ASKED, {"question": None}, "question as a text"),
        (read_questions, ASKED, {"answers": []}, "answers as a list of texts"),
        (read_questions, ASKED, {"answers": "Ann"}, "answers as a list of texts"),
        (read_questions, ASKED, {"ctxs": [{"title": "a"}]}, "ctxs as a list of objects of title"),
        (read_questions, ASKED, {"ctxs": ASKED["ctxs"][:1]}, "got 0 documents of gold"),
        (read_questions, ASKED, {"ctxs": ASKED["ctxs"] + ASKED["ctxs"]}, "got 2 documents of"),
    ],
)
def test_a_line_that_is_none_of_the_format_is_named(tmp_path, read, good, change, message):
    path = lines(tmp_path / "data.jsonl", good, good | change)
    with pytest.raises(ValueError, match=f"line 3: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"id": None}, "got id = None, expected id as a text or a whole number"),
        ({"id": True}, "got id = True"),
        ({"needle": None}, "got needle = None, expected needle as a text"),
        ({"questions": {}}, "questions as an object of texts"),
        ({"questions": ["Who?"]}, "questions as an object of texts"),
        ({"tests": {"A": []}}, "tests as an object of objects"),
        ({"tests": {"A": {}}}, "input_args as a list of texts"),
        ({"tests": {"A": {"input_args": ["door", "red"]}}}, "gold_answers as a list of texts"),
        ({"needle": "{CHAR} is {2}.", "character_set": "Ada"}, "character_set as a list"),
    ],
)
def test_a_needle_that_is_none_of_the_format_is_named(tmp_path, change, message):
    path = tmp_path / "needle_set.json"
    path.write_text(json.dumps([NEEDLES[0], NEEDLES[1] | change]))
    with pytest.raises(ValueError, match=f"entry 2: .*{message}"):
        read_needle_set(path)


def test_files_that_are_something_else_are_refused(tmp_path):
    for read in (read_key_values, read_questions, read_needle_set):
        with pytest.raises(ValueError, match="nothing.json: got no such file"):
            read(tmp_path / "nothing.json")
        path = tmp_path / "data.json"
        path.write_text("[1,")
        with pytest.raises(ValueError, match=r"expected JSON \(.*Pass the file"):
            read(path)
    path.write_text("3")
    with pytest.raises(ValueError, match="data.json: got 3, expected a list of needles"):
        read_needle_set(path)
    with pytest.raises(ValueError, match="data.json, line 1: got 3, expected an object"):
        read_questions(path)
    # A pointer to a file in a large store, which a clone may leave in its place.
    pointer = tmp_path / "data.jsonl.gz"
    pointer.write_text("version 1\noid sha256:0\n")
    with pytest.raises(ValueError, match="got b'version 1.*expected compressed lines"):
        read_key_values(pointer)
    pointer.write_bytes(gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(ValueError, match="got .*expected compressed lines"):
        read_key_values(pointer)
    path.write_text('{"key": "a", "key": "b"}')
    with pytest.raises(ValueError, match=r'line 1: .*expected JSON \(the name "key" stands twice'):
        read_key_values(path)
    path.write_bytes(b"[\xe9]")
    with pytest.raises(ValueError, match="data.json, whose byte 1 is not of UTF-8"):
        read_needle_set(path)
