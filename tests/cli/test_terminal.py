"""No command sends a terminal what it would obey: names, answers and messages are shown."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from unicodedata import category

import pytest
from matplotlib.figure import Figure
from reference.publishers import CONFIGS, write_with_letters

from lim_jax import __main__
from lim_jax._argument_error import Refusal
from lim_jax._terminal import in_lines, in_one_line
from lim_jax.attribution.answer_comparison import shown_answer
from lim_jax.cli.commands import main
from lim_jax.prompts.documents import Document, document_prompt, named_documents
from lim_jax.results.run_folder import finished_before, run_folder

HOSTILE = "owl\x1b[31m\x07\r\n\x9bred\u2028\u202e"
SHOWN = "owl⟨1b⟩[31m⟨07⟩␍⏎⟨9b⟩red⟨2028⟩⟨202e⟩"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
# Characters that Unicode counts as of format (Cf), and that are seen, as signs above numbers, or
# shape the letters beside them.
WRITING = {*"\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u180e\u200c\u200d"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_with_letters(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())


def test_each_character_that_is_obeyed_has_a_mark():
    assert in_one_line(HOSTILE) == SHOWN

    assert in_lines(HOSTILE) == SHOWN.replace("⏎", "\n")
    for text in ("خلف المسجد", "👩‍👩‍👧", "日本　語", "naïve café", "می‌خواهم", "❤️"):
        assert in_one_line(text) == text, "writing is left as it is"
    assert in_one_line(os.fsdecode(b"a\xff")) == "a⟨dcff⟩"
    assert shown_answer(f" {HOSTILE} a\tb ", cut=True) == "owl⟨1b⟩[31m⟨07⟩ ⟨9b⟩red ⟨202e⟩ a b..."


def test_each_character_of_format_that_is_not_seen_has_a_mark():
    """Isolates and marks of direction, zero-width spaces, tags: all but signs and joiners."""
    letters = map(chr, (*range(0x10000), *range(0xE0000, 0xE0080)))
    left = {one for one in letters if category(one) == "Cf" and in_one_line(one) == one}
    assert left <= WRITING
    assert in_one_line("a\u2067b\u2069\u200b") == "a⟨2067⟩b⟨2069⟩⟨200b⟩"


def test_a_documents_name_is_shown_and_its_title_read():
    documents = Document(HOSTILE, "A bird."), Document(SHOWN, "Another.")
    names = [document.name for document in named_documents(documents)]
    assert names == [f"{SHOWN} (document 1)", f"{SHOWN} (document 2)"]
    assert document_prompt(documents, "Who?").text.startswith(f"{HOSTILE}\nA bird.")


@pytest.mark.slow
def test_names_of_files_are_shown_in_one_row(model, tmp_path, capsys):
    """Of a folder with an escape sequence, a line feed and a byte that is no letter."""
    documents = tmp_path / "documents"
    documents.mkdir()
    for name, text in {b"o\x1b[31mwl\nred": "abcabd", b"w\xffren": "hgjh"}.items():
        (documents / f"{os.fsdecode(name)}.txt").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["bc", "--documents", str(documents), "--out", str(out), "--answer-tokens", "2"]
    assert main(["ask", str(model), *arguments, "--no-html"]) == 0
    said = capsys.readouterr()
    assert OBEYED.search(said.out) is None
    (row,) = [line for line in said.out.splitlines() if line.startswith("“o")]
    assert row.startswith("“o⟨1b⟩[31mwl⏎red”  ")
    parts = json.loads((out / "answer.json").read_text(encoding="utf-8"))["parts"]
    assert {part["name"] for part in parts} >= {"o⟨1b⟩[31mwl⏎red", "w?ren"}
    with open(out / "matrix.csv", newline="", encoding="utf-8") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {"o⟨1b⟩[31mwl⏎red", "w?ren"}


@pytest.mark.slow
def test_names_and_answers_of_lines_are_shown(model, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    line = {"prompt": "abcdefgh", "answer": "ab", "spans": [[0, 3, HOSTILE], [4, 6, "b"]]}
    data.write_text(json.dumps({**line, "id": HOSTILE}), encoding="utf-8")
    for method in ("influence", "mask-gradient"):
        arguments = ["--data", str(data), "--loss", "margin", "--method", method]
        out = str(tmp_path / method)
        assert main(["profile", str(model), *arguments, "--out", out]) == 0
        printed = capsys.readouterr().out
        assert OBEYED.search(printed) is None and f"“{SHOWN}”" in printed


def test_whatever_a_command_prints_is_shown(tmp_path, capsys):
    """And again when it is printed of a finished run, whoever wrote what is kept of it."""
    with run_folder(tmp_path / "out", "rates", {}):
        print(HOSTILE)
    shown = in_lines(HOSTILE) + "\n"
    assert capsys.readouterr().out == shown
    record = tmp_path / "out" / "run.json"
    kept = json.loads(record.read_text(encoding="utf-8"))
    assert kept["finished"]["printed"] == shown
    kept["finished"]["printed"] = HOSTILE
    record.write_text(json.dumps(kept), encoding="utf-8")
    assert finished_before(tmp_path / "out", "rates", {})
    assert capsys.readouterr().out.endswith(in_lines(HOSTILE))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["counterexamples"], ["no-such-command"]])
@pytest.mark.parametrize("with_errors", [False, True])
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(arguments, with_errors):
    """Status 141, as of other tools; of errors alone the pipe is not asked for anything."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "lim_jax", *arguments],
        stdout=writer,
        stderr=writer if with_errors else subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    told = arguments == ["no-such-command"] and not with_errors
    assert ended.returncode == (2 if told else 141)
    assert with_errors or bool(ended.stderr) == told
    assert "Traceback" not in (ended.stderr or "")


FULL = Path("/dev/full")


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["counterexamples"]])
def test_where_no_space_is_left_a_command_says_so_in_a_line(arguments, tmp_path):
    """Status 1, and no traceback: neither of the command nor of Python's last flush."""
    with FULL.open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "lim_jax", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        "lim-jax: no space is left on the device. Free some, and run it again: it goes on.\n"
    )


def test_refusals_and_warnings_are_one_line(monkeypatch, capsys):
    def run(arguments):
        warnings.simplefilter("default")
        warnings.warn(f"documents: {HOSTILE} is empty.", stacklevel=1)
        raise Refusal(f"documents: got {HOSTILE}, expected another.")

    monkeypatch.setattr(__main__, "keep_programs", lambda arguments: arguments)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(__main__, "run", run)
    pressed = signal.getsignal(signal.SIGINT)
    try:
        assert __main__.main() == 2
    finally:
        signal.signal(signal.SIGINT, pressed)
    assert capsys.readouterr().err == (
        f"lim-jax: documents: {SHOWN} is empty.\n"
        f"lim-jax: documents: got {SHOWN}, expected another.\n"
    )
