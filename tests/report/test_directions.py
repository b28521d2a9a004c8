"""Pages in a browser whose texts run from the right, or stand in the dark, or on a telephone."""

import numpy as np
import pytest
from reference import pages
from reference.browser import PROGRAM, browser
from reference.pages import Read

from lim_jax.attribution.method import scores_by_token
from lim_jax.attribution.segments import answer_segments, document_segments
from lim_jax.attribution.together import Together
from lim_jax.prompts import Document, document_prompt, tokenize_context
from lim_jax.report.page import comparison_page, influence_page
from lim_jax.report.sources import sources_page

DOCUMENTS = [
    Document("السوق", "يفتح السوق يوم الجمعة. يبيع التجار السمك."),
    Document("The harbour", "It is deep. It is old."),
    Document("The harbour", "Ships come.\nنعم، كل يوم."),
]
SAID = ["The answer “نعم، يوم الجمعة” comes from “السوق” most of all: +0.30."]
NAME = "تقرير"


def answer(cut=False, groups=()):
    """The page of an answer, where titles have the largest scores of all."""
    prompt = document_prompt(DOCUMENTS, "متى؟")
    context = tokenize_context(prompt, " نعم. يوم الجمعة.", loss="margin")._replace(cut=cut)
    parts = answer_segments(context)
    drawn = np.random.default_rng(0).normal(size=(len(parts), context.length))
    for span in context.spans[:3]:
        drawn[:, span.positions[:4]] += 99
    scores = scores_by_token(parts, [], drawn)
    return sources_page(scores, context, question="متى؟", how="drawn", findings=SAID, groups=groups)


def comparison(path):
    """The page of a comparison of profiles, whose figures and numbers are wider than a phone."""
    figure = path.parent / "figure.svg"
    figure.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="700" height="80"/>', encoding="utf-8"
    )
    head = ["", "first", NAME, "difference", "error"]
    rows = [head, ["density middle, queries left out", "-0.02284", "0.01088", "0.03372", "0.05326"]]
    about = {"title": f"{NAME} minus first", "sentences": SAID, "rows": rows}
    theirs = [("first", answer()), (NAME, "b")]
    comparison_page(**about, figures={"a": figure}, pages=theirs).save(path)


def test_a_title_stands_once_and_is_no_sentence_of_its_document():
    page = Read(answer())
    for article, document in zip(page.all("article"), DOCUMENTS, strict=True):
        titles = [one for one in article["inside"] if "title" in one.get("class", "").split()]
        assert [title["inner"] for title in titles] == [f"{document.title}\n"]
        whole = "".join(one["inner"] for one in article["inside"] if one.get("class") == "t")
        assert whole == f"{document.title}\n{document.text}"
        assert article["inner"].count(document.title) == 1 + document.text.count(document.title)
    headings = [" ".join(heading["inner"].split()) for heading in page.all("h3")]
    assert headings == ["السوق", "The harbour (document 2)", "The harbour (document 3)"]
    segments = document_segments(tokenize_context(document_prompt(DOCUMENTS, "Who?"), " I"))
    assert [segment.text for segment in segments if segment.is_title] == [
        f"{document.title}\n" for document in DOCUMENTS
    ]


def test_an_answer_that_was_cut_ends_in_three_dots():
    assert [element["text"] for element in Read(answer(cut=True)).all("span", "dots")] == [".."]
    assert Read(answer()).all("span", "dots") == []


def test_what_stands_in_quotation_marks_runs_in_its_own_direction():
    page = Read(answer())
    (said,) = (one for one in page.all("p") if one["text"] == SAID[0])
    assert [one["inner"] for one in said["inside"]] == ["نعم، يوم الجمعة", "السوق"]
    assert {one["tag"] for one in said["inside"]} == {"bdi"}
    for element in [*page.all("h1"), *page.all("h3"), *page.all("p", "text")]:
        assert element["dir"] == "auto"


@pytest.fixture(scope="module")
def tab():
    if PROGRAM is None:
        pytest.skip("no Chromium or Chrome is installed")
    with browser() as opened:
        yield opened


def look(tab, path, width=1200, scheme="light"):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", media="screen", features=features)
    tab.events.clear()
    tab.open(path, width, 700)
    tab.settled()


def press(tab, selector, key):
    tab.value(f"document.querySelector({selector!r}).focus()")
    tab.press(key)


