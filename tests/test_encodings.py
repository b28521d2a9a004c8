"""Files of text are UTF-8 on every machine: whoever reads or writes one says so."""

import ast

import pytest
from reference.as_users import ROOT

FOLDERS = ("lim_jax", "tests", "docs", "benchmarks", "notebooks")
SOURCES = [
    ROOT / "conftest.py",
    *(file for folder in FOLDERS for file in ROOT.glob(f"{folder}/**/*.py")),
]
# How many of a call's own arguments stand before that of its encoding.
BEFORE = {"read_text": 0, "write_text": 1}


def takes_the_machines_encoding(call):
    """Whether a call reads or writes text, and leaves the encoding to the machine."""
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if isinstance(call.func, ast.Attribute):
        return len(call.args) <= BEFORE.get(call.func.attr, -1)
    if not isinstance(call.func, ast.Name) or call.func.id != "open":
        return False
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return not any("b" in ast.literal_eval(mode) for mode in modes)


@pytest.mark.slow
def test_text_is_read_and_written_as_utf8():
    """Where a machine's own encoding is ASCII, an “é” in a page would end a test or a script."""
    found = []
    for file in SOURCES:
        calls = (one for one in ast.walk(ast.parse(file.read_bytes())) if isinstance(one, ast.Call))
        lines = [call.lineno for call in calls if takes_the_machines_encoding(call)]
        found += [f"{file.relative_to(ROOT)}:{line}" for line in sorted(lines)]
    assert found == [], 'say encoding="utf-8"'


def test_calls_that_leave_the_encoding_to_the_machine_are_seen():
    """Of a path, and of a name; bytes have none, and no other library's `open` is asked."""
    said = ['p.read_text("utf-8")', 'p.write_text(t, encoding="utf-8")', 'open(p, "rb")']
    said += ['open(p, mode="wb")', 'open(p, encoding="utf-8")', "models.open(p)", "p.read_bytes()"]
    left = ["p.read_text()", "p.write_text(t)", "p.write_text(data=t)", "open(p)", 'open(p, "a")']
    for source in (*said, *left):
        call = ast.parse(source, mode="eval").body
        assert takes_the_machines_encoding(call) is (source in left), source
