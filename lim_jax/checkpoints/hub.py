"""Models by their publisher's name, where the Hugging Face cache of this machine holds them."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lazy_loader

from lim_jax._argument_error import Refusal
from lim_jax._checks import AnyPath, as_path, require

huggingface_hub: Any = lazy_loader.load("huggingface_hub")  # of the extra; the rest does without
NAME = re.compile(r"(?P<name>\w[\w.-]*/[\w.-]*\w)(?:@(?P<revision>[\w./-]+))?")
FILES = "config.json", "adapter_config.json"
READ = ("*.json", "*.jinja", "model*.safetensors")  # neither pickled weights nor a second copy
EXPECTED = (
    "a folder of weights, a GGUF file, or a model's public name such as "
    "HuggingFaceTB/SmolLM2-135M-Instruct, in the Hugging Face cache or to be downloaded"
)
OWNER = "Look at the path, or pass a public name with its owner, such as openai-community/gpt2."
OFFLINE = "Copy its folder or a GGUF file here, and pass that, if there is no network."


def model_path(path: AnyPath, *, download: bool = False) -> Path:
    """Return a model's path: the path itself, or the cached folder of a ``name/of-model``.

    That is the revision that was ``main`` when it came, or with `download` today's; or that of a
    ``name/of-model@revision``, a branch, a tag or a commit.
    """
    local = as_path(path)
    match = NAME.fullmatch(local.as_posix())
    if os.path.exists(local) or local.suffix == ".gguf" or match is None:
        return local
    name = match["name"]
    revision = match["revision"]
    require(
        find_spec("huggingface_hub") is not None,
        "path",
        got=f"{name!r}: no such path, and no package huggingface_hub to look for a name",
        expected=EXPECTED,
        cure='Install it: python -m pip install "lim_jax[models]".',
    )
    _require_public(local, name)
    if download:
        return _download(local, name, revision)
    return _cached_folder(local, name, revision)


def _download(local: Path, name: str, revision: str | None) -> Path:
    """Download what is read of a model, and return its folder in the cache."""
    try:
        options = {"revision": revision, "allow_patterns": READ}
        return Path(huggingface_hub.snapshot_download(name, **options))
    except OSError as error:  # no network, no such name, no access: all these are the package's
        reason = str(error).strip().splitlines()[0]
        raise Refusal(
            f"path: got {local.as_posix()!r}, which cannot be downloaded ({reason}), expected "
            f"{EXPECTED}. {OFFLINE}"
        ) from error


def _cached_folder(local: Path, name: str, revision: str | None) -> Path:
    """Return a model's folder in the cache; raise ValueError if it is not there."""
    # An adapter's folder has no configuration, and is refused for what it is.
    look = huggingface_hub.try_to_load_from_cache
    paths = (look(name, file, revision=revision) for file in FILES)
    cached = [path for path in paths if isinstance(path, str)]
    others = [] if cached else _cached_revisions(name)
    got = f"{local.as_posix()!r}: no such path, and not in the cache"
    cure = f"Download it: `download=True`. {OFFLINE}"
    if others:
        got += f", which has of it the revisions {', '.join(others)}"
        cure = f"Take one of these, such as {name}@{others[0]}, or download it: `download=True`."
    require(len(cached) > 0, "path", got=got, expected=EXPECTED, cure=cure)
    return Path(cached[0]).parent


def _require_public(local: Path, name: str) -> None:
    """Raise ValueError at a name that no model can have, such as one of two dashes in a row."""
    try:
        huggingface_hub.try_to_load_from_cache(name, FILES[0])  # which looks at the name first
    except ValueError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise Refusal(
            f"path: got {local.as_posix()!r}: no such path, and no public name ({reason}), "
            f"expected {EXPECTED}. Look at how its page on huggingface.co spells it."
        ) from error


def require_there(path: Path) -> None:
    """Raise ValueError unless there is something at a model's path."""
    # A path itself cannot say of a long text that there is no such file.
    require(
        os.path.exists(path),
        "model",
        got=f"{path}, which is not there",
        expected=EXPECTED,
        cure=OWNER,
    )


def _cached_revisions(name: str) -> list[str]:
    """Return a model's revisions in the cache, by branch or tag, or else by commit."""
    try:
        cache = huggingface_hub.constants.HF_HUB_CACHE
        repositories = huggingface_hub.scan_cache_dir(cache).repos
    except huggingface_hub.errors.CacheNotFound:
        return []
    labels = []
    for repository in repositories:
        if repository.repo_type != "model" or repository.repo_id != name:
            continue
        for revision in repository.revisions:
            if any(file.file_name in FILES for file in revision.files):
                labels += revision.refs or [revision.commit_hash]
    return sorted(labels)
