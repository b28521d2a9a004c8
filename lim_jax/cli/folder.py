"""The folder of a run: made, refused or taken up; and the files that a command leaves in it."""

import csv
import hashlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import tyro

from lim_jax._checks import AnyPath, as_path, require
from lim_jax._doors import PACKAGE
from lim_jax._files import RECORD, files_within
from lim_jax._refusal import Refusal
from lim_jax._resuming import write_whole

# On the command line either is a path.
Named = Annotated[AnyPath, tyro.conf.arg(metavar="PATH")]
Unnamed = Annotated[AnyPath | None, tyro.conf.arg(metavar="{None}|PATH")]
UNFINISHED, FINISHED = "unfinished", "finished"
READ_WHOLE = 2**24  # bytes: larger files, such as weights, are told by when they were changed


@runtime_checkable
class _Figure(Protocol):
    """A figure of matplotlib, which takes long to load, and is not until something is drawn."""

    def savefig(self, fname: Path, /) -> Any: ...


@contextmanager
def run_folder(
    out: AnyPath, command: str, arguments: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """Make the folder of a run, with its ``run.json``, or take up that of the same run.

    A run is its command, its arguments, the files that these name, and the versions. What one that
    was interrupted has finished may lie in the folder's ``unfinished``, which is removed when the
    body has ended, or by `overwrite`. Then the record also says which files there are, and what was
    printed. Where the body raises before any file is written, all is left as it was.

    Parameters
    ----------
    out
        The folder.
    command, arguments
        For the record; paths stand for what they name.
    overwrite
        Take any folder, and write over what is there.

    Raises
    ------
    ValueError
        Where `out` is no folder that can be written to, or it holds anything but this run.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with run_folder(Path(place) / "new", "rates", {"quick": True}) as folder:
    ...         print(sorted(json.loads((folder / RECORD).read_text())))
    ['arguments', 'command', 'read', 'versions']
    """
    out, record = as_path(out, "out"), _record(command, arguments)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    known = out / RECORD
    try:
        out.mkdir(parents=True, exist_ok=True)
        if overwrite:
            shutil.rmtree(out / UNFINISHED, ignore_errors=True)
        else:
            _require_same(out, record)
        _write_record(known, record)
    except OSError as error:
        raise Refusal(
            f"out: got {out}, which cannot be written to ({error.strerror}), expected a folder, "
            "there or to be made. Choose another by --out."
        ) from error
    try:
        with redirect_stdout(_Heard(sys.stdout)) as heard:
            yield out
    except BaseException:
        if list(out.iterdir()) == [known]:
            known.unlink()
        for folder in made:
            if not any(folder.iterdir()):
                folder.rmdir()
        raise
    files = sorted({path.name for path in out.iterdir()} - {RECORD, UNFINISHED})
    _write_record(known, {**record, FINISHED: {"files": files, "printed": heard.getvalue()}})
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


class _Heard(StringIO):
    """Keeps what is written to a stream."""

    def __init__(self, stream: Any):
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stream.flush()


def finished_before(
    out: AnyPath, command: str, arguments: Mapping[str, Any], *, overwrite: bool = False
) -> bool:
    """Print again what this very run printed, and say whether it is in its folder, finished.

    It is not where one of its files is missing.

    Parameters
    ----------
    out, command, arguments, overwrite
        As in `run_folder`.

    Examples
    --------
    >>> import tempfile
    >>> run = "rates", {"quick": True}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with run_folder(place, *run):
    ...         print("All orders are as expected.")
    ...     other = finished_before(place, "rates", {"quick": False})
    ...     finished_before(place, *run), other
    All orders are as expected.
    Finished before, as run.json says; --overwrite runs it anew. It printed:
    <BLANKLINE>
    All orders are as expected.
    (True, False)
    """
    out = as_path(out, "out")
    kept = _kept_record(out)
    finished = kept.pop(FINISHED, None)
    if overwrite or finished is None or kept != _record(command, arguments):
        return False
    if not all((out / name).exists() for name in finished["files"]):
        return False
    print(f"Finished before, as {RECORD} says; --overwrite runs it anew. It printed:\n")
    print(finished["printed"], end="")
    return True


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def _kept_record(out: Path) -> dict[str, Any]:
    """What a folder says of its run; nothing where it does not."""
    try:
        return dict(json.loads((out / RECORD).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _record(command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is, as plain values: those that JSON reads back."""
    paths = {name: value for name, value in arguments.items() if isinstance(value, Path)}
    record = {
        "command": command,
        "arguments": {**arguments, **{name: str(path) for name, path in paths.items()}},
        "read": {name: _identity(path) for name, path in paths.items() if path.exists()},
        "versions": {
            "lim_jax": version("lim_jax"),
            "source": _digest_of_files(PACKAGE, sorted(PACKAGE.rglob("*.py"))),
            "jax": version("jax"),
            "python": platform.python_version(),
        },
    }
    return json.loads(json.dumps(_finite(record)))


def _identity(path: Path) -> dict[str, Any]:
    """Which file it is, or which of a folder (`files_within`): where, how large, and what."""
    names = files_within(path) if path.is_dir() else [Path()]
    size = sum((path / name).stat().st_size for name in names)
    return {"path": str(path.resolve()), "bytes": size, "digest": _digest_of_files(path, names)}


def _digest_of_files(folder: Path, names: Iterable[Path]) -> str:
    """What tells files apart: names, and what is in them; of large ones when they were changed."""
    digest = hashlib.sha256()
    for name in names:
        file = folder / name
        about = file.stat()
        small = about.st_size <= READ_WHOLE and file.is_file() and os.access(file, os.R_OK)
        content = file.read_bytes() if small else str(about.st_mtime_ns).encode()
        digest.update(os.fsencode(name) + f" {about.st_size} ".encode() + content)
    return digest.hexdigest()[:16]


def _require_same(out: Path, record: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but this run."""
    held = list(out.iterdir())
    if not held:
        return
    expected = "a new or empty folder, or the same run to go on with"
    cure = "Choose another by --out, or write over it with --overwrite."
    there = out / RECORD in held
    require(there, "out", got=f"{out}, which holds files", expected=expected, cure=cure)
    kept = _kept_record(out)
    kept.pop(FINISHED, None)
    differing = _differing(kept, record)
    got = f"{out}, which holds another run ({'; '.join(differing)})"
    require(not differing, "out", got=got, expected=expected, cure=cure)


def _differing(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """The innermost entries in which two records differ, each with both values."""
    found = []
    for name in {**there, **here}:
        one, other = there.get(name), here.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [f"{name}.{inner}" for inner in _differing(one, other)]
        elif one != other:
            found.append(f"{name}: {one} there, {other} here")
    return found


def write_json(path: AnyPath, document: Any) -> None:
    """Write a document; what is not finite, such as the error of one example, becomes null.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_json(Path(place) / "numbers.json", {"errors": [0.5, math.inf]})
    ...     json.loads((Path(place) / "numbers.json").read_text())
    {'errors': [0.5, None]}
    """
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    as_path(path).write_text(text, "utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_table(path: AnyPath, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write comma-separated values: the columns' names, and the rows.

    What is not finite, such as the error of one example, becomes an empty cell.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_table(Path(place) / "table.csv", ("position", "token"), [(0.5, "a"), (1.0, "b")])
    ...     (Path(place) / "table.csv").read_text().split()
    ['position,token', '0.5,a', '1.0,b']
    """
    with as_path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *(map(_cell, row) for row in rows)])


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(figure: _Figure, folder: AnyPath, name: str) -> None:
    """Draw a figure to pixels and to lines: ``name.png`` and ``name.svg``."""
    for kind in ("png", "svg"):
        figure.savefig(as_path(folder, "folder") / f"{name}.{kind}")


def write_findings(
    folder: AnyPath, name: str, results: Any, figures: Mapping[str, _Figure], page: str
) -> None:
    """Write results, their figures and the page that shows them; its first paragraph is printed.

    Parameters
    ----------
    folder
        To write to.
    name
        Of the files: with .json what `write_json` takes, and with .md the page.
    results, figures, page
        What was found; figures by the names of their files, without endings.
    """
    folder = as_path(folder, "folder")
    write_json(folder / f"{name}.json", results)
    for stem, figure in figures.items():
        save_figure(figure, folder, stem)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print(page.split("\n\n")[1].replace("**", ""))
    drawn = "a figure" if len(figures) == 1 else f"{len(figures)} figures"
    print(f"Wrote {name}.json, {name}.md and {drawn} to {folder}.")
