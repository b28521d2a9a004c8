"""Read users' files: a text in one of several encodings, a PDF, a Word document, JSON."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lazy_loader

from lim_jax._argument_error import Refusal
from lim_jax._checks import require, require_extra

docx: Any = lazy_loader.load("docx")  # both of the extra "documents"; texts do without
pypdf: Any = lazy_loader.load("pypdf")
ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
BYTES = 4  # of a letter, at most
ZERO = "\0"  # in no text, and in much that is none
KINDS = "a text in UTF-8, or in UTF-16 with its mark, or a PDF or .docx"
CURE = "Save it as one of these, or take it away."
# Another encoding is what most texts that are not read have.
ENCODE = (
    "Save it as one of these: a text of another encoding as UTF-8, an old .doc as .docx; or take "
    "it away."
)
REPAIR = "Save it anew, without a password, or as a text; or take it away."
MARKED_UP = {".htm": "HTML", ".html": "HTML", ".rtf": "RTF", ".xhtml": "HTML"}
RECORD = "run.json"  # stands in each folder that a command of ours wrote
HIDDEN = (".", "~$")  # how names begin; the second where a word processor has a file open


def files_within(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, but for hidden ones and results of ours."""
    inside = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    ours = {
        file.parent
        for file in inside
        if file.name == RECORD and file.parent != Path() and _is_record(folder / file)
    }
    files = [file for file in inside if not ours.intersection(file.parents)]
    return sorted(file for file in files if not any(name.startswith(HIDDEN) for name in file.parts))


def _is_record(file: Path) -> bool:
    """Tell whether a file is the record of a run of ours, and not another's of that name."""
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and {"command", "arguments", "versions"} <= record.keys()


def text_of_file(file: Path, name: str, most: int | None = None) -> str:
    """Return the text of a user's file, with line feeds as line ends; errors name `name`.

    One of more letters than `most` is refused, by its size before it is read; and HTML or RTF,
    whose tags are no text.
    """
    markup = MARKED_UP.get(file.suffix.lower())
    require(
        markup is None,
        name,
        got=f"{file}, which is {markup}",
        expected=KINDS,
        cure="Save its text without tags, or call it .txt if the tags are what is asked about.",
    )
    try:
        size = file.stat().st_size
        pages = file.suffix.lower() in (".pdf", ".docx")  # pictures may make most of it
        _require_letters(file, name, size, most, pages or most is None or size <= BYTES * most)
        content = file.read_bytes()
    except OSError as error:
        raise Refusal(
            f"{name}: got {file}, which cannot be read ({error.strerror}), expected {KINDS}. {CURE}"
        ) from error
    if content.startswith(b"%PDF-"):
        text = _extract(file, name, "pypdf")
    elif file.suffix.lower() == ".docx":
        text = _extract(file, name, "docx")
    else:
        text = decoded(content, file, name)
    _require_letters(file, name, size, most, most is None or len(text) <= most)
    return text


def _require_letters(file: Path, name: str, size: int, most: int | None, fits: bool) -> None:
    """Raise ValueError if a file does not fit the greatest number of letters."""
    require(
        fits,
        name,
        got=f"{file} of {size:,} bytes",
        expected=f"a text of at most {most or 0:,} letters",
        cure="Cut the file down to what matters, or leave it out.",
    )


def decoded(content: bytes, file: Path, name: str) -> str:
    """Decode a file's bytes without the byte-order mark, with line feeds as line ends."""
    encoding = ENCODINGS.get(content[:2], "utf-8")
    text = ""
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
        wrong = f"character {text.index(ZERO) + 1} is zero" if ZERO in text else ""
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} is not of {encoding.upper()}"
    require(not wrong, name, got=f"{file}, whose {wrong}", expected=KINDS, cure=ENCODE)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _extract(file: Path, name: str, package: str) -> str:
    """Extract the text of a PDF or Word document; raise ValueError if there is none."""
    require_extra(package, "documents")
    try:
        if package == "pypdf":
            text = "\n".join(page.extract_text() for page in pypdf.PdfReader(file).pages)
        else:
            text = _read_docx(file)
    except Exception as error:  # whatever the package meets in what is broken or locked
        raise Refusal(
            f"{name}: got {file}, which {package} cannot read ({error}), expected a whole "
            f"document without a password. {REPAIR}"
        ) from error
    require(
        bool(text.strip()),
        name,
        got=f"{file}, in which there is no text",
        expected="a document of text, not of pictures of it",
        cure="Pass it through a program that recognises text, or take it away.",
    )
    return text


def _read_docx(file: Path) -> str:
    """Return paragraphs and tables of a Word document in order, one line per table row."""
    return "\n".join(_lines_of_docx(docx.Document(str(file))))


def _lines_of_docx(part: Any) -> Iterator[str]:
    """Yield the paragraphs and rows of a document, or of a cell with all that is inside."""
    for block in part.iter_inner_content():
        rows = getattr(block, "rows", None)
        if rows is None:
            yield block.text
            continue
        above: set[Any] = set()
        for row in rows:
            cells = {cell._tc: cell for cell in row.cells}  # a merged one comes for each column
            texts = [
                "" if merged in above else "\n".join(_lines_of_docx(cell))
                for merged, cell in cells.items()
            ]
            above.update(cells)  # and for each row
            yield "\t".join(texts)


def parsed_json(text: str, where: str, cure: str) -> Any:
    """Parse JSON; raise ValueError at a repeated name, where `json.loads` would not."""
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refusal_to_read)
        if "\\u" in text:  # an escape may be half of a pair, which no encoding has
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{where}: got {text[:40]!r}, expected JSON ({error}). {cure}") from error
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of a JSON object's pairs; raise ValueError if a name stands twice."""
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f'the name "{name}" stands twice')
        entries[name] = value
    return entries


def _refusal_to_read(constant: str) -> None:
    """Raise ValueError at NaN and infinities, which JSON does not have."""
    raise ValueError(f"{constant} is no number of JSON")
