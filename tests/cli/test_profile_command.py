"""The command profile: densities, tokens and records of a published network, read back."""

import contextlib
import csv
import io
import json
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.json_entries import require_entries
from reference.networks import byte_network
from reference.publishers import CONFIGS, logits, spelt, write_with_letters
from scipy.special import logsumexp

from lim_jax import explanations, models, report, results
from lim_jax.attribution import profile_run
from lim_jax.attribution.methods import leave_one_out
from lim_jax.cli import profile_command
from lim_jax.cli.commands import main
from lim_jax.prompts import own_answers
from lim_jax.report.html_page import Page
from lim_jax.results.tables import FILES

GENERATOR = np.random.default_rng(3)
PROMPTS = [GENERATOR.integers(11, size=size) for size in (8, 8, 6, 8)]
ANSWERS = [GENERATOR.integers(11, size=2) for _ in PROMPTS]
SPANS = [[0, 2, "first"], [2, 5, "second"]]
REGIONS = ("left", "middle", "right")
LOSSES = {"margin": "margin_loss", "answer": "loss"}  # the method of a network that is each


class Profiled(NamedTuple):
    """What one run of the command left, and squared gradients of each context's tokens."""

    loss: str
    out: Path
    printed: str
    squares: list[np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return write_with_letters(folder, CONFIGS["llama"])


def write_data(folder):
    path = folder / "data.jsonl"
    records = [
        {"prompt": spelt(prompt), "answer": spelt(answer), "spans": SPANS[: 1 + index % 3]}
        for index, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
    ]
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path)


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())


