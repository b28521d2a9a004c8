"""Ctrl-C, at any moment of a command: it ends by status 130, and goes on when it is run again."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from reference.as_users import ROOT
from reference.publishers import CONFIGS, spelt, write_with_letters

# Imports once, and each command in a process of its own that is forked before JAX has any thread.
# Says the status after all that the command said.
PROGRAM = """
import json, os, pkgutil, signal, sys
from importlib import import_module

# What a shell starts in the background is told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
import lim_jax
from lim_jax.__main__ import main

for module in pkgutil.walk_packages(lim_jax.__path__, "lim_jax."):
    module.name.endswith("__main__") or import_module(module.name)
for line in sys.stdin:
    if not (process := os.fork()):
        print(os.getpid(), flush=True)
        sys.argv[1:] = json.loads(line)
        sys.exit(main())
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print(chr(0), status, sep="", end=chr(0), flush=True)
"""
PATHS = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
# By the first compilation after what is shown, which XLA is busy with when the signal comes, or
# after a few; and between two of them. Of two moments alike one command has one.
MOMENTS = {
    "profile": ("Weights stay", " 1/4 ", r"Compiling jit\(_numbers"),
    "ask": ("answering: +0%.*Compiling",),
    "explain": ("Explaining(.*Compiling){2}",),
    "rates": ("rates: +0%.*Compiling",),
}


@pytest.fixture
def arguments(tmp_path):
    """Of each command."""
    weights, documents, data = (tmp_path / name for name in ("weights", "texts", "data.jsonl"))
    for folder in (weights, documents):
        folder.mkdir()
    write_with_letters(weights, CONFIGS["llama"])
    (documents / "first.txt").write_text("abcabd", encoding="utf-8")
    rows = [np.random.default_rng(size).integers(11, size=size) for size in (9, 9, 8, 9)]
    lines = [{"prompt": spelt(row[:-2]), "answer": spelt(row[-2:])} for row in rows]
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    of_lines = [weights, "--data", data, "--loss", "answer"]
    return {
        "profile": of_lines,
        "ask": [
            weights,
            "bc",
            "--documents",
            documents,
            "--answer-tokens",
            "2",
            "--method",
            "influence",
        ],
        "explain": [*of_lines, "--contexts", "2"],
        "rates": ["--quick"],
    }


@pytest.fixture
def commands(tmp_path):
    """What runs them, in the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PATHS, "JAX_LOG_COMPILES": "1", "JAX_ENABLE_X64": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(commands, command, arguments, moment=None):
    """The status and what was said; interrupted twice where that matches a moment."""
    line = ["--no-cache", command, *map(str, arguments), "--out", command]
    commands.stdin.write(json.dumps(line).encode() + b"\n")
    commands.stdin.flush()
    said = b""
    while not (ended := re.search(rb"\0(-?\d+)\0", said)):
        assert (more := os.read(commands.stdout.fileno(), 1 << 16)), said.decode()
        said += more
        if moment is not None and re.search(moment.encode(), said, re.DOTALL):
            process = int(re.findall(rb"^(\d+)$", said, re.MULTILINE)[0])
            os.kill(process, signal.SIGINT)
            os.kill(process, signal.SIGINT)
            moment = None
    assert moment is None, f"{moment} was not reached: {said[-2000:].decode()}"
    return int(ended[1]), said.decode()


@pytest.mark.slow  # seven processes, each of which compiles for a second
def test_an_interrupted_process_ends_by_its_status_and_goes_on(commands, arguments, tmp_path):
    for command, moments in MOMENTS.items():
        for moment in moments:
            status, said = run(commands, command, arguments[command], moment)
            assert status == 130, f"{command}, {moment}: {said[-2000:]}"
            assert said.count("\nInterrupted. Run it again") == 1 and "Traceback" not in said
    status, said = run(commands, "profile", arguments["profile"])
    assert status == 0 and "Compiling jit(_numbers" in said and "jit(_energy" not in said
    assert not (tmp_path / "profile" / "unfinished").exists()
