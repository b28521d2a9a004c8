"""The command line prints and writes the numbers that it is given."""

import ast
import csv
import gc
import inspect
import io
import json
import re
import signal
import sys
import warnings
from functools import cache, partial
from importlib.metadata import version

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from matplotlib.figure import Figure
from reference.as_users import ROOT, run_python
from reference.json_entries import require_entries

from lim_jax import __main__, paper, plots
from lim_jax._argument_error import MissingPackage, Refusal
from lim_jax._checks import error_if
from lim_jax._errors import RefusedValue
from lim_jax.cli import commands, reproduce_command
from lim_jax.cli import rates_command as rates_command
from lim_jax.cli.argument_check import as_arguments
from lim_jax.cli.commands import main
from lim_jax.cli.rates_command import rates
from lim_jax.limits import paper_studies
from lim_jax.limits import position as in_position
from lim_jax.limits.layers import LAYER_ROWS
from lim_jax.limits.refinement import Study
from lim_jax.limits.rows import Curve, Row
from lim_jax.paper.printed_figures import Comparison
from lim_jax.results.tables import KEYS

SIZES = (10.0, 20.0, 40.0, 80.0)


def row(name, order, bounds=None, **expected):
    errors = tuple(3.0 * size**-order for size in SIZES)
    study = Study("eq:source", 1.0, SIZES, errors, bounds, 1e-9)
    return Row(name, study, **expected)


GOOD = row("attention, inside", 1.0, bounds=(1.0, 0.5, 0.25, 0.125), expected=1.0)
FASTER = row("attention, mean square", 2.0, expected=2.0, reason="a better rule")
WRONG = row("loss, tokens", 0.5, expected=1.0)
BROKEN = row("split, defect", 1.0, bounds=(1.0, 0.1, 0.05, 0.02), expected=1.0)
CURVES = {
    "depth": [Curve("Euler", (8.0, 16.0), (0.1, 0.05))],
    "position": [Curve("tokens", (100.0, 200.0), (0.02, 0.01))],
}


def run(monkeypatch, folder, rows, curves):
    monkeypatch.setattr(paper_studies, "measure", lambda **arguments: (rows, curves))
    out = folder / "new" / "folder"
    return main(["rates", "--out", str(out), "--overwrite"])


def test_rates_prints_the_table_and_writes_files(monkeypatch, tmp_path, undrawn, capsys):
    assert run(monkeypatch, tmp_path, [GOOD, FASTER], CURVES) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[1].split()[2:] == ["1.00", "1.00", "1.00", "±", "0.00", "holds", "3", "1.0e-09"]
    assert "a better rule: attention, mean square" in printed
    assert "2 of 2 limits have the expected order, and break no bound." in printed
    folder = tmp_path / "new" / "folder"
    written = {path.name for path in folder.iterdir()}
    figures = {
        f"{name}.{kind}"
        for name in ("attention", "cost_depth", "cost_position")
        for kind in ("png", "svg")
    }
    assert written == {"rates.json", "rates.csv", "run.json", *figures}
    table = list(csv.reader((folder / "rates.csv").read_text(encoding="utf-8").splitlines()))
    assert table[0] == list(KEYS["rates.csv"])
    assert len(table) == 9 and table[2][1:] == ["20.0", "0.15000000000000002", "0.5"]
    assert table[5][0] == FASTER.name and table[5][3] == ""
    document = json.loads((folder / "rates.json").read_text(encoding="utf-8"))
    require_entries(document, "rates.json")
    assert document["rates"][0]["errors"] == list(GOOD.study.errors)
    assert document["rates"][0]["holds"] is True
    assert document["rates"][1]["order"]["value"] == pytest.approx(2)
    assert document["costs"]["depth"][0]["errors"] == [0.1, 0.05]


def test_a_figure_is_written_of_a_topic_that_holds_a_formula(monkeypatch, tmp_path, capsys):
    assert (
        run(monkeypatch, tmp_path, [row("growth in log(1/q), 1 layer", 1.0, expected=1.0)], {}) == 0
    )
    figures = [path.name for path in (tmp_path / "new" / "folder").glob("*.png")]
    assert figures == ["growth_in_log_1_q.png"] and "1 of 1" in capsys.readouterr().out


