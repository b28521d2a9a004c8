"""The folder of a run: made, refused or taken up; and the files that a command writes to it."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from lim_jax._argument_error import Refusal
from lim_jax._atomic_files import write_file
from lim_jax._checks import AnyPath, as_path, require
from lim_jax._files import RECORD, files_within
from lim_jax._public import PACKAGE
from lim_jax._terminal import in_lines
from lim_jax.results.tables import finite

UNFINISHED = "unfinished"
FINISHED = "finished"
WRITTEN = "written"
# Of what commands write: other files that come into the folder meanwhile are somebody else's.
ENDINGS = (".csv", ".html", ".json", ".npz", ".png", ".svg")
READ_WHOLE = 2**24  # bytes: larger files, such as weights, are told by when they were changed


@contextmanager
def run_folder(
    out: AnyPath, command: str, arguments: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """Make the folder of a run, with its ``run.json``, or take up that of the same run.

    A run is its command, arguments, the files these name, and the versions. Where the body raises
    before any file is written, all is left as it was. A run that is finished, over another or taken
    up after that, takes away what the other one wrote and it has not, and nothing else.
    """
    out = as_path(out, "out")
    _require_not_read(out, arguments)
    record = _record(command, arguments)
    kept = _kept_record(out)
    earlier = _files_of_record(kept)
    made = [folder for folder in (out, *out.parents) if not os.path.exists(folder)]
    record_file = out / RECORD
    try:
        out.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _require_ours(out, kept)
            shutil.rmtree(out / UNFINISHED, ignore_errors=True)
        else:
            _require_same(out, record)
        before = _stamps(out)
        _write_record(record_file, _unfinished_record(record, earlier))
    except OSError as error:
        raise Refusal(
            f"out: got {out}, which cannot be written to ({error.strerror}), expected a folder, "
            "there or to be made. Choose another by `out`."
        ) from error
    try:
        with redirect_stdout(_Echo(sys.stdout)) as echo:
            yield out
    except BaseException:
        if list(out.iterdir()) == [record_file]:
            record_file.unlink()
        else:
            _write_record(
                record_file, _unfinished_record(record, earlier | _changed_files(out, before))
            )
        for folder in made:
            if not any(folder.iterdir()):
                folder.rmdir()
        raise
    files = _changed_files(out, before)
    for name in earlier - files:
        (out / name).unlink(missing_ok=True)
    printed = {WRITTEN: sorted(files), "printed": echo.getvalue()}
    _write_record(record_file, {**record, FINISHED: printed})
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


def _unfinished_record(record: dict[str, Any], files: set[str]) -> dict[str, Any]:
    """Return the record of a run that has not ended, with the files that it or one before wrote."""
    return {**record, UNFINISHED: {WRITTEN: sorted(files)}} if files else record


def _files_of_record(record: dict[str, Any]) -> set[str]:
    """Return the files of a folder that a record says were written by its run, or one before."""
    ends = [record[end] for end in (UNFINISHED, FINISHED) if isinstance(record.get(end), dict)]
    return {Path(name).name for end in ends for name in end.get(WRITTEN, ())}


def _stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Return each file's inode and time of change, but for the record's."""
    files = [path for path in out.iterdir() if path.is_file() and path.name != RECORD]
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def _changed_files(out: Path, before: Mapping[str, tuple[int, int]]) -> set[str]:
    """Return the files of a command's kinds that were written since they had these stamps."""
    stamps = _stamps(out).items()
    changed = {name for name, stamp in stamps if stamp != before.get(name)}
    return {name for name in changed if Path(name).suffix in ENDINGS}


class _Echo(StringIO):
    def __init__(self, stream: Any):
        """Begin to copy what is written to a stream."""
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text to both, with a mark for each character that a terminal obeys."""
        text = in_lines(text)  # names, answers and tokens are others'
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def finished_before(
    out: AnyPath, command: str, arguments: Mapping[str, Any], *, overwrite: bool = False
) -> bool:
    """Tell whether this very run is finished with all its files; if so print its output again."""
    out = as_path(out, "out")
    record = _kept_record(out)
    finished = record.pop(FINISHED, None)
    if overwrite or finished is None or record != _record(command, arguments):
        return False
    if not all((out / name).exists() for name in finished[WRITTEN]):
        return False
    print(f"Finished before, as {RECORD} says; --overwrite runs it anew. It printed:\n")
    print(in_lines(finished["printed"]), end="")
    return True


def finished_arguments(folder: Path, name: str) -> dict[str, Any]:
    """Return the arguments of a folder's run, none without a record; errors name `name`.

    Raise ValueError where the run has not ended: files of one before may still be there.
    """
    record = _kept_record(folder)
    require(
        not record or FINISHED in record,
        name,
        got=f"{folder}, whose run is not finished",
        expected="the folder of a run that is",
        cure="Run its command again: it goes on.",
    )
    arguments = record.get("arguments")
    return arguments if isinstance(arguments, dict) else {}  # of another program's record


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record to a file as indented JSON."""
    write_file(path, (json.dumps(record, indent=2) + "\n").encode())


