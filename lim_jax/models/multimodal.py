"""The text's part of a multimodal folder: its options and tensors, as a text model has them.

``config.json`` holds the text's options in ``text_config``; what reads images is passed over by
name, and no other tensor is.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import described, require
from lim_jax.models.checkpoint import Checkpoint, Rows
from lim_jax.models.options import Configuration, refuse_other_architectures, refuse_unknown

TEXT, TIED = "text_config", "tie_word_embeddings"
# What each publisher's reader means where the configuration says nothing.
GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 262_208, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4_text", "vocab_size": 202_048, "num_attention_heads": 40,
    "num_key_value_heads": 8,
}  # fmt: skip
MULTIMODAL: Mapping[str, Mapping[str, Any]] = {
    "gemma3": GEMMA3 | {TIED: True},
    "llama4": LLAMA4 | {TIED: False},
    "mistral3": {"model_type": "mistral", TIED: True},
}
IMAGES = (
    "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image",
    "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_config",
    "vision_feature_layer",
)  # fmt: skip
OF_IMAGES = re.compile(r"(model\.)?(vision_tower|vision_model|multi_modal_projector)\.")
# Older files put the whole text model inside, newer ones its trunk alone.
OLDER = re.compile(r"language_model\.((?:model|lm_head)\..+)")
NEWER = re.compile(r"model\.language_model\.(.+)")


class TextPart(NamedTuple):
    """The text's part of a checkpoint; `checkpoint.Checkpoint`'s twin.

    Attributes
    ----------
    whole
        The checkpoint.
    config
        The text's options.
    files
        What each of the text's tensors is called in the checkpoint.
    """

    whole: Checkpoint
    config: Configuration
    files: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.whole.folder

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, as `checkpoint.Checkpoint.read`.

        Raises
        ------
        ValueError
            As there.
        """
        return self.whole.read(self.files.get(name, name), shape, dtype)

    def rows(self, name: str, shape: tuple[int, ...]) -> Rows:
        """What reads some rows of one tensor, as `checkpoint.Checkpoint.rows`.

        Raises
        ------
        ValueError
            As there.
        """
        return self.whole.rows(self.files.get(name, name), shape)

    @property
    def paths(self) -> list[Path]:
        """The files that hold the weights."""
        return self.whole.paths

    @property
    def precisions(self) -> set[str]:
        """Those of all matrices, as the files call them."""
        return self.whole.precisions


def text_part(checkpoint: Checkpoint) -> Checkpoint | TextPart:
    """The text's part of a multimodal folder; a folder of text alone is what it is.

    Raises
    ------
    ValueError
        Where the folder is of a multimodal family or says an option that is not known, or holds
        tensors that are neither the text's nor known to be of images.
    """
    config = checkpoint.config
    if config.get(TEXT) is None:
        return checkpoint
    family, inner = config.get("model_type"), config[TEXT]
    require(
        family in MULTIMODAL,
        "config.json",
        got=f"model_type = {family!r} with {TEXT}",
        expected=" or ".join(MULTIMODAL),
        cure="Save the text's model by itself, and load that.",
    )
    require(
        isinstance(inner, Mapping),
        "config.json",
        got=f"{TEXT} = {described(inner)}",
        expected="an object of names and values",
        cure="Download it again.",
    )
    refuse_other_architectures(config, str(family))
    usual = MULTIMODAL[str(family)]
    # The outer word says whether the head is the embedding.
    tied = {TIED: config.get(TIED, usual[TIED])}
    for name in IMAGES:
        config.get(name)
    refuse_unknown(config)
    return TextPart(checkpoint, Configuration({**usual, **inner, **tied}), _texts(checkpoint))


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    """The text's tensors by the names that a text model gives them."""
    found = {}
    for stored in checkpoint.files:
        if OF_IMAGES.match(stored):
            continue
        name = _of_text(stored)
        require(
            name not in found,
            "tensors",
            got=f"{stored} and {found.get(name)}",
            expected="every tensor of the text once",
            cure="Which one is meant cannot be known: download it again.",
        )
        found[name] = stored
    return found


def _of_text(stored: str) -> str:
    """The name that a text model gives a tensor of the text."""
    older, newer = OLDER.fullmatch(stored), NEWER.fullmatch(stored)
    require(
        bool(older or newer or stored.startswith("lm_head.")),
        "tensors",
        got=f"{stored}, which is neither the text's nor known to be of images",
        expected="those of language_model, vision_tower, vision_model and multi_modal_projector",
        cure="Save the text's model by itself, and load that.",
    )
    return older[1] if older else f"model.{newer[1]}" if newer else stored
