"""A model as a whole: each part of its files, from one reading of them."""

import json
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from huggingface_hub import constants
from matplotlib.figure import Figure
from reference import llama_cpp
from reference.chats import CHATML
from reference.publishers import CONFIGS, LETTERS, spelt, write_with_letters

from lim_jax import models
from lim_jax.checkpoints import gguf_file, text
from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.cli.commands import main
from lim_jax.models import LanguageModel, language_model
from lim_jax.weights import FetchedLayers, HalfLayers

IDS = np.array([3, 1, 4, 1, 5])
ENDS = {"eos_token_id": [4, 9]}
MARKS = {"eos_token": "e"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "small-1.5B"
    folder.mkdir()
    write_with_letters(folder, CONFIGS["llama"])
    (folder / "generation_config.json").write_text(json.dumps(ENDS), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(MARKS | {"chat_template": CHATML}), encoding="utf-8"
    )
    return folder


def cached(folder, monkeypatch):
    """The same in the cache of Hugging Face, under a public name."""
    repository = folder.parent / "hub" / "models--someone--small-1.5B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("newest", encoding="utf-8")
    (repository / "snapshots").mkdir()
    folder.rename(repository / "snapshots" / "newest")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder.parent / "hub"))
    return "someone/small-1.5B"


def in_one_file(folder):
    """A file of llama.cpp with all of it but the tokenizer, which is beside."""
    return llama_cpp.write(
        folder / "small-1.5B.gguf",
        token_list=list(LETTERS),
        chat_template=CHATML,
        eos_token_id=4,
        eot_token_id=9,
    )


@eqx.filter_jit
def logits(network):
    return network.logits(jax.device_put(IDS))


@pytest.mark.parametrize("kind", ["folder", "name", "file"])
def test_each_part_is_that_of_the_files(kind, folder, monkeypatch):
    files = {
        "folder": lambda: folder,
        "name": lambda: cached(folder, monkeypatch),
        "file": lambda: in_one_file(folder),
    }
    path = files[kind]()
    opened = LanguageModel.open(path)
    expected = models.load(path)
    assert isinstance(opened.network.flow.layers, FetchedLayers)
    for model in (opened.loaded(), LanguageModel.from_pretrained(path)):
        assert eqx.tree_equal(model.network, expected)
    assert opened.tokenizer.encode(spelt(IDS)).ids == IDS.tolist()
    assert opened.chat_template == ChatTemplate(CHATML, MARKS)
    assert (opened.end_ids, opened.name) == ((4, 9), "small-1.5B")


def test_weights_are_kept_as_by_load(folder):
    model = LanguageModel.from_pretrained(folder, storage_dtype="bfloat16")
    assert isinstance(model.network.flow.layers, HalfLayers)
    rounded = models.load(folder, storage_dtype="bfloat16")
    np.testing.assert_array_equal(logits(model.network), logits(rounded))


def test_what_files_lack_is_refused_before_weights_are_read(folder, monkeypatch):
    monkeypatch.setattr(language_model, "load_network", None)
    monkeypatch.setattr(language_model, "open_network", None)
    for read in (LanguageModel.from_pretrained, LanguageModel.open):
        with pytest.raises(ValueError, match="model: got .*nowhere, which is not there, expec"):
            read(folder / "nowhere")
    (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}', encoding="utf-8")
    with pytest.raises(ValueError, match="eos_token_id: got '</s>'"):
        LanguageModel.open(folder)
    (folder / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer_config.json: got no JSON"):
        LanguageModel.open(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="tokenizer: got no file"):
        LanguageModel.open(folder)
    with pytest.raises(ValueError, match="small-1.5B.gguf: got a tokenizer of 'None'"):
        LanguageModel.open(in_one_file(folder))


def test_a_network_of_ones_own_has_no_files():
    network: Any = None
    model = LanguageModel(network)
    assert model.loaded() is model


@pytest.mark.slow
def test_a_question_reads_header_and_tokenizer_once(folder, tmp_path, monkeypatch):
    counted = []

    def counting(read):
        def reading(*arguments):
            counted.append(read.__name__)
            return read(*arguments)

        return reading

    monkeypatch.setattr(gguf_file, "read_header", counting(gguf_file.read_header))
    for name in ("read_tokenizer", "find_chat_template"):
        for module in (language_model, text):
            monkeypatch.setattr(module, name, counting(getattr(text, name)))
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "one.txt").write_text("ab", encoding="utf-8")
    asked = ["ask", str(in_one_file(folder)), "bc", "--documents", str(tmp_path / "documents")]
    options = ["--no-html", "--no-chat", "--answer", "ab", "--memory", "9"]
    assert main([*asked, *options, "--out", str(tmp_path / "out")]) == 0
    assert sorted(counted) == ["find_chat_template", "read_header", "read_tokenizer"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_model_says_what_it_is_in_a_line(kind, folder):
    """A notebook that shows it is not flooded with a vocabulary, or with names of tensors."""
    path = folder if kind == "folder" else in_one_file(folder)
    model = LanguageModel.open(path)
    said = "'small-1.5B': llama, 2 layers of width 16, 11 words, float32, a chat template"
    assert repr(model) == repr(model.loaded()) == f"LanguageModel({said})"
    holds = "21 tensors in 1 file" if kind == "folder" else "21 tensors in small-1.5B.gguf"
    name = "Checkpoint" if kind == "folder" else "GGUFCheckpoint"
    assert repr(model.source) == f"{name}(llama, {holds})"
    unnamed = LanguageModel(model.network)
    assert repr(unnamed).startswith("LanguageModel('': a network of your own, 2 layers of width 16")
    assert repr(unnamed).endswith("no chat template)")


def test_a_gguf_file_is_known_by_how_it_begins(folder):
    """As under the name of its digest, by which some programs keep such files."""
    file = in_one_file(folder)
    expected = logits(LanguageModel.open(file).network)
    unnamed = LanguageModel.open(file.rename(folder / "sha256-1f2e"))
    assert unnamed.end_ids == (4, 9)
    np.testing.assert_array_equal(logits(unnamed.network), expected)
    (folder / "text").write_text("GGU", encoding="utf-8")
    with pytest.raises(ValueError, match="folder: got .*text, expected"):
        models.load(folder / "text")
