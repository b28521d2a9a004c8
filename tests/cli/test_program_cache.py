"""Where compiled programs are kept, and that they are."""

import gc
import json
import os
import sys
import warnings
from functools import partial
from itertools import count
from types import SimpleNamespace

import jax
import numpy as np
import platformdirs
import pytest
from jax._src import checkify, compiler
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from matplotlib.figure import Figure
from reference.as_users import run_python
from reference.publishers import CONFIGS, write_with_letters

from lim_jax import __main__
from lim_jax._checks import error_if
from lim_jax._jit import cached_jit
from lim_jax.cli import program_cache
from lim_jax.cli.commands import main
from lim_jax.cli.program_cache import keep_programs

FOLDER = "JAX_COMPILATION_CACHE_DIR"
ENABLED = "JAX_ENABLE_COMPILATION_CACHE"
COMPILES = """
import os, sys
from lim_jax.cli.program_cache import keep_programs
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "true"
keep_programs(["--cache", sys.argv[1]])
assert "jax" not in sys.modules
import jax
print(jax.jit(lambda x: 2 * x)(3.0))
"""


def program(name):
    """The name that JAX gives the file of a compiled program."""
    return f"{name}-{7:064x}-cache"


@pytest.fixture
def settings(monkeypatch):
    """What would be set in the environment, by name; nothing is."""
    found = {}
    monkeypatch.setattr(program_cache, "os", SimpleNamespace(environ=found))
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # which the program sets too
    monkeypatch.setattr(gc, "set_threshold", lambda count: None)
    return found


