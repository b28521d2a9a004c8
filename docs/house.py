"""Draw the rooms of the house, docs/house.svg, from their table: ``python docs/house.py``."""

import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
TABLE = HERE / "house.toml"
PICTURE = HERE / "house.svg"

# Pixels.
FLOOR_HEIGHT = 40
GAP = 6
MARGIN = 12
INDENT = 150
LETTER = 0.61  # of the font's size: the width of its letters
CAPTION = "A file imports only from rooms above its own, and from files before it."
FRAME = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    'viewBox="0 0 {width} {height}" font-family="DejaVu Sans Mono, Menlo, monospace">\n'
    '<rect width="{width}" height="{height}" fill="#ffffff"/>'
)
BOX = '<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="4" fill="{fill}"/>'
TEXT = '<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}">{text}</text>'


def rooms() -> dict[str, dict]:
    """The table: each room's question and, where it is a folder, its files, in order."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def picture() -> str:
    """The picture: a floor for each room but private files, in the order of the table."""
    public_rooms = {name: room for name, room in rooms().items() if not name.startswith("_")}
    foot = MARGIN + (FLOOR_HEIGHT + GAP) * len(public_rooms)
    width = max(_width(room) for room in public_rooms.values())
    lines = [FRAME.format(width=width, height=foot + 24)]
    for floor, (name, room) in enumerate(public_rooms.items()):
        lines += _floor(name, room, MARGIN + (FLOOR_HEIGHT + GAP) * floor, width)
    lines.append(_text(MARGIN + 10, foot + 12, 11, "#444444", CAPTION))
    return "\n".join([*lines, "</svg>\n"])


def _width(room: dict) -> int:
    """The picture's width, so that all files of a room are on it."""
    return round(INDENT + sum(_box(file) + GAP for file in room.get("files", [])) + 2 * MARGIN)


def _box(file: str) -> float:
    return LETTER * 11 * len(file) + 10


def _floor(name: str, room: dict, y: int, width: int) -> list[str]:
    files = room.get("files", [])
    lines = [
        BOX.format(x=MARGIN, y=y, width=width - 2 * MARGIN, height=FLOOR_HEIGHT, fill="#e6eef6"),
        _text(MARGIN + 10, y + 25, 14, "#0072b2", name),
        _text(INDENT + 5, y + (15 if files else 25), 12, "#333333", room["question"]),
    ]
    x = INDENT
    for file in files:
        lines.append(BOX.format(x=x, y=y + 20, width=_box(file), height=17, fill="#ffffff"))
        lines.append(_text(x + 5, y + 32, 11, "#000000", file))
        x += _box(file) + GAP
    return lines


def _text(x: float, y: int, size: int, colour: str, text: str) -> str:
    return TEXT.format(x=x, y=y, size=size, colour=colour, text=escape(text))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
