"""Files of other people's tasks, as their publishers left them: read, never shipped."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lim_jax._checks import require
from lim_jax.tasks.documents import Question
from lim_jax.tasks.key_value import KeyValues
from lim_jax.tasks.needles import NeedleQuestion


def read_key_values(path: Path | str) -> list[KeyValues]:
    """Lost-in-the-middle's key-value pairs, of files like ``kv-retrieval-75_keys.jsonl.gz``.

    A line is an object of ``ordered_kv_records``, a list of pairs of texts, and of the ``key``
    that is asked for with its ``value``; what else it holds is not read.

    Parameters
    ----------
    path
        JSON lines, compressed where the name ends in ``.gz``.

    Raises
    ------
    ValueError
        Where there is no such file, or a line, which the message names, is no such object.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pairs.jsonl"
    ...     line = '{"ordered_kv_records": [["a", "1"], ["b", "2"]], "key": "b", "value": "2"}'
    ...     _ = path.write_text(line)
    ...     read_key_values(path)
    [KeyValues(pairs=(('a', '1'), ('b', '2')), gold=1)]
    """
    return [_key_values(record, where) for record, where in _lines(Path(path))]


def read_questions(path: Path | str) -> list[Question]:
    """Lost-in-the-middle's questions over documents, of ``nq-open-*_gold_at_*.jsonl.gz``.

    A line is an object of a ``question``, its ``answers``, and ``ctxs``: a list of objects of a
    ``title`` and a ``text``, one of them with a true ``isgold``; what else they hold is not read.

    Parameters
    ----------
    path
        As in `read_key_values`.

    Raises
    ------
    ValueError
        As in `read_key_values`; where no document is gold, or several are, too: the files of
        documents as they were retrieved have none.
    """
    return [_question(record, where) for record, where in _lines(Path(path))]


def read_needle_set(path: Path | str) -> list[NeedleQuestion]:
    """NoLiMa's needles and questions, of your own copy of ``needle_set.json``.

    Its licence allows research that is not commercial, and no use beside. The file is a list of
    objects of an ``id``, a ``needle``, ``questions`` by kind, ``tests`` by name, each with its
    ``input_args`` for ``{1}``, ``{2}``, ... in needle and question, and a ``character_set`` for
    ``{CHAR}``, or ``gold_answers`` of each test. Every test is asked every question, under the
    name of all three, such as ``0401_T02_onehop``. Prompts, templates and distractors of the file
    are not read.

    Raises
    ------
    ValueError
        Where there is no such file, or an entry, which the message names, is no such object.
    """
    path = Path(path)
    _require_file(path)
    entries = _parsed(path.read_text(encoding="utf-8"), str(path))
    needles = "the needles"
    _require(isinstance(entries, list) and len(entries) > 0, str(path), entries, needles)
    return [
        one
        for n, entry in enumerate(entries, 1)
        for one in _needle_questions(entry, f"{path}, entry {n}")
    ]


def _key_values(record: Mapping[str, Any], where: str) -> KeyValues:
    pairs = record.get("ordered_kv_records")
    expected = '"ordered_kv_records" as a list of pairs of texts'
    _require(
        isinstance(pairs, list) and all(_texts(pair) and len(pair) == 2 for pair in pairs),
        where, pairs, expected,
    )  # fmt: skip
    asked = [record.get("key"), record.get("value")]
    expected = 'one of the pairs as "key" and "value"'
    _require(asked in pairs, where, asked, expected)
    return KeyValues(tuple((key, value) for key, value in pairs), pairs.index(asked))


def _question(record: Mapping[str, Any], where: str) -> Question:
    question, answers, ctxs = (record.get(name) for name in ("question", "answers", "ctxs"))
    _require(isinstance(question, str), where, question, '"question" as a text')
    _require(_texts(answers), where, answers, '"answers" as a list of texts')
    expected = '"ctxs" as a list of documents, each with a title and a text'
    _require(isinstance(ctxs, list) and all(map(_is_document, ctxs)), where, ctxs, expected)
    gold = [number for number, document in enumerate(ctxs) if document.get("isgold") is True]
    _require(len(gold) == 1, where, f"{len(gold)} of gold", 'one document whose "isgold" is true')
    documents = tuple((document["title"], document["text"]) for document in ctxs)
    return Question(question, tuple(answers), documents, gold[0])


def _needle_questions(entry: Any, where: str) -> Iterator[NeedleQuestion]:
    """Of each test of a needle, and of each kind of question."""
    whole = isinstance(entry, Mapping) and isinstance(entry.get("needle"), str)
    _require(whole, where, entry, '"needle" as a text')
    questions, tests = entry.get("questions"), entry.get("tests")
    asked = isinstance(questions, Mapping) and _texts(list(questions.values()))
    _require(asked, where, questions, '"questions" as texts by kind')
    tested = isinstance(tests, Mapping) and all(isinstance(one, Mapping) for one in tests.values())
    _require(tested, where, tests, '"tests" as objects by name')
    for kind, question in questions.items():
        for name, test in tests.items():
            arguments = test.get("input_args", [])
            put = _texts(arguments) or arguments == []
            _require(put, where, arguments, '"input_args" as a list of texts')
            answers = entry.get("character_set" if "{CHAR}" in entry["needle"] else "")
            answers = test.get("gold_answers") if answers is None else answers
            expected = '"character_set" or "gold_answers" as a list of texts'
            _require(_texts(answers), where, answers, expected)
            filled = (_filled(text, arguments) for text in (entry["needle"], question))
            yield NeedleQuestion(f"{entry.get('id')}_{name}_{kind}", *filled, tuple(answers))


def _filled(text: str, arguments: list[str]) -> str:
    """With its arguments in the place of their numbers."""
    for number, argument in enumerate(arguments, 1):
        text = text.replace(f"{{{number}}}", argument)
    return text


def _lines(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each line's object, with the words for where it stands."""
    _require_file(path)
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                record = _parsed(line, where)
                _require(isinstance(record, Mapping), where, record, "a JSON object")
                yield record, where


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: got {text[:40]!r}, expected JSON. {error}.") from error


def _is_document(value: Any) -> bool:
    return isinstance(value, Mapping) and _texts([value.get("title"), value.get("text")])


def _texts(value: Any) -> bool:
    """Whether it is a list of texts, at least one."""
    whole = isinstance(value, list) and len(value) > 0
    return whole and all(isinstance(one, str) for one in value)


def _require(holds: bool, where: str, got: Any, expected: str) -> None:
    cure = "Pass the file as it was published."
    require(holds, where, got=repr(got)[:60], expected=expected, cure=cure)


def _require_file(path: Path) -> None:
    _require(path.is_file(), str(path), "no such file", "the publisher's file")
