"""The command explain: as many contexts as say something, and what is written is what is found."""

import contextlib
import csv
import dataclasses
import io
import json
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.hybrids import hybrid_flow
from reference.json_entries import require_entries
from reference.networks import WIDTH, byte_network
from reference.publishers import CONFIGS, spelt, write_with_letters

import lim_jax as lim
from lim_jax import explanations, models, report
from lim_jax.attribution import explanation_run as runs
from lim_jax.attribution import heads, operations, time_budget
from lim_jax.cli import explain_command, explain_output
from lim_jax.cli.commands import main
from lim_jax.density import Influence
from lim_jax.explanations.account import TokenBreakdown
from lim_jax.network.experts import Experts, MixtureOfExperts, Routing
from lim_jax.network.field import SumOfFields
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.probes import Estimate
from lim_jax.prompts import own_answers
from lim_jax.prompts.contexts import Context
from lim_jax.report.html_page import Page


class Reached(Exception):
    pass


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    return write_with_letters(folder, CONFIGS["llama"])


def written(path, rows):
    """Of text, or JSON lines."""
    texts = [spelt(row) for row in rows]
    lines = [json.dumps({"text": text}) for text in texts]
    path.write_text("\n".join(lines) if path.suffix else texts[0], encoding="utf-8")
    return path


