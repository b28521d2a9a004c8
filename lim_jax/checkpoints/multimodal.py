"""The text model of a multimodal folder: its options and tensors, by a text model's names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lim_jax.checkpoints.checkpoint import Checkpoint
from lim_jax.checkpoints.families.family_table import FAMILIES, recipe_of
from lim_jax.checkpoints.options import (
    Configuration,
    Options,
    refuse_other_architectures,
    refuse_unknown,
    require_config,
    require_in,
)

TEXT = "text_config"
TIED = "tie_word_embeddings"
OTHERS = {
    "exaone4_5": "exaone4", "gemma4": "gemma4_text", "internvl": "qwen2", "lfm2_vl": "lfm2",
    "llava": "llama", "mistral3": "mistral", "voxtral": "llama",
}  # fmt: skip
# The sizes of LLaVA's texts, by their family, where files do not state them.
OF_LLAVA: Mapping[str, Mapping[str, int]] = {
    family: {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": hidden,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": groups,
    }
    for family, hidden, groups in (("llama", 11_008, 32), ("mistral", 14_336, 8))
}
QWENS = "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"
# The defaults of each publisher's reader.
MULTIMODAL: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text", "vocab_size": 262_208, "num_attention_heads": 8,
        "num_key_value_heads": 4, TIED: True,
    },
    "kimi_k25": {"model_type": "kimi_k2", TIED: False},
    "llama4": {
        "model_type": "llama4_text", "vocab_size": 202_048, "num_attention_heads": 40,
        "num_key_value_heads": 8, TIED: False,
    },
    **{family: {"model_type": f"{family}_text", TIED: False} for family in QWENS},
    **{family: {"model_type": text, TIED: True} for family, text in OTHERS.items()},  # if headless
}  # fmt: skip
FLAT = QWENS[:2]  # whose older files hold the text's options among the others
# What an option outside of the text is about, by the words of its name.
IMAGE_OPTIONS = re.compile(
    r"(^|_)(image|images|vision|visual|video|audio|media|mm|multimodal|projector|projection|spatial"
    r"|tiles?|thumbnail|pixels|patch|downsample|[be]o[ai])(_|$)"
    r"|^ignore_index$|^language_model_only$"
)
PARTS = "vision_tower", "vision_model", "visual", "embed_vision", "audio_tower", "embed_audio"
PARTS += "multi_modal_projector", "mm_projector"
IMAGES = re.compile(rf"(model\.)?({'|'.join(PARTS)})\.")
# Older files put the whole text model inside, newer ones its trunk alone; Qwen 2 VL's neither.
OLDER = re.compile(r"language_model\.((?:model|lm_head)\..+)")
NEWER = re.compile(r"model\.language_model\.(.+)")
OUTSIDE = "lm_head.", "mtp."  # of the text, wherever its trunk is
SAVE_TEXT = "Save the text's model by itself, and load that."


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Return the text model of a multimodal checkpoint, or the checkpoint itself if it is one."""
    config = checkpoint.config
    family = config.get_text("model_type")
    flat = config.get(TEXT) is None
    if flat and family not in FLAT:
        return checkpoint
    stated = config.options if flat else config[TEXT]
    is_object = isinstance(stated, Mapping)
    config.require(TEXT, stated, is_object, "an object of names and values")
    if family not in MULTIMODAL and Configuration(stated).get_text("model_type") not in FAMILIES:
        recipe_of(Configuration(stated))  # which says why
    require_config(
        family in MULTIMODAL,
        f"model_type = {family!r} with {TEXT}",
        f"one of the {len(MULTIMODAL)} in checkpoints.multimodal.MULTIMODAL",
        SAVE_TEXT,
    )
    refuse_other_architectures(config, str(family))
    defaults = MULTIMODAL[str(family)]
    # The outer option says whether the head is the embedding.
    tied = config.get(TIED, defaults[TIED])
    image_options = [name for name in config if IMAGE_OPTIONS.search(name)]
    config.ignore(*image_options)
    text_options = _text_options(config, flat, image_options)
    if family == "llava":
        text = Configuration(text_options).get_text("model_type") or defaults["model_type"]
        defaults = {**defaults, **OF_LLAVA.get(text, {})}
    texts = Configuration({**defaults, **text_options, TIED: tied})
    aliases = _texts(checkpoint)
    files = {name: checkpoint.files[file_name] for name, file_name in aliases.items()}
    return checkpoint._replace(config=texts, files=files, aliases=aliases)


def _text_options(config: Configuration, flat: bool, image_options: Sequence[str]) -> Options:
    """Return the text's options, by an object of their own or, in a flat file, among the others."""
    if flat:  # where the family and the class are those of the whole model
        others = (*image_options, "model_type", "architectures")
        return {name: value for name, value in config.options.items() if name not in others}
    inner = config[TEXT]
    # The family of EXAONE 4.5's text was renamed, and is left to the default.
    text_options = {name: value for name, value in inner.items() if value != "exaone4_5_text"}
    if config.get("use_sliding_window") is False:  # beside which a window says nothing
        config.ignore("sliding_window")
    refuse_unknown(config, {name: (value,) for name, value in text_options.items()})
    return text_options


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    """Map a text model's names of tensors to the names in the files, without those of images."""
    inside = any(OLDER.fullmatch(name) or NEWER.fullmatch(name) for name in checkpoint.files)
    tensors = {}
    for file_name in checkpoint.files:
        if IMAGES.match(file_name):
            continue
        older = OLDER.fullmatch(file_name)
        newer = NEWER.fullmatch(file_name)
        plain = file_name.startswith(OUTSIDE if inside else ("model.", *OUTSIDE))
        parts = f"those of language_model, {', '.join(PARTS[:-1])} and {PARTS[-1]}"
        require_in(
            "tensors",
            bool(older or newer) or plain,
            f"{file_name}, which is neither the text's nor known to be of images",
            parts,
            SAVE_TEXT,
        )
        if older:
            name = older[1]
        elif newer:
            name = f"model.{newer[1]}"
        else:
            name = file_name
        require_in(
            "tensors",
            name not in tensors,
            f"{file_name} and {tensors.get(name)}",
            "every tensor of the text once",
            "Download it again: which one is meant cannot be known.",
        )
        tensors[name] = file_name
    return tensors
