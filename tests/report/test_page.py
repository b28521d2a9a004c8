"""The page as a file: its text, its numbers, and that it loads nothing."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reference import pages
from reference.networks import byte_network
from reference.pages import Read

import lim_jax as lim
from lim_jax.explanations.account import HOPS, TokenBreakdown
from lim_jax.report import page as page_module
from lim_jax.report import sentences, shades, wording
from lim_jax.report.page import influence_page
from lim_jax.report.token_cards import blocks_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return pages.written(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def read(path):
    return Read(path.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_anywhere(path, read):
    """No element names a source; the page's policy forbids it besides."""
    for element in read.elements:
        assert not {"src", "href", "srcset", "data", "action"} & element.keys(), element
        assert not any(
            "http" in str(element[name]) for name in element.keys() - {"text", "inner", "inside"}
        )
    (style,) = read.all("style")
    assert "url(" not in style["text"] and "@import" not in style["text"]
    (policy,) = (one for one in read.all("meta") if "http-equiv" in one)
    allowed = dict(rule.split(" ", 1) for rule in policy["content"].split("; "))
    assert allowed == {
        "default-src": "'none'",
        "script-src": "'unsafe-inline'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
    }
    ours = path.read_text(encoding="utf-8").replace(page_module.vl_convert.javascript_bundle(), "")
    addresses = set(re.findall(r"https?://[\w./-]+", ours))
    assert all(
        address.startswith("https://vega.github.io/schema/") for address in addresses
    )  # a name


def test_tokens_stand_in_the_text_as_text(read):
    shown = [token["text"] for token in read.all("span", "token")]
    first = [pages.SCRIPT, " the", "&amp;", "⏎\n", "··", "⟨00⟩", "'\"", "é", pages.IMAGE]
    assert shown == [*first, "</script>", "{{ 7 * 7 }}", " end.⏎\n"]
    assert [element["text"].strip() for element in read.all("span", "after")] == [
        "→ \ufffd",
        "→ so",
    ]
    assert len(read.all("script")) == 5 and read.all("img") == []  # two of code, three of data
    assert read.all("title")[0]["text"] == read.all("h1")[0]["text"] == pages.TITLE


def test_it_says_of_how_many_contexts_the_first_are_shown(read):
    terms, values = ([element["text"] for element in read.all(tag)] for tag in ("dt", "dd"))
    facts = dict(zip(terms, values, strict=False))
    assert facts["contexts shown"] == "first 2 of 12 measured"
    assert facts["measured at"] == "the states after layer 1"
    called = [element["text"] for element in read.all("summary")][:2]
    assert called == [f"{pages.NAMES[0]}: 9 tokens", f"{pages.NAMES[1]}: 3 tokens"]
    assert pages.NAMES[0] in [heading["text"] for heading in read.all("h3")]
    assert "Context 1" not in json.dumps(read.elements) and "mean loss" not in facts


def test_tokens_of_one_character_are_one_with_their_influence_together(tmp_path):
    """A wren of three tokens, which no context may end in the midst of without a word."""
    energies = np.array([[1.0, 2.0, 3.0, 4.0, 6.0, 8.0]])
    parts: Any = (
        np.ones(()),
        np.eye(6)[5],
        *(np.repeat(energies, n, 0) for n in (3, 4)),
        np.ones((1, 1)),
        np.repeat(energies, 2, 0),
    )
    account = TokenBreakdown(*parts)
    text = ["a", "", "", "\U0001f426", "b", "", ""]
    influence = lim.Influence.from_energies(
        jax.device_put(energies), lim.boundary_regions(lim.token_grid(6), 0.25)
    )
    spans = [pages.Span("bird", np.array([0, 1, 2, 3]))]
    page = influence_page(influence, [account], [text], title="", spans=[spans], answer="b").html
    read = Read(page)
    shown = [token["text"] for token in read.all("span", "token")]
    assert shown == ["a", "\U0001f426", "b", "\ufffd"] and "∅" not in page.split("<script")[0]
    fields = read.json("fields")
    told = [dict(zip(fields, record, strict=True)) for record in read.json("records")[0]]
    assert [one["place"] for one in told] == [
        "1 of 6, left",
        "2 to 4 of 6, left",
        "5 of 6, middle",
        "6 of 6, right",
    ]
    assert [one["part"] for one in told] == ["4.17 %", "37.5 %", "25 %", "33.3 %"]
    assert [one["density"] for one in told] == ["0.25", "0.75", "1.5", "2"]
    bird, rest = (element["text"] for element in read.all("span", "most"))
    assert bird == "in 67 % of the tokens; most in “\U0001f426” 90 %, “a” 10 %"
    assert rest == "in 33 % of the tokens; most in “\ufffd” 57 %, “b” 43 %"
    assert [element["text"] for element in read.all("span", "share")] == ["42 %", "58 %"]
    assert [element["text"] for element in read.all("p", "answer")] == ["b"]
    assert "over contexts" not in page, "of one there is nothing else to be told"


