"""The page in a browser: it loads, tells of what is pointed at, and complains of nothing."""

import re

import jax
import numpy as np
import pytest
from reference import pages
from reference.browser import PROGRAM, browser

import lim_jax as lim

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome is installed"),
]
WIDTH = 1100
HEIGHT = 520  # so low that a card must find its place
LABELS = "[...document.querySelectorAll('#{} .role-axis-label text')].map(one => one.textContent)"
CHARTS = ("profile-0", "profile-1", "channels", "hops", "heads", "depths")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The page once its charts are drawn."""
    with browser() as tab:
        show(tab, pages.written(tmp_path_factory.mktemp("page")))
        yield tab


def show(tab, path):
    """Open a page, and wait for its charts."""
    tab.open(path, WIDTH, HEIGHT)
    drawn = "[...document.querySelectorAll('.chart')].every(one => one.querySelector('svg'))"
    tab.value(f"""new Promise((done, failed) => {{
        const waiting = setInterval(() => {drawn} && (clearInterval(waiting), done()), 20);
        setTimeout(() => failed(new Error("charts are not drawn")), 20000);
    }})""")


def told(tab):
    """What the card says, or None while it is hidden."""
    return tab.value("document.getElementById('card').hidden ? null : card.innerText")


def records(tab):
    fields = tab.value("read('fields')")
    return [
        [dict(zip(fields, one, strict=True)) for one in context] for context in tab.value("records")
    ]


def test_pointing_at_a_token_tells_of_it(opened):
    for at in (1, 8):
        opened.point_at(".token", at)
        record = records(opened)[0][at]
        card = told(opened)
        for field in ("token", "place", "position", "density", "mean", "part", "asks"):
            assert record[field] in card
        widths = opened.value("[...card.querySelectorAll('.bar')].map(bar => bar.style.width)")
        shares = [record[name] for name in list(record)[7:]]
        assert [float(width[:-1]) for width in widths] == [float(share) for share in shares]
        box = opened.value(
            "(({top, left, bottom, right}) => [top, left, bottom, right])"
            "(card.getBoundingClientRect())"
        )
        assert min(box) >= 0 and box[2] <= HEIGHT and box[3] <= WIDTH, "all of it is in sight"
    opened.point_at("h1")
    assert told(opened) is None


def test_the_keyboard_walks_through_the_tokens(opened):
    opened.value("document.querySelector('.token').focus()")
    first, second, *_, last = records(opened)[0]
    assert first["place"] in told(opened)
    opened.press("ArrowRight")
    assert second["place"] in told(opened) and "␣the" in told(opened)
    described = opened.value("document.activeElement.getAttribute('aria-describedby')")
    assert described == "card"
    opened.press("End")
    assert last["place"] in told(opened)
    opened.press("Escape")
    assert told(opened) is None
    opened.value("document.activeElement.blur()")


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_are_drawn_and_tell_of_what_is_pointed_at(opened, chart):
    marks = opened.value(f"document.querySelectorAll('#{chart} .mark-rect path').length")
    assert marks >= 4
    if chart.startswith("profile"):
        # Of the layers with rectangles, the last has one for each position.
        opened.point_at(f"#{chart} .mark-rect:last-of-type path", 3)
    else:
        opened.point_at(f"#{chart} .mark-rect path", 3)
    opened.value("new Promise(done => setTimeout(done, 100))")
    shown = opened.value("document.getElementById('vg-tooltip-element')?.innerText ?? ''")
    words = {"profile": "density", "depths": "density", "heads": "influence at its layer"}
    assert words.get(chart.split("-")[0], "region") in shown and re.search(r"\d", shown)
    assert "undefined" not in shown and "NaN" not in shown
    opened.point_at("h1")


def colours(tab, selector):
    """Pairs of ink and shade as red, green and blue light, of everything that a selector finds."""
    styles = tab.value(
        f"[...document.querySelectorAll('{selector}')].map(one => getComputedStyle(one))"
        ".map(style => [style.color, style.backgroundColor])"
    )
    values = np.array([[re.findall(r"\d+", one)[:3] for one in pair] for pair in styles], float)
    values = values / 255
    return np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)


@pytest.mark.parametrize(
    "media, scheme, dark",
    [("screen", "light", False), ("screen", "dark", True), ("print", "dark", False)],
)
def test_tokens_are_readable_on_light_on_dark_and_on_paper(opened, media, scheme, dark):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.call("Emulation.setEmulatedMedia", media=media, features=features)
    light = colours(opened, ".token, .block, .swatch:not(.last), .badge") @ [0.2126, 0.7152, 0.0722]
    ratios = (light.max(axis=1) + 0.05) / (light.min(axis=1) + 0.05)
    assert ratios.min() >= 4.5
    ((_, page),) = colours(opened, "body") @ [0.2126, 0.7152, 0.0722]
    assert page < 0.05 if dark else page > 0.9
    least = colours(opened, ".swatch")[0, 1] @ [0.2126, 0.7152, 0.0722]
    assert least < 0.05 if dark else least > 0.9
    # Charts take the page's colours.
    for text in ("label", "title"):
        element = f"document.querySelector('#heads .role-axis-{text} text')"
        ink = opened.value(f"getComputedStyle({element}).fill")
        assert (np.mean([int(one) for one in re.findall(r"\d+", ink)]) > 128) == dark
    opened.call("Emulation.setEmulatedMedia", media="", features=[])


def test_on_a_narrow_screen_nothing_runs_out_of_the_page(opened):
    """A telephone's 380 pixels: named parts and their shares are in sight, tables scroll inside."""
    size = {"width": 380, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    opened.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        assert opened.value("document.documentElement.scrollWidth") <= 380
        boxes = "[...document.querySelectorAll('.block .share, .finding, .tokens')]"
        assert (
            opened.value(f"Math.max(...{boxes}.map(one => one.getBoundingClientRect().right))")
            <= 380
        )
        assert opened.value("getComputedStyle(document.querySelector('h1')).fontSize") == "21px"
    finally:
        size |= {"width": WIDTH}
        opened.call("Emulation.setDeviceMetricsOverride", **size)


COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def test_one_context_of_many_decades_is_drawn_on_a_logarithmic_scale(tmp_path):
    """Without a band, since it has no error, and with a zero at the axis' foot."""
    energies = jax.device_put(np.array([[4, 3, 0, 0.5, 0.6, 0.004, 1.1, 30, 500.0]]))
    alone = lim.Influence.from_energies(energies, pages.influence().regions)
    with browser() as tab:
        show(tab, pages.written(tmp_path, without_queries=alone))
        assert [found for complaint in COMPLAINTS for found in tab.named(complaint)] == []
        labels = tab.value(LABELS.format("profile-1"))
        assert {"0.01", "0.1", "1"} <= set(labels)
        tab.point_at("#profile-1 .mark-rect:last-of-type path", 2)
        tab.value("new Promise(done => setTimeout(done, 100))")
        shown = tab.value("document.getElementById('vg-tooltip-element').innerText").split()
        assert shown == ["position", "0.33333", "density", "0"]


def test_nothing_was_asked_for_logged_or_run_besides(opened):
    """The last of the tests: of all that was done above."""
    requests = [sent["request"]["url"] for sent in opened.named("Network.requestWillBeSent")]
    assert len(requests) == 1 and requests[0].startswith("file:")
    for complaint in COMPLAINTS:
        assert opened.named(complaint) == []
    assert opened.value("document.title") == pages.TITLE