def test_rates_fails_on_a_wrong_order_and_on_a_broken_bound(monkeypatch, tmp_path, undrawn, capsys):
    assert run(monkeypatch, tmp_path, [GOOD, WRONG, BROKEN], {}) == 1
    printed = capsys.readouterr().out
    marked = {line.split("  ")[0] for line in printed.splitlines() if "DIFFERS" in line}
    assert marked == {"loss, tokens", "split, defect"}
    assert "BROKEN" in printed and "1 of 3 limits have" in printed


def test_a_row_of_the_table_is_a_real_study(monkeypatch, tmp_path, undrawn):
    rows = list(paper_studies._cesaro_rows((50, 100, 200, 400)))
    assert all(found.agrees for found in rows)
    assert run(monkeypatch, tmp_path, rows, {}) == 0


@cache
def averaged():
    """A study that is real, and measured once: what is kept of it is read back to the last bit."""
    return in_position.cesaro_study(2.0, (50, 100, 200, 400))


class Sized:
    """The quick groups of studies, small ones, and the names of those that are run."""

    def __init__(self, monkeypatch):
        self.run = []
        monkeypatch.setitem(LAYER_ROWS, "depth", partial(self.rows, "depth"))
        for name in ("attention", "adjoint", "terminal", "cesaro"):
            monkeypatch.setattr(paper_studies, f"_{name}_rows", partial(self.rows, name))

    def rows(self, name, *arguments, **options):
        self.run.append(name)
        yield Row(f"studies, averaged, {name}", averaged(), 1, "why")
        yield Row(f"studies, bounded, {name}", GOOD.study, 2)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are files of their names: elsewhere they are drawn."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())


def stopping(after):
    def progress(names, **options):
        yield from names[:after]
        raise KeyboardInterrupt

    return progress


def test_rates_that_are_interrupted_go_on_to_the_same_numbers(
    monkeypatch, tmp_path, undrawn, capsys
):
    sized = Sized(monkeypatch)
    out = tmp_path / "rates"
    assert main(["rates", "--quick", "--out", str(tmp_path / "whole")]) == 1
    names = sized.run.copy()
    expected = (tmp_path / "whole" / "rates.json").read_bytes()
    table = capsys.readouterr().out
    for after in (0, 2, 4):
        with monkeypatch.context() as patch:
            patch.setattr(rates_command, "tqdm", stopping(after))
            assert main(["rates", "--quick", "--out", str(out)]) == 130
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.strip().count("\n") == 0
        assert out.exists() is (after > 0), "no empty folder is left"
    sized.run.clear()
    assert main(["rates", "--quick", "--out", str(out)]) == 1
    assert sized.run == names[4:]
    assert (out / "rates.json").read_bytes() == expected
    assert capsys.readouterr().out.splitlines()[:-1] == table.splitlines()[:-1]
    written = {path.name for path in out.iterdir()}
    assert written == {"run.json", "rates.json", "rates.csv", "studies.png", "studies.svg"}
    assert main(["rates", "--quick", "--out", str(out)]) == 1, "the status too, of a finished run"
    assert sized.run == names[4:] and capsys.readouterr().out.count("\n") == 2 + table.count("\n")


def test_other_studies_are_not_gone_on_with(monkeypatch, tmp_path):
    Sized(monkeypatch)
    checkpoint = tmp_path / "new" / "rates.json"
    rows, curves = paper_studies.measure(quick=True, checkpoint=checkpoint)
    assert curves == {} and all(isinstance(row.study, Study) for row in rows)
    again, _ = paper_studies.measure(quick=True, checkpoint=checkpoint)
    assert again == rows and rows[1].study == GOOD.study
    with pytest.raises(ValueError, match="checkpoint: got .*of quick True, expected .*quick False"):
        paper_studies.measure(checkpoint=checkpoint)


