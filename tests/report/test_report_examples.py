"""What small functions of the room give, written down by hand."""

import re
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from lim_jax.adjoint.certificate import Certificate, Inequality
from lim_jax.density import Influence
from lim_jax.grid import boundary_regions, token_grid
from lim_jax.report import wording
from lim_jax.report.html_page import Page
from lim_jax.report.sentences import (
    certificate_lines,
    influence_finding,
    part_words,
    parts_finding,
    records_finding,
)
from lim_jax.report.shades import choose_shades
from lim_jax.report.wording import certificate_words, digits, with_error


def test_influence_finding():
    regions = boundary_regions(token_grid(3), "1/3")
    valley = jnp.array([[2.0, 1.0, 2.0], [2.0, 1.4, 2.0]])
    hill = jnp.array([[2.0, 8.0, 2.0]])
    assert influence_finding(Influence.from_energies(valley, regions)).split(". ")[0] == (
        "A token in the middle 33 % of the context has on average 40 % ± 10 % less influence than "
        "one in the first 33 %, the weaker end"
    )
    assert (
        influence_finding(Influence.from_energies(hill, regions))[46:121]
        == "on average 4.0 times the influence of one in the first 33 %, the weaker end"
    )


def test_records_finding():
    rest = {"kind": "part", "error": 0.01, "of_tokens": 0.2}
    records = [
        SimpleNamespace(name=name, share=share, texts=texts, contexts=4, **rest)
        for name, share, texts in (("a", 0.1, 1), ("b", 0.6, 4))
    ]
    assert records_finding(records) == (
        "“b” (4 different texts) holds 60 % ± 1 % of the influence in 20 % of the tokens, "
        "“a” 10 % ± 1 %."
    )
    records[0].contexts = 1
    assert records_finding(records).endswith(
        ", “a” 10 % ± 1 %. Each share is of the contexts that have the part."
    )


def test_part_words():
    assert (
        part_words(SimpleNamespace(name="document 1", kind="part", texts=4))
    ) == "“document 1” (4 different texts)"
    assert (part_words(SimpleNamespace(name="", kind="rest", texts=4))) == "the rest, in no part"


def test_parts_finding():
    assert (
        (parts_finding(np.array([0.0, 1.0, 199.0]), np.array([0.0, 1.0, 2.0, 1.0]), 0)[:61])
        == "By hops: 2 hops 50 %, 1 hop 25 %, 3 or more hops 25 %. By cha"
    )


def test_certificate_lines():
    hopeless = Certificate("survival of recency", "", (), (), "B", (), vacuous="c >= 9")
    assert (certificate_lines([hopeless])) == [
        "1 of 1 criteria cannot decide here: survival of recency."
    ]


def test_choose_shades():
    assert (choose_shades(np.array([0.0, 1.0, 2.0]))(np.array([0.0, 1.1, 2.0])).tolist()) == [
        0,
        5,
        9,
    ]
    shade = choose_shades(np.array([0.0, 1e-3, 1e-2, 10.0]))
    assert (shade.logarithmic, shade(np.array([0.0, 0.0011, 0.011, 10.0])).tolist()) == (
        True,
        [0, 0, 2, 9],
    )


def test_page():
    assert (
        (Page('<p class="a">b</p>')._repr_html_()[:52])
        == '<iframe title="Influence" srcdoc="&lt;p class=&quot;'
    )


def test_digits():
    assert ([digits(value) for value in (0.012345, 12.345, 12345.6, 1.5e7)]) == [
        "0.0123",
        "12.3",
        "12,346",
        "1.5e+07",
    ]


def test_with_error():
    assert (with_error(1.234, 0.05), with_error(1.234, np.inf)) == ("1.23 ± 0.05", "1.23")


SYMBOLS = {
    "right-biased queries": "P_T R_res χ ρ ρ₋ ρ₊",
    "survival of recency": "P_T P_0 I R_res c E[ |E_R| |E_M|",
    "primacy of the cone channel": "Q_cone κ_L K_M T A_L A_M",
    "double deficit from channel bounds": "l(left) l(right) U(middle) Γ",
    "exact characterisation": "J Ξ",
}


def test_each_letter_of_the_papers_criteria_is_said_in_words():
    assert SYMBOLS.keys() == wording.QUESTIONS.keys() == wording.PLAIN.keys()
    for name, symbols in SYMBOLS.items():
        held = Certificate(name, "", (), (Inequality("A", 2.0, 1.0, 0.0),), "R_res > 0", ())
        words = certificate_words(held)
        assert words["saying"].endswith(f"so it follows: {words['plain']}.")
        for symbol in symbols.split():
            assert re.search(rf"(?<!\w){re.escape(symbol)}", words["letters"]), symbol


def test_certificate_words():
    words = certificate_words(Certificate("criterion", "", (), (), "B", (), vacuous="A = 0"))
    assert (words["kind"], words["saying"]) == ("vacuous", "It could not have held here: A = 0.")
