"""The page of an answer in a browser: by clicks, by the keyboard, narrow, dark and printed."""

import base64
import re

import numpy as np
import pytest
from reference.browser import PROGRAM, browser
from reference.pages import Read
from reference.sources import CONTEXT, QUESTION, SCRIPT, made_scores, written

from lim_jax.report.sources import sources_page

pytestmark = [
    pytest.mark.slow,  # a browser is started
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome is installed"),
]
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
PRESSED = "document.querySelector('[aria-pressed=true]').textContent"
SHADES = "{}.map(one => Number(one.dataset.shade ?? 0))"
LISTED = "[...document.querySelectorAll('#most button')].map(one => one.textContent)"


class Tab:
    """The page of an answer by token, open, and what stands in it."""

    def __init__(self, tab, page):
        self.tab, self.value, self.scores = tab, tab.value, made_scores("token")
        data = page.json("data")
        rows = len(self.scores.answer)
        steps = np.frombuffer(base64.b64decode(data["steps"]), np.int8).reshape(rows, -1)
        self.by_token = steps * np.transpose([data["scales"]])
        self.sentences = [part["inner"] for part in page.all("span", "part")]
        self.picks = [one.text for one in self.scores.answer]
        self.by_sentence = np.array(data["parts"])

    def click(self, selector, at=0):
        self.value(f"document.querySelectorAll({selector!r})[{at}].click()")

    def require_whole(self):
        assert self.value(PRESSED) == "the whole answer"
        self.require_chosen(self.by_token.sum(axis=0), self.by_sentence.sum(axis=0))

    def require_chosen(self, by_token, by_sentence):
        """Documents are shaded, and the sentences listed that gave most, with their signs."""
        assert self.value(SHADES.format("tokens")) == steps_of(by_token)
        assert set(self.value(SHADES.format("picks"))) == {0}
        listed = self.value(LISTED)
        assert [one[0] for one in listed] == signs(by_sentence)
        order = np.argsort(-np.abs(by_sentence))[:5].tolist()
        texts = ["“" + " ".join(self.sentences[at].split()) + "”" for at in order]
        assert [one.split(" ", 1)[1] for one in listed] == texts
        assert [float(one[1:].split(" ")[0]) for one in listed] == pytest.approx(
            np.abs(by_sentence[order]), rel=0.06
        )


def steps_of(values):
    """Of 0.02, 0.06, 0.2, 0.6 and 2 how many a value reaches, with its sign."""
    sizes = np.searchsorted([0.02, 0.06, 0.2, 0.6, 2], np.abs(values), side="right")
    return (np.sign(values) * sizes).astype(int).tolist()


def signs(values):
    return ["−" if value < 0 else "+" for value in values[np.argsort(-np.abs(values))[:5]]]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    path = tmp_path_factory.mktemp("sources") / "page.html"
    page = Read(written(path, "token"))
    with browser() as opened:
        opened.open(path, 1100, 700)
        yield Tab(opened, page)


@pytest.mark.parametrize("row", [1, 5])
def test_a_click_on_a_token_shades_what_it_came_from(tab, row):
    tab.click(".pick.row", row)
    assert tab.value(PRESSED) == tab.picks[row]
    tab.require_chosen(tab.by_token[row], tab.by_sentence[row])


def test_a_click_on_a_sentence_adds_its_tokens_up(tab):
    tab.click(".handle", 1)
    assert tab.value(PRESSED) == "2"
    rows = slice(9, None)  # “ Wren é. ” is of nine tokens
    tab.require_chosen(tab.by_token[rows].sum(axis=0), tab.by_sentence[rows].sum(axis=0))
    said = tab.value("document.getElementById('status').textContent")
    assert f"What “So </script{SCRIPT}” came from" in said
    tab.click(".handle", 2)
    tab.require_whole()


