"""Pages of made-up results, with tokens that a page must not take for markup."""

import json
from html.parser import HTMLParser
from typing import Any, NamedTuple

import jax
import numpy as np

import lim_jax as lim
from lim_jax.adjoint.certificate import Certificate, Inequality, Premise
from lim_jax.attribution.parts import MeanShare
from lim_jax.explanations.account import TokenBreakdown


class Span(NamedTuple):
    """A named part of a context."""

    name: str
    positions: np.ndarray


LAYERS = 3
HEADS = 2
DEPTH = 1
GRID_SIZE = 9
LENGTHS = (9, 3)
TITLE = "a & b </title><script>document.title = 'owned'</script>"
SCRIPT = "<script>document.title = 'owned'</script>"
IMAGE = "<img src=x onerror='document.title = 1'>"
TEXTS = (
    (SCRIPT, " the", "&amp;", "\n", "  ", "\x00", "'\"", "é", IMAGE, ""),
    ("</script>", "{{ 7 * 7 }}", " end.\n", "so"),
)
ASKED = (np.eye(9)[8], np.full(3, 1 / 3))
CERTIFICATES = (
    Certificate(
        "first", "eq:a", (Premise("x > 0", 2.5, True),),
        (Inequality("A > B", 3.0, 1.0, 1e-8),), "the left is above",
        (Inequality("L > M", 2.0, 1.0, 1e-8),),
    ),
    Certificate(
        "second", "eq:b", (), (Inequality("A > B", 1.0, 3.0, 1e-8),), "the right is above",
        (Inequality("R > M", 1.0, 2.0, 1e-8),),
    ),
    Certificate("third", "eq:c", (), (), "nothing", (), vacuous="A < B whatever the middle is"),
)  # fmt: skip

SPANS = (
    (
        Span("<b>first</b>", np.array([0, 1, 2])),
        Span("last", np.array([6])),
        Span("last", np.array([7])),
    ),
    (),
)
RECORDS = (
    MeanShare("last", "part", 0.25, np.inf, 1, 0.125, 1, 1, "“é” 9 %"),
    MeanShare("<b>first</b>", "part", 0.5, 0.1, 3, 0.375, 3, 2, "“<i>” 8 %"),
    MeanShare("", "rest", 0.75, 0.0, 4, 0.5, 3, 3, "“a” 7 %"),
)
# One question with markup, and how many contexts were measured in all.
NAMES = ("“Who <b>sings</b>?”", "id 7, order 1")
MEASURED = 12
BY_PLACE = (("share in %", "place 1"), ("“<b>Wren</b>”", "50.0 ± 1.0"))


def account(length, seed, query_weights):
    """Energies over three decades, with a token that has none."""
    rng = np.random.default_rng(seed)

    def energies(*shape):
        return np.exp(rng.uniform(-7, 1, shape))

    by_depth = energies(LAYERS + 1, length)
    by_depth[DEPTH, 1] = 0
    by_depth[DEPTH, 0] *= 5e-6**seed  # the least of all is in the second context
    channels = energies(3, length)
    channels[:, 2] = 0
    parts: Any = (
        np.asarray(1.25 + seed), query_weights, channels, energies(4, length),
        energies(LAYERS - DEPTH, HEADS), by_depth,
    )  # fmt: skip
    return TokenBreakdown(*parts)


def accounts():
    return [account(length, seed, ASKED[seed]) for seed, length in enumerate(LENGTHS)]


def energies():
    """Of three examples, Lost-in-the-Middle by far."""
    profile = np.array([4.0, 3.0, 1.0, 0.5, 0.6, 0.4, 1.1, 3.5, 5.0])
    noise = np.random.default_rng(5).uniform(0.9, 1.1, (3, GRID_SIZE))
    return profile * noise


def influence(left_out=()):
    regions = lim.boundary_regions(lim.token_grid(GRID_SIZE), 0.25).without(left_out)
    return lim.Influence.from_energies(jax.device_put(energies()), regions)


def written(folder, **options):
    """The page of it all."""
    defaults = {
        "title": TITLE,
        "certificates": CERTIFICATES,
        "without_queries": influence([GRID_SIZE - 1]),
        "names": NAMES,
        "measured": MEASURED,
        "spans": SPANS,
        "records": RECORDS,
        "by_place": BY_PLACE,
    }
    page = lim.report.influence_page(influence(), accounts(), TEXTS, **defaults | options)
    return page.save(folder / "page.html")


VOID = {"meta", "link", "img", "br", "input", "hr"}


class Read(HTMLParser):
    """A page's elements in order, each with its attributes and its own text; tags must match.

    What stands in <bdi>, which says no more than its direction, is the text of what is around it.
    """

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", "inner": "", "inside": [], **dict(attrs)}
        self.elements.append(element)
        for outer in self.open:
            outer["inside"].append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for outer in reversed(self.open):
            outer["text"] += data
            if outer["tag"] != "bdi":
                break
        for outer in self.open:
            outer["inner"] += data

    def all(self, tag, of_class=None):
        return [
            element
            for element in self.elements
            if element["tag"] == tag
            and (of_class is None or of_class in element.get("class", "").split())
        ]

    def texts_in(self, element, tag):
        """Of every such element inside of one its text, with that of what is inside."""
        return [
            " ".join(inner["inner"].split()) for inner in element["inside"] if inner["tag"] == tag
        ]

    def json(self, name):
        (script,) = (element for element in self.all("script") if element.get("id") == name)
        return json.loads(script["text"])