def test_a_cards_numbers_are_those_of_the_result(read):
    fields = read.json("fields")
    influence = pages.influence()
    mean = np.asarray(influence.density)
    error = np.asarray(influence.density_error)
    energies = pages.energies()
    np.testing.assert_allclose(mean, energies.mean(axis=0) / energies.mean())
    # The middles of a context of three lie in every third cell of nine.
    cells = (range(9), (1, 4, 7))
    for records, account, of_mean in zip(
        read.json("records"), pages.accounts(), cells, strict=True
    ):
        length = len(account.energy)
        density = account.energy / account.energy.mean()
        for at, record in enumerate(records):
            told = dict(zip(fields, record, strict=True))
            cell = of_mean[at]
            region = "left" if cell < 2 else "middle" if cell < 7 else "right"
            assert told["place"] == f"{at + 1} of {length}, {region}"
            assert told["position"] == f"{(at + 1) / length:.4f}"
            assert told["density"] == f"{density[at]:.3g}"
            assert told["mean"] == f"{mean[cell]:.3g} ± {error[cell]:.3g}"
            assert told["part"] == f"{100 * density[at] / length:.3g} %"
            assert bool(told["asks"]) == (account.query_weights[at] > 0)
            for names, parts in (
                (lim.adjoint.ledger.CHANNELS, account.channels),
                (HOPS, account.hops),
            ):
                whole = parts[:, at].sum()
                for name, part in zip(names, parts[:, at], strict=True):
                    assert told[name] == (f"{100 * part / whole:.1f}" if whole else "0.0")


def test_shades_grow_with_the_density_on_one_scale_for_all_contexts(read):
    densities = np.concatenate([one.energy / one.energy.mean() for one in pages.accounts()])
    classes = [token["class"] for token in read.all("span", "token")]
    shades = np.array([int(re.search(r"shade-(\d)", one).group(1)) for one in classes])  # pyright: ignore
    order = np.argsort(densities)
    assert (np.diff(shades[order]) >= 0).all() and shades[order[-1]] == 9 and shades[order[0]] == 0
    edges = [element["text"] for element in read.all("span", "edge")][:11]
    least = densities[densities > 0].min()
    greatest = densities.max()
    assert edges[0] == f"{least:.2g}" and edges[-1] == f"{greatest:.2g}"  # two decades at least
    steps = np.log(densities[densities > 0] / least) / np.log(greatest / least)
    np.testing.assert_array_equal(shades[densities > 0], np.minimum(9, np.floor(10 * steps + 1e-9)))


def test_regions_and_queries_are_marked_in_the_text(read):
    assert [flag["text"] for flag in read.all("span", "flag")] == 2 * ["left", "middle", "right"]
    asked = ["asked" in token["class"].split() for token in read.all("span", "token")]
    assert asked == [False] * 8 + [True] + [False] * 3  # the second context is asked everywhere
    stops = [token["tabindex"] for token in read.all("span", "token")]
    assert stops == ["0"] + ["-1"] * 8 + ["0"] + ["-1"] * 2  # one for each text; arrows do the rest


def rows(read, chart, column):
    """The rows of a chart's data that have a column."""
    tables = read.json("charts")[chart]["datasets"].values()
    return next(table for table in tables if column in table[0])


