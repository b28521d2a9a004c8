"""Files of other people's tasks, as their publishers left them: read, never shipped."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lim_jax._checks import AnyPath, as_path, require
from lim_jax._files import decoded, parsed_json
from lim_jax.tasks.documents import Question
from lim_jax.tasks.key_value import KeyValues
from lim_jax.tasks.needles import NeedleQuestion

Record = dict[str, Any]
Check = Callable[[Any], bool]
CURE = "Pass the file as it was published."


def read_key_values(path: AnyPath) -> list[KeyValues]:
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
    return [_key_values(record, where) for record, where in _lines(as_path(path))]


def read_questions(path: AnyPath) -> list[Question]:
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
    return [_question(record, where) for record, where in _lines(as_path(path))]


def read_needle_set(path: AnyPath) -> list[NeedleQuestion]:
    """NoLiMa's needles and questions, of your own copy of ``needle_set.json``.

    Its licence allows research that is not commercial, and no use beside. The file is a list of
    objects of an ``id``, a ``needle``, ``questions`` by kind, ``tests`` by name, each with its
    ``input_args`` for ``{1}``, ``{2}``, ... in needle and question, and a ``character_set`` for
    ``{CHAR}``, or ``gold_answers`` of each test. Every test is asked every question, under the
    names of needle, test and kind with ``_`` between. Prompts, templates and distractors of the
    file are not read.

    Raises
    ------
    ValueError
        Where there is no such file, or an entry, which the message names, is no such object.
    """
    path = as_path(path)
    _require_file(path)
    entries = parsed_json(decoded(path.read_bytes(), path, "path"), str(path), CURE)
    whole = isinstance(entries, list) and len(entries) > 0
    _require(whole, str(path), entries, "a list of needles")
    return [
        question
        for number, entry in enumerate(entries, 1)
        for question in _needle_questions(entry, f"{path}, entry {number}")
    ]


def _key_values(record: Record, where: str) -> KeyValues:
    pairs = _part(record, "ordered_kv_records", _pairs, where, "a list of pairs of texts")
    key, value = (_part(record, name, _text, where, "a text") for name in ("key", "value"))
    _require([key, value] in pairs, where, f"{key}: {value}", "one of the pairs as key and value")
    return KeyValues(tuple(map(tuple, pairs)), pairs.index([key, value]))


def _question(record: Record, where: str) -> Question:
    question = _part(record, "question", _text, where, "a text")
    answers = _part(record, "answers", _texts, where, "a list of texts")
    documents = _part(record, "ctxs", _documents, where, "a list of objects of title and text")
    gold = [number for number, one in enumerate(documents) if one.get("isgold") is True]
    _require(len(gold) == 1, where, f"{len(gold)} documents of gold", "one whose isgold is true")
    texts = tuple((one["title"], one["text"]) for one in documents)
    return Question(question, tuple(answers), texts, gold[0])


def _needle_questions(entry: Any, where: str) -> Iterator[NeedleQuestion]:
    """Of each kind of question and of each test, in their order."""
    _require(isinstance(entry, dict), where, entry, "an object")
    needle = _part(entry, "needle", _text, where, "a text")
    name_of = _part(entry, "id", _name, where, "a text or a whole number")
    questions = _part(entry, "questions", _texts_by_name, where, "an object of texts")
    tests = _part(entry, "tests", _objects_by_name, where, "an object of objects")
    for kind, question in questions.items():
        for name, test in tests.items():
            arguments = _part(test, "input_args", _texts, where, "a list of texts in each test")
            source, key = (entry, "character_set") if "{CHAR}" in needle else (test, "gold_answers")
            answers = _part(source, key, _texts, where, "a list of texts")
            yield NeedleQuestion(
                f"{name_of}_{name}_{kind}",
                _filled(needle, arguments),
                _filled(question, arguments),
                tuple(answers),
            )


def _filled(text: str, arguments: list[str]) -> str:
    """With each argument in the place of its number, ``{1}``, ``{2}``, ..."""
    for number, argument in enumerate(arguments, 1):
        text = text.replace(f"{{{number}}}", argument)
    return text


def _lines(path: Path) -> Iterator[tuple[Record, str]]:
    """Each line's object, with the words for where it stands."""
    _require_file(path)
    content = path.read_bytes()
    if path.suffix == ".gz":
        _require(content[:2] == b"\x1f\x8b", str(path), content[:40], "compressed lines")
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            _require(False, str(path), error, "compressed lines")
    # Texts may hold characters that str.splitlines takes for the end of a line.
    for number, line in enumerate(decoded(content, path, "path").split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            record = parsed_json(line, where, CURE)
            _require(isinstance(record, dict), where, record, "an object")
            yield record, where


def _part(record: Record, name: str, fits: Check, where: str, expected: str) -> Any:
    """A part of an object, which must be what is expected."""
    value = record.get(name)
    _require(fits(value), where, f"{name} = {value!r}", f"{name} as {expected}")
    return value


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_text, value))


def _pairs(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) > 0
    return whole and all(_texts(pair) and len(pair) == 2 for pair in value)


def _documents(value: Any) -> bool:
    whole = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    return whole and all(_texts([one.get("title"), one.get("text")]) for one in value)


def _texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and _texts(list(value.values()))


def _objects_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


def _require(holds: bool, where: str, got: Any, expected: str) -> None:
    require(holds, where, got=f"{got}"[:60], expected=expected, cure=CURE)


def _require_file(path: Path) -> None:
    _require(path.is_file(), str(path), "no such file", "the publisher's")
