"""Tables of a terminal: columns stand below one another in every script."""

import pytest

from lim_jax._text_tables import shown_width, text_table
from lim_jax.attribution.answer_comparison import compare_answers

# How many columns of a terminal each takes, by the package wcwidth 0.9.4.
WIDTHS = {
    "café": 4, "cafe\u0301": 4, "市場": 4, "ｶﾅ": 2, "Ｂ": 2, "한국": 4, "\u1112\u1161\u11ab": 2,
    "السوق": 5, "הַשּׁוּק": 4, "می‌خواهم": 7, "ตลาดที่": 5, "नमस्ते": 4, "👨‍👩‍👧": 2, "👍🏽": 2, "❤️": 2,
    "🇯🇵": 2, "1️⃣": 2, "": 0,
}  # fmt: skip


@pytest.mark.parametrize("text", WIDTHS, ids=ascii)
def test_a_text_is_as_wide_as_a_terminal_shows_it(text):
    assert shown_width(text) == WIDTHS[text]


def test_columns_stand_below_one_another():
    rows = [["part", "score", "most in"], *([f"“{name}”", "+1.0", name] for name in WIDTHS)]
    lines = text_table(rows, left=(0, 2)).splitlines()
    scores = {shown_width(line[: line.index("+1.0")]) for line in lines[1:]}
    assert scores == {shown_width(lines[0][: lines[0].index("score")]) + 1}
    assert lines[0] == "part       score  most in"


def test_columns_of_compared_answers_stand_below_one_another():
    parts = [{"name": one, "kind": "document", "score": 0.5} for one in ("市場", "市", "b")]
    about = {"question": "", "answer": "a", "cut": False, "foil": "", "given": None}
    about["method"] = "mask-path"
    compared = compare_answers({**about, "parts": parts}, {**about, "parts": parts})
    *_, head, first, second, third = str(compared).splitlines()
    assert head == "score    first  second  difference"
    assert first == "“市場”  +0.500  +0.500      +0.000"
    assert second == "“市”    +0.500  +0.500      +0.000"
    assert third == "“b”     +0.500  +0.500      +0.000"