class Explained(NamedTuple):
    """What one run of the command left and printed, and what it gave to others."""

    folder: Path
    text: Path
    out: Path
    printed: str
    averaged: tuple  # windows and regions of the cone mass, and the mass
    page: tuple  # arguments of its page

    @property
    def record(self):
        return json.loads((self.out / "explanation.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """All figures are made, and one drawn to pixels, which takes long."""
    draw = Figure.savefig
    mass = runs.average_cone_mass
    paged = []
    averaged = []

    def save(figure, path, **options):
        if path.name == "cone_mass.png":
            draw(figure, path, **options)
        else:
            path.touch()

    def average_cone_mass(*given):
        averaged.append((*given[1:], mass(*given)))
        return averaged[-1][-1]

    made = tmp_path_factory.mktemp("explain")
    (made / "weights").mkdir()
    folder = write_with_letters(made / "weights", CONFIGS["llama"])
    text = written(made / "text", [np.random.default_rng(0).integers(11, size=40)])
    arguments = [
        "--max-length",
        "12",
        "--contexts",
        "3",
        "--html",
        "--out",
        str(made / "explained"),
    ]
    how = ["--loss", "last-token", "--certificates", "all"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(runs, "average_cone_mass", average_cone_mass)
        patch.setattr(Figure, "savefig", save)
        patch.setattr(explain_command, "write_explained_page", lambda *given: paged.extend(given))
        assert main(["explain", str(folder), "--data", str(text), *how, *arguments]) == 0
    (only,) = averaged
    return Explained(folder, text, made / "explained", printed.getvalue(), only, tuple(paged))


@pytest.mark.slow
def test_the_page_is_given_what_was_explained_and_read(explained):
    result, asked, read, model, loss, written_to = explained.page
    assert isinstance(result, explanations.Explanation) and read.windows.shape == (3, 13)
    assert asked.weights.shape == (3, 12)
    assert loss == "last-token"
    assert (model.name, written_to) == (explained.folder.name, explained.out)
    assert [context.window.tolist() for context in read.contexts] == read.windows.tolist()


@pytest.mark.slow
def test_what_is_explained_is_printed_first(explained):
    first, *_ = explained.printed[explained.printed.index("Explaining") :].splitlines()
    assert first.startswith("Explaining weights, last-token, on 3 contexts of 12 tokens: ")
    assert "all certificates and cone masses: about " in first
    heading = (
        f"== {explained.folder} on {explained.text}: 3 contexts of 12 tokens, loss last-token =="
    )
    assert heading in explained.printed


@pytest.mark.slow
def test_the_record_has_densities_energies_and_hops(explained):
    record = explained.record
    absent = "heads_of_parts", "cone_mass"
    require_entries(record, "explanation.json", "profile.json, records", absent=absent)
    np.testing.assert_allclose(np.mean(record["density"]), 1, rtol=1e-5)
    for region in record["regional_energies"].values():
        parts = [value for part, value in region.items() if part != "total"]
        np.testing.assert_allclose(sum(parts), region["total"], rtol=1e-4)
    assert record["depth"] == 0 and f"at depth {record['depth']}" in explained.printed
    hops = np.array(list(record["hop_energies"].values()))
    assert np.count_nonzero(hops[0]) == 1 and hops[2].any()
    assert record["without_queries"] is not None
    assert record["records"] == record["heads_of_parts"] == []


@pytest.mark.slow
def test_certificates_that_cannot_decide_are_named(explained):
    certificates = explained.record["certificates"]
    verdicts = {certificate["name"]: certificate["holds"] for certificate in certificates}
    assert verdicts["right-biased queries"] is True
    printed = explained.printed
    hopeless = printed[printed.index("criteria cannot decide here") :].splitlines()[0]
    for certificate in certificates:
        assert bool(certificate["vacuous"]) is bool(certificate["decisive"])
        assert (certificate["name"] in hopeless) is bool(certificate["vacuous"])


@pytest.mark.slow
def test_the_table_has_the_records_numbers_by_position(explained):
    record = explained.record
    names, *rows = csv.reader(
        (explained.out / "explanation.csv").read_text(encoding="utf-8").splitlines()
    )
    assert names[:4] == ["position", "density", "error", "residual energy"]
    columns = np.array(rows, float).T
    np.testing.assert_allclose(columns[0], np.arange(1, 13) / 12, rtol=1e-6)
    np.testing.assert_array_equal(columns[1:3], [record["density"], record["density_error"]])
    np.testing.assert_array_equal(columns[3:6], list(record["channel_energies"].values()))
    np.testing.assert_array_equal(columns[6:], list(record["hop_energies"].values()))


@pytest.mark.slow
def test_six_figures_are_written_in_two_formats(explained):
    names = {
        "influence", "influence_without_queries", "channels", "hops", "certificates", "cone_mass"
    }  # fmt: skip
    for suffix in ("svg", "png"):
        assert {path.stem for path in explained.out.glob(f"*.{suffix}")} == names
    assert (explained.out / "cone_mass.png").stat().st_size > 1000
    assert "Wrote explanation.json, explanation.csv and 6 figures" in explained.printed


@pytest.mark.slow
def test_the_cone_mass_is_that_of_the_texts_contexts(explained):
    """Which the text's ids are cut into."""
    ids = np.array(
        [ord(letter) - ord("a") for letter in explained.text.read_text(encoding="utf-8")]
    )
    windows, regions, mass = explained.averaged
    cuts = [ids[at : at + 13].tolist() for at in (0, 12, 24)]
    assert sorted(np.asarray(windows).tolist()) == sorted(cuts) and regions.delta == Fraction("0.2")
    np.testing.assert_allclose(explained.record["cone_mass"]["value"], mass.value, rtol=1e-4)


@pytest.mark.slow
def test_explain_reads_weights_and_a_text(monkeypatch, folder, tmp_path):
    """The study is asked about these weights and ids, in an order that the seed makes."""
    ids = np.random.default_rng(0).integers(11, size=60)
    text = written(tmp_path / "text", [ids])

    def explain(model, windows, query_weights, regions, *, depth, certificates, **options):
        assert certificates == "deciding"
        assert options["loss"] is models.CausalLM.loss
        raise Reached(model, windows, query_weights, regions, depth)

    monkeypatch.setattr(explanations, "explain", explain)
    arguments = [str(folder), "--data", str(text), "--depth", "1", "--max-length", "6"]
    sizes = ["--contexts", "5", "--delta", "0.3", "--out", str(tmp_path / "out")]
    with pytest.raises(Reached) as reached:
        main(["explain", *arguments, *sizes])
    model, windows, weights, regions, depth = reached.value.args
    expected = models.load(folder)
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert windows.shape == (5, 7) and depth == 1
    cuts = [ids[at : at + 7].tolist() for at in range(0, 53, 6)]
    ids_read = np.asarray(windows).tolist()
    assert all(window in cuts for window in ids_read) and len({map(tuple, ids_read)}) > 0
    assert len({tuple(window) for window in ids_read}) == 5  # none twice
    assert regions.grid.nodes.dtype == jnp.float32 and regions.delta == Fraction("0.3")
    np.testing.assert_allclose(weights, np.full((5, 6), 1 / 6), rtol=1e-6)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["answer", "margin"])
def test_what_is_explained_is_the_answer_with_its_named_parts(monkeypatch, folder, tmp_path, loss):
    """Of contexts of several lengths, each whole, on a common grid."""
    rows = [np.random.default_rng(size).integers(11, size=size) for size in (9, 7)]
    lines = [
        {"prompt": spelt(row[:-2]), "answer": spelt(row[-2:]), "spans": [[0, 3, "a"], [3, 5, "b"]]}
        for row in rows
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    reached: list = []
    by_head: list = []

    def explain(model, windows, query_weights, regions, *, loss, **options):
        reached.extend((windows, query_weights, loss, regions))
        energies = [np.ones(len(window) - 1, "float32") for window in windows]
        found = Influence.from_energies(jnp.ones((2, regions.grid.size), "float32"), regions)
        parts: Any = dict.fromkeys(explanations.Explanation._fields)
        return explanations.Explanation(**parts | {"influence": found, "token_energies": energies})

    def report_explanation(found, mass, heads, contexts, title, out):
        assert mass is None  # cone masses are of all certificates
        reached.append(contexts)
        by_head.extend(heads)

    monkeypatch.setattr(explanations, "explain", explain)
    monkeypatch.setattr(explain_command, "report_explanation", report_explanation)
    arguments = ["explain", str(folder), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--loss", loss]) == 0
    windows, weights, asked, regions, contexts = reached
    assert sorted(map(list, windows)) == sorted(map(list, rows)) and regions.grid.size == 7
    for window, row in zip(windows, weights, strict=True):
        assert row.tolist() == [*[0] * (len(window) - 3), 0.5, 0.5] and row.dtype == "float32"
    assert asked is {"margin": models.CausalLM.margin_loss, "answer": models.CausalLM.loss}[loss]
    for context, window in zip(contexts, windows, strict=True):
        assert context.window is window and len(context.tokens) == context.length
        spans = {span.name: span.positions.tolist() for span in context.spans}
        assert spans == {"a": [0, 1, 2], "b": [3, 4]}
    if loss == "margin":
        require_heads(models.load(folder, "float64"), contexts, by_head)
        told = heads.heads_table(by_head).splitlines()
        assert told[0].endswith("by mask-gradient, positive where it lowers the loss:")
        assert told[2].split()[:3] == ["“a”", str(by_head[0].layer), str(by_head[0].head)]


def require_heads(model, contexts, found):
    """Of each part the five that give most, either way: the mask gradient of the whole context."""
    expected = {"a": [], "b": []}
    for context in contexts:
        x, y = model.example(*jax.device_put((context.window, context.weights)))
        # The context's first token keeps its weight, and has no score.
        parts = np.array([-1, 0, 0, 1, 1] + [-1] * (context.length - 5), "int32")
        u = np.where(parts >= 0, np.log(0.2), 0)
        grid = lim.token_grid(context.length).weighted(*jax.device_put((u, parts)))
        terminal = partial(models.CausalLM.margin_loss.terminal, model)
        by_head = lim.adjoint.mask_gradient(model.flow, terminal, (x, y), grid).by_head
        gains = -np.log(25) * np.asarray(by_head) / context.length
        expected["a"].append(gains[..., 1:3].sum(axis=2))
        expected["b"].append(gains[..., 3:5].sum(axis=2))
    assert [one.name for one in found] == ["a"] * 5 + ["b"] * 5
    for name, rows in expected.items():
        of_part = [one for one in found if one.name == name]
        sizes = np.sort(abs(np.mean(rows, axis=0)), axis=None)[:-6:-1]
        np.testing.assert_allclose([abs(one.score) for one in of_part], sizes, rtol=1e-3)
        for one in of_part:
            each = [row[one.layer, one.head] for row in rows]
            np.testing.assert_allclose(one.score, np.mean(each), rtol=1e-3, atol=1e-7)
            error = np.std(each, ddof=1) / 2**0.5
            np.testing.assert_allclose(one.error, error, rtol=1e-3, atol=1e-6)
            assert one.contexts == 2


def test_a_page_shows_the_first_contexts_token_by_token(monkeypatch, tmp_path):
    """At the explanation's depth, with its certificates."""
    written: list = []

    def account(network, window, query_weights, depth, loss, progress):
        seen = bytes(window.tolist()), query_weights.tolist(), depth, loss
        return TokenBreakdown._make((*seen, np.ones((1, 3)), None))

    def influence_page(influence, accounts, texts, **options):
        written.append((influence, accounts, texts, options))
        return Page("<p>the page</p>")

    monkeypatch.setattr(explanations, "account_of_context", account)
    monkeypatch.setattr(report, "influence_page", influence_page)
    network = byte_network(3, depth=3)
    model = models.LanguageModel(network)
    text = "a window's é, others".encode()
    contexts = [context_of_bytes(text[at : at + 4]) for at in range(9, 16)]
    read = runs.batch_contexts(contexts)
    asked = runs.pair_with_loss(network, contexts, "last-token")
    regions = lim.boundary_regions(lim.token_grid(3), 0.3)
    influence = Influence.from_energies(jnp.ones((7, 3)), regions, keep_examples=True)
    parts: Any = dict.fromkeys(explanations.Explanation._fields, "given")
    explanation = explanations.Explanation(
        **parts | {"depth": 2, "influence": influence, "token_energies": [np.ones(3)] * 7}
    )
    explain_output.write_explained_page(explanation, asked, read, model, "last-token", tmp_path)
    ((shown, accounts, texts, options),) = written
    page = (tmp_path / "explanation.html").read_text(encoding="utf-8")
    assert page == "<p>the page</p>" and shown is influence
    assert options.pop("names") == [f"context {number}" for number in range(5)]
    assert options == {
        "title": f"Why does {model.name} use what it uses?",
        "about": {"model": model.name, "loss": "the last token, by cross-entropy"},
        "certificates": "given",
        "without_queries": "given",
        "spans": [()] * 5,
        "records": [],
    }
    at_the_end = [0, 0, 1], 2, models.CausalLM.loss
    assert [one[:4] for one in accounts] == [
        (text[at : at + 4], *at_the_end) for at in range(9, 14)
    ]
    assert texts[0] == ["s", " ", "", "é"] and len(texts) == 5


def context_of_bytes(text):
    """A context of bytes that is asked by its last token."""
    weights = np.eye(len(text) - 1)[-1]
    return Context(
        np.frombuffer(text, np.uint8).astype(np.int32), weights, tuple(map(chr, text[:-1]))
    )


@pytest.mark.slow
def test_lines_are_contexts_of_their_own_lengths(monkeypatch, folder, tmp_path, capsys):
    rows = [np.random.default_rng(size).integers(11, size=size) for size in (9, 7, 12)]
    data = written(tmp_path / "data.jsonl", rows)
    arguments = ["explain", str(folder), "--data", str(data), "--out", str(tmp_path / "out")]

    def explain(model, windows, *rest, **options):
        raise Reached(windows)

    monkeypatch.setattr(explanations, "explain", explain)
    with pytest.raises(Reached) as reached:
        main(arguments)  # fewer contexts than a first group: all are taken
    (windows,) = reached.value.args
    assert sorted(map(list, windows)) == sorted(map(list, rows))
    said = capsys.readouterr().out
    assert "on 3 contexts of 6 to 11 tokens: " in said and "contexts of one length." in said
    with pytest.raises(ValueError, match="contexts: got 4, expected at most 3"):
        main([*arguments, "--contexts", "4"])


@pytest.mark.slow
def test_where_a_line_has_no_answer_the_models_own_is_explained(
    monkeypatch, folder, tmp_path, capsys
):
    data = tmp_path / "data.jsonl"
    held = []
    data.write_text(json.dumps({"prompt": spelt([3, 1, 4, 1, 5])}) + "\n", encoding="utf-8")

    def explain(model, windows, *rest, **options):
        raise Reached(windows)

    def network_within(model, *, memory, tokens, unfinished):
        held.append(tokens)
        return model.loaded()

    def answer(network, ids, most, end, padding, prefix):
        return np.array([ids[0] + 1, 7, 9][:most])

    monkeypatch.setattr(explanations, "explain", explain)
    monkeypatch.setattr(explain_command, "network_within", network_within)
    monkeypatch.setattr(explain_command, "ANSWER", 2)
    monkeypatch.setattr(own_answers, "answer", answer)
    arguments = ["explain", str(folder), "--data", str(data), "--out", str(tmp_path / "out")]
    with pytest.raises(Reached) as reached:
        main([*arguments, "--loss", "answer"])
    ((window,),) = reached.value.args
    assert window.tolist() == [3, 1, 4, 1, 5, 4, 7]
    assert "the model's own answer is asked: “e h" in capsys.readouterr().out
    assert held == [5]  # one prompt's tokens, not as many as a context may have


def test_only_lines_that_are_chosen_are_answered(monkeypatch, folder, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": spelt([n, 1, 4])}) + "\n" for n in range(9)), encoding="utf-8"
    )
    answered = []

    def explain(model, windows, *rest, **options):
        raise Reached(windows)

    def answer(network, ids, most, end, padding, prefix):
        answered.append(int(ids[0]))
        return np.array([7])

    monkeypatch.setattr(explanations, "explain", explain)
    monkeypatch.setattr(own_answers, "answer", answer)
    arguments = ["explain", str(folder), "--data", str(data), "--out", str(tmp_path / "out")]
    with pytest.raises(Reached) as reached:
        main([*arguments, "--loss", "answer", "--contexts", "3"])
    (windows,) = reached.value.args
    assert [int(window[0]) for window in windows] == answered and len({*answered}) == 3


def test_what_is_found_is_kept_with_its_number_of_contexts(tmp_path):
    """What raises keeps nothing; what is kept is not computed again."""
    unfinished = tmp_path / "unfinished"
    energies = np.random.default_rng(0).random((3, 6))
    regions = lim.boundary_regions(lim.token_grid(6), 0.2)
    measured = Influence.from_energies(jax.device_put(energies), regions)
    file = unfinished / runs.EXPLANATION
    assert runs.count_recorded_contexts(unfinished) is None
    with pytest.raises(ZeroDivisionError):
        runs._once(file, 3, lambda: 1 / 0)
    assert runs.count_recorded_contexts(unfinished) is None
    runs._once(file, 3, lambda: measured)
    value = runs._once(file, 5, lambda: 1 / 0)
    np.testing.assert_array_equal(value.energy, measured.energy)
    assert runs.count_recorded_contexts(unfinished) == 3


def test_a_network_is_explained_and_with_all_certificates_has_its_cone_mass(monkeypatch, tmp_path):
    """Of the first contexts; each result in a file of its own."""
    kept: list = []

    def explain(network, windows, weights, regions, *, progress, certificates, **options):
        assert list(progress([0, 1])) == [0, 1]
        nothing = explanations.Explanation._make([None] * len(explanations.Explanation._fields))
        return nothing._replace(influence=network, depth=weights)

    def mass(network, windows, regions):
        return Estimate(network, jnp.array(len(windows)))

    monkeypatch.setattr(explanations, "explain", explain)
    monkeypatch.setattr(runs, "average_cone_mass", mass)
    monkeypatch.setattr(runs, "_once", lambda path, _, find: kept.append(path.name) or find())
    network = byte_network(10)
    windows = jnp.zeros((6, 11), int)
    asked = time_budget.NetworkAndLoss(network, jnp.ones((6, 10)) / 10)
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    rest = regions, jax.random.key(1), 0
    explanation, averaged = runs.explain_contexts(asked, windows, *rest, "all", tmp_path)
    assert averaged == (network, 4)
    assert explanation.influence is network and explanation.depth is asked.weights
    assert kept == ["explanation.npz", "cone_mass.npz"]
    _, averaged = runs.explain_contexts(asked, windows, *rest, "deciding", tmp_path)
    assert averaged is None


def stubbed(scatter):
    """Influence of contexts whose middle is one more or less by `scatter`, by turns."""

    def influence(asked, windows, chosen, regions):
        signs = np.where(np.asarray(windows[chosen, 0]) % 2 == 0, 1.0, -1.0)
        energies = np.ones((len(signs), 10))
        energies[:, 2:8] += scatter * signs[:, None] / 2
        return Influence.from_energies(jax.device_put(energies), regions)

    return influence


def test_what_measuring_takes_is_counted_in_passes(monkeypatch):
    """By hand: two for each weight and token, of which a call costs 32 more, and attention's."""
    network = byte_network(10)
    assert 0 < operations.product_rate(8, "bfloat16") < 1e15
    rates = {None: 1e6, "bfloat16": 2e6}
    monkeypatch.setattr(time_budget, "product_rate", lambda width, compute: rates[compute])
    leaves = jax.tree.leaves(network.flow.layers)
    weights = sum(leaf.size for leaf in leaves if hasattr(leaf, "size"))
    depth = network.flow.depth
    width = network.embedding.shape[1]
    one = (2 * weights * (10 + 32) + 2 * depth * width * 10**2) / 0.65e6
    for lengths, shown, answered, passes in (
        ([10], 0, 0, 4.5),
        ([9, 10], 1, 0, 4.5 + 9),
        ([10, 10], 2, 1, 18 + 1),
    ):
        seconds = time_budget.estimate_seconds(network, lengths, shown, answered)
        np.testing.assert_allclose(seconds - time_budget.COMPILING, passes * one, rtol=1e-9)
    # Two of 67 and 70 tokens are both padded to 80, and one by itself to 96.
    long = byte_network(200)
    of_80, of_96 = (
        (2 * weights * (size + 32) + 2 * depth * width * size**2) / 0.65e6 for size in (80, 96)
    )
    for lengths, expected in (([67, 70], 2 * of_80), ([67], of_96)):
        seconds = time_budget.estimate_seconds(long, lengths, 0)
        np.testing.assert_allclose(seconds - time_budget.COMPILING, 4.5 * expected, rtol=1e-9)
    # Products are 65 % of the time, and take half of it in half precision.
    half = dataclasses.replace(network, flow=dataclasses.replace(network.flow, compute="bfloat16"))
    for seconds in (
        time_budget.estimate_seconds(half, [10], 0),
        time_budget.estimate_seconds(network, [10], 0, compute="bfloat16"),
    ):
        expected = 4.5 * one * (0.65 / 2 + 0.35)
        np.testing.assert_allclose(seconds - time_budget.COMPILING, expected, rtol=1e-9)


def test_a_layer_that_reads_a_state_is_counted_by_its_chunks(monkeypatch):
    """By hand, of Mamba-2 beside attention in one layer, and of two short convolutions."""
    monkeypatch.setattr(RecurrentMixer, "chunk", 2)
    flow = hybrid_flow()
    tokens = 6
    network = models.CausalLM(jnp.zeros((3, WIDTH)), None, flow, eqx.nn.Identity())
    weights = sum(leaf.size for leaf in jax.tree.leaves(flow.layers) if hasattr(leaf, "size"))
    size = 3
    features = 2
    groups = 2
    heads = 4
    of_head = 2**3 + 2**2 * features + 2 * 2 * size * features  # decays, in the chunk, the state
    chunk = 2 * (groups * 2**2 * size + heads * of_head)
    expected = 2 * weights * (tokens + 32) + 2 * WIDTH * tokens**2 + 3 * chunk
    assert operations.pass_operations(network, tokens) == expected
    # No blocks in closed form.
    assert time_budget._certificate_seconds(network, tokens, 2, gradient=0.5) == 35 * 0.5 * 2


def test_of_experts_a_token_meets_those_that_are_chosen():
    """Of four with two matrices of six weights, beside a router of twelve."""
    experts = Experts(None, jnp.ones((4, 2, 3)), jnp.ones((4, 3, 2)))
    mixture = MixtureOfExperts(lambda z: z, jnp.ones((4, 3)), experts, Routing(3))
    assert operations._count_weights(SumOfFields((mixture,))) == 12 + 3 * (6 + 6)


def asked_of_ten(windows):
    weights = jax.device_put(np.full((len(windows), 10), 0.1))
    return time_budget.NetworkAndLoss(byte_network(10), weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scatter, seconds, chosen, expected",
    [
        (0.1, 1e9, None, 16),
        (0.8, 1e9, None, 80),
        (0.8, 0, None, 2),
        (1.9, 1e9, None, 96),
        (0.1, 1e9, 3, 3),
    ],
)
def test_contexts_are_as_many_as_make_the_interval_narrow(
    monkeypatch, scatter, seconds, chosen, expected
):
    """The middle over the boundary is 1 ± scatter/2: two errors are scatter / root of n - 1.

    A gradient takes half a second here: each context four, and those with named parts one more of
    their heads, of 16 at most.
    """
    monkeypatch.setattr(time_budget, "_influence", stubbed(scatter))
    monkeypatch.setattr(time_budget, "SECONDS", seconds)
    monkeypatch.setattr(time_budget, "perf_counter", partial(next, count(0, 0.5)))
    windows = jax.device_put(np.arange(100)[:, None] + np.arange(11)[None, :])
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    asked = asked_of_ten(windows)
    named = [number % 2 == 0 for number in range(100)]
    choice = time_budget.choose_contexts(asked, windows, regions, chosen, named)
    assert choice.contexts == expected and choice.certificate_seconds > 0
    heads = min(16, (expected + 1) // 2)
    assert choice.seconds == 15 + 2 * expected + 4 + heads / 2
    assert time_budget.choose_contexts(asked, windows, regions, 3).seconds == 15 + 2 * 3
    if expected == 80:  # sixteen fewer would not do
        assert scatter / np.sqrt(80 - 1) < 0.1 < scatter / np.sqrt(64 - 1)


def test_one_context_is_explained_where_there_is_one(monkeypatch):
    monkeypatch.setattr(time_budget, "_influence", stubbed(0.1))
    windows = jax.device_put(np.arange(11)[None, :])
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    choice = time_budget.choose_contexts(asked_of_ten(windows), windows, regions, None)
    assert choice.contexts == 1
    budget = choice._replace(seconds=42.0, certificate_seconds=400.0)
    said = explain_command.announcement("Wren, answer", [10], budget, "deciding")
    assert said == (
        "Explaining Wren, answer, on 1 context of 10 tokens: density, channels, hops, heads, "
        "certificates that can decide: about 40 seconds. "
        "--certificates all would take about 7 minutes more."
    )


def test_the_dear_numbers_are_foretold_by_their_operations():
    """Twice the tokens: eight times the pairs of the joint cone, at the same rate of a gradient."""
    windows = np.zeros((4, 11), int)
    network = asked_of_ten(windows).network
    gradient = 1e-3
    flow = network.flow

    def more(length, contexts):
        seconds = time_budget._certificate_seconds(network, length, contexts, gradient)
        return seconds - time_budget.NORMS * gradient * contexts

    weights = sum(leaf.size for leaf in jax.tree.leaves(flow.layers) if eqx.is_array(leaf))
    for length, contexts in ((10, 1), (20, 6)):
        pairs = 2 * contexts * length**3 * 4  # one layer, of width four
        masses = 60 * min(4, contexts) * length**2 * 4**2
        expected = (pairs + masses) * gradient / (6 * weights * length)
        np.testing.assert_allclose(more(length, contexts), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nowhere", "--delta", "0.6"), "delta: got 0.6"),
        (("nowhere",), "model: got nowhere, which is not there"),
        # So long that a grid of so many tokens fits into no memory.
        (("nowhere", "--max-length", f"{10**15}"), "model: got nowhere, which is not there"),
        (("weights", "--max-length", "0"), "--max-length 0 is not accepted"),
        (("weights", "--contexts", "0"), "--contexts 0 is not accepted"),
        (("weights", "--depth", "4"), "depth: got 4, expected a number of layers, from 0"),
        (("weights", "--seed", "-1"), "--seed -1 is not accepted"),
        (("weights", "--seed", f"{2**32}"), f"--seed {2**32} is not accepted"),
    ],
)
def test_explain_refuses_before_it_measures(monkeypatch, folder, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)  # where the model is called weights
    monkeypatch.setattr(explain_command, "choose_contexts", None)
    text = written(tmp_path / "text", [np.arange(40) % 11])
    lengths = () if "--max-length" in arguments else ("--max-length", "12")
    with pytest.raises(ValueError, match=message):
        main(["explain", *arguments, *lengths, "--data", str(text), "--out", "out"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["weights"], ["--data", "lines.jsonl"]])
def test_explain_takes_a_model_and_data(arguments):
    with pytest.raises(ValueError, match="missing; the command is lim-jax explain MODEL --data"):
        main(["explain", *arguments])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--depth", "2", "depth: got 2, expected a number of layers, from 0 to 1"),
        ("--contexts", "3", "contexts: got 3, expected at most 2, those of the data"),
    ],
)
def test_what_the_model_cannot_be_asked_is_refused_before_it_answers(
    option, value, message, tmp_path, monkeypatch
):
    def answer(*_):
        raise AssertionError("the model answers")

    monkeypatch.setattr(explain_command, "answer_contexts", answer)
    data = tmp_path / "data.jsonl"
    data.write_text(2 * '{"prompt": "abc"}\n', encoding="utf-8")
    (tmp_path / "weights").mkdir()
    folder = write_with_letters(tmp_path / "weights", CONFIGS["llama"])
    arguments = ["--data", str(data), "--loss", "answer", "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=message):
        main(["explain", str(folder), *arguments, option, value])
