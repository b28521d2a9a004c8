"""A run's folder is made, taken up or refused, and is as it was where nothing came of it."""

import json
import os
import platform
from importlib.metadata import version

import pytest

from lim_jax.cli import run_folder, write_json

ARGUMENTS = {"delta": 0.2, "only": ("loss", "cone"), "data": None}


def run(out, *, overwrite=False, **changed):
    """Says what it found unfinished."""
    with run_folder(out, "rates", {**ARGUMENTS, **changed}, overwrite=overwrite) as folder:
        (folder / "result.txt").write_text("found")
        return [path.name for path in folder.glob("unfinished/*")]


def test_a_folder_says_what_was_run(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("four")
    run(tmp_path / "new" / "folder", data=data)
    record = json.loads((tmp_path / "new" / "folder" / "run.json").read_text())
    assert record["command"] == "rates"
    assert record["arguments"] == {"delta": 0.2, "only": ["loss", "cone"], "data": str(data)}
    assert record["versions"] == {
        "lim_jax": version("lim_jax"), "jax": version("jax"), "python": platform.python_version()
    }  # fmt: skip
    assert record["read"]["data"]["bytes"] == 4
    assert record["read"]["data"]["path"] == str(data.resolve())


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
    assert json.loads((out / "run.json").read_text())["arguments"]["delta"] == 0.2
    assert run(out, delta=0.3, overwrite=True) == []
    assert json.loads((out / "run.json").read_text())["arguments"]["delta"] == 0.3
    assert not (out / "unfinished").exists() and (out / "result.txt").exists()


def test_a_file_that_changed_makes_another_run(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in "ab":
        (data / name).write_text("four")
    run(out, data=data)
    run(out, data=data)
    times = (data / "b").stat()
    os.utime(data / "b", (times.st_atime, times.st_mtime + 10))
    with pytest.raises(ValueError, match="another run .read.data.modified"):
        run(out, data=data)
    (data / "a").write_text("longer")
    with pytest.raises(ValueError, match="read.data.bytes: 8 there, 10 here"):
        run(out, data=data)
    (data / "a").unlink()
    (data / "inside").mkdir()
    (data / "inside" / "a").write_text("longer")  # what is read of a folder is seen of it
    with pytest.raises(ValueError, match="read.data.bytes: 8 there, 10 here"):
        run(out, data=data)


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match="out: .*holds files, expected a new or empty folder"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    run(tmp_path, overwrite=True)
    assert (tmp_path / "mine").exists() and (tmp_path / "result.txt").exists()
    for content in (b"broken", b"", b"3", b"[[]]", b"\xff\xfe"):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ValueError, match="another run .command: None there, rates here"):
            run(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("inside", [".", "folder"])
def test_a_file_is_no_folder(inside, overwrite, tmp_path):
    out = tmp_path / "file"
    out.write_text("mine")
    with pytest.raises(ValueError, match=r"out: got .*cannot be written to \(.*--out"):
        run(out / inside, overwrite=overwrite)
    assert out.read_text() == "mine"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_where_nothing_came_of_it_nothing_is_left(error, tmp_path):
    def stopped(out, *, wrote=False):
        with run_folder(out, "rates", ARGUMENTS) as folder:
            if wrote:
                (folder / "half.json").touch()
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
    read = json.loads((tmp_path / "numbers.json").read_text())
    assert read == {"one": [1.5, None], "two": {"error": None}, "three": [1, None]}