@pytest.mark.slow
def test_an_interrupted_command_says_so_in_a_line(tmp_path):
    """Where no error can be raised, as in JAX's own callback, and while XLA compiles."""
    program = """
import gc, signal, sys
import jax, jax.numpy as jnp
from lim_jax.__main__ import main
from lim_jax.limits.layers import LAYER_ROWS

def sorted_often(x):
    for _ in range(300):
        x = jnp.sort(x) + jnp.sin(x)
    return x

def interrupted(phase, collected):
    gc.callbacks.remove(interrupted)
    signal.raise_signal(signal.SIGINT)

def slowly(*arguments, **options):
    lowered = jax.jit(sorted_often).lower(jnp.ones(8))
    gc.callbacks.append(interrupted)
    gc.collect()
    lowered.compile()
    print("not interrupted")

signal.signal(signal.SIGINT, signal.default_int_handler)  # as where no shell ignores it
LAYER_ROWS["depth"] = slowly
sys.argv = ["lim-jax", "--no-cache", "rates", "--quick", "--out", "rates"]
sys.exit(main())
"""
    done = run_python("-c", program, folder=tmp_path)
    assert done.returncode == 130 and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith("rates:")]
    assert lines == ["Interrupted. Run it again to go on from what is finished."]
    assert list(tmp_path.iterdir()) == []


def test_cost_figures_show_every_curve():
    (axes,) = plots.error_against_cost(CURVES["depth"], "evaluations").axes
    (line,) = axes.lines
    np.testing.assert_array_equal(np.array(line.get_data()), [(8.0, 16.0), (0.1, 0.05)])
    assert axes.get_xlabel() == "evaluations"


def test_reproduce_takes_float64_by_itself(monkeypatch, tmp_path):
    class Reached(Exception):
        pass

    def section4(progress):
        raise Reached(jnp.zeros(()).dtype)

    monkeypatch.setattr(paper, "section4", section4)
    with jax.enable_x64(False), pytest.raises(Reached, match="float64"):
        main(["reproduce", "--out", str(tmp_path)])


def test_reproduce_writes_ours_beside_the_papers(monkeypatch, tmp_path, as_users_run):
    """Its figures are drawn elsewhere; a figure that differs is an exit status of one."""
    comparisons = [Comparison("baseline, left", "3.2269", 3.22691, 1e-5, True)]
    monkeypatch.setattr(paper, "section4", lambda progress: None)
    monkeypatch.setattr(reproduce_command, "summary", lambda results: {"total": 2.0})
    monkeypatch.setattr(reproduce_command, "compare_with_printed", lambda numbers: comparisons)
    monkeypatch.setattr(reproduce_command, "beyond_the_paper", lambda numbers: "")
    for name in ("influence_profiles", "observability_profiles", "convergence", "probe_errors"):
        draw = lambda results: Figure(figsize=(1, 1))  # noqa: E731
        draw.__name__ = name
        monkeypatch.setattr(plots, f"simulation_{name}", draw)
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "section4.json").read_text(encoding="utf-8")) == {"total": 2.0}
    table = list(csv.reader((tmp_path / "section4.csv").read_text(encoding="utf-8").splitlines()))
    assert table[0] == list(KEYS["section4.csv"])
    assert table[1] == ["baseline, left", "3.2269", "3.22691", "1e-05", "True"]
    assert (tmp_path / "probe_errors.svg").exists() and (tmp_path / "convergence.png").exists()
    comparisons.append(Comparison("baseline, right", "2", 3.0, 1.0, False))
    assert main(["reproduce", "--out", str(tmp_path)]) == 1


