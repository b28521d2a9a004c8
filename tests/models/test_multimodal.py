"""Multimodal folders: the text's options and tensors alone, the rest by name or refused."""

import json

import equinox as eqx
import jax
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS
from safetensors.numpy import save_file

from lim_jax import models
from lim_jax.models.checkpoint import WHOLE, open_checkpoint
from lim_jax.models.multimodal import text_part

TEXT = CONFIGS["mistral"]
OUTER = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10, "spatial_merge_size": 2, "vision_feature_layer": -1,
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
    "vision_config": {"model_type": "pixtral"}, "tie_word_embeddings": False,
}  # fmt: skip
IDS = np.array([3, 1, 4, 1, 5, 9, 2])


def older(name):
    return f"language_model.{name}"


def newer(name):
    return name.replace("model.", "model.language_model.", 1)


def write(folder, renamed=older, config=None, images="", more=(), without=()):
    """The text's network inside a multimodal folder, beside tensors that read images."""
    arrays = {renamed(name): array for name, array in publishers.tensors(TEXT).items()}
    of_images = ("vision_tower.patch_conv.weight", "vision_model.class_embedding")
    of_images += ("multi_modal_projector.linear_1.weight",)
    arrays |= {images + name: np.full((2, 3), np.nan, np.float32) for name in of_images}
    arrays |= {name: np.zeros(2, np.float32) for name in more}
    for name in without:
        del arrays[name]
    save_file(arrays, folder / WHOLE)
    config = OUTER | {"text_config": TEXT} | (config or {})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("renamed, images", [(older, ""), (newer, "model.")])
def test_the_texts_weights_alone_are_read(tmp_path, renamed, images):
    """Those of images are not: they are NaN."""
    model = models.load(write(tmp_path, renamed, images=images), dtype="float64")
    found = eqx.filter_jit(lambda model, ids: model.logits(ids))(model, jax.device_put(IDS))
    np.testing.assert_allclose(found, publishers.logits(TEXT, IDS), rtol=1e-11)


def test_a_folder_of_text_alone_is_what_it_is(tmp_path):
    found = open_checkpoint(publishers.write(tmp_path, TEXT))
    assert text_part(found) is found


PUBLISHED = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
MEANT = {
    "gemma3": {
        "model_type": "gemma3_text", "vocab_size": 262208, "num_attention_heads": 8,
        "num_key_value_heads": 4, "tie_word_embeddings": True,
    },
    "llama4": {
        "model_type": "llama4_text", "vocab_size": 202048, "num_attention_heads": 40,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "mistral3": {"model_type": "mistral", "tie_word_embeddings": True},
}  # fmt: skip


@pytest.mark.parametrize("family", MEANT)
def test_what_the_text_does_not_say_is_its_publishers(tmp_path, family):
    """Its own words go first, but for the head, of which the outer configuration speaks."""
    write(tmp_path)
    tied = MEANT[family]["tie_word_embeddings"]
    said = {"num_attention_heads": 3, "tie_word_embeddings": not tied}
    for inner, expected in ((PUBLISHED, {}), (PUBLISHED | said, {"num_attention_heads": 3})):
        config = {"model_type": family, "text_config": inner}
        (tmp_path / "config.json").write_text(json.dumps(config))
        part = text_part(open_checkpoint(tmp_path))
        assert part.config == PUBLISHED | MEANT[family] | expected


REFUSED = {
    "another family": ({"config": {"model_type": "idefics3"}}, "model_type = 'idefics3' with text"),
    "weights of another family": (
        {"config": {"architectures": ["Gemma3ForConditionalGeneration"]}}, "architectures = Gemma3",
    ),
    "text that is no object": ({"config": {"text_config": [1]}}, "got text_config = list"),
    "an option outside": ({"config": {"logit_scale": 2.0}}, "got logit_scale = 2.0"),
    "an option inside": (
        {"config": {"text_config": TEXT | {"logit_scale": 2.0}}}, "got logit_scale = 2.0",
    ),
    "another part": ({"more": ["audio_tower.weight"]}, "got audio_tower.weight, which is neither"),
    "text beside its part": ({"more": ["model.norm.weight"]}, "got model.norm.weight, which"),
    "a tensor twice": (
        {"more": ["model.language_model.norm.weight"]},
        "got model.language_model.norm.weight and language_model.model.norm.weight",
    ),
    "a tensor that the text's family has not": (
        {"more": ["language_model.model.layers.0.mlp.bias"]}, "model.layers.0.mlp.bias, which",
    ),
    "a missing tensor": (
        {"without": ["language_model.model.norm.weight"]}, "got no model.norm.weight",
    ),
    "a missing head": ({"without": ["language_model.lm_head.weight"]}, "got no lm_head.weight"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(tmp_path, case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, **options))
