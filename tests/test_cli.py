"""The command line prints and writes the numbers that it is given."""

import json
import os
import signal
import subprocess
import sys
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.as_users import ROOT, run_python
from reference.publishers import CONFIGS, write

import lim_jax as lim
from lim_jax import cli, models, plots, studies
from lim_jax.cli import orders
from lim_jax.limits import convergence
from lim_jax.limits import position as in_position

SIZES = (10.0, 20.0, 40.0, 80.0)


def row(name, order, bounds=None, **expected):
    errors = tuple(3.0 * size**-order for size in SIZES)
    study = lim.limits.Study("eq:source", 1.0, SIZES, errors, bounds, 1e-9)
    return convergence.Row(name, study, **expected)


GOOD = row("attention, inside", 1.0, bounds=(1.0, 0.5, 0.25, 0.125), expected=1.0)
FASTER = row("attention, mean square", 2.0, expected=2.0, reason="a better rule")
WRONG = row("loss, tokens", 0.5, expected=1.0)
BROKEN = row("split, defect", 1.0, bounds=(1.0, 0.1, 0.05, 0.02), expected=1.0)
CURVES = {
    "depth": [convergence.Curve("Euler", (8.0, 16.0), (0.1, 0.05))],
    "position": [convergence.Curve("tokens", (100.0, 200.0), (0.02, 0.01))],
}


def run(monkeypatch, folder, rows, curves):
    monkeypatch.setattr(convergence, "measure", lambda **arguments: (rows, curves))
    return cli.main(["rates", "--out", str(folder / "new" / "folder")])


def test_rates_prints_the_table_and_writes_files(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, [GOOD, FASTER], CURVES) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[1].split()[2:] == ["1.00", "1.00", "1.00", "±", "0.00", "holds", "3", "1.0e-09"]
    assert "a better rule: attention, mean square" in printed
    assert "2 of 2 orders and bounds are as expected." in printed
    folder = tmp_path / "new" / "folder"
    written = {path.name for path in folder.iterdir()}
    assert written == {"rates.json", "attention.png", "cost_depth.png", "cost_position.png"}
    document = json.loads((folder / "rates.json").read_text())
    assert document["rates"][0]["errors"] == list(GOOD.study.errors)
    assert document["rates"][0]["holds"] is True
    assert document["rates"][1]["order"]["value"] == pytest.approx(2)
    assert document["costs"]["depth"][0]["errors"] == [0.1, 0.05]


def test_rates_fails_on_a_wrong_order_and_on_a_broken_bound(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, [GOOD, WRONG, BROKEN], {}) == 1
    printed = capsys.readouterr().out
    marked = {line.split("  ")[0] for line in printed.splitlines() if "DIFFERS" in line}
    assert marked == {"loss, tokens", "split, defect"}
    assert "BROKEN" in printed and "1 of 3 orders" in printed


def test_a_row_of_the_table_is_a_real_study(monkeypatch, tmp_path):
    rows = list(convergence._cesaro_rows((50, 100, 200, 400)))
    assert all(found.agrees for found in rows)
    assert run(monkeypatch, tmp_path, rows, {}) == 0


class Sized:
    """The quick groups of studies, small ones, and the names of those that are run."""

    def __init__(self, monkeypatch):
        self.run = []
        for name in ("depth", "attention", "adjoint", "terminal", "cesaro"):
            monkeypatch.setattr(convergence, f"_{name}_rows", partial(self.rows, name))

    def rows(self, name, *arguments):
        self.run.append(name)
        study = in_position.cesaro_study(2.0, (50, 100, 200, 400))
        yield convergence.Row(f"studies, averaged, {name}", study, 1, "why")
        yield convergence.Row(f"studies, bounded, {name}", GOOD.study, 2)


def stopping(after):
    def progress(names, **options):
        yield from names[:after]
        raise KeyboardInterrupt

    return progress


