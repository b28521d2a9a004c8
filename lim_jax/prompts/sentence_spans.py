"""A text cut into paragraphs and into sentences: spans in characters, to each character one.

In any language a line stands alone unless it is one of a wrapped paragraph or of code; a line of a
log or of a talk always does. A sentence ends after its mark and what closes after it, before white
space; not before a small letter, nor after a line's own mark, an abbreviation, an ordinal (am 5.
Mai) or an initial that goes on. It gets wrong sentences that begin with a small letter.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

Span = tuple[int, int]  # of characters; the end is not of the span

BLANK = re.compile(r"\n[^\S\n]*\n")
SPACE = re.compile(r"\s*\n|[^\S\n]*")  # after a sentence; the next line's indentation is of it
VISIBLE = re.compile(r"\S")
FENCE = "```"
# What begins a line that does not go on with the one before, what ends one that does not go on,
# and how long the longest line of a wrapped paragraph is at least.
ALONE = re.compile(r"\s|[-*+•–]\s|[|#>}]|```|\(?(?:\d{1,3}|[a-zA-Z])[.)]\s")
HARD = re.compile(r"[;{}|:]\s*$")
WRAPPED = 60
# What begins a line of a log, a time with or without its date, or of a talk, who speaks: where
# several lines of a paragraph do. A name of several words has capitals, if its script has.
TIME = r"[\[(]?(?:\d{1,4}[-./]\d{1,2}(?:[-./]\d{1,4})?[,T\s]\s*)?\d{1,2}:\d{2}"
SPEAKER = r"<[^<>\n]{1,30}>\s|(?:[^\W\d_a-zß-ÿ][\w.'’-]*\s){0,2}\w[\w.'’-]{0,20}(?::\s|：)"
LEAD = re.compile(f"{TIME}|{SPEAKER}")

# French has a space before the marks that close a quotation.
CLOSING = r"""(?:["'”’“‘»›«‹)\]}*_]|\s»(?=\s|$))*(?:\[\d+\])*"""
# A row of marks is tried from its first one alone: from each it would take the length's square.
STOPS = r"(?<![.!?…])(?P<stop>[.!?…]+)"
END = re.compile(rf"{STOPS}{CLOSING}(?=\s|$)|[。！？｡।॥؟۔։።။]+[”’」』）】》\"')\]]*")
AROUND = 60  # characters that are looked at before a mark and after it
BEFORE_NAMES = frozenset(
    "Dr Mr Mrs Ms Mx Prof St Gen Col Capt Lt Sgt Rev Hon Gov Sen Rep Pres Mt Mme Mlle "
    "Hr Sra Srta Dra Sig".split()
)
BEFORE_NUMBERS = frozenset(
    "no nr nos fig figs eq eqs sec ch vol art pp p para par ed tab ref refs ca approx al "
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez".split()
)
# German has a stop after an ordinal, and a capital after it: before a month, and after these.
ORDINAL = re.compile(r"(?:\d{1,3}\.[/–-])*\d{1,3}|[IVXLC]+")
MONTHS = frozenset(
    "Januar Jänner Februar Feber März April Mai Juni Juli August September Oktober November "
    "Dezember".split()
)
BEFORE_ORDINALS = frozenset(
    "am im vom zum zur beim der die das dem den des ein eine einem einen einer eines".split()
)
NEVER_LAST = frozenset("e.g i.e cf vs viz z.b d.h p.ej".split())
# A Sr. stands before a name in Spanish, and after one in English.
INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]|Sr")
SPACED_INITIALS = re.compile(r"\W*(?:[^\W\d_]|Chr)\.")  # as in z. B. or v. Chr.
BEGINNERS = frozenset(
    "The This That These Those There Then They He She It We You I A An In On At As But And So If "
    "When While Where After Before However Its His Her Their Our My No Not For From By To With "
    "What Who Why How".split()
)
GERMAN_BEGINNERS = frozenset(
    "Der Die Das Den Dem Er Sie Es Wir Ihr Ich Ein Eine Am Im Auf Bei Mit Nach Vor Von Seit Und "
    "Aber Doch Da Dann Danach Dort Hier Als Wenn Wer Was Wo Wie Sein Seine Ihre".split()
)


def sentences(text: str) -> list[Span]:
    """Return the sentences of a text, one after another: each character is in exactly one."""
    return _between(text, (end for block in _blocks(text) for end in _ends(text, *block)))


def paragraphs(text: str) -> list[Span]:
    """Return the paragraphs of a text, each with the blank lines after it."""
    return _between(text, (match.start() for match in BLANK.finditer(text)))


def _between(text: str, ends: Iterable[int]) -> list[Span]:
    """Cut a text at these ends, behind the white space after each, and return the spans."""
    cuts = [0]
    last = len(text.rstrip())
    begun = _first_visible(text, 0)
    for end in ends:
        if begun < end < last:
            space = SPACE.match(text, end)
            cuts.append(space.end() if space else end)
            begun = _first_visible(text, cuts[-1])
    return list(pairwise([*cuts, len(text)])) if text else []


def _first_visible(text: str, start: int) -> int:
    """Return where the first character is from a start on that is no white space, or the end."""
    visible = VISIBLE.search(text, start)
    return visible.start() if visible else len(text)


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield each block, a line or a wrapped paragraph: start, end, and whether it is code."""
    fenced = False
    for start, end in paragraphs(text):
        lines = text[start:end].splitlines(keepends=True)
        width = max(len(line.rstrip()) for line in lines)
        begun = start
        led = sum(LEAD.match(line) is not None for line in lines) > 1
        for line, after, at in zip(
            lines, [*lines[1:], ""], accumulate(map(len, lines)), strict=True
        ):
            fence = line.lstrip().startswith(FENCE)
            code = fenced or fence
            fenced = fenced ^ fence
            if code or (led and LEAD.match(after)) or not _wrapped(line, after, width):
                yield begun, start + at - len(line) + len(line.rstrip()), code
                begun = start + at


def _wrapped(line: str, after: str, width: int) -> bool:
    """Tell whether a line was wrapped, as the next one's first word would not have fitted on it."""
    if width < WRAPPED or not after.strip() or ALONE.match(after):
        return False
    if line[:1].isspace() or line[:1] in "#|>" or HARD.search(line):
        return False
    return len(line.rstrip()) + 1 + len(after.split()[0]) > width


def _ends(text: str, start: int, end: int, code: bool) -> Iterator[int]:
    """Yield where the sentences of a block end; a block of code is one sentence."""
    for match in () if code else END.finditer(text, start, end):
        before = text[max(start, match.start() - AROUND) : match.start()]
        after = text[match.end() : min(end, match.end() + AROUND)].lstrip()
        if not match["stop"] or not _goes_on(before, match["stop"], after):
            yield match.end()
    yield end


def _goes_on(before: str, stop: str, after: str) -> bool:
    """Tell whether a sentence goes on after a stop, by the text before it and after it."""
    first = next(filter(str.isalnum, after), "")
    if first.islower():
        return True
    words = before.split()
    if stop != "." or not words:
        return False
    word = words[-1].lstrip("\"'“„‘‚«»‹›([{")
    marks_line = len(words) == 1 and re.fullmatch(r"\d{1,3}|[a-zA-Z]", word) is not None
    if marks_line or word in BEFORE_NAMES or word.lower() in NEVER_LAST:
        return True
    if word.lower() in BEFORE_NUMBERS and first.isdigit():
        return True
    begins = re.match(r"\W*(\w+)", after)
    if begins is None:
        return False
    if ORDINAL.fullmatch(word) and _is_ordinal(words[:-1], begins[1]):
        return True
    if len(word) == 1 and word.islower():
        if SPACED_INITIALS.match(after):
            return True
        return len(words) > 1 and re.fullmatch(r"\W*[^\W\d_]\.", words[-2]) is not None
    is_initial = word[:1].isupper() and INITIALS.fullmatch(word) is not None
    return is_initial and begins[1] not in BEGINNERS


def _is_ordinal(before: list[str], following: str) -> bool:
    """Tell whether a number with a stop is an ordinal, by the words before it and the one after."""
    if following in MONTHS:
        return True
    begins = following in BEGINNERS or following in GERMAN_BEGINNERS
    if begins or not before or before[-2:] == ["I", "am"]:
        return False
    return before[-1].lower() in BEFORE_ORDINALS