@pytest.mark.slow  # a browser is started
@pytest.mark.parametrize("width", [380, 1200])
def test_titles_and_texts_run_from_their_own_side(tab, width, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(answer(), encoding="utf-8")
    look(tab, path, width)

    def sides(selector, at=0):
        box = f"document.querySelectorAll({selector!r})[{at}].getBoundingClientRect()"
        return tab.value(f"(({{left, right}}) => [left, right])({box})")

    (title, score), (other, after) = (
        (sides(f"article:nth-of-type({at}) .title"), sides(f"article:nth-of-type({at}) .gave"))
        for at in (1, 2)
    )
    assert score[1] <= title[0] + 1 and after[0] >= other[1] - 1, "the score is behind the title"
    column = sides("#documents")
    assert abs(title[1] - column[1]) < 2 and abs(other[0] - column[0]) < 2
    first, last = (f"article:nth-of-type(1) .text .t:{edge}-of-type" for edge in ("first", "last"))
    assert abs(sides(first)[1] - column[1]) < 2 and sides(last)[0] < column[1] - 40
    # Of one text each line runs from its own side.
    ship, yes = (
        tab.value(
            "[...document.querySelectorAll('article:nth-of-type(3) .t')]"
            f".find(one => one.textContent === '{letter}').getBoundingClientRect().right"
        )
        for letter in "Sن"
    )
    assert ship < column[0] + 40 and abs(yes - column[1]) < 2
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1200])
def test_what_is_said_of_documents_together_is_readable_beside_their_names(
    tab, width, scheme, tmp_path
):
    """Beside a name from the right, and of a long name: it stays on the page, in the text's ink."""
    together = Together(("السوق", "a" * 150), np.array([0, 2, 2, 2.0]))
    path = tmp_path / "page.html"
    path.write_text(answer(groups=together.groups), encoding="utf-8")
    look(tab, path, width, scheme)
    box = "(({left, right, top}) => [left, right, top])(document.querySelector('%s')%s)"
    mark, column, title = (
        tab.value(box % (one, ".getBoundingClientRect()")) for one in (".group", "h3", "h3 .title")
    )
    assert column[0] - 1 <= mark[0] and mark[1] <= column[1] + 1
    assert mark[2] >= title[2]
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    style = "(s => [s.color, s.direction, s.borderTopWidth, s.display])"
    ink, direction, border, display = tab.value(
        f"{style}(getComputedStyle(document.querySelector('.group')))"
    )
    assert ink == tab.value("getComputedStyle(document.body).color")
    assert (direction, border, display) == ("ltr", "1px", "inline-block")
    tab.value("document.querySelector('.part').click()")
    assert tab.value("document.querySelector('.group').textContent") == (
        f"needed together with “{'a' * 150}”"
    )


@pytest.mark.slow
def test_no_title_is_among_the_sentences_that_gave_most_and_it_can_be_chosen(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(answer(), encoding="utf-8")
    look(tab, path)
    listed = "all('#most bdi').map(one => one.textContent)"
    assert len(tab.value(listed)) == 5
    assert not {document.title for document in DOCUMENTS} & set(tab.value(listed))
    # A title is the first of its document's parts for the keyboard, and counts in its sum.
    assert (
        tab.value("all('.document [tabindex=\"0\"]').map(one => one.className)")
        == ["part title"] * 3
    )
    press(tab, ".title", "Enter")
    assert tab.value("document.querySelector('[aria-pressed=true]').textContent") == "السوق\n"
    tab.press("ArrowRight")
    tab.press("Enter")
    chosen = tab.value("document.querySelector('[aria-pressed=true]').textContent")
    assert chosen == "يفتح السوق يوم الجمعة. "
    tab.press("Escape")
    sums = tab.value("all('.gave').map(one => Number(one.textContent.replace('−', '-')))")
    assert min(sums) > 99, "with the title's score"


@pytest.mark.slow
def test_escape_keeps_the_focus_and_paper_what_was_chosen(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(answer(), encoding="utf-8")
    look(tab, path)
    focused = "all('#most button').indexOf(document.activeElement)"
    press(tab, "#most li:nth-child(3) button", "Escape")
    assert tab.value(focused) == 2
    tab.value("document.querySelectorAll('.pick.row')[1].click()")
    press(tab, "#most li:nth-child(2) button", "Escape")
    assert tab.value(focused) == 1
    pressed = "document.querySelector('[aria-pressed=true]').textContent"
    whole = tab.value(pressed)
    for chosen in (".pick.row:nth-of-type(2)", "article:nth-of-type(2) .text .part"):
        tab.value(f"document.querySelector({chosen!r}).click()")
        before = tab.value(pressed), tab.value("most.textContent"), tab.value("status.textContent")
        for media, shown in (("print", whole), ("screen", before[0])):
            tab.call("Emulation.setEmulatedMedia", media=media, features=[])
            tab.settled()
            assert tab.value(pressed) == shown
        after = tab.value(pressed), tab.value("most.textContent"), tab.value("status.textContent")
        assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_is_of_the_other_pages_colours_and_font(tab, scheme, tmp_path):
    path = tmp_path / "compare.html"
    other = tmp_path / "answer.html"
    comparison(path)
    other.write_text(answer(), encoding="utf-8")
    style = "(s => [s.color, s.backgroundColor, s.fontFamily, s.fontSize])"
    looks = []
    for one in (path, other):
        look(tab, one, 380, scheme)
        looks.append(tab.value(f"{style}(getComputedStyle(document.body))"))
        assert tab.value("document.documentElement.scrollWidth") <= 380, "nothing runs out of it"
    assert looks[0] == looks[1]
    look(tab, path, 1200, scheme)
    assert (
        tab.value("getComputedStyle(document.querySelector('img')).filter")
        == {"light": "none", "dark": "invert(0.92) hue-rotate(180deg)"}[scheme]
    )
    name, title = (
        tab.value(f"document.querySelector({one!r}).getBoundingClientRect().left")
        for one in ("h1", "header p")
    )
    assert name == title
    assert not tab.named("Runtime.exceptionThrown")


@pytest.mark.slow
def test_the_tokens_of_a_profile_run_from_their_own_side(tab, tmp_path):
    texts = (
        ("يفتح", " السوق", " يوم", "،", "\n", "A", " b", "é", "市", "نعم"),
        ("a", "b", "c", "d"),
    )
    page = influence_page(pages.influence(), pages.accounts(), texts, title="متى؟")
    path = page.save(tmp_path / "page.html")
    look(tab, path, 380)
    lefts = tab.value(
        "[...document.querySelectorAll('.token')].map(one => one.getBoundingClientRect().left)"
    )
    assert lefts[0] > lefts[1] > lefts[2] > lefts[3] and lefts[5] < lefts[6]
    room = tab.value("document.documentElement.clientWidth")
    assert tab.value("document.documentElement.scrollWidth") <= room