def test_charts_hold_the_profile_with_its_errors_and_regions(read):
    for name, left_out in (("profile-0", []), ("profile-1", [8])):
        influence = pages.influence(left_out)
        profile = rows(read, name, "error")
        averages = rows(read, name, "average")
        kept = slice(0, 9 - len(left_out))
        columns = {key: np.array([row[key] for row in profile]) for key in profile[0]}
        density = np.asarray(influence.density)[kept]
        error = np.asarray(influence.density_error)[kept]
        for key, values in {
            "p": np.arange(1, 10)[kept] / 9,
            "m": density,
            "error": error,
            "low": density - 2 * error,
            "high": density + 2 * error,
        }.items():
            np.testing.assert_allclose(columns[key], values, rtol=1e-4)
        shown = [(row["region"], row["from"], row["to"]) for row in averages]
        assert shown == [("left", 0, 0.25), ("middle", 0.25, 0.75), ("right", 0.75, 1)]
        np.testing.assert_allclose(
            [row["average"] for row in averages], influence.regional_averages, rtol=1e-4
        )


def test_charts_hold_the_heads_and_the_density_at_every_depth(read):
    accounts = pages.accounts()
    standing = [account.by_depth[pages.DEPTH : -1].mean(axis=1) for account in accounts]
    parts = [one.heads / of[:, None] for one, of in zip(accounts, standing, strict=True)]
    expected = 100 * (parts[0] + parts[1]) / 2
    cells = rows(read, "heads", "share")
    for row in cells:
        assert row["share"] == f"{expected[row['layer'] - pages.DEPTH, row['head']]:.3g} %"
    assert len(cells) == expected.size
    # Three tokens of the longer context to a cell.
    thirds = accounts[0].by_depth.reshape(pages.LAYERS + 1, 3, 3).mean(axis=2)
    energy = (thirds + accounts[1].by_depth) / 2
    density = energy / energy.mean(axis=1, keepdims=True)
    drawn = np.zeros_like(density)
    for row in rows(read, "depths", "m"):
        np.testing.assert_allclose(row["to"] - row["from"], 1 / 3, rtol=1e-4)
        drawn[row["depth"], round(3 * row["from"])] = row["m"]
    np.testing.assert_allclose(drawn, density, rtol=1e-4)


