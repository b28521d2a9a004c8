"""Files are written whole or not at all, and a disk that takes no more is said in a line."""

import errno
import json
import os
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import lim_jax as lim
from lim_jax import results
from lim_jax._argument_error import Refusal
from lim_jax._atomic_files import whole_file, write_file
from lim_jax._partial_runs import each_once, store
from lim_jax.density import Influence
from lim_jax.plots.figure_style import ShownFigure, save_figure
from lim_jax.report.html_page import Page
from lim_jax.results.run_folder import run_folder
from lim_jax.results.tables import write_json, write_table

FULL = Path("/dev/full")  # takes no byte, as a full disk
needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="no device is full here")
GRID = lim.token_grid(4)


def influence():
    energies = jnp.array([[1.0, 2.0, 4.0, 1.0]])
    return Influence.from_energies(energies, lim.boundary_regions(GRID, 0.25))


# What the package writes, each to a path: by the kind of file.
WRITERS = {
    "json": lambda path: write_json(path, {"a": 1}),
    "csv": lambda path: write_table(path, ["a", "b"], [(1, 2.5)]),
    "npz": lambda path: results.save(influence(), path),
    "state": lambda path: store(path, {"of": "a run"}, {}, np.ones(3)),
    "lines": lambda path: each_once({"a": lambda: 1}, path, {"of": "a run"}),
    "page": lambda path: Page("<p>").save(path),
    "figure": lambda path: save_figure(ShownFigure(1, 1), path.parent, path.stem),
}
ENDS = {"figure": "png"}


def path_of(kind, folder):
    return folder / f"written.{ENDS.get(kind, kind)}"


@pytest.mark.parametrize("kind", WRITERS)
@needs_full_device
def test_a_full_disk_is_a_line_with_the_file_and_what_it_needs(kind, tmp_path):
    """The half-written file is on a device that is full; what stood there before stays."""
    path = path_of(kind, tmp_path)
    drawn = kind == "figure"  # by matplotlib, to the file itself
    kept = kind not in ("lines", "figure")  # a file of lines is read before it is written
    if kept:
        path.write_text("before", encoding="utf-8")
    full = path if drawn else tmp_path / f".part-{path.name}"
    full.symlink_to(FULL)
    with pytest.raises(Refusal) as refused:
        WRITERS[kind](path)
    needed = "more than that" if drawn else r"[1-9][\d,]* bytes"
    room = r"got no room for it \(No space left on device; [\d,]+ bytes are free\)"
    line = rf"{re.escape(str(path))}: {room}, expected {needed}\. Make room, .*"
    assert re.fullmatch(line, str(refused.value))
    assert [file.name for file in tmp_path.iterdir()] == [path.name] * (kept or drawn)
    if kept:
        assert path.read_text(encoding="utf-8") == "before"
    path.unlink(missing_ok=True)
    WRITERS[kind](path)  # with room it is written
    assert path.stat().st_size > 0


@pytest.mark.parametrize("kind", WRITERS)
def test_where_no_file_can_be_it_is_a_line(kind, tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    path = path_of(kind, tmp_path / "file")
    with pytest.raises(Refusal, match=r"file(/written|, inside| which|\.|:)"):
        WRITERS[kind](path)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@needs_full_device
def test_the_bytes_that_a_file_needs_are_counted(tmp_path):
    (tmp_path / ".part-a").symlink_to(FULL)
    with pytest.raises(Refusal, match="expected 12,345 bytes. Make room, or write to another"):
        write_file(tmp_path / "a", b"x" * 12_345)


@pytest.mark.parametrize(
    "number, message",
    [
        (errno.EDQUOT, "no room for it .*quota"),
        (errno.EROFS, "cannot be written .*[Rr]ead-only"),
        (errno.EACCES, "cannot be written .*[Pp]ermission denied"),
    ],
)
def test_quotas_and_closed_folders_are_said_too(number, message, tmp_path):
    with pytest.raises(Refusal, match=f"a: got .*{message}"):
        with whole_file(tmp_path / "a"):
            raise OSError(number, os.strerror(number))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_interrupted_leaves_the_one_before(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises(KeyboardInterrupt):
        with whole_file(path) as half_written:
            half_written.write_text("[2", encoding="utf-8")
            raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert json.loads(path.read_text(encoding="utf-8")) == [1]


@needs_full_device
def test_a_run_whose_disk_is_full_goes_on_with_room(tmp_path):
    """What was finished before stays, and the folder is that of the same run."""
    out = tmp_path / "out"
    measured = []

    def work(full):
        with run_folder(out, "rates", {"delta": 0.2}) as folder:
            group = {"a": lambda: measured.append("a")}
            each_once(group, folder / "unfinished" / "groups", {"of": 1})
            if full:
                (folder / ".part-found.json").symlink_to(FULL)
            write_json(folder / "found.json", [1])

    with pytest.raises(Refusal, match="found.json: got no room"):
        work(full=True)
    work(full=False)
    assert measured == ["a"] and json.loads((out / "found.json").read_text(encoding="utf-8")) == [1]