def test_programs_are_kept_in_the_users_folder(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(platformdirs, "user_cache_path", tmp_path.joinpath)
    assert keep_programs(["rates", "--quick"]) == ["rates", "--quick"]
    assert settings[FOLDER] == str(tmp_path / "lim_jax")
    # With a bound of its own JAX looks at all files for every program.
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in settings


def test_flags_before_the_command_move_or_refuse_the_folder(settings, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert keep_programs(["--cache", "here", "rates"]) == ["rates"]
    assert settings.pop(FOLDER) == "here"
    assert keep_programs(["--no-cache", "rates"]) == ["rates"]
    assert settings[ENABLED] == "false" and FOLDER not in settings
    assert keep_programs(["rates", "--cache", "here"]) == ["rates", "--cache", "here"]
    with pytest.raises(ValueError, match="--cache: got no folder, expected one"):
        keep_programs(["--cache"])


def test_a_folder_that_jax_was_told_of_stays(settings, monkeypatch):
    settings[FOLDER] = "theirs"
    keep_programs(["rates"])
    assert settings == {FOLDER: "theirs"}


def test_room_is_made_of_what_was_not_used_for_longest(settings, monkeypatch, tmp_path):
    """Read or written; what is no program stays, and what another command removes is no fault."""
    monkeypatch.setattr(program_cache, "MOST", 20)
    for age, name in enumerate(("new", "read", "old", "older"), 1):
        (tmp_path / program(name)).write_bytes(b"x" * 10)
        read = 100 if name == "new" else age
        written = 100 if name == "read" else age
        os.utime(tmp_path / program(name), (1e9 - read, 1e9 - written))
    (tmp_path / "mine.txt").write_bytes(b"x" * 100)
    keep_programs(["--cache", str(tmp_path), "rates"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.txt",
        program("new"),
        program("read"),
    ]
    (tmp_path / program("gone")).symlink_to(tmp_path / "nowhere")
    keep_programs(["--cache", str(tmp_path), "rates"])


@pytest.mark.parametrize("flags", [["--cache"], []])
def test_a_folder_that_takes_no_file_is_said_once(flags, settings, monkeypatch, tmp_path, capsys):
    """The user's own too, as where HOME cannot be written; and the command runs without."""
    (tmp_path / "file").touch()
    closed = tmp_path / "file" / "programs"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: closed)
    monkeypatch.setattr(sys, "argv", ["lim-jax", *flags, *[str(closed)] * len(flags), "rates"])
    monkeypatch.setattr(__main__, "run", lambda arguments: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert __main__.main() == 0
    said = capsys.readouterr().err
    start = f"lim-jax: compiled programs are not kept: {closed} cannot be written to (Not a dir"
    assert said.startswith(start) and said.count("\n") == 1
    assert settings == {ENABLED: "false"}


def test_a_folder_that_became_full_is_said_once(settings, monkeypatch, capsys):
    """In JAX's words, of the first program that it could not keep."""
    error = "Error writing persistent compilation cache entry for 'jit_{}': OSError: [Errno 28] No"

    def run(arguments):
        for name in "abc":
            warnings.warn(error.format(name), stacklevel=1)
        warnings.warn("another", stacklevel=1)
        return 0

    monkeypatch.setattr(sys, "argv", ["lim-jax", "--no-cache", "rates"])
    monkeypatch.setattr(__main__, "run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert __main__.main() == 0
    assert capsys.readouterr().err == f"lim-jax: {error.format('a')}\nlim-jax: another\n"


def test_the_command_asks_before_it_runs(settings, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "argv", ["lim-jax", "--no-cache", "rates"])
    monkeypatch.setattr(__main__, "run", lambda arguments: seen.append(arguments) or 0)
    assert __main__.main() == 0
    assert seen == [["rates"]] and settings[ENABLED] == "false"


@pytest.fixture
def kept(tmp_path):
    """JAX's cache in a folder of this test, with no program in memory."""
    names = (
        "jax_enable_compilation_cache",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = [getattr(jax.config, name) for name in names]

    def configure(*values):
        for name, value in zip(names, values, strict=True):
            jax.config.update(name, value)
        reset_cache()
        jax.clear_caches()

    configure(True, str(tmp_path / "programs"), 0)
    yield tmp_path / "programs"
    configure(*before)


@pytest.fixture
def anew(kept, monkeypatch):
    """Call a function as a process of its own would, and count what it compiles."""
    compiled = []
    compile_program = compiler.backend_compile_and_load

    def counted(*arguments):
        compiled.append(arguments)
        return compile_program(*arguments)

    def run(function):
        # Older JAX numbers checks as they are traced: a second process begins anew.
        monkeypatch.setattr(checkify, "next_code", count(1).__next__, raising=False)
        jax.clear_caches()
        compiled.clear()
        return function(), len(compiled)

    monkeypatch.setattr(compiler, "backend_compile_and_load", counted)
    return run


def test_a_program_with_a_check_is_compiled_once(anew):
    """Checks of a command's programs are values (`conftest.py`), and JAX keeps such a program."""

    def double():
        return cached_jit(lambda x: error_if(2 * x, x < 0, "x: got less"))(np.ones(()))

    for compiles in (True, False):
        doubled, programs = anew(double)
        assert doubled == 2 and bool(programs) is compiles


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ask", "profile"])
def test_a_second_run_of_a_command_compiles_nothing(anew, command, tmp_path, monkeypatch):
    """`explain` neither, by hand: it takes longer to trace."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    model = tmp_path / "weights"
    documents = tmp_path / "documents"
    for folder in (model, documents):
        folder.mkdir()
    write_with_letters(model, CONFIGS["llama"])
    (documents / "first.txt").write_text("abcabd", encoding="utf-8")
    data = tmp_path / "data.jsonl"
    data.write_text(
        json.dumps({"prompt": "abcabdfg", "answer": "hj", "spans": [[0, 2, "first"]]}),
        encoding="utf-8",
    )
    arguments = {
        "ask": ["bc", "--documents", str(documents)],
        "profile": ["--data", str(data)],
    }
    for number, compiles in enumerate((True, False)):
        out = str(tmp_path / f"out{number}")
        run = partial(main, [command, str(model), *arguments[command], "--out", out])
        found, programs = anew(run)
        assert found == 0 and bool(programs) is compiles, programs


@pytest.mark.slow
def test_another_process_finds_what_was_compiled(tmp_path):
    def kept():
        done = run_python("-c", COMPILES, tmp_path, folder=tmp_path)
        assert (done.stdout, done.stderr) == ("6.0\n", "")
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*-cache")}

    first = kept()
    assert first and kept() == first


def test_only_files_that_jax_named_are_removed(settings, monkeypatch, tmp_path):
    """A folder of one's own may hold what ends alike: files and folders stay."""
    monkeypatch.setattr(program_cache, "MOST", 0)
    (tmp_path / "http-cache").write_text("mine", encoding="utf-8")
    (tmp_path / "my-cache").mkdir()
    (tmp_path / program("folder")).mkdir()
    (tmp_path / program("jit_f")).write_text("a program", encoding="utf-8")
    keep_programs(["--cache", str(tmp_path), "rates"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"http-cache", "my-cache", program("folder")}


@pytest.mark.slow
def test_jax_names_programs_as_we_know_them(kept):
    jax.jit(lambda x: 2 * x + 1)(np.ones(3))
    files = [path.name for path in kept.iterdir() if path.name.endswith("-cache")]
    assert files and all(program_cache.PROGRAM.search(name) for name in files)


def test_no_folder_and_a_command_are_no_folder_of_programs(settings, monkeypatch, tmp_path):
    """An empty path would be the current folder, and a command's name is a forgotten path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--cache: got '', expected a folder.* Pass --cache PATH"):
        keep_programs(["--cache", "", "rates"])
    with pytest.raises(ValueError, match="--cache: got '', expected a folder"):
        keep_programs(["--cache=", "rates"])
    with pytest.raises(ValueError, match="--cache: got 'rates', which is a command, expected"):
        keep_programs(["--cache", "rates", "--quick"])
    assert list(tmp_path.iterdir()) == [] and settings == {}
    assert keep_programs(["--cache=here", "rates"]) == ["rates"]
    assert settings.pop(FOLDER) == "here"
    assert keep_programs(["--cache", "./rates", "ask"]) == ["ask"]
    assert settings[FOLDER] == "rates"