def test_a_click_on_a_sentence_of_a_document_shows_what_it_fed(tab):
    tab.click(".part", 3)
    assert tab.value(PRESSED) == tab.sentences[3]
    assert set(tab.value(SHADES.format("tokens"))) == {0}
    column = tab.by_sentence[:, 3]
    assert tab.value(SHADES.format("rows")) == steps_of(column)
    sentences = np.array([column[:9].sum(), column[9:].sum()])
    assert tab.value(SHADES.format("all('.handle')")) == [*steps_of(sentences), 0]
    listed = tab.value(LISTED)
    assert [one[0] for one in listed] == signs(column)
    tab.click("#most button")
    chosen = int(np.abs(column).argmax())
    assert tab.value("document.activeElement.textContent") == tab.picks[chosen]


def test_the_keyboard_walks_and_chooses(tab):
    tab.click("#whole")
    walk = {"Home": "the whole answer", "Enter": "1", "ArrowRight": "1", " ": " ", "End": " "}
    for key, pressed in walk.items():
        tab.tab.press(key)
        assert tab.value(PRESSED) == pressed
    tab.require_chosen(tab.by_token[0], tab.by_sentence[0])
    assert tab.value("rows[0].getAttribute('aria-label')") == "blank"
    assert tab.value("all('[tabindex=\"0\"]', document.getElementById('answer')).length") == 1
    tab.value("parts[0].focus()")
    tab.tab.press("ArrowDown")
    tab.tab.press(" ")
    assert tab.value(PRESSED) == tab.sentences[1]
    tab.tab.press("Escape")
    tab.require_whole()


def light(colour):
    """The luminance of a colour as the browser gives it."""
    numbers = np.array([float(one) for one in re.findall(r"[\d.]+", colour)[:3]])
    values = numbers if colour.startswith("color(") else numbers / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(
    "media, scheme", [("screen", "light"), ("screen", "dark"), ("print", "dark")]
)
def test_shades_are_readable_and_signs_are_told_without_colours(tab, media, scheme):
    tab.click(".pick.row", 1)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.tab.call("Emulation.setEmulatedMedia", media=media, features=features)
    tab.tab.settled()
    styles = tab.value(
        "[...document.querySelectorAll('[data-shade]')].map(one => [one, getComputedStyle(one)])"
        ".map(([one, s]) => [one.dataset.shade, s.color, s.backgroundColor, s.textDecorationLine])"
    )
    assert {int(shade) < 0 for shade, *_ in styles} == {True, False}
    for shade, ink, ground, line in styles:
        low, high = sorted((light(ink), light(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5
        assert (line == "underline") == (int(shade) < 0)
    if media == "print":
        tab.require_whole()
    tab.tab.call("Emulation.setEmulatedMedia", media="", features=[])


def test_on_a_narrow_screen_a_page_of_sources_fits(tab):
    size = {"width": 380, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    tab.tab.call("Emulation.setDeviceMetricsOverride", **size)
    assert tab.value("document.documentElement.scrollWidth") <= 380
    tab.tab.call("Emulation.setDeviceMetricsOverride", **size | {"width": 1100})


def test_a_page_of_sources_loads_and_logs_nothing_else(tab):
    """The last of the tests: of all that was done above."""
    requests = [sent["request"]["url"] for sent in tab.tab.named("Network.requestWillBeSent")]
    assert len(requests) == 1 and requests[0].startswith("file:")
    assert [found for complaint in COMPLAINTS for found in tab.tab.named(complaint)] == []
    assert tab.value("document.title") == QUESTION


def test_the_error_of_a_document_is_the_size_of_its_change(tmp_path):
    """Signed changes add up over sentences, and over the tokens of the answer."""
    scores = made_scores("token")
    assert scores.by_token is not None
    changes = np.random.default_rng(1).normal(size=scores.by_token.shape)
    path = tmp_path / "page.html"
    html = sources_page(scores._replace(changes=changes), CONTEXT, question="?", how="drawn")
    path.write_text(html, encoding="utf-8")
    with browser() as opened:
        opened.open(path, 1100, 700)
        said = opened.value("[...document.querySelectorAll('.gave')].map(one => one.textContent)")
    names = [heading["inner"].strip() for heading in Read(html).all("h3")]
    numbers = [int(name[len("<i>")]) for name in names]
    expected = [abs(changes[:, CONTEXT.spans[number].positions].sum()) for number in numbers]
    assert [float(one.split(" ± ")[1]) for one in said] == pytest.approx(expected, rel=0.06)