def test_rates_that_are_interrupted_go_on_to_the_same_numbers(monkeypatch, tmp_path, capsys):
    sized, out = Sized(monkeypatch), tmp_path / "rates"
    assert cli.main(["rates", "--quick", "--out", str(tmp_path / "whole")]) == 1
    names, expected = sized.run.copy(), (tmp_path / "whole" / "rates.json").read_bytes()
    table = capsys.readouterr().out
    for after in (0, 2, 4):
        with monkeypatch.context() as patch:
            patch.setattr(orders, "tqdm", stopping(after))
            assert cli.main(["rates", "--quick", "--out", str(out)]) == 130
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.strip().count("\n") == 0
        assert out.exists() is (after > 0), "no empty folder is left"
    sized.run.clear()
    assert cli.main(["rates", "--quick", "--out", str(out)]) == 1
    assert sized.run == names[4:]
    assert (out / "rates.json").read_bytes() == expected
    assert capsys.readouterr().out.splitlines()[:-1] == table.splitlines()[:-1]
    assert {path.name for path in out.iterdir()} == {"rates.json", "studies.png"}


def test_other_studies_are_not_gone_on_with(monkeypatch, tmp_path):
    Sized(monkeypatch)
    checkpoint = tmp_path / "new" / "rates.json"
    rows, curves = convergence.measure(quick=True, checkpoint=checkpoint)
    assert curves == {} and all(isinstance(row.study, lim.limits.Study) for row in rows)
    again, _ = convergence.measure(quick=True, checkpoint=checkpoint)
    assert again == rows and rows[1].study == GOOD.study
    with pytest.raises(ValueError, match="checkpoint: got .*of quick True, expected .*quick False"):
        convergence.measure(checkpoint=checkpoint)


