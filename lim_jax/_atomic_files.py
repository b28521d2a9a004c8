"""Write files, each of them whole or not at all, and say what a disk lacks."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lim_jax._argument_error import Refusal

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def write_file(path: Path, content: bytes) -> None:
    """Write a file's bytes, in a folder that is made where it is missing."""
    with whole_file(path, len(content)) as half_written:
        half_written.write_bytes(content)


@contextmanager
def whole_file(path: Path, size: int | None = None) -> Iterator[Path]:
    """Yield another name to write a file under first; it gets its own when it is whole.

    The other name has the same ending. `size` is how many bytes the file will have, if that is
    known.
    """
    half_written = path.with_name(f".part-{path.name}")
    with saying_what_is_lacking(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield half_written
            half_written.replace(path)
        finally:
            with suppress(OSError):
                half_written.unlink()


@contextmanager
def saying_what_is_lacking(path: Path, size: int | None = None) -> Iterator[None]:
    """Refuse what the system refuses to write, in a line with the file and the bytes it needs."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            needed = "more than that" if size is None else f"{size:,} bytes"
            raise Refusal(
                f"{path}: got no room for it ({error.strerror}; {_free_bytes(path)} bytes are "
                f"free), expected {needed}. Make room, or write to another folder."
            ) from error
        raise Refusal(
            f"{path}: got a file that cannot be written ({error.strerror or error}), expected one "
            "that can. Write to another folder."
        ) from error


def _free_bytes(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free:,}"
    except OSError:
        return "no"
