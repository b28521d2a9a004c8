"""Models by their publisher's name, where the Hugging Face cache of this machine holds them."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lazy_loader

from lim_jax._checks import AnyPath, as_path, require
from lim_jax._refusal import Refusal

huggingface_hub: Any = lazy_loader.load("huggingface_hub")  # of the extra; the rest does without
NAME = re.compile(r"\w[\w.-]*/[\w.-]*\w")
FILES = "config.json", "adapter_config.json"
READ = ("*.json", "*.jinja", "model*.safetensors")  # neither pickled weights nor a second copy
EXPECTED = (
    "a folder of weights, a GGUF file, or a model's public name such as "
    "HuggingFaceTB/SmolLM2-135M-Instruct, in the Hugging Face cache or to be downloaded"
)
OFFLINE = "Without a network copy its folder or a GGUF file here, and pass that."


def model_path(path: AnyPath, *, download: bool = False) -> Path:
    """Where a model's files are: a path as it is, or the cached folder of a ``name/of-model``.

    That is the revision that was ``main`` when it came, or with `download` today's.
    """
    local = as_path(path)
    name = local.as_posix()
    if local.exists() or local.suffix == ".gguf" or NAME.fullmatch(name) is None:
        return local
    got = f"{name!r}: no such path, and no package huggingface_hub to look for a name"
    cure = 'The package comes with an extra: python -m pip install "lim_jax[models]".'
    require(find_spec("huggingface_hub") is not None, "path", got=got, expected=EXPECTED, cure=cure)
    if download:
        try:
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=READ))
        except OSError as error:  # no network, no such name, no access: all these are the package's
            reason = str(error).strip().splitlines()[0]
            raise Refusal(
                f"path: got {name!r}, which cannot be downloaded ({reason}), expected {EXPECTED}. "
                f"{OFFLINE}"
            ) from error
    # An adapter's folder has no configuration, and is refused for what it is.
    found = (huggingface_hub.try_to_load_from_cache(name, file) for file in FILES)
    cached = [path for path in found if isinstance(path, str)]
    got = f"{name!r}: no such path, and not in the cache"
    door = f"models.load({name!r}, download=True)"
    cure = f"Download it: --download of a command, or {door}. {OFFLINE}"
    require(len(cached) > 0, "path", got=got, expected=EXPECTED, cure=cure)
    return Path(cached[0]).parent