def test_bars_hold_each_regions_shares(read):
    # Of nine cells two and a quarter are left of 1/4, and of three cells three quarters of one.
    inside = {9: np.array([1, 1, 0.25, 0, 0, 0, 0, 0, 0]), 3: np.array([0.75, 0, 0])}
    for name in ("channels", "hops"):
        sums = np.zeros((3, 1))
        for account in pages.accounts():
            parts = getattr(account, name)
            left = inside[parts.shape[1]]
            regions = np.stack([left, 1 - left - left[::-1], left[::-1]])
            sums = sums + regions @ parts.T / parts.shape[1]
        expected = (sums / sums.sum(axis=1, keepdims=True)).ravel()
        shares = rows(read, name, "share")
        np.testing.assert_allclose([row["share"] for row in shares], expected, rtol=1e-4)
        assert [row["region"] for row in shares[:: len(shares) // 3]] == ["left", "middle", "right"]


def test_certificates_are_said_in_words(read):
    kinds = [article["class"].split()[1] for article in read.all("article")]
    assert kinds == ["held", "failed", "vacuous"]
    sayings = [wording.certificate_words(certificate) for certificate in pages.CERTIFICATES]
    (folded,) = read.all("details", "hopeless")
    assert [element["text"] for element in read.all("summary")][
        -2
    ] == "1 of 3 cannot decide here: third"
    assert "it follows: the left is above" in sayings[0]["saying"] and sayings[0]["concluded"]
    assert "nothing follows" in sayings[1]["saying"] and not sayings[1]["concluded"]
    assert "A < B whatever the middle is" in sayings[2]["saying"]
    assert sayings[2]["concluded"]  # nothing was to be concluded
    assert sayings[0]["lines"] == [("x > 0", "2.5", True), ("A > B", "3 against 1", True)]
    shown = " ".join(element["text"] for element in read.all("p"))
    assert all(saying["saying"] in shown for saying in sayings)


def test_of_no_influence_nothing_is_said_to_have_come_any_way():
    regions = pages.influence().regions
    nothing = lim.Influence.from_energies(jax.device_put(np.zeros((2, pages.GRID_SIZE))), regions)
    words = dict(wording.index_words(nothing))
    assert words["middle"] == "0" and words["LIM"] == words["gap Δ"] == "none"
    assert sentences.parts_finding(np.zeros(3), np.zeros(4), 0) == ""
    silent = [
        account._replace(
            **{name: 0 * getattr(account, name) for name in ("channels", "hops", "heads")},
            by_depth=0 * account.by_depth,
        )
        for account in pages.accounts()
    ]
    read = Read(influence_page(nothing, silent, pages.TEXTS, title="none").html)
    assert "By hops: ." not in " ".join(element["inner"] for element in read.all("p"))


def test_tables_stay_tables_for_a_screen_reader(read):
    """A browser takes rows and heads away from one that is shown as a block."""
    (style,) = read.all("style")
    assert not re.search(r"(^|\s)table\s*{[^}]*display:\s*block", style["inner"])
    for table in read.all("table"):
        heads = [inner for inner in table["inside"] if inner["tag"] == "th"]
        assert (table["inside"] == []) == (heads == []) and all("scope" in one for one in heads)


def test_the_gap_is_judged_at_two_errors(read):
    texts = [element["text"] for element in read.all("p")]
    assert sum(text.startswith("Lost in the middle") for text in texts) == 2
    assert sum("Lost in the middle" in text for text in texts) == 3  # and the page begins with it
    regions = pages.influence().regions

    def said(rows):
        energies = lim.Influence.from_energies(jax.device_put(np.asarray(rows)), regions)
        return wording.verdict(energies)

    hill = np.array([1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0])
    assert said([hill, 1.01 * hill, hill**1.01]).startswith("Not lost")
    # Gaps of -0.3, 0.2, 1.5 and 2.4 errors.
    for valleys, word in ((3, "Undecided"), (5, "Undecided"), (11, "Undecided"), (16, "Lost")):
        assert said([hill] * 2 + [1 / hill] * valleys).startswith(word)
    # Of few contexts chance alone gives two errors more often: by SciPy's Student distribution.
    for contexts, said_of_chance in ((3, True), (6, True), (7, False), (19, False)):
        chance = 100 * 2 * scipy.stats.t.sf(2, contexts - 1)
        words = f"of {contexts} contexts it is in {chance:.0f} % of cases by chance alone."
        spread = np.linspace(0.9, 1.1, contexts)[:, None]
        assert (words in said(hill**-spread)) == said_of_chance
    assert said([1 / hill, hill**-1.1]).startswith("Undecided: ")
    assert "in 30 % of cases by chance alone." in said([1 / hill, hill**-1.1])
    assert said([hill]).startswith("One context has no error")
    assert said([hill, hill]).startswith("All contexts have one profile, whose error")
    assert said([0 * hill]).startswith("No position")
    assert said([1 / hill, 3 / hill]).startswith("All contexts have one profile")


def test_it_begins_with_what_was_found_with_errors(read):
    first, second = (element["text"] for element in read.all("p", "finding"))
    assert first == (
        "“<b>first</b>” (2 different texts) holds 50 % ± 10 % of the influence in 38 % of the "
        "tokens, “last” 25 %. Each share is of the contexts that have the part."
    )
    rest = pages.influence([8])
    lim = float(rest.indices().lim)
    error = float(rest.index_errors().lim)
    assert 0.001 < error < 0.0095  # of which one digit is shown
    assert second.startswith(
        f"Before the tokens that the loss asks for, a token in the middle 50 % of the context has "
        f"on average {100 * lim:.0f} % ± {100 * error:.1f} % less influence than one in the "
        "last 25 %, the weaker end. Lost in the middle"
    )


def test_named_parts_are_blocks_with_their_shares_and_tokens(read):
    """Of one context, in its order; over all, by their shares."""
    account = pages.accounts()[0]
    shares = account.energy / account.energy.sum()
    blocks = read.all("li", "block")
    names = [element["text"] for element in read.all("strong")][: len(blocks)]
    assert names == ["<b>first</b>", "last", "the rest, in no part"]
    assert ["rest" in block["class"].split() for block in blocks] == [False, False, True]
    held = [0, 1, 2], [6, 7], [3, 4, 5, 8]
    for at, (positions, block) in enumerate(zip(held, blocks, strict=True)):
        held = shares[positions].sum()
        part_shares = shares[positions]
        share = read.all("span", "share")[at]["text"]
        assert share == (f"{100 * held:.0f} %" if held > 0.0095 else f"{100 * held:.1g} %")
        width = read.all("span", "fill")[at]["style"]
        assert width == f"width: {round(100 * held, 2)}%"
        said = read.all("span", "most")[at]["text"]
        assert said.startswith(f"in {100 * len(positions) / 9:.0f} % of the tokens; most in “")
        first = positions[int(np.argmax(part_shares))]
        part = 100 * part_shares.max() / part_shares.sum()
        shown = {3: "⏎", 4: "··"}.get(first, pages.TEXTS[0][first])
        assert f"“{shown}” {part:.0f} %" in said
        assert "shade-" in block["class"]
    cells = [one for one in read.elements if one["tag"] == "td" or one.get("scope") == "row"]
    rows = [cell["text"].strip() for cell in cells]
    heads = [cell["text"].strip() for cell in cells if cell["tag"] == "th"]
    assert heads[:2] == [pages.BY_PLACE[1][0], "<b>first</b>"], "a row is read out by its name"
    hints = " ".join(hint["text"] for hint in read.all("p", "hint"))
    assert "After ± stands one standard error over lines." in hints
    assert "Per cent beside a token are of its part's influence." in hints
    assert rows[:2] == list(pages.BY_PLACE[1])
    assert rows[2:17] == [
        "<b>first</b>",
        "50 % ± 10 %",
        "38 %",
        "3",
        "“<i>” 8 %",
        "last",
        "25 % (one context has it: no error)",
        "12 %",
        "1",
        "“é” 9 %",
        "the rest, in no part",
        "75 % (error 0)",
        "50 %",
        "3",
        "“a” 7 %",
    ]
    assert [element["text"] for element in read.all("span", "texts")] == ["2 different texts"]
    with pytest.raises(ValueError, match=r"spans: got the places \[9\], expected .* 0 to 8"):
        beyond = pages.Span("x", np.array([9]))
        blocks_of(account, pages.TEXTS[0], [beyond], shades.choose_shades(np.asarray(shares)))


def test_one_context_says_once_that_it_has_no_error():
    regions = pages.influence().regions
    one = lim.Influence.from_energies(jax.device_put(pages.energies()[:1]), regions)
    account = pages.accounts()[:1]
    text = pages.TEXTS[:1]
    written = lim.report.influence_page(one, account, text, title="one").html
    assert written.count("One context has no error") == 1 and "two standard errors" not in written
    assert written.count("One context has no standard error, and so no band.") == 1
    assert not re.search(r"\binf\b", written.split("<script")[0])


@pytest.mark.slow
def test_a_call_from_python_measures_and_shows(tmp_path):
    """Bytes of two lengths: densities are gradients', and a notebook gets a frame of its own."""
    model = byte_network(6, depth=2, seed=7)  # whose first tokens hold some per cent
    windows = [np.array(list(text)) for text in (b"<b>a&b;", b"hello!")]
    asked = [np.eye(6)[5], np.eye(5)[4]]
    spans = [[pages.Span("head", np.arange(3))], [pages.Span("head", np.arange(2))]]
    page = lim.report.show(model, windows, query_weights=asked, spans=spans, title="two <texts>")
    read = Read(page.html)
    assert read.all("h1")[0]["text"] == "two <texts>"
    shown = [token["text"] for token in read.all("span", "token")]
    assert "".join(shown) == "<b>a&bhello"
    densities = [
        float(record[read.json("fields").index("density")]) for record in read.json("records")[1]
    ]
    gradient = jax.jit(lambda *context: jax.grad(model.loss)(*model.example(*context)))
    squares = (np.asarray(gradient(windows[1], asked[1])) ** 2).sum(axis=1)
    np.testing.assert_allclose(densities, squares / squares.mean(), rtol=1e-2)
    share = 100 * squares[:2].sum() / squares.sum()
    assert float(read.all("span", "share")[2]["text"].split()[0]) == pytest.approx(share, rel=0.06)
    frame = Read(page._repr_html_())
    (element,) = frame.all("iframe")
    assert element["srcdoc"] == page.html and element["sandbox"] == "allow-scripts"
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    assert len(repr(page)) < 80
    with pytest.raises(ValueError, match="windows: got 2, with weights of 1 and spans of 0"):
        lim.report.show(model, windows, query_weights=asked[:1])


@pytest.mark.slow
def test_a_call_from_python_shows_every_context_from_the_depth_that_is_asked():
    """More than a command's page has; energies are of the gradient in the state of that depth."""
    model = byte_network(6, depth=2, seed=7)
    windows = [np.arange(first, first + 7) for first in range(97, 103)]
    page = Read(lim.report.show(model, windows, depth=1).html)
    records = page.json("records")
    assert len(records) == 6
    position = page.json("fields").index("density")
    x, y = model.example(*jax.device_put((windows[0], np.full(6, 1 / 6))))
    flow = model.flow
    grid = lim.token_grid(6)

    @jax.jit
    def gradient(state):
        def loss(state):
            last = flow.at_layer(
                lambda layer: flow.transition(layer, state, grid), jnp.asarray(1), x.dtype
            )
            return lim.models.CausalLM.loss.terminal(model, last, y)

        return jax.grad(loss)(state)

    states = jax.jit(lambda x: flow.trajectory(x, grid).states)(x)
    squares = (np.asarray(gradient(states[1])) ** 2).sum(axis=1)
    densities = [float(record[position]) for record in records[0]]
    np.testing.assert_allclose(densities, squares / squares.mean(), rtol=1e-2)


@pytest.mark.slow
def test_a_page_of_long_contexts_and_many_layers_stays_below_two_megabytes():
    """Vega takes 0.9 of them, and a token some 150 bytes."""
    drawn = np.random.default_rng(0)
    length = 512
    layers = 32
    heads = 32
    energies = drawn.uniform(0.1, 1, (layers + 8, length))
    parts: Any = (
        np.asarray(1.0), np.full(length, 1 / length), energies[:3], energies[3:7],
        drawn.uniform(0.1, 1, (layers, heads)), energies[7:],
    )  # fmt: skip
    account = TokenBreakdown(*parts)
    influence = lim.Influence.from_energies(
        jax.device_put(energies), lim.boundary_regions(lim.token_grid(length), 0.2)
    )
    four = [account] * 4
    texts = [[" word"] * (length + 1)] * 4
    page = lim.report.influence_page(influence, four, texts, title="long")
    assert 0.9e6 < len(page.html.encode()) < 2e6


def luminance(colour):
    values = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
    return np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)


# What red, green and blue light become without the long- and the middle-wave cones (Viénot 1999).
BLINDNESS = (
    np.array([[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.0040, -0.0040, 1]]),
    np.array([[0.2928, 0.7072, 0], [0.2928, 0.7072, 0], [-0.0223, 0.0223, 1]]),
)


@pytest.mark.parametrize("scale", [shades.LIGHT, shades.DARK])
def test_shades_are_ordered_for_every_eye_and_bear_readable_text(scale):
    weights = np.array([0.2126, 0.7152, 0.0722])
    linear = np.array([luminance(colour) for colour in scale])
    for seen in (linear, *(linear @ matrix.T for matrix in BLINDNESS)):
        steps = np.diff(seen @ weights)
        assert (steps > 0).all() or (steps < 0).all()
    for colour, light in zip(scale, linear @ weights, strict=True):
        ink = luminance(shades.ink(colour)) @ weights
        ratio = (max(ink, light) + 0.05) / (min(ink, light) + 0.05)
        assert ratio >= 4.5
        np.testing.assert_allclose(shades.contrast(colour, shades.ink(colour)), ratio, rtol=1e-12)


@pytest.mark.parametrize(
    "accounts, texts, message",
    [
        ([], [], "accounts: got none"),
        (pages.accounts()[0], pages.TEXTS, "accounts: got an array .* at index 0"),
        (
            pages.accounts(),
            pages.TEXTS[:1],
            r"texts: got windows of \[10\] ids, expected of \[10, 4\]",
        ),
        (pages.accounts(), [text[1:] for text in pages.TEXTS], r"texts: got windows of \[9, 3\]"),
        (
            [pages.accounts()[0], pages.accounts()[1]._replace(heads=np.ones((1, 2)))],
            pages.TEXTS,
            "accounts: got heads and depths",
        ),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_what_does_not_belong_on_one_page_is_refused(accounts, texts, message):
    with pytest.raises(ValueError, match=message):
        lim.report.influence_page(pages.influence(), accounts, texts, title="")


def test_without_its_packages_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "PACKAGES", ("a_package_that_is_missing",))
    with pytest.raises(ModuleNotFoundError, match=r'pip install "lim_jax\[report\]"'):
        pages.written(tmp_path)
