"""A run's folder is made, taken up or refused, and is as it was where nothing came of it."""

import json
import os
import platform
import shutil
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from reference.networks import byte_network
from tqdm import tqdm

from lim_jax import models
from lim_jax.cli import ask_command, explain_command, profile_command
from lim_jax.cli.commands import main
from lim_jax.models import LanguageModel
from lim_jax.prompts.prompt_files import read_documents, read_prompts
from lim_jax.results import run_folder as runs
from lim_jax.results.run_folder import finished_arguments, finished_before, run_folder
from lim_jax.results.tables import write_json

ARGUMENTS = {"delta": 0.2, "only": ("loss", "cone"), "data": None}


def run(out, *, overwrite=False, **changed):
    """Says what it found unfinished."""
    with run_folder(out, "rates", {**ARGUMENTS, **changed}, overwrite=overwrite) as place:
        (place / "result.json").write_text("found", encoding="utf-8")
        return [path.name for path in place.glob("unfinished/*")]


def test_a_folder_says_what_was_run(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("four", encoding="utf-8")
    run(tmp_path / "new" / "folder", data=data)
    record = json.loads((tmp_path / "new" / "folder" / "run.json").read_text(encoding="utf-8"))
    assert record["command"] == "rates"
    assert record["arguments"] == {"delta": 0.2, "only": ["loss", "cone"], "data": str(data)}
    source = record["versions"].pop("source")
    assert len(source) == 16
    assert record["versions"] == {
        "lim_jax": version("lim_jax"),
        "jax": version("jax"),
        "python": platform.python_version(),
    }
    assert record["read"]["data"]["bytes"] == 4
    assert record["read"]["data"]["path"] == str(data.resolve())
    assert record["finished"] == {"written": ["result.json"], "printed": ""}


def test_the_same_run_is_taken_up_and_another_refused_by_what_differs(tmp_path):
    out = tmp_path / "out"

    def interrupted():
        (out / "unfinished").mkdir()
        (out / "unfinished" / "group").touch()

    run(out)
    interrupted()
    assert run(out) == ["group"] and not (out / "unfinished").exists()
    interrupted()
    with pytest.raises(ValueError, match=r"out: .*\(arguments.delta: 0.2 there, 0.3 here\)"):
        run(out, delta=0.3)
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["arguments"]["delta"] == 0.2
    assert run(out, delta=0.3, overwrite=True) == []
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["arguments"]["delta"] == 0.3
    assert not (out / "unfinished").exists() and (out / "result.json").exists()


ASKED = ["ask", "nowhere", "Who?", "--documents", "nothing", "--method"]
PROFILED = ["profile", "nowhere", "--data", "nothing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PROFILED, "--delta", "0.6"], "delta: got 0.6"),
        ([*PROFILED, "--loss", "contrast", "--method", "rollout"], "method: got 'rollout' with a"),
        (["explain", "nowhere", "--data", "nothing", "--delta", "0.6"], "delta: got 0.6"),
        ([*ASKED, "influence", "--parts", "token"], "parts: got 'token' with the method"),
        ([*ASKED, "influence", "--passes", "9"], "passes: got 9 with the method 'influence'"),
        ([*ASKED, "rollout", "--foil", "owl"], "method: got 'rollout' with a foil"),
        (["rates", "--only", "tokens"], "only: got tokens"),
        (["rates", "--sizes", "1", "2", "3", "4"], "sizes: got"),
    ],
)
def test_a_wrong_argument_is_told_before_a_folder_of_something_else(arguments, message, tmp_path):
    """Else a user chooses another folder first, only to read of the argument then."""
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match=message):
        main([*arguments, "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "content", "loss", "message"),
    [
        ("none.txt", None, "next-token", "data: got .*none.txt, which is no file"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": ', "next-token", "a.jsonl, line 2: got .* JSON"),
        ("a.json", "{}", "next-token", "a.json: got {}, expected a list of objects"),
        ("a.jsonl", '{"documents": [], "question": "b"}', "margin", "line 1: got documents = "),
        ("a.txt", "words", "margin", "loss: got margin with .*a.txt, a text without answers"),
    ],
)
@pytest.mark.parametrize("command", ["profile", "explain"])
def test_data_that_say_nothing_are_told_before_a_model_is_looked_for(
    command, name, content, loss, message, tmp_path
):
    data = tmp_path / name
    if content is not None:
        data.write_text(content, encoding="utf-8")
    arguments = [command, "nowhere", "--data", str(data), "--loss", loss]
    with pytest.raises(ValueError, match=message):
        main([*arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_documents_are_read_before_a_model_is_looked_for(tmp_path):
    arguments = ["ask", "nowhere", "Who?", "--documents", str(tmp_path / "none")]
    with pytest.raises(ValueError, match="documents: got .*which is no file and no folder"):
        main([*arguments, "--out", str(tmp_path / "out")])


def test_a_run_does_not_write_to_what_it_reads(tmp_path):
    """Else the record of the run that is read would be gone."""
    run(tmp_path / "read")
    kept = (tmp_path / "read" / "run.json").read_text(encoding="utf-8")
    (tmp_path / "also").symlink_to(tmp_path / "read", target_is_directory=True)
    for out in ("read", "also", "read/../read"):
        with pytest.raises(ValueError, match=r"out: got .*, which is read too, as .first."):
            run(tmp_path / out, first=tmp_path / "read", overwrite=True)
    assert (tmp_path / "read" / "run.json").read_text(encoding="utf-8") == kept


def test_a_run_of_another_command_is_refused_by_the_two_names_alone(tmp_path):
    """Its arguments are others too, all of them, which says nothing more."""
    run(tmp_path)
    with pytest.raises(ValueError, match=r"run \(command: rates there, ask here\), expected"):
        with run_folder(tmp_path, "ask", {"question": "Who?"}):
            pass


def test_a_run_of_other_files_of_the_library_is_refused_in_words(tmp_path, monkeypatch):
    """Digests of its files say nothing to a user."""
    run(tmp_path)
    monkeypatch.setattr(runs, "_digest_of_files", lambda folder, names: "another digest")
    with pytest.raises(ValueError, match=r"run \(lim_jax's own files have changed\), expected"):
        run(tmp_path)


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_changed_makes_another_run(large, tmp_path, monkeypatch):
    """Of small files what is in them, though time and size are as before; of large ones the time.

    Those of folders inside too, and under their names; hidden files and folders are no part of it.
    """
    monkeypatch.setattr(runs, "READ_WHOLE", 0 if large else 10)
    data = tmp_path / "data"
    out = tmp_path / "out"
    (data / "inside").mkdir(parents=True)
    (data / ".git").mkdir()
    for name in ("a", "inside/b"):
        (data / name).write_text("four", encoding="utf-8")
    run(out, data=data)
    (data / ".git" / "log").write_text("more", encoding="utf-8")
    (data / "gone").symlink_to("nowhere")
    run(out, data=data)

    def refused():
        with pytest.raises(ValueError, match=r"another run \(the files of data have changed\), "):
            run(out, data=data)

    changed = data / "inside" / "b"
    before = changed.stat()
    if large:
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        changed.write_text("five", encoding="utf-8")
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused()
    changed.write_text("four", encoding="utf-8")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    run(out, data=data)
    changed.rename(data / "inside" / "c")
    refused()
    (data / "a").write_text("longer", encoding="utf-8")
    refused()
    copy = shutil.copytree(data, tmp_path / "copy", symlinks=True)
    with pytest.raises(ValueError, match=r"run \(arguments.data: \S+data there, \S+copy here\), "):
        run(out, data=copy)


def test_a_run_that_is_finished_is_printed_again(tmp_path, capsys, monkeypatch):
    """Unless it is another, a file is gone, or it is to be overwritten: then all is run."""
    out = tmp_path / "out"
    done = partial(finished_before, tmp_path / "out", "rates")

    def printed(**changed):
        with run_folder(out, "rates", {**ARGUMENTS, **changed}) as place:
            tqdm.write("Measuring ∇.")
            assert not done(ARGUMENTS), "not while it runs"
            (place / "result.json").write_text("found", encoding="utf-8")
            print("Found.", flush=True)
        return capsys.readouterr().out

    assert not done(ARGUMENTS)
    text = printed()
    assert text == "Measuring ∇.\nFound.\n"
    assert done(ARGUMENTS)
    said, blank, *again = capsys.readouterr().out.splitlines(keepends=True)
    assert said.startswith("Finished before") and blank == "\n" and "".join(again) == text
    assert not done({**ARGUMENTS, "delta": 0.3}) and not done(ARGUMENTS, overwrite=True)
    (out / "result.json").unlink()
    assert not done(ARGUMENTS)
    assert printed() == text and done(ARGUMENTS)
    with pytest.raises(KeyboardInterrupt):
        with run_folder(out, "rates", ARGUMENTS):
            raise KeyboardInterrupt
    assert (out / "result.json").exists() and not done(ARGUMENTS), "it was begun anew"
    printed()
    with monkeypatch.context() as patch:
        patch.setattr(runs, "version", lambda name: "9.9")
        assert not done(ARGUMENTS)
    (out / "run.json").write_text("[1, 2]", encoding="utf-8")
    assert not done(ARGUMENTS)


@pytest.mark.parametrize(
    "module, arguments",
    [
        (ask_command, ["ask", "weights", "Who?", "--documents", "notes"]),
        (profile_command, ["profile", "weights", "--data", "lines.jsonl"]),
        (explain_command, ["explain", "weights", "--data", "lines.jsonl"]),
    ],
)
def test_a_command_that_is_finished_does_nothing(module, arguments, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "finished_before", lambda *a, **k: calls.append((a, k)) or True)
    monkeypatch.setattr(module, "run_folder", None)
    assert main([*arguments, "--compute", "bfloat16", "--out", "there"]) == 0
    (((out, command, told), options),) = calls
    assert told["compute"] == "bfloat16"  # a run in another precision is another run
    assert (str(out), command, options) == ("there", arguments[0], {"overwrite": False})


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match="out: .*holds files, expected a new or empty folder"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    run(tmp_path, overwrite=True)
    assert (tmp_path / "mine").exists() and (tmp_path / "result.json").exists()
    for content in (b"broken", b"", b"3", b"[[]]", b"\xff\xfe"):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ValueError, match="another run .command: None there, rates here"):
            run(tmp_path)


def test_a_run_over_another_takes_away_what_that_one_wrote_and_nothing_else(tmp_path):
    """Once it is finished: one that fails takes nothing away."""
    out = tmp_path / "out"
    outside = tmp_path / "outside"

    def names():
        return {path.name for path in out.iterdir()} - {"run.json"}

    def over(command, *files, error=None):
        with run_folder(out, command, {}, overwrite=True) as place:
            for file in files:
                (place / file).write_text(command, encoding="utf-8")
            if error is not None:
                raise error

    out.mkdir()
    (out / "mine").write_text("before", encoding="utf-8")
    over("profile", "profile.json", "scores.csv")
    (out / "notes").write_text("after", encoding="utf-8")
    with pytest.raises(ValueError):
        over("ask", error=ValueError)
    with pytest.raises(ValueError):
        over("ask", "answer.json", error=ValueError)
    assert names() == {"mine", "notes", "profile.json", "scores.csv", "answer.json"}
    over("ask", "matrix.csv", "scores.csv")
    assert names() == {"mine", "notes", "matrix.csv", "scores.csv"}
    over("ask", "matrix.csv")
    assert names() == {"mine", "notes", "matrix.csv"}
    outside.touch()
    (out / "run.json").write_text('{"finished": {"written": ["../outside"]}}', encoding="utf-8")
    over("ask", "matrix.csv")
    assert outside.exists(), "no file outside of the folder is one that a run wrote"


def test_a_run_over_another_that_is_interrupted_goes_on_and_takes_that_ones_files_away(tmp_path):
    def stopped(command, *files, error=None, overwrite=False):
        with run_folder(tmp_path, command, {}, overwrite=overwrite) as place:
            for file in files:
                (place / file).write_text(command, encoding="utf-8")
            if not overwrite:
                (tmp_path / "notes.txt").write_text(
                    "mine", encoding="utf-8"
                )  # meanwhile, by nobody of ours
            if error is not None:
                raise error

    stopped("ask", "answer.json", "matrix.csv")
    with pytest.raises(KeyboardInterrupt):
        stopped("profile", "profile.json", error=KeyboardInterrupt, overwrite=True)
    assert (tmp_path / "answer.json").exists()
    stopped("profile", "profile.json")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.json", "profile.json", "notes.txt"}
    stopped("ask", "answer.json", overwrite=True)
    assert (tmp_path / "notes.txt").exists(), "no command writes such a file"


def test_a_folder_of_unfinished_things_of_others_is_not_written_over(tmp_path):
    (tmp_path / "unfinished").mkdir()
    draft = tmp_path / "unfinished" / "draft.txt"
    draft.touch()
    with pytest.raises(ValueError, match="out: got .*“unfinished” is of no run of lim_jax"):
        run(tmp_path, overwrite=True)
    assert draft.exists()


def test_a_text_in_place_of_a_path_is_no_file(tmp_path):
    """As where documents are given in words: a name so long the system refuses to look for."""
    run(tmp_path / "out", data=Path(300 * "word "))
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["read"] == {}
    with pytest.raises(ValueError, match="documents: got word .*which is no file and no folder"):
        read_documents(300 * "word ")
    with pytest.raises(ValueError, match="data: got word .*which is no file"):
        read_prompts(300 * "word ", LanguageModel(byte_network(8)), "next-token", 8)
    for read in (LanguageModel.open, models.load):
        with pytest.raises(ValueError, match="got .*word"):
            read(300 * "word ")
    with pytest.raises(ValueError, match="first: got word"):
        main(["compare", 300 * "word ", "b", "--out", str(tmp_path / "compared")])
    with pytest.raises(
        ValueError, match="out: got word .*cannot be written to .File name too long"
    ):
        main(["counterexamples", "--out", 300 * "word "])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("inside", [".", "folder"])
def test_a_file_is_no_folder(inside, overwrite, tmp_path):
    out = tmp_path / "file"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"out: got .*cannot be written to \(.*`out`"):
        run(out / inside, overwrite=overwrite)
    assert out.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_where_nothing_came_of_it_nothing_is_left(error, tmp_path):
    def stopped(out, *, wrote=False):
        with run_folder(out, "rates", ARGUMENTS) as place:
            if wrote:
                (place / "half.json").touch()
            raise error

    with pytest.raises(error):
        stopped(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with pytest.raises(error):
        stopped(tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())
    with pytest.raises(error):
        stopped(tmp_path / "c", wrote=True)
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"half.json", "run.json"}
    with pytest.raises(error):
        stopped(tmp_path / "c")  # what an earlier run finished stays
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_what_is_not_finite_is_null(tmp_path):
    document = {
        "one": [1.5, float("nan")],
        "two": {"error": float("-inf")},
        "three": (1, None),
    }
    write_json(tmp_path / "numbers.json", document)
    read = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert read == {"one": [1.5, None], "two": {"error": None}, "three": [1, None]}


@pytest.mark.parametrize("arguments", [[], None, "loss"])
def test_a_record_that_no_run_wrote_has_no_arguments(arguments, tmp_path):
    """As of another program, whose file is called run.json too."""
    (tmp_path / "run.json").write_text(
        json.dumps({"finished": {}, "arguments": arguments}), encoding="utf-8"
    )
    assert finished_arguments(tmp_path, "first") == {}