def _kept_record(out: Path) -> dict[str, Any]:
    """Read the record of a folder's run; return an empty one where it cannot be read."""
    try:
        return dict(json.loads((out / RECORD).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _record(command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a run, as plain values that JSON reads back the same."""
    paths = {name: value for name, value in arguments.items() if isinstance(value, Path)}
    # A path itself cannot say of a long text that there is no such file.
    there = {name: path for name, path in paths.items() if os.path.exists(path)}
    record = {
        "command": command,
        "arguments": {**arguments, **{name: str(path) for name, path in paths.items()}},
        "read": {name: _file_identity(path) for name, path in there.items()},
        "versions": {
            "lim_jax": version("lim_jax"),
            "source": _digest_of_files(PACKAGE, sorted(PACKAGE.rglob("*.py"))),
            "jax": version("jax"),
            "python": platform.python_version(),
        },
    }
    return json.loads(json.dumps(finite(record)))


def _file_identity(path: Path) -> dict[str, Any]:
    """Return the path, the size and the digest of a file or folder that a run reads."""
    names = files_within(path) if path.is_dir() else [Path()]
    size = sum((path / name).stat().st_size for name in names)
    return {"path": str(path.resolve()), "bytes": size, "digest": _digest_of_files(path, names)}


def _digest_of_files(folder: Path, names: Iterable[Path]) -> str:
    """Digest the names, sizes and contents of files; of large files the time of change instead."""
    digest = hashlib.sha256()
    for name in names:
        file = folder / name
        about = file.stat()
        small = about.st_size <= READ_WHOLE and file.is_file() and os.access(file, os.R_OK)
        content = file.read_bytes() if small else str(about.st_mtime_ns).encode()
        digest.update(os.fsencode(name) + f" {about.st_size} ".encode() + content)
    return digest.hexdigest()[:16]


def _require_not_read(out: Path, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError where a run would write to what it reads, over its record even."""
    for name, path in arguments.items():
        require(
            not isinstance(path, Path) or os.path.realpath(path) != os.path.realpath(out),
            "out",
            got=f"{out}, which is read too, as `{name}`",
            expected="a folder of its own",
            cure="Choose another by `out`.",
        )


def _require_ours(out: Path, record: dict[str, Any]) -> None:
    """Raise ValueError where a folder of unfinished results is of no run of ours."""
    require(
        bool(record) or not (out / UNFINISHED).exists(),
        "out",
        got=f"{out}, in which “{UNFINISHED}” is of no run of lim_jax",
        expected="a folder without it, where a run keeps what it goes on from",
        cure="Choose another by `out`.",
    )


def _require_same(out: Path, record: dict[str, Any]) -> None:
    """Raise ValueError unless a folder is empty or holds this very run."""
    files = list(out.iterdir())
    if not files:
        return
    expected = "a new or empty folder, or the same run to go on with"
    cure = "Choose another by `out`, or write over it with `overwrite`."
    require(
        out / RECORD in files, "out", got=f"{out}, which holds files", expected=expected, cure=cure
    )
    earlier = _kept_record(out)
    for end in (UNFINISHED, FINISHED):
        earlier.pop(end, None)
    differing = _told_to_a_reader(_differing(earlier, record))
    require(
        not differing,
        "out",
        got=f"{out}, which holds another run ({'; '.join(differing)})",
        expected=expected,
        cure=cure,
    )


def _told_to_a_reader(differing: Sequence[str]) -> list[str]:
    """Say of files that they have changed, in place of their sizes and digests.

    Where an argument names other files now, that is enough, and so are two commands.
    """
    commands = [entry for entry in differing if entry.startswith("command: ")]
    if commands:
        return commands
    arguments = {entry.partition(":")[0] for entry in differing}
    told = []
    for entry in differing:
        read = re.match(r"read\.(\w+)", entry)
        if entry.startswith("versions.source: "):
            told.append("lim_jax's own files have changed")
        elif read is None:
            told.append(entry)
        elif f"arguments.{read[1]}" not in arguments:
            told.append(f"the files of {read[1]} have changed")
    return list(dict.fromkeys(told))


def _differing(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return the innermost entries in which two records differ, each with both values."""
    differences = []
    for name in {**there, **here}:
        old = there.get(name)
        new = here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += [f"{name}.{inner}" for inner in _differing(old, new)]
        elif old != new:
            differences.append(f"{name}: {old} there, {new} here")
    return differences