@pytest.mark.slow
def test_the_counterexamples_print_and_write_their_numbers(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(paper, "counterexamples", cache(paper.counterexamples))
    assert main(["counterexamples"]) == 0
    printed = capsys.readouterr().out
    assert "influence energies: 4  1" in printed
    assert "traces of the Gramians: 2  2" in printed
    assert main(["counterexamples", "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.startswith(printed)
    document = json.loads((tmp_path / "new" / "counterexamples.json").read_text(encoding="utf-8"))
    for example in document:
        each = [{"NAME": value} for value in example["numbers"].values()]
        require_entries(example | {"numbers": each}, "counterexamples.json")
    numbers = {name: value for example in document for name, value in example["numbers"].items()}
    assert len(document) == 4 and numbers["influence energies"] == [4.0, 1.0]
    assert all(f'"{example["slogan"]}"' in printed for example in document)


def test_without_a_command_it_says_what_there_is():
    """Of each command what its own help begins with; and nothing is loaded that takes long."""
    program = """
import sys
from lim_jax.__main__ import main
try:
    sys.argv = ["lim-jax"]
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = run_python("-c", program, folder=ROOT)
    assert done.returncode == 0 and "--version" in done.stdout
    words = " ".join(re.findall(r"\w+", done.stdout))
    for name, (_, summary) in commands.COMMANDS.items():
        assert summary == (commands._command(name).__doc__ or "").splitlines()[0]
        assert " ".join(re.findall(r"\w+", f"{name} {summary}")) in words
    assert not {"jax", "numpy", "matplotlib"} & set(done.stderr.split())


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lim-jax {version('lim_jax')}\n"


def helped(annotation):
    """What an argument that several commands take says of itself."""
    told = [one.help for one in getattr(annotation, "__metadata__", ()) if hasattr(one, "help")]
    return next(filter(None, told), None)


@pytest.mark.parametrize("command", [*commands.COMMANDS])
def test_help_names_every_argument_and_its_meaning(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    function = commands._command(command)
    words = re.findall(r"\w+", printed)
    documented = inspect.getdoc(function) or ""
    for name, meaning in re.findall(r"^    (\w+): ([^.\n]*)", documented, re.MULTILINE):
        positional = name in ("model", "question", "first", "second")
        assert positional or f"--{name.replace('_', '-')}" in printed
        assert " ".join(re.findall(r"\w+", meaning)[:5]) in " ".join(words)
    described = set(re.findall(r"^    (\w+): ", documented, re.MULTILINE))
    arguments = inspect.signature(function).parameters
    shared = {name: helped(of.annotation) for name, of in arguments.items()}
    assert described == {name for name, meaning in shared.items() if meaning is None}
    for meaning in filter(None, shared.values()):
        assert " ".join(re.findall(r"\w+", meaning)[:5]) in " ".join(words)


@pytest.mark.parametrize(
    "command, usage",
    [
        ("ask", "MODEL QUESTION"),
        ("profile", "MODEL"),
        ("explain", "MODEL"),
        ("compare", "A B"),
    ],
)
def test_help_names_what_a_command_takes_as_the_page_does(command, usage, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    for name in usage.split():  # the first tyro leaves them out of a long usage line
        assert re.search(rf"^\W+{name}\b", printed, re.MULTILINE), name
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert f"`lim-jax {command} {usage}" in page
    for option in ("--documents DOCUMENTS", "--data FILE"):
        assert (option in printed) == (f"`lim-jax {command} {usage} {option}" in page)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_help_has_no_colours_where_none_are_wanted(no_color, monkeypatch, capsys):
    """As https://no-color.org says: where NO_COLOR is set and not empty."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(tyro._experimental_options, "ansi_codes", True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert ("\x1b" in capsys.readouterr().out) == (no_color == "")


@pytest.mark.parametrize("command", [*commands.COMMANDS])
def test_what_help_says_of_an_argument_is_one_paragraph(command):
    """Help is wrapped to the terminal's width: ends of lines in it would stand within lines."""
    said = inspect.getdoc(commands._command(command)) or ""
    arguments = said.partition("Args:\n")[2].splitlines()
    assert [line for line in arguments if not re.match(r"    \w+: ", line)] == []


def test_the_help_has_an_entry_for_each_option_before_a_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for option in ("--version", "--cache PATH", "--no-cache"):
        assert re.search(rf"^  {option}  +\w", printed, re.MULTILINE)


WRONG_ARGUMENTS = {
    "ask m q --documnets d": "ask: --documnets is no option; the options are --documents, --method",
    "ask m q --documnets=d": "Did you mean --documents?",
    "ask": "ask: MODEL, QUESTION, --documents DOCUMENTS are missing; the command is lim-jax ask",
    "ask m --documents d": "ask: QUESTION is missing; the command is lim-jax ask MODEL QUESTION",
    "ask m q --documents": "ask: --documents has no value; pass a value after it",
    "ask m q --documents d --method foo": "ask: --method foo is not accepted; pass one of infl",
    "profile m --data f --loss anwser": "Did you mean answer?",
    "profile m --data f --delta x": "profile: --delta x is not accepted; pass a finite",
    "profile m --data f --delta nan": "profile: --delta nan is not accepted; pass a finite number.",
    "profile m --data f --memory inf": "profile: --memory inf is not accepted; pass a finite num",
    "profile m --data f --memory 0": "profile: --memory 0 is not accepted; pass a finite number "
    "above 0.",
    "ask m q --documents d --memory -1": "ask: --memory -1 is not accepted; pass a finite number "
    "above 0.",
    "profile m --data f --shuffle -1": "profile: --shuffle -1 is not accepted; pass a whole number "
    "of at least 0.",
    "explain m --data f --depth -1": "explain: --depth -1 is not accepted; pass a whole number of",
    "explain m --data f --seed -1": "explain: --seed -1 is not accepted; pass a whole number from "
    "0 to 4294967295.",
    "rates --seed -1": "rates: --seed -1 is not accepted; pass a whole number from 0 to 4294967295",
    "rates --sizes 8 0": "rates: --sizes 0 is not accepted; pass a whole number of at least 1.",
    "explain m --data f --contexts 1.5": "explain: --contexts 1.5 is not accepted; pass a whole",
    "compare a b c": "compare: 'c' is one argument too many; it takes A and B",
    "ask m q --documents d --passes 0": "ask: --passes 0 is not accepted; pass a whole number",
    "ask m q --documents d --passes=-3": "pass a whole number of at least 1. lim-jax ask",
    "ask m q --documents d --answer-tokens 0": "ask: --answer-tokens 0 is not accepted; pass",
    "ask m q --documents d --max-length 0": "ask: --max-length 0 is not accepted; pass a whole",
    "profile m --data f --max-length 0": "profile: --max-length 0 is not accepted; pass a whole",
    "profile m --data f --answer-tokens 0": "profile: --answer-tokens 0 is not accepted; pass",
    "explain m --data f --contexts 0": "explain: --contexts 0 is not accepted; pass a whole number",
    "explain m --data f --max-length 0": "explain: --max-length 0 is not accepted; pass a whole",
    "rates --sizes 1 x": "rates: --sizes x is not accepted; pass a whole number",
    "reproduce now": "reproduce: 'now' is one argument too many; it takes options alone",
    "counterexamples -x": "counterexamples: -x is no option; the options are --out, --overwrite",
    "aks": "aks is no command; the commands are ask, profile",
    "--verison": "Did you mean --version?",
}
EMPTY = {
    ("ask", "m", "q", "--documents", ""): "ask: --documents '' is empty; pass a path",
    ("ask", "", "q", "--documents", "d"): "ask: MODEL '' is empty; pass a path",
    ("profile", "m", "--data", "d", "--out="): "profile: --out '' is empty; pass a path",
    ("compare", "a", ""): "compare: B '' is empty; pass a path",
    ("ask", "m", "", "--documents", "d"): "ask: QUESTION '' is empty; pass a text of words",
    ("ask", "m", "q", "--documents", "d", "--answer", " "): "ask: --answer ' ' is empty; pass a",
    ("ask", "m", "q", "--documents", "d", "--foil="): "ask: --foil '' is empty; pass a text of",
    ("profile", "m", "--data", "d", "--foil", "\n"): "profile: --foil '\\n' is empty; pass a text",
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("given", EMPTY)
def test_an_empty_path_or_text_is_told_before_anything_is_read(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lim-jax", *given])
    assert __main__.main() == 2
    assert EMPTY[given] in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("given", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_told_in_one_line(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lim-jax", *given.split()])
    assert __main__.main() == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("lim-jax: ") and WRONG_ARGUMENTS[given] in said.err


@pytest.mark.parametrize(
    "given",
    [
        "m q --documents d --no-html --answer-tokens 3 --memory 1.5 --parts None",
        "--documents=d m q --document_parts tokens",
        "m q --documents d --foil=-x --answer -1",
    ],
)
def test_right_arguments_are_not_refused(given):
    assert as_arguments("ask", commands._command("ask"), given.split())


def test_a_text_that_begins_with_a_dash_is_a_text(monkeypatch):
    """Where it holds white space, which no option does, or stands behind an equals sign."""
    asked = []

    def ask(model: tyro.conf.Positional[str], question: tyro.conf.Positional[str], foil: str = ""):
        asked.append((model, question, foil))
        return 0

    monkeypatch.setattr(commands, "_command", lambda name: ask)
    for foil in (["--foil", "-yes he did"], ["--foil=-yes he did"]):
        assert main(["ask", *foil, "m", "-who are you?"]) == 0
    assert asked == 2 * [("m", "-who are you?", "-yes he did")]
    assert main(["ask", "m", "who?", "--foil=-x"]) == 0
    assert asked[-1] == ("m", "who?", "-x")
    with pytest.raises(ValueError, match="--foil has no value; pass a value after it, as --foil="):
        main(["ask", "m", "who?", "--foil", "-x"])


@pytest.mark.slow
def test_rates_of_chosen_studies_sizes_and_matrices(monkeypatch, tmp_path, capsys):
    """End to end: what is drawn and written is the study that was asked for."""
    out = tmp_path / "rates"
    draw = Figure.savefig
    arguments = ["rates", "--only", "extrapolated", "--sizes", "20", "40", "80", "160"]
    found = []
    for seed, save in (("0", lambda figure, path, **options: path.touch()), ("1", draw)):
        monkeypatch.setattr(Figure, "savefig", save)
        assert main([*arguments, "--seed", seed, "--out", str(out), "--overwrite"]) == 0
        (row,) = json.loads((out / "rates.json").read_text(encoding="utf-8"))["rates"]
        assert row["name"] == "attention, last position, Richardson"
        assert row["refinements"] == [20, 40, 80, 160]
        found.append(row["errors"])
    assert not np.allclose(*found, rtol=1e-2)
    assert "1 of 1 limits have the expected order" in capsys.readouterr().out
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (out / "attention.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--only", "loss", "tokens"), "only: got tokens, expected some of depth, attention"),
        (("--sizes", "1", "2", "3", "4"), r"sizes: got \[1, 2, 3, 4\] of all studies"),
        (("--only", "loss", "--sizes", "1", "2", "3"), "sizes: .*4 refinements or more"),
        (
            ("--only", "loss", "--sizes", "4", "3", "2", "1"),
            "sizes: .*each finer than the one before",
        ),
    ],
)
def test_rates_refuses_what_it_cannot_choose(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        main(["rates", *arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_every_group_of_studies_is_named_in_the_help():
    named = re.search(r"only: (.*?)\n    sizes", inspect.getdoc(rates) or "", re.DOTALL)
    assert named is not None
    words = set(re.findall(r"[\w-]+", named.group(1)))
    assert set(paper_studies.groups()) <= words


def test_a_missing_extra_is_named_before_any_work(tmp_path):
    """Figures are drawn last: without matplotlib a command says so first."""
    program = "import sys; sys.modules['matplotlib'] = None; import lim_jax.__main__"
    done = run_python("-c", program, folder=tmp_path)
    assert done.returncode == 1 and "python -m pip install 'lim_jax[plot,cli]'" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


@pytest.fixture
def in_process(monkeypatch):
    """What the program sets of its process: here it is another one's, and stays as it is."""
    monkeypatch.setattr(__main__, "keep_programs", lambda arguments: arguments)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = gc.get_threshold()
    pressed = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, pressed)
    gc.set_threshold(*before)


@pytest.mark.usefixtures("in_process")
def test_what_a_command_refuses_is_a_line_and_status_2(monkeypatch, tmp_path, capsys):
    """Of the program alone: from Python it raises."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lim-jax", "rates", "--only", "tokens"])
    assert __main__.main() == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("lim-jax: only: got tokens, expected some of depth")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_process")
def test_where_interrupts_are_ignored_a_command_goes_on(monkeypatch):
    """As in a job that a script starts in the background, or under nohup."""

    def pressed(arguments):
        signal.raise_signal(signal.SIGINT)
        return 0

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(__main__, "run", pressed)
    monkeypatch.setattr(__main__, "_leave", lambda: None)
    assert __main__.main() == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("in_process")
def test_what_a_library_makes_of_an_interrupt_is_one(monkeypatch, capsys):
    """JAX, in the middle of tracing, may raise an AttributeError for it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as where no shell ignores it

    def broken(arguments):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("'int' object has no attribute '_get_vars'") from None

    left = []
    monkeypatch.setattr(__main__, "run", broken)
    monkeypatch.setattr(__main__, "_leave", lambda: left.append(True))
    assert __main__.main() == 130 and left == [True]
    said = "Interrupted. Run it again to go on from what is finished."
    assert capsys.readouterr().err == f"\n{said}\n"


@pytest.mark.usefixtures("in_process")
def test_a_command_looks_for_garbage_seldom(monkeypatch):
    thresholds = []

    def look(arguments):
        thresholds.append(gc.get_threshold())
        return 0

    others = gc.get_threshold()[1:]
    monkeypatch.setattr(__main__, "run", look)
    assert __main__.main() == 0
    assert thresholds == [(100_000, *others)] and gc.isenabled()


@pytest.mark.usefixtures("in_process")
def test_letters_that_an_encoding_lacks_are_written_by_their_numbers(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), "cp1252", write_through=True)
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(__main__, "run", lambda arguments: print("é ⏎") or 0)
    assert __main__.main() == 0
    assert written.buffer.getvalue().split() == ["é".encode("cp1252"), b"\\u23ce"]


@pytest.mark.usefixtures("in_process")
def test_a_warning_is_a_line(monkeypatch, capsys):
    def warning(arguments):
        warnings.simplefilter("default")
        warnings.warn("documents: notes has empty files, left out: a.txt.", stacklevel=1)
        return 0

    monkeypatch.setattr(__main__, "run", warning)
    assert __main__.main() == 0
    assert (
        capsys.readouterr().err == "lim-jax: documents: notes has empty files, left out: a.txt.\n"
    )


@pytest.mark.usefixtures("in_process")
def test_a_fault_keeps_its_traceback(monkeypatch, capsys):
    """Only a refusal is said in a line; any other error is a fault of the program."""

    def raising(error):
        def run(arguments):
            raise error

        return run

    refusals = {
        Refusal("delta: got 0.6, expected less than one half. Take 0.2."): 2,
        MissingPackage("altair: got no such package, expected it installed. Install it"): 2,
        RefusedValue("batch: got NaN, expected numbers. Drop them."): 2,
    }
    for error, status in refusals.items():
        monkeypatch.setattr(__main__, "run", raising(error))
        assert __main__.main() == status
        assert capsys.readouterr().err == f"lim-jax: {error}\n"
    refused = jax.jit(lambda x: error_if(x, x < 0, "x: expected no negative number, got one."))
    monkeypatch.setattr(__main__, "run", lambda arguments: refused(-1.0).block_until_ready())
    assert __main__.main() == 2
    assert capsys.readouterr().err == "lim-jax: x: expected no negative number, got one.\n"
    for fault in (
        ValueError("zip() argument 2 is longer than argument 1"),
        ValueError("delta: got 0.6, expected less than one half. Take 0.2."),
        RuntimeError("INTERNAL: no memory"),
        eqx.EquinoxRuntimeError("x: got 1, expected 2."),
        KeyError("delta: got 0.6, expected less than one half."),
        ModuleNotFoundError("No module named 'altair'"),
    ):
        monkeypatch.setattr(__main__, "run", raising(fault))
        with pytest.raises(type(fault)):
            __main__.main()


def test_arguments_in_errors_are_the_commands_own(monkeypatch, in_process, capsys):
    """The library says what Python passes: there are no flags in its errors."""
    said = "data: got 9, expected 8. Raise `max_length`, or take `html=False`, (`loss='answer'`)."
    flags = "data: got 9, expected 8. Raise --max-length, or take --no-html, (--loss answer)."
    options = commands.option_names(["profile", "m"])
    assert commands.as_flags(said, options) == flags
    for name in ("out: got /a/`b`", "line 1: got see `foo` here, expected (`bar=1`)"):
        assert commands.as_flags(name, options) == name, "what a user wrote is left"
    assert commands.option_names([]) == commands.option_names(["--help"]) == frozenset()

    def run(arguments):
        raise Refusal(said)

    monkeypatch.setattr(__main__, "run", run)
    monkeypatch.setattr(sys, "argv", ["lim-jax", "profile", "m"])
    assert __main__.main() == 2 and capsys.readouterr().err == f"lim-jax: {flags}\n"


def test_no_error_of_the_library_speaks_of_flags():
    package = ROOT / "lim_jax"
    files = [
        file for file in package.rglob("*.py") if "cli" not in file.parts and file.parent != package
    ]
    errors = []
    for file in files:
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name == "Refusal" or name.startswith("require"):
                texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
                errors += [
                    (file.name, text) for text in texts if re.search(r"(^| )--[a-z]", f"{text}")
                ]
    assert errors == []
