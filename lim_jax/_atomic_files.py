"""Write files, each of them whole or not at all, and say what a disk lacks."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lim_jax._argument_error import Refusal

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def write_file(path: Path, content: bytes) -> None:
    """Write bytes to a file as a whole, and make its folder if it is missing."""
    with whole_file(path, len(content)) as half_written:
        half_written.write_bytes(content)


@contextmanager
def whole_file(path: Path, size: int | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends without error.

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
    """Turn an OSError of writing into a `Refusal` that names the file and the bytes it needs."""
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
    """Return the free bytes of the disk that holds a path, or "no" if it cannot tell."""
    try:
        return f"{shutil.disk_usage(path.parent).free:,}"
    except OSError:
        return "no"
