"""The text model of a multimodal folder: its options and tensors, by a text model's names.

``config.json`` holds the text's options in ``text_config``; tensors that read images are ignored
by name, and no other tensor is.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import require
from lim_jax.models.checkpoint import Checkpoint, Rows
from lim_jax.models.options import (
    Configuration,
    refuse_other_architectures,
    refuse_unknown,
    require_config,
    require_option,
)

TEXT, TIED = "text_config", "tie_word_embeddings"
# The defaults of each publisher's reader.
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
SAVE_TEXT = "Save the text's model by itself, and load that."


class TextPart(NamedTuple):
    """The text model of a checkpoint, with the interface of `checkpoint.Checkpoint`."""

    whole: Checkpoint
    config: Configuration
    files: Mapping[str, str]  # from a text model's names to the checkpoint's

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor."""
        return self.whole.read(self.files.get(name, name), shape, dtype)

    def rows(self, name: str, shape: tuple[int, ...]) -> Rows:
        """Return a function that reads some rows of one tensor."""
        return self.whole.rows(self.files.get(name, name), shape)

    @property
    def paths(self) -> list[Path]:
        """The files that hold the weights."""
        return self.whole.paths

    @property
    def precisions(self) -> set[str]:
        """The precisions of all matrices, by the files' names for them."""
        return self.whole.precisions


def text_part(checkpoint: Checkpoint) -> Checkpoint | TextPart:
    """Return the text model of a multimodal folder, or the checkpoint itself if it is text's.

    Raise ValueError if the family or an option is unknown, or a tensor is neither the text's nor
    known to read images.
    """
    config = checkpoint.config
    if config.get(TEXT) is None:
        return checkpoint
    family, inner = config.get("model_type"), config[TEXT]
    require_config(
        family in MULTIMODAL,
        f"model_type = {family!r} with {TEXT}",
        " or ".join(MULTIMODAL),
        SAVE_TEXT,
    )
    is_object = isinstance(inner, Mapping)
    require_option(config, TEXT, inner, is_object, "an object of names and values")
    refuse_other_architectures(config, str(family))
    defaults = MULTIMODAL[str(family)]
    # The outer option says whether the head is the embedding.
    tied = {TIED: config.get(TIED, defaults[TIED])}
    config.ignore(*IMAGES)
    refuse_unknown(config)
    return TextPart(checkpoint, Configuration({**defaults, **inner, **tied}), _texts(checkpoint))


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    """Map the names that a text model gives its tensors to those in the files."""
    tensors = {}
    for stored in checkpoint.files:
        if OF_IMAGES.match(stored):
            continue
        name = _of_text(stored)
        require(
            name not in tensors,
            "tensors",
            got=f"{stored} and {tensors.get(name)}",
            expected="every tensor of the text once",
            cure="Which one is meant cannot be known: download it again.",
        )
        tensors[name] = stored
    return tensors


def _of_text(stored: str) -> str:
    """Return the name that a text model gives a tensor of the text."""
    older, newer = OLDER.fullmatch(stored), NEWER.fullmatch(stored)
    require(
        bool(older or newer or stored.startswith("lm_head.")),
        "tensors",
        got=f"{stored}, which is neither the text's nor known to be of images",
        expected="those of language_model, vision_tower, vision_model and multi_modal_projector",
        cure=SAVE_TEXT,
    )
    return older[1] if older else f"model.{newer[1]}" if newer else stored
