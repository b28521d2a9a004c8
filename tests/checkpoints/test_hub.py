"""Models by name, in a cache laid out by hand as huggingface_hub's."""

import importlib.util
import json
import shutil

import equinox as eqx
import huggingface_hub
import jax
import numpy as np
import pytest
from huggingface_hub import constants
from reference import publishers

from lim_jax import models
from lim_jax._argument_error import Refusal
from lim_jax.checkpoints import hub
from lim_jax.checkpoints.hub import model_path

NAME = "someone/small-model_1.5"


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """The folder of the revision that is the main one, beside another."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "hub" / "models--someone--small-model_1.5"
    for folder in ("refs", "snapshots/older", "snapshots/newer"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text("newer", encoding="utf-8")
    older = publishers.CONFIGS["llama"] | {"rms_norm_eps": 0.5}
    (repository / "snapshots" / "older" / "config.json").write_text(
        json.dumps(older), encoding="utf-8"
    )
    return publishers.write(repository / "snapshots" / "newer", publishers.CONFIGS["llama"])


def test_a_name_is_the_folder_in_the_cache(snapshot):
    assert model_path(NAME) == snapshot
    ids = jax.device_put(np.arange(5))
    logits = eqx.filter_jit(models.CausalLM.logits)
    expected = logits(models.load(snapshot), ids)
    for model in (models.load(NAME), models.open(NAME)):
        np.testing.assert_array_equal(logits(model, ids), expected)
    with pytest.raises(ValueError, match=r"tokenizer: got no file .*newer"):
        models.LanguageModel.open(NAME)


def test_a_revision_follows_the_name(snapshot):
    """A branch or a tag, whose commit `refs` names, or the commit itself."""
    older = snapshot.parent / "older"
    (snapshot.parents[1] / "refs" / "v1").write_text("older", encoding="utf-8")
    folders = {"main": snapshot, "newer": snapshot, "v1": older, "older": older}
    for revision, folder in folders.items():
        assert model_path(f"{NAME}@{revision}") == folder
    with pytest.raises(ValueError, match="got 'someone/small-model_1.5@v2': no such path"):
        model_path(f"{NAME}@v2")


def test_the_revisions_that_are_in_the_cache_are_named(snapshot):
    """It is there, if under another revision than was asked: nothing need be downloaded."""
    repository = snapshot.parents[1]
    commits = ["a" * 40, "b" * 40, "c" * 40]
    shutil.rmtree(snapshot.parent)
    for commit in commits:
        (snapshot.parent / commit).mkdir(parents=True)
    for commit in commits[:2]:  # of the third nothing came
        (snapshot.parent / commit / "config.json").write_text("{}", encoding="utf-8")
    (repository / "refs" / "main").unlink()
    (repository / "refs" / "v1").write_text(commits[0], encoding="utf-8")
    kept = f"{commits[1]}, v1"
    for asked in (NAME, f"{NAME}@v2"):
        with pytest.raises(
            ValueError,
            match=(
                f"'{asked}': no such path, and not in the cache, which has of it the revisions "
                f"{kept}, .* Take one of these, such as {NAME}@{commits[1]}, or download it: "
                "`download=True`"
            ),
        ):
            model_path(asked)


def test_a_path_goes_first(snapshot, tmp_path):
    here = tmp_path / NAME
    here.mkdir(parents=True)
    assert model_path(NAME).resolve() == here
    for other in ("no-such", "a/b/c", "/someone/model", "someone/model.gguf", "../model", "a b/c"):
        assert model_path(other).as_posix() == other


def test_what_is_not_in_the_cache_is_said_and_never_downloaded(snapshot, monkeypatch):
    calls = []

    def downloaded(name, **options):
        calls.append((name, options))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)
    whole = models.LanguageModel.from_pretrained, models.LanguageModel.open
    for door in (models.load, models.open, *whole):
        with pytest.raises(ValueError, match="path: got 'someone/other': no such path, and not in"):
            door("someone/other")
    assert calls == []
    for door in (models.load, models.open):
        assert door("someone/other", download=True).vocabulary == publishers.WORDS
    plain = {"revision": None, "allow_patterns": hub.READ}
    assert calls == 2 * [("someone/other", plain)]
    assert models.load("someone/other@v2", download=True).vocabulary == publishers.WORDS
    assert calls[2:] == [("someone/other", plain | {"revision": "v2"})]
    (snapshot / "config.json").rename(snapshot / "adapter_config.json")
    with pytest.raises(ValueError, match="got an adapter"):
        models.load(NAME)


def test_what_cannot_be_downloaded_is_said_with_another_way(snapshot, monkeypatch):
    def failing(name, **options):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    message = (
        r"'someone/other', which cannot be downloaded \(no network\), .* Copy its folder or a GGUF"
    )
    with pytest.raises(ValueError, match=message):
        models.load("someone/other", download=True)


def test_a_missing_package_is_said(snapshot, monkeypatch):
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"no package huggingface_hub .* pip install .*models"):
        models.load(NAME)
    assert model_path(snapshot) == snapshot
    assert importlib.util.find_spec("huggingface_hub") is not None


@pytest.mark.parametrize("name", ["a--b/c", "a/b..c", "a/b.git"])
@pytest.mark.parametrize("download", [False, True])
def test_what_can_be_no_public_name_is_said(snapshot, name, download):
    message = f"path: got '{name}': no such path, and no public name .*, expected a folder of we"
    with pytest.raises(Refusal, match=message):
        models.load(name, download=download)


def test_a_public_name_has_an_owner(snapshot):
    """gpt2 was one without, which the Hub now spells openai-community/gpt2."""
    for door in (models.load, models.open, models.LanguageModel.open):
        with pytest.raises(ValueError, match="got .*gpt2.*with its owner, .*openai-community/gpt2"):
            door("gpt2")
