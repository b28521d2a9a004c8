"""Networks from a terminal: whole where the memory suffices, else left in their files."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from matplotlib.figure import Figure
from reference.publishers import CONFIGS, WORDS, spelt, write_with_letters

from lim_jax import models
from lim_jax.cli import ask_command, explain_command, networks, profile_command
from lim_jax.cli.commands import main
from lim_jax.weights import FetchedLayers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_with_letters(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])


@pytest.fixture(scope="module")
def model(folder):
    return models.LanguageModel.open(folder)


def is_fetched(model):
    return isinstance(model.network.flow.layers, FetchedLayers)


def test_a_network_that_does_not_fit_is_left_in_its_files(model, tmp_path, monkeypatch, capsys):
    needed = models.profile_memory(model.network, 7)
    between = (needed.in_memory + needed.offloaded) / 2 / 2**30
    assert needed.offloaded < needed.in_memory
    for free, said in ((2 * needed.in_memory, "in memory"), (needed.offloaded, "in their files")):
        monkeypatch.setattr(networks, "free_memory", lambda free=free: free)
        assert is_fetched(networks.network_within(model, None, 7, tmp_path)) == (
            said != "in memory"
        )
        assert f"Weights stay {said}" in capsys.readouterr().out
        # What is said counts, not what is free.
        assert is_fetched(networks.network_within(model, between, 7, tmp_path))
        assert not is_fetched(networks.network_within(model, 99.0, 7, tmp_path))


def test_a_run_that_is_taken_up_holds_its_network_as_before(model, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "free_memory", lambda: 2.0**40)
    assert list(networks.placement_bar(model.network, tmp_path)([])) == []
    assert not is_fetched(networks.network_within(model, None, 7, tmp_path))  # nothing was done
    assert list(networks.placement_bar(model.network, tmp_path)([3, 4], unit="text")) == [3, 4]
    assert is_fetched(networks.network_within(model, None, 7, tmp_path))
    monkeypatch.setattr(networks, "free_memory", lambda: 1.0)
    assert list(networks.placement_bar(model.loaded().network, tmp_path)([3])) == [3]
    assert not is_fetched(networks.network_within(model, None, 7, tmp_path))
    assert is_fetched(networks.network_within(model, 1e-3, 7, tmp_path))
    (tmp_path / networks.PLACEMENT).write_bytes(b"\xff\x00")  # no word of ours, nor text
    assert is_fetched(networks.network_within(model, None, 7, tmp_path))


@pytest.mark.slow
def test_a_profile_within_little_memory_is_the_same(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    data = tmp_path / "data.txt"
    profiles = {}
    data.write_text(spelt(np.random.default_rng(0).integers(WORDS, size=40)), encoding="utf-8")
    for name, memory in (("whole", "9"), ("files", "0.001")):
        out = tmp_path / name
        arguments = ["--data", str(data), "--max-length", "9", "--memory", memory]
        assert main(["profile", str(folder), *arguments, "--out", str(out)]) == 0
        profiles[name] = json.loads((out / "profile.json").read_text(encoding="utf-8"))
    density = [np.array(profile["influence"]["density"]) for profile in profiles.values()]
    np.testing.assert_allclose(*density, rtol=1e-5)
    assert "in their files, read a layer at a time" in capsys.readouterr().out


@pytest.mark.parametrize(
    "module, arguments",
    [
        (ask_command, ["ask", "weights", "Who?", "--documents", "notes.txt"]),
        (profile_command, ["profile", "weights", "--data", "notes.txt"]),
        (explain_command, ["explain", "weights", "--data", "notes.txt"]),
    ],
)
def test_a_command_computes_in_the_precision_that_is_asked_for(
    module, arguments, folder, tmp_path, monkeypatch
):
    opened = []
    (tmp_path / "notes.txt").write_text("abc", encoding="utf-8")  # read before the model
    monkeypatch.chdir(tmp_path)

    def open_model(path, download, compute):
        opened.append(networks.open_model(folder, download, compute))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "open_model", open_model)
    for precision in ((), ("--compute", "bfloat16")):
        assert main([*arguments, *precision, "--out", str(tmp_path / "out")]) == 130
    files, half = (model.network.flow.compute for model in opened)
    assert (files, half) == (None, "bfloat16")
    assert opened[1].loaded().network.flow.compute == "bfloat16"


def test_it_is_said_what_bfloat16_would_save_of_minutes(model, monkeypatch):
    """Where it is much, by what the processor multiplies, and unless a precision is asked for."""
    flow = dataclasses.replace(model.network.flow, compute="float32")
    asked = dataclasses.replace(model.network, flow=flow)
    saves = "about 10 minutes. --compute bfloat16, off by some per cent, would take "
    saves += "about 7 minutes."
    for network, seconds, half, said in (
        (model.network, 600.0, 400.0, saves),
        (model.network, 600.0, 580.0, "about 10 minutes."),
        (model.network, 100.0, 10.0, "about 2 minutes."),
        (asked, 600.0, 400.0, "about 10 minutes."),
    ):
        of = {None: seconds, "bfloat16": half}
        monkeypatch.setattr(
            networks, "estimate_seconds", lambda *_, compute=None, of=of: of[compute]
        )
        assert networks.estimated_time(network, [7], 0) == said


def test_it_is_said_where_bfloat16_saves_next_to_nothing(model, monkeypatch):
    """Of short runs too, since its errors are the same there."""
    flow = dataclasses.replace(model.network.flow, compute="bfloat16")
    asked = dataclasses.replace(model.network, flow=flow)
    gains_little = (
        " This machine gains little by bfloat16, which is off by some per cent: "
        "without --compute about "
    )
    for half, whole, said in (
        (100.0, 90.0, f"about 2 minutes.{gains_little}2 minutes."),
        (600.0, 610.0, f"about 10 minutes.{gains_little}10 minutes."),
        (600.0, 700.0, "about 10 minutes."),
    ):
        of = {None: half, "float32": whole}
        monkeypatch.setattr(
            networks, "estimate_seconds", lambda *_, compute=None, of=of: of[compute]
        )
        assert networks.estimated_time(asked, [7], 0) == said


def test_what_is_free_is_the_devices_or_the_machines(monkeypatch):
    machine = SimpleNamespace(total=16 * 1024, available=3 * 1024, free=2 * 1024)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert networks.free_memory() == 3 * 1024

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 10, "bytes_in_use": 3}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert networks.free_memory() == 7


def test_a_name_is_downloaded_where_that_is_asked_or_agreed_to(monkeypatch, capsys):
    """Where nobody sits at a terminal nothing is asked."""
    downloads = []
    answers = ["n", " Yes"]

    def model_path(model, *, download=False):
        downloads.append(download)
        if not download:
            raise ValueError("path: got a name")

    monkeypatch.setattr(networks, "model_path", model_path)
    network: Any = None
    model = models.LanguageModel(network)
    monkeypatch.setattr(
        models.LanguageModel, "open", lambda path, *, compute: {Path("a/name"): model}[path]
    )
    monkeypatch.setattr("builtins.input", lambda question: answers.pop(0))
    assert networks.open_model(Path("a/name"), download=True) is model
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ValueError, match="path: got a name"):
        networks.open_model(Path("a/name"), download=False)
    assert downloads == [True, False] and len(answers) == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(ValueError, match="path: got a name"):
        networks.open_model(Path("a/name"), download=False)
    networks.open_model(Path("a/name"), download=False)
    assert downloads == [True, False, False, False, True] and not answers
    assert capsys.readouterr().err == "path: got a name\n" * 2

    def ended(question):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    with pytest.raises(ValueError, match="path: got a name"):
        networks.open_model(Path("a/name"), download=False)
    assert downloads[5:] == [False], "the end of what is typed is no yes"
