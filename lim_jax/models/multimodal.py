"""The text model of a multimodal folder: its options and tensors, by a text model's names.

``config.json`` holds the text's options in ``text_config``; tensors that read images are ignored
by name, and no other tensor is.
"""

import re
from collections.abc import Mapping
from typing import Any

from lim_jax.models.checkpoint import Checkpoint
from lim_jax.models.options import (
    Configuration,
    refuse_other_architectures,
    refuse_unknown,
    require_config,
    require_in,
    require_option,
)

TEXT, TIED = "text_config", "tie_word_embeddings"
# The defaults of each publisher's reader.
MULTIMODAL: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text", "vocab_size": 262_208, "num_attention_heads": 8,
        "num_key_value_heads": 4, TIED: True,
    },
    "llama4": {
        "model_type": "llama4_text", "vocab_size": 202_048, "num_attention_heads": 40,
        "num_key_value_heads": 8, TIED: False,
    },
    "mistral3": {"model_type": "mistral", TIED: True},
}  # fmt: skip
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


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Return the text model of a multimodal folder, or the checkpoint itself if it is text's."""
    config = checkpoint.config
    if config.get(TEXT) is None:
        return checkpoint
    family, inner = config.get("model_type"), config[TEXT]
    got = f"model_type = {family!r} with {TEXT}"
    require_config(family in MULTIMODAL, got, " or ".join(MULTIMODAL), SAVE_TEXT)
    is_object = isinstance(inner, Mapping)
    require_option(config, TEXT, inner, is_object, "an object of names and values")
    refuse_other_architectures(config, str(family))
    defaults = MULTIMODAL[str(family)]
    # The outer option says whether the head is the embedding.
    tied = {TIED: config.get(TIED, defaults[TIED])}
    config.ignore(*IMAGES)
    refuse_unknown(config)
    texts = Configuration({**defaults, **inner, **tied})
    aliases = _texts(checkpoint)
    files = {name: checkpoint.files[stored] for name, stored in aliases.items()}
    return checkpoint._replace(config=texts, files=files, aliases=aliases)


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    """Map the names that a text model gives its tensors to those in the files."""
    tensors = {}
    for stored in checkpoint.files:
        if OF_IMAGES.match(stored):
            continue
        older, newer = OLDER.fullmatch(stored), NEWER.fullmatch(stored)
        of_text = bool(older or newer or stored.startswith("lm_head."))
        got = f"{stored}, which is neither the text's nor known to be of images"
        parts = "those of language_model, vision_tower, vision_model and multi_modal_projector"
        require_in("tensors", of_text, got, parts, SAVE_TEXT)
        name = older[1] if older else f"model.{newer[1]}" if newer else stored
        got = f"{stored} and {tensors.get(name)}"
        cure = "Which one is meant cannot be known: download it again."
        require_in("tensors", name not in tensors, got, "every tensor of the text once", cure)
        tensors[name] = stored
    return tensors