def table(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def padded(prompt, answer):
    """A context's ids, on the right as many as the longest's, where none looks: one program."""
    window = np.concatenate([prompt, answer])
    longest = max(
        len(prompt) + len(answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    )
    return np.pad(window, (0, longest - len(window)))


@cache
def euclidean_energies(folder, loss):
    """By plain gradients in double precision, of each context alone: norms squared, by token."""
    model = models.load(folder, dtype="float64")

    @jax.jit
    def squares(context, y):
        return (jax.grad(getattr(model, loss))(model.embed(context), y) ** 2).sum(axis=1)

    energies = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        query_positions = jax.device_put(np.array([len(prompt) - 1, len(prompt)]))
        y = models.Targets(jax.device_put(answer), jnp.array([0.5, 0.5]), query_positions)
        context = jax.device_put(padded(prompt, answer)[:-1])
        energies.append(np.asarray(squares(context, y))[: len(prompt) + 1])
    return energies


@pytest.fixture(scope="module", params=list(LOSSES))
def profiled(request, folder, tmp_path_factory):
    """The command's files and words for one loss, and energies of its contexts' tokens."""
    loss = request.param
    data = write_data(tmp_path_factory.mktemp("data"))
    out = tmp_path_factory.mktemp("out") / "out"
    arguments = ["profile", str(folder), "--data", str(data), "--loss", loss, "--out", str(out)]
    signed = ["--signed"] if loss == "answer" else []
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
        assert main([*arguments, "--delta", "0.3", *signed]) == 0
    return Profiled(loss, out, printed.getvalue(), euclidean_energies(folder, LOSSES[loss]))


def share_of(square, start, end):
    return square[start:end].sum() / square.sum()


RECORDS = {"first": ((0, 2), (0, 1, 2, 3)), "second": ((2, 5), (1, 2))}  # span, contexts with it
ENDS = (2, 5, 5, 2)  # of the spans of each context


@pytest.mark.slow
def test_energies_of_tokens_are_those_of_plain_gradients(profiled):
    rows = table(profiled.out / "tokens.csv")
    for number, square in enumerate(profiled.squares):
        of_context = [row for row in rows if int(row["context"]) == number]
        length = len(square)
        tokens = "".join(row["token"] for row in of_context)
        assert tokens == spelt([*PROMPTS[number], ANSWERS[number][0]])
        positions = np.arange(1, length + 1) / length
        np.testing.assert_allclose(column(of_context, "position"), positions)
        np.testing.assert_allclose(column(of_context, "energy"), length**2 * square, rtol=1e-3)
        densities = length * square / square.sum()
        np.testing.assert_allclose(column(of_context, "density"), densities, rtol=1e-3)
        query_positions = np.flatnonzero(column(of_context, "weight"))
        np.testing.assert_array_equal(query_positions, [length - 2, length - 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_records_share_is_the_mean_over_the_contexts_that_have_it(profiled, name):
    (start, end), contexts = RECORDS[name]
    squares = [profiled.squares[i] for i in contexts]
    shares = [share_of(square, start, end) for square in squares]
    record = {row["name"]: row for row in table(profiled.out / "records.csv")}[name]
    assert float(record["share"]) == pytest.approx(np.mean(shares), rel=1e-4)
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert float(record["error"]) == pytest.approx(error, rel=1e-3)
    of_tokens = [(end - start) / len(square) for square in squares]
    assert float(record["of_tokens"]) == pytest.approx(np.mean(of_tokens))
    assert float(record["tokens"]) == end - start and record["kind"] == "part"
    assert int(record["contexts"]) == len(contexts)
    assert int(record["texts"]) == len({spelt(PROMPTS[i][start:end]) for i in contexts})


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_the_letters_that_hold_most_of_it(profiled, name):
    (start, end), contexts = RECORDS[name]
    held = dict.fromkeys("abcdefghijk", 0.0)
    for i in contexts:
        square = profiled.squares[i]
        for letter, energy in zip(spelt(PROMPTS[i][start:end]), square[start:end], strict=True):
            held[letter] += energy / square.sum()
    most = sorted(held, key=held.__getitem__)[:-4:-1]
    percent = [100 * held[letter] / sum(held.values()) for letter in most]
    record = {row["name"]: row for row in table(profiled.out / "records.csv")}[name]
    told = [letter.split() for letter in record["most"].split(", ")]
    assert [letter for letter, *_ in told] == [f"“{letter}”" for letter in most]
    assert [float(part) for _, part, _ in told] == pytest.approx(percent, abs=0.51)


@pytest.mark.slow
def test_what_stands_in_no_record_is_the_rest(profiled):
    outside = [
        1 - share_of(square, 0, end) for square, end in zip(profiled.squares, ENDS, strict=True)
    ]
    rest = {row["name"]: row for row in table(profiled.out / "records.csv")}[""]
    assert (rest["kind"], rest["contexts"]) == ("rest", "4")
    assert float(rest["share"]) == pytest.approx(np.mean(outside), rel=1e-3)
    rows = [row for row in table(profiled.out / "records_by_context.csv") if row["name"] == ""]
    assert [int(row["context"]) for row in rows] == [0, 1, 2, 3]
    assert [float(row["share"]) for row in rows] == pytest.approx(outside, rel=1e-3)


@pytest.mark.slow
def test_every_context_has_a_row_for_each_of_its_records(profiled):
    rows = [row for row in table(profiled.out / "records_by_context.csv") if row["name"]]
    by_record = {(int(row["context"]), row["name"]): row for row in rows}
    assert set(by_record) == {
        (i, name) for name, (_, contexts) in RECORDS.items() for i in contexts
    }
    for (number, name), row in by_record.items():
        start, end = RECORDS[name][0]
        square = profiled.squares[number]
        assert float(row["share"]) == pytest.approx(share_of(square, start, end), rel=1e-4)
        assert float(row["of_tokens"]) == pytest.approx((end - start) / len(square))
        assert int(row["tokens"]) == end - start


@pytest.mark.slow
def test_energies_and_shares_are_kept_for_each_context(profiled):
    kept = results.load(profiled.out / "contexts.npz")
    assert kept.asked == [len(square) - 2 for square in profiled.squares] and kept.delta == 0.3
    assert len(set(kept.names)) == 4
    for energies, square in zip(kept.energies, profiled.squares, strict=True):
        np.testing.assert_allclose(energies, len(square) ** 2 * square, rtol=1e-3)
    assert list(kept.shares) == list(RECORDS), "what is in no part is none of them"
    for name, ((start, end), contexts) in RECORDS.items():
        expected = [
            share_of(square, start, end) if i in contexts else np.nan
            for i, square in enumerate(profiled.squares)
        ]
        np.testing.assert_allclose(kept.shares[name], expected, rtol=1e-4)


@pytest.mark.slow
def test_a_contexts_row_has_its_total_and_the_shares_of_its_regions(profiled):
    rows = table(profiled.out / "contexts.csv")
    kept = results.load(profiled.out / "contexts.npz")
    assert [row["id"] for row in rows] == list(kept.names)
    for row, square in zip(rows, profiled.squares, strict=True):
        length = len(square)
        assert (int(row["tokens"]), int(row["asked"])) == (length, length - 2)
        assert float(row["total"]) == pytest.approx(length * square.sum(), rel=1e-3)
        shares = [float(row[f"share_{region}"]) for region in REGIONS]
        assert sum(shares) == pytest.approx(1, rel=1e-4)
        if length == 9:  # that of most, and so the common grid's
            edges = 0.3 * length, 0.7 * length
            before = [square @ np.clip(edge - np.arange(length), 0, 1) for edge in edges]
            left, up_to_right = np.array(before) / square.sum()
            expected = left, up_to_right - left, 1 - up_to_right
            np.testing.assert_allclose(shares, expected, rtol=2e-3)


@pytest.mark.slow
def test_the_profile_is_the_mean_of_the_contexts(profiled):
    document = json.loads((profiled.out / "profile.json").read_text(encoding="utf-8"))
    total, before = totals(profiled.squares)
    assert document["influence"]["total"] == pytest.approx(total, rel=1e-4)
    assert document["influence_without_queries"]["total"] == pytest.approx(before, rel=1e-4)
    rows = table(profiled.out / "profile.csv")
    np.testing.assert_array_equal(column(rows, "density"), document["influence"]["density"])
    np.testing.assert_array_equal(column(rows, "error"), document["influence"]["density_error"])
    assert np.mean(column(rows, "density")) == pytest.approx(1, rel=1e-5)


@pytest.mark.slow
def test_contexts_queried_tokens_and_records_are_printed(profiled):
    total, before = totals(profiled.squares)
    assert f"4 contexts of 7 to 9 tokens, loss {profiled.loss}" in profiled.printed
    assert f"The queried tokens hold {1 - before / total:.1%}" in profiled.printed
    first = np.mean([share_of(square, 0, 2) for square in profiled.squares])
    lines = [line for line in profiled.printed.splitlines() if line.startswith("“first”")]
    assert any(f"{first:.1%}" in line for line in lines), lines


def totals(squares):
    """The mean over contexts of all influence, and of that of tokens that are not queried."""
    whole = np.mean([len(square) * square.sum() for square in squares])
    return whole, np.mean([len(square) * square[:-2].sum() for square in squares])


@pytest.fixture(scope="module")
def signed_cells(folder):
    """Minus central differences in log weights of each context, on the grid of most contexts."""
    model = models.load(folder, dtype="float64")
    carried = []

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None, None))
    def losses(u, ids, asked):
        y = models.Targets(ids[asked + 1], jnp.array([0.5, 0.5]), asked, log_weights=u)
        return model.loss(model.embed(ids[:-1]), y)

    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        length = len(prompt) + 1
        ids = padded(prompt, answer)
        query_positions = np.array([length - 2, length - 1])
        steps = 1e-4 * np.concatenate([np.eye(len(ids) - 1), -np.eye(len(ids) - 1)])
        up, down = np.asarray(losses(*jax.device_put((steps, ids, query_positions)))).reshape(2, -1)
        slopes = ((down - up) / 2e-4)[:length]
        # A cell holds what it overlaps: sums up to its end, differenced.
        sums = [0, *np.cumsum(slopes)]
        ends = np.interp(np.arange(10) / 9, np.arange(length + 1) / length, sums)
        carried.append(9 * np.diff(ends))
    return np.array(carried)


@pytest.mark.slow
@pytest.mark.parametrize("profiled", ["answer"], indirect=True)
def test_the_signed_profile_is_that_of_central_differences(profiled, signed_cells):
    rows = table(profiled.out / "profile.csv")
    assert tuple(rows[0]) == FILES["profile --signed, profile.csv"]
    error = np.std(signed_cells, axis=0, ddof=1) / 2
    np.testing.assert_allclose(column(rows, "signed"), signed_cells.mean(axis=0), atol=2e-5)
    np.testing.assert_allclose(column(rows, "signed_error"), error, atol=2e-5)
    assert (profiled.out / "signed.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("profiled", ["answer"], indirect=True)
def test_signed_regions_are_kept_and_printed(profiled, signed_cells):
    ends = [[0, *np.cumsum(cells)] for cells in signed_cells]
    sums = np.array([np.diff(np.interp([0, 2.7, 6.3, 9], np.arange(10), end)) for end in ends]) / 9
    document = json.loads((profiled.out / "profile.json").read_text(encoding="utf-8"))
    absent = "influence_without_queries", "method", "loss", "given"
    require_entries(document, "profile.json", "profile.json, records", absent=absent)
    regional = document["signed"]["regional"]
    np.testing.assert_allclose(regional["value"], sums.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(regional["error"], sums.std(axis=0, ddof=1) / 2, atol=1e-5)
    assert abs(sum(regional["value"])) < 1e-6 and max(regional["value"]) > 1e-3
    lines = profiled.printed.splitlines()
    (said,) = (line for line in lines if line.startswith("signed, sum"))
    meaning = lines[lines.index(said) - 1]
    assert meaning == "By how much the loss falls as attention reads more of each region:"
    assert said.split()[-3:] == [f"{value:.4g}" for value in regional["value"]]


def margin_of(ids):
    """The log odds of all else against an answer's two tokens, by NumPy."""
    odds = logits(CONFIGS["llama"], ids[:-1])[-2:]
    right = odds[(0, 1), ids[-2:]]
    odds[(0, 1), ids[-2:]] = -np.inf
    return np.mean(logsumexp(odds, axis=1) - right)


class LeftOut(NamedTuple):
    """What leaving out wrote and printed, and the programs that three runs called.

    The first run was stopped as it scored a third time, the second went on, the third began anew.
    """

    out: Path
    printed: str
    programs: list[int]


@pytest.fixture(scope="module")
def left_out(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("left_out")
    data = write_data(root)
    without = leave_one_out.losses_without
    scores = models.ids._scores
    contexts = []
    called = []

    def stopping(*arguments, **options):
        contexts.append(arguments[1])
        if len(contexts) == 3:
            raise KeyboardInterrupt
        return without(*arguments, **options)

    programs = []
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.setattr(leave_one_out, "losses_without", stopping)
        patched.setattr(models.ids, "_scores", lambda *of: called.append(of) or scores(*of))
        for name, status in (("out", 130), ("out", 0), ("anew", 0)):
            arguments = ["profile", str(folder), "--data", str(data), "--loss", "margin"]
            arguments += ["--method", "leave-one-out", "--out", str(root / name)]
            assert main(arguments) == status
            programs.append(len(called))
            called.clear()
    return LeftOut(root / "out", printed.getvalue(), programs)


@pytest.fixture(scope="module")
def gains():
    """How much the margin loses without a part: contexts, names and numbers, by NumPy."""
    found = []
    for number, pair in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        ids = np.concatenate(pair)
        whole = margin_of(ids)
        for start, end, name in SPANS[: 1 + number % 3]:
            gain = margin_of(np.delete(ids, range(start, end))) - whole
            found.append((number, name, gain))
    return found


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_measures_nothing_twice(left_out):
    first, rest, anew = left_out.programs
    assert first > 0
    assert first + rest == anew


@pytest.mark.slow
@pytest.mark.parametrize("row, name", list(enumerate(RECORDS)))
def test_a_part_is_scored_by_leaving_it_out(left_out, gains, row, name):
    record = table(left_out.out / "records.csv")[row]
    assert record["name"] == name
    gained = [gain for _, of, gain in gains if of == name]
    error = np.std(gained, ddof=1) / np.sqrt(len(gained))
    expected = np.array([np.mean(gained), error, len(gained)])
    numbers = [float(record[of]) for of in ("score", "error", "contexts")]
    np.testing.assert_allclose(numbers, expected, rtol=2e-3)
    assert record["most"] == "" and f"{numbers[0]:+.3f}  {numbers[1]:>8.3f}" in left_out.printed


@pytest.mark.slow
@pytest.mark.parametrize("row, name", list(enumerate(RECORDS)))
def test_a_parts_share_is_that_of_the_scores_sizes(left_out, gains, row, name):
    """The mean score among the sizes of all parts' mean scores."""
    means = {part: np.mean([gain for _, of, gain in gains if of == part]) for part in RECORDS}
    share = table(left_out.out / "records.csv")[row]["of_documents"]
    assert float(share) == pytest.approx(means[name] / sum(map(abs, means.values())), rel=2e-3)


@pytest.mark.slow
def test_each_contexts_scores_are_written(left_out, gains):
    rows = [row for row in table(left_out.out / "records_by_context.csv") if row["name"]]
    assert [(int(row["context"]), row["name"]) for row in rows] == [one[:2] for one in gains]
    scores = [gain for *_, gain in gains]
    np.testing.assert_allclose(column(rows, "score"), scores, rtol=2e-3, atol=1e-5)


@pytest.mark.slow
def test_scores_by_leaving_out_are_named_and_no_densities_are_written(left_out):
    rows = table(left_out.out / "records.csv")
    assert [row["name"] for row in rows] == ["first", "second", ""]
    document = json.loads((left_out.out / "profile.json").read_text(encoding="utf-8"))
    assert (document["method"], document["loss"]) == ("leave-one-out", "margin")
    assert document["records"][0]["score"] == float(rows[0]["score"])
    assert "by leave-one-out, 4 passes each: about" in left_out.printed
    assert "Leave --method out for densities" in left_out.printed
    assert {path.name for path in left_out.out.iterdir()} == {
        "profile.json",
        "records.csv",
        "records_by_context.csv",
        "run.json",
    }


@pytest.mark.slow
def test_parts_are_scored_by_a_mask_gradient_and_so_is_every_token(folder, data, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--data", str(data), "--loss", "answer", "--method", "mask-gradient"]
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps({"prompt": "ab", "answer": "c"}), encoding="utf-8")
    with pytest.raises(ValueError, match="data: got lines without named parts, expected"):
        main(["profile", str(folder), *arguments, "--data", str(plain), "--out", str(out)])
    assert main(["profile", str(folder), *arguments, "--out", str(out)]) == 0
    model = models.load(folder, dtype="float64")
    ids = jax.device_put(np.concatenate([PROMPTS[1], ANSWERS[1]]))
    # The first token keeps its weight, and has no score.
    of_part = jax.device_put(np.array([-1, 0, 1, 1, 1, -1, -1, -1, -1], "int32"))
    u = np.where(of_part >= 0, np.log(0.2), 0)

    @jax.jit
    def loss(u):
        query_positions = jax.device_put(np.array([7, 8]))
        y = models.Targets(
            ids[query_positions + 1], jnp.array([0.5, 0.5]), query_positions, None, u, of_part
        )
        return model.loss(model.embed(ids[:-1]), y)

    steps = [
        jax.device_put(u + 1e-4 * sign * np.eye(9)[place]) for place in range(9) for sign in (1, -1)
    ]
    down, up = np.array([float(loss(step)) for step in steps]).reshape(9, 2).T
    slopes = np.log(25) * (up - down) / 2e-4 * (np.arange(9) > 0)  # from the weight 0.04 to one
    scores = [row for row in table(out / "scores.csv") if row["context"] == "1"]
    np.testing.assert_allclose(column(scores, "score"), slopes, rtol=2e-3, atol=1e-6)
    assert "".join(row["token"] for row in scores) == spelt(ids[:-1])
    parts = [row for row in table(out / "records_by_context.csv") if row["context"] == "1"]
    expected = [slopes[:2].sum(), slopes[2:5].sum(), slopes[5:].sum()]
    np.testing.assert_allclose(column(parts, "score"), expected, rtol=2e-3, atol=1e-6)
    (second,) = (row for row in table(out / "records.csv") if row["name"] == "second")
    assert second["texts"] == "2" and second["most"].startswith("“")
    assert f"{float(second['score']):+.3f}" in capsys.readouterr().out
    for file in ("records.csv", "records_by_context.csv", "scores.csv"):
        assert tuple(table(out / file)[0]) == FILES[f"profile --method, {file}"]


@pytest.mark.slow
def test_a_text_is_profiled_on_its_own_grid_and_drawn(folder, tmp_path, monkeypatch, capsys):
    ids = np.random.default_rng(5).integers(11, size=36)
    (tmp_path / "text").write_text(spelt(ids), encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path / "text"), "--max-length", "7", "--out", str(out)]
    assert main(["profile", str(folder), *arguments]) == 0
    document = json.loads((out / "profile.json").read_text(encoding="utf-8"))
    assert set(document) == {"influence", "records"} and document["records"] == []
    model = models.load(folder, dtype="float64")
    windows = jax.device_put(np.stack([ids[at : at + 8] for at in range(0, 29, 7)]))
    even = jnp.full(7, 1 / 7)

    @jax.jit
    @jax.vmap
    def squares(window):
        x, y = model.example(window, even)
        return (jax.grad(model.loss)(x, y) ** 2).sum(axis=1)

    energy = np.asarray(squares(windows)).mean(axis=0)
    np.testing.assert_allclose(
        document["influence"]["density"], 7 * energy / energy.sum(), rtol=1e-3
    )
    assert "5 contexts of 7 tokens, loss next-token" in capsys.readouterr().out
    assert (out / "influence.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "</svg>" in (out / "influence.svg").read_text(encoding="utf-8")
    assert (
        json.loads((out / "run.json").read_text(encoding="utf-8"))["arguments"]["max_length"] == 7
    )
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: None)
    assert main(["profile", str(folder), *arguments]) == 0  # the same run
    with pytest.raises(ValueError, match="out: .*loss: next-token there, last-token here"):
        main(["profile", str(folder), *arguments, "--loss", "last-token"])


@pytest.mark.slow
def test_a_profile_that_is_interrupted_goes_on_to_the_same_files(
    folder, data, tmp_path, monkeypatch, capsys
):
    """Three times, in the midst of a context; none that was finished is measured again."""
    titles = set()

    def drawn(figure, path, **options):
        titles.add(figure.axes[0].get_title().splitlines()[0])
        path.touch()

    monkeypatch.setattr(Figure, "savefig", drawn)
    measure = models.ids._energy
    measured = []
    allowed = 9

    def stopping(*arguments):
        if len(measured) == allowed:
            raise KeyboardInterrupt
        measured.append(np.asarray(arguments[2]).tolist())
        return measure(*arguments)

    monkeypatch.setattr(models.ids, "_energy", stopping)
    arguments = ["profile", str(folder), "--data", str(data), "--loss", "answer", "--out"]
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    assert main([*arguments, str(whole)]) == 0
    expected, measured[:] = measured.copy(), []
    assert len(expected) == 4
    for allowed in (0, 1, 3):
        assert main([*arguments, str(out)]) == 130
        assert out.exists() is (allowed > 0)
    capsys.readouterr()
    allowed = 9
    assert main([*arguments, str(out)]) == 0
    assert measured == expected
    assert "4 contexts of 7 to 9 tokens" in capsys.readouterr().out
    said = f"{folder.name}, answer, 4 contexts of 7 to 9 tokens"
    assert titles == {f"{said} (9 positions, n = 4)", f"{said} (7 positions, n = 4)"}
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in out.iterdir()} == names and "unfinished" not in names
    tables = ("profile", "tokens", "records", "contexts", "records_by_context")
    for name in ("profile.json", "contexts.npz", *(f"{table}.csv" for table in tables)):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_a_profile_that_is_interrupted_gives_no_answer_twice(folder, tmp_path, monkeypatch):
    """Lines without an answer are answered first, each once, and then measured."""
    rows = [{"prompt": spelt(row)} for row in ([1, 2, 3], [4, 5, 6], [1, 2, 3])]
    data = tmp_path / "asked.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    answer = own_answers.answer
    answered = []
    allowed = 2

    def stopping(network, ids, *arguments, **named):
        if len(answered) == allowed:
            raise KeyboardInterrupt
        answered.append(np.asarray(ids).tolist())
        return answer(network, ids, *arguments, **named)

    monkeypatch.setattr(own_answers, "answer", stopping)
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: None)
    arguments = ["profile", str(folder), "--data", str(data), "--loss", "answer"]
    arguments += ["--answer-tokens", "2", "--out", str(tmp_path / "out")]
    assert main(arguments) == 130
    allowed = 9
    assert main(arguments) == 0
    assert len(answered) == 3 and answered[0] == answered[2] != answered[1]
    assert not (tmp_path / "out" / "unfinished").exists()


@pytest.mark.slow
def test_a_page_shows_the_first_contexts(folder, data, tmp_path, undrawn, monkeypatch):
    """With the density of all, and of each shown its own energies, which are measured once."""
    written = {}
    measured = []
    measure = models.energies_of_ids

    def counting(network, windows, **options):
        measured.extend(windows)
        return measure(network, windows, **options)

    monkeypatch.setattr(models, "energies_of_ids", counting)

    def influence_page(*shown, **options):
        written.update(all=(shown, options))
        return Page("<p>the page</p>")

    monkeypatch.setattr(report, "influence_page", influence_page)
    monkeypatch.setattr(profile_command, "SHOWN", 2)
    out = tmp_path / "out"
    arguments = [str(folder), "--data", str(data), "--loss", "margin", "--html", "--out", str(out)]
    assert main(["profile", *arguments]) == 0
    (influence, accounts, texts), options = written["all"]
    assert (out / "profile.html").read_text(encoding="utf-8") == "<p>the page</p>"
    assert int(influence.count) == 4 and len(accounts) == 2
    assert len(measured) == 2  # the two that are not shown
    assert options["title"] == f"What does {folder.name} use of data.jsonl?"
    assert options["measured"] == 4 and options["names"] == ["context 0", "context 1"]
    named = [[(span.name, span.positions.tolist()) for span in spans] for spans in options["spans"]]
    assert named == [[("first", [0, 1])], [("first", [0, 1]), ("second", [2, 3, 4])]]
    assert [option.name for option in options["records"]] == ["first", "second", ""]
    every = euclidean_energies(folder, "margin_loss")
    kept = results.load(out / "contexts.npz")
    for energies, square in zip(kept.energies, every, strict=True):
        np.testing.assert_allclose(energies, len(square) ** 2 * square, rtol=1e-3)
    for number, expected in enumerate(every[:2]):
        energy = np.asarray(accounts[number].energy)
        np.testing.assert_allclose(energy / energy.sum(), expected / expected.sum(), rtol=1e-3)
        whole = spelt(np.concatenate([PROMPTS[number], ANSWERS[number]]))
        assert "".join(texts[number]).replace(" ", "") == whole


@pytest.mark.slow
def test_accounts_of_a_run_that_is_taken_up_are_read(tmp_path, monkeypatch):
    """And of other contexts they are refused, not taken."""
    windows = [np.array([7, 8, 9, 5])]
    weights = [np.full(3, 1 / 3)]
    of = byte_network(4), windows, weights
    accounts = profile_run.accounts_of_contexts(*of, checkpoint=tmp_path)
    monkeypatch.setattr(explanations, "account_of_context", None)
    again = profile_run.accounts_of_contexts(*of, checkpoint=tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again, accounts)
    others = [np.array([7, 8, 9, 5]), np.array([6, 5, 4])], [*weights, np.full(2, 1 / 2)]
    with pytest.raises(ValueError, match="checkpoint: got .*, of account"):
        profile_run.accounts_of_contexts(of[0], *others, checkpoint=tmp_path)


@pytest.mark.parametrize("command", ["profile", "explain"])
def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    command, folder, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(models.LanguageModel, "loaded", None)
    monkeypatch.setattr(report.page, "PACKAGES", ("altair", "nowhere"))
    out = tmp_path / "out"
    arguments = [command, str(folder), "--data", str(data), "--out", str(out), "--html"]
    with pytest.raises(ModuleNotFoundError, match=r"nowhere: got no .*lim_jax\[report\]"):
        main(arguments)
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--delta", "0.5"), "delta: got 0.5"),
        (("--max-length", "0"), "--max-length 0 is not accepted"),
        (("--max-length", "5"), "line 1: got 10 tokens"),
        (("--loss", "answer", "--data", "nothing"), "data: got nothing"),
        (("--foil", "a"), "foil: got 'a' with --loss next-token, expected --loss contrast"),
        (("--loss", "contrast", "--html"), "html: got a page of --loss contrast"),
        (
            ("--loss", "contrast"),
            "line 1: got no foil, expected the foil, a text that might have followed",
        ),
        (("--answer-tokens", "0"), "--answer-tokens 0 is not accepted"),
        (("--method", "rollout", "--html"), "html: got --html with --method rollout, expected"),
        (("--method", "rollout", "--signed"), "signed: got --signed with --method rollout"),
        (("--method", "rollout", "--shuffle", "2"), "shuffle: got --shuffle with --method rollout"),
    ],
)
def test_profile_refuses_before_it_reads_the_weights(
    arguments, message, folder, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(models.LanguageModel, "loaded", None)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=message):
        main(["profile", str(folder), "--data", str(data), *arguments, "--out", str(out)])
    assert not out.exists()


def test_profile_refuses_contexts_that_the_network_does_not_know(data, tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    write_with_letters(folder, CONFIGS["gpt2"])  # of eight places
    arguments = ["profile", str(folder), "--data", str(data), "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="context: got 9 tokens, expected at most 8"):
        main(arguments)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"][spelt(PROMPTS[0][:1])] = 11
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    data.write_text(json.dumps({"text": spelt(PROMPTS[0])}), encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer: got the id 11, expected ids below 11"):
        main(arguments)
