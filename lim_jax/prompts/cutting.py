"""A text cut into paragraphs and into sentences: spans in characters, to each character one.

In any language a line stands alone unless it is one of a wrapped paragraph or of code. A sentence
ends after its mark and what closes after it, before white space; not before a small letter, nor
after a line's own mark, an abbreviation or an initial that goes on. It gets wrong sentences that
begin with a small letter, and ordinals of other languages (am 5. Mai).
"""

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

Span = tuple[int, int]  # of characters; the end is not of the span

BLANK = re.compile(r"\n[^\S\n]*\n")
SPACE = re.compile(r"\s*\n|[^\S\n]*")  # after a sentence; the next line's indentation is of it
FENCE = "```"
# What begins a line that does not go on with the one before, what ends one that does not go on,
# and how long the longest line of a wrapped paragraph is at least.
ALONE = re.compile(r"\s|[-*+•–]\s|[|#>}]|```|\(?(?:\d{1,3}|[a-zA-Z])[.)]\s")
HARD = re.compile(r"[;{}|:]\s*$")
WRAPPED = 60

CLOSING = r"""["'”’»›)\]}*_]*(?:\[\d+\])*"""
END = re.compile(rf"(?P<stop>[.!?…]+){CLOSING}(?=\s|$)|[。！？｡।॥؟۔։።။]+[”’」』）】》\"')\]]*")
AROUND = 60  # characters that are looked at before a mark and after it
BEFORE_NAMES = frozenset(
    "Dr Mr Mrs Ms Mx Prof St Gen Col Capt Lt Sgt Rev Hon Gov Sen Rep Pres Mt Mme Mlle".split()
)
BEFORE_NUMBERS = frozenset(
    "no nr nos fig figs eq eqs sec ch vol art pp p para par ed tab ref refs ca approx al "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
NEVER_LAST = frozenset("e.g i.e cf vs viz z.b d.h p.ej".split())
INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
BEGINNERS = frozenset(
    "The This That These Those There Then They He She It We You I A An In On At As But And So If "
    "When While Where After Before However Its His Her Their Our My No Not For From By To With "
    "What Who Why How".split()
)


def sentences(text: str) -> list[Span]:
    """The sentences of a text, one after another: each character is in exactly one."""
    return _between(text, (end for block in _blocks(text) for end in _ends(text, *block)))


def paragraphs(text: str) -> list[Span]:
    """The paragraphs of a text, each with the blank lines after it."""
    return _between(text, (match.start() for match in BLANK.finditer(text)))


def _between(text: str, ends: Iterable[int]) -> list[Span]:
    """The spans that end at some characters and the white space after them, and at the text's."""
    cuts, last = [0], len(text.rstrip())
    for end in ends:
        if end < last and text[cuts[-1] : end].strip():
            space = SPACE.match(text, end)
            cuts.append(space.end() if space else end)
    return list(pairwise([*cuts, len(text)])) if text else []


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Lines, those of a wrapped paragraph together: start, end, and whether it is one of code."""
    fenced = False
    for start, end in paragraphs(text):
        lines = text[start:end].splitlines(keepends=True)
        width, begun = max(len(line.rstrip()) for line in lines), start
        for line, after, at in zip(
            lines, [*lines[1:], ""], accumulate(map(len, lines)), strict=True
        ):
            fence = line.lstrip().startswith(FENCE)
            code, fenced = fenced or fence, fenced ^ fence
            if code or not _wrapped(line, after, width):
                yield begun, start + at - len(line) + len(line.rstrip()), code
                begun = start + at


def _wrapped(line: str, after: str, width: int) -> bool:
    """Whether a line goes on in the one after it, which would have fitted on it otherwise."""
    if width < WRAPPED or not after.strip() or ALONE.match(after):
        return False
    if line[:1].isspace() or line[:1] in "#|>" or HARD.search(line):
        return False
    return len(line.rstrip()) + 1 + len(after.split()[0]) > width


def _ends(text: str, start: int, end: int, code: bool) -> Iterator[int]:
    for match in () if code else END.finditer(text, start, end):
        before = text[max(start, match.start() - AROUND) : match.start()]
        after = text[match.end() : min(end, match.end() + AROUND)].lstrip()
        if not match["stop"] or not _goes_on(before, match["stop"], after):
            yield match.end()
    yield end


def _goes_on(before: str, stop: str, after: str) -> bool:
    first, words = next(filter(str.isalnum, after), ""), before.split()
    if first.islower() or stop != "." or not words:
        return first.islower()
    word, begins = words[-1].lstrip("\"'“‘«([{"), re.match(r"\W*(\w+)", after)
    marks_line = len(words) == 1 and re.fullmatch(r"\d{1,3}|[a-zA-Z]", word) is not None
    if marks_line or word in BEFORE_NAMES or word.lower() in NEVER_LAST:
        return True
    if word.lower() in BEFORE_NUMBERS and first.isdigit():
        return True
    initials = word[:1].isupper() and INITIALS.fullmatch(word) is not None
    return initials and begins is not None and begins[1] not in BEGINNERS