def test_an_interrupted_command_says_so_in_a_line(tmp_path):
    """By the signal of Ctrl-C, in the middle of a study."""
    program = """
import sys, time
from lim_jax import cli
from lim_jax.cli import orders
from lim_jax.limits import convergence
from lim_jax.limits import position as in_position

def slowly(*arguments):
    print("begun", flush=True)
    time.sleep(60)

convergence._depth_rows = slowly
sys.exit(cli.main(["rates", "--quick", "--out", "rates"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate()
    assert process.returncode == 130 and printed == ""
    lines = [line for line in said.splitlines() if line and not line.startswith("\rrates:")]
    assert lines[-1] == "Interrupted. Run it again to go on from what is finished."
    assert "Traceback" not in said and list(tmp_path.iterdir()) == []


def test_convergence_figures_show_errors_and_bounds():
    (axes,) = plots.convergence_rates([GOOD, FASTER], "attention").axes
    shown = [np.asarray(line.get_ydata()) for line in axes.lines]
    np.testing.assert_array_equal(
        shown, [GOOD.study.errors, GOOD.study.bounds, FASTER.study.errors]
    )
    assert {axes.get_xscale(), axes.get_yscale()} == {"log"}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text()[-4:] for text in legend.get_texts()] == ["1.00", "2.00"]


def test_cost_figures_show_every_curve():
    (axes,) = plots.error_against_cost(CURVES["depth"], "evaluations").axes
    (line,) = axes.lines
    np.testing.assert_array_equal(np.array(line.get_data()), [(8.0, 16.0), (0.1, 0.05)])
    assert axes.get_xlabel() == "evaluations"


@pytest.mark.slow
def test_explain_writes_what_it_prints(monkeypatch, tmp_path, capsys):
    """All figures are made, and those of one case drawn to pixels, which takes long."""
    draw = Figure.savefig

    def save(figure, path):
        draw(figure, path) if path.name.startswith("seeded_network_last") else path.touch()

    monkeypatch.setattr(Figure, "savefig", save)
    out = tmp_path / "explained"
    arguments = ["--length", "12", "--steps", "3", "--contexts", "3", "--out", str(out)]
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        assert cli.main(["explain", *arguments]) == 0
    printed = capsys.readouterr().out
    document = json.loads((out / "explanation.json").read_text())
    assert len(document["training_losses"]) == 3
    assert set(document["cone_mass"]) == {"seeded network", "trained network"}
    assert len(document["explanations"]) == 4
    for name, found in document["explanations"].items():
        assert f"== {name} (L = 12, 3 contexts) ==" in printed
        weights = np.full(12, 1 / 12)
        np.testing.assert_allclose(weights @ found["density"], 1, rtol=1e-10)
        for region in found["regional_energies"].values():
            parts = [value for part, value in region.items() if part != "total"]
            np.testing.assert_allclose(sum(parts), region["total"], rtol=1e-9)
        assert found["depth"] == 0 and f"at depth {found['depth']}" in printed
        hops = np.array(list(found["hop_energies"].values()))
        asked = np.count_nonzero(hops[0])
        assert asked == (1 if name.endswith("last token") else 12) and hops[3].any()
        verdicts = {c["name"]: c["holds"] for c in found["certificates"]}
        assert verdicts["right-biased queries"] is name.endswith("last token")
        assert (found["without_queries"] is not None) is name.endswith("last token")
    assert len(list(out.glob("*.png"))) == 19
    assert sum(path.stat().st_size > 1000 for path in out.glob("*.png")) == 5
    assert "explanation.json and 19 figures" in printed
    # The seeded network's cone mass stands under its name.
    keys = jax.random.split(jax.random.key(0), 4)
    seeded = models.byte_model(12, key=keys[0])
    windows = models.sample_windows(models.standard_library_text(), 12, 3, key=keys[2])
    mass = studies.average_cone_mass(seeded, windows, lim.boundary_regions(lim.token_grid(12), 0.2))
    shown = document["cone_mass"]
    np.testing.assert_allclose(shown["seeded network"]["value"], mass.value, rtol=1e-9)
    assert not np.allclose(shown["trained network"]["value"], mass.value, rtol=1e-3)


def test_explain_reads_a_folder_of_weights_and_a_text(monkeypatch, tmp_path):
    """Each letter is a word of the tokenizer; the study is asked about these weights and ids."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = "abcdefghijk"
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({a: i for i, a in enumerate(letters)}, unk_token="k")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, CONFIGS["llama"])
    written = np.random.default_rng(0).integers(11, size=60)
    (tmp_path / "text").write_text("".join(letters[letter] for letter in written))

    class Reached(Exception):
        pass

    def explained(model, windows, query_weights, regions, *, key, depth):
        raise Reached(model, windows, query_weights, regions, depth)

    monkeypatch.setattr(studies, "explain", explained)
    arguments = ["--model", str(tmp_path), "--text", str(tmp_path / "text"), "--depth", "1"]
    sizes = ["--length", "6", "--contexts", "5", "--delta", "0.3", "--out", str(tmp_path / "out")]
    with pytest.raises(Reached) as reached:
        cli.main(["explain", *arguments, *sizes])
    model, windows, weights, regions, depth = reached.value.args
    expected = models.load(tmp_path)
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert windows.shape == (5, 7) and depth == 1
    for window in np.asarray(windows):
        assert any((written[i : i + 7] == window).all() for i in range(54))
    assert regions.grid.nodes.dtype == jnp.float32 and regions.delta == Fraction("0.3")
    np.testing.assert_allclose(weights, 1 / 6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--delta", "0.6", "--model", "nowhere", "--text", "nowhere"), "delta: got 0.6"),
        (("--length", "0"), "size: got 0"),
        (("--steps", "0"), "steps: got 0"),
        (("--contexts", "0"), "contexts: got 0"),
        (("--depth", "4"), "depth: got 4, expected a layer's depth"),
        (("--length", "500000"), "text: got 400000 ids"),
        (("--text", "a.txt"), "model and text: got None and a.txt, expected both or neither"),
    ],
)
def test_explain_refuses_before_it_trains(monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(models.language, "train", None)
    with pytest.raises(ValueError, match=message):
        cli.main(["explain", *arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_reproduce_takes_float64_by_itself(monkeypatch, tmp_path):
    class Reached(Exception):
        pass

    def section4(progress):
        raise Reached(jnp.zeros(()).dtype)

    monkeypatch.setattr(studies, "section4", section4)
    with jax.enable_x64(False), pytest.raises(Reached, match="float64"):
        cli.main(["reproduce", "--out", str(tmp_path)])


def test_the_counterexamples_print_their_numbers(capsys):
    assert cli.main(["counterexamples"]) == 0
    printed = capsys.readouterr().out
    assert "influence energies: 4  1" in printed
    assert "traces of the Gramians: 2  2" in printed


def test_a_missing_extra_is_named_before_any_work(tmp_path):
    """Figures are drawn last: without matplotlib a command says so first."""
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(name='matplotlib')")
    done = run_python("-m", "lim_jax", "counterexamples", folder=tmp_path)
    assert done.returncode == 1 and "python -m pip install 'lim_jax[plot,cli]'" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
