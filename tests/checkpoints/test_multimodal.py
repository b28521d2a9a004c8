"""Multimodal folders: the text's options and tensors alone, the rest by name or refused."""

import json
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS
from safetensors.numpy import save_file

from lim_jax import models
from lim_jax.checkpoints.checkpoint import WHOLE, open_checkpoint
from lim_jax.checkpoints.families.family_table import recipe_of
from lim_jax.checkpoints.multimodal import text_part
from lim_jax.checkpoints.options import Configuration
from lim_jax.checkpoints.tensor_reader import Reader

TEXT = CONFIGS["mistral"]
OUTER = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10, "spatial_merge_size": 2, "vision_feature_layer": -1,
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
    "vision_config": {"model_type": "pixtral"}, "tie_word_embeddings": False,
    "hidden_size": TEXT["hidden_size"],  # as the text's own
    "sliding_window": 9, "use_sliding_window": False,  # beside the text's own, which is none
    "downsample_factor": 2, "encoder_patch_size": 16, "max_pixels_tolerance": 2.0, "max_tiles": 10,
    "use_thumbnail": True,
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
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("renamed, images", [(older, ""), (newer, "model.")])
def test_the_texts_weights_alone_are_read(tmp_path, renamed, images):
    """Those of images are not: they are NaN."""
    model = models.load(write(tmp_path, renamed, images=images), dtype="float64")
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))(model, jax.device_put(IDS))
    np.testing.assert_allclose(logits, publishers.logits(TEXT, IDS), rtol=1e-11)


def test_a_folder_of_text_alone_is_what_it_is(tmp_path):
    checkpoint = open_checkpoint(publishers.write(tmp_path, TEXT))
    assert text_part(checkpoint) is checkpoint


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
    "gemma4": {"model_type": "gemma4_text", "tie_word_embeddings": True},
    "kimi_k25": {"model_type": "kimi_k2", "tie_word_embeddings": False},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl_text", "tie_word_embeddings": False},
    "qwen2_vl": {"model_type": "qwen2_vl_text", "tie_word_embeddings": False},
    "qwen3_5": {"model_type": "qwen3_5_text", "tie_word_embeddings": False},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", "tie_word_embeddings": False},
    "qwen3_vl": {"model_type": "qwen3_vl_text", "tie_word_embeddings": False},
    "qwen3_vl_moe": {"model_type": "qwen3_vl_moe_text", "tie_word_embeddings": False},
    "exaone4_5": {"model_type": "exaone4", "tie_word_embeddings": True},
    "internvl": {"model_type": "qwen2", "tie_word_embeddings": True},
    "lfm2_vl": {"model_type": "lfm2", "tie_word_embeddings": True},
    "voxtral": {"model_type": "llama", "tie_word_embeddings": True},
    "llava": {
        "model_type": "llama", "vocab_size": 32_000, "num_attention_heads": 32,
        "num_key_value_heads": 32, "tie_word_embeddings": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", MEANT)
def test_what_the_text_does_not_say_is_its_publishers(tmp_path, family):
    """Its own words go first, but for the head, of which the outer configuration speaks."""
    write(tmp_path)
    tied = MEANT[family]["tie_word_embeddings"]
    said = {"num_attention_heads": 3, "tie_word_embeddings": not tied}
    older = {"model_type": "exaone4_5_text"} if family == "exaone4_5" else {}
    cases = (PUBLISHED | older, {}), (PUBLISHED | said, {"num_attention_heads": 3})
    for inner, expected in cases:
        config = {"model_type": family, "text_config": inner}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        part = text_part(open_checkpoint(tmp_path))
        assert part.config == PUBLISHED | MEANT[family] | expected


def test_sizes_of_a_text_in_llava_are_by_default_its_familys(tmp_path):
    write(tmp_path)
    config = {"model_type": "llava", "text_config": {"model_type": "mistral", "hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text_config = text_part(open_checkpoint(tmp_path)).config
    assert (text_config["num_key_value_heads"], text_config["intermediate_size"]) == (8, 14_336)
    assert (text_config["model_type"], text_config["hidden_size"]) == ("mistral", 8)


def test_experts_lie_either_way_round(tmp_path):
    """As Qwen publishes Qwen 3 VL's, and as transformers writes them, whatever the sizes."""
    options = {"model_type": "qwen3_vl_moe_text", "num_hidden_layers": 1, "vocab_size": 2}
    options |= {"hidden_size": 10, "num_attention_heads": 2, "num_experts": 3}
    options |= {"num_experts_per_tok": 2}
    drawn = np.random.default_rng(0).standard_normal
    for hidden in (4, 5, 10):
        config = Configuration(options | {"moe_intermediate_size": hidden})
        reader: Any = recipe_of(config).network
        arrays = {
            "mlp.experts.gate_up_proj": drawn((3, 2 * hidden, 10), np.float32),
            "mlp.experts.down_proj": drawn((3, 10, hidden), np.float32),
        }
        turned = {name: array.swapaxes(1, 2).copy() for name, array in arrays.items()}
        for stored in (arrays, turned):
            save_file(stored, tmp_path / WHOLE)
            (tmp_path / "config.json").write_text("{}", encoding="utf-8")
            read = Reader(open_checkpoint(tmp_path), "float32")
            experts = reader.read(read, "mlp", reader, recipe_of(config))
            both = np.concatenate([experts["gate"], experts["up"]], axis=1)
            np.testing.assert_array_equal(both, arrays["mlp.experts.gate_up_proj"])
            np.testing.assert_array_equal(experts["down"], arrays["mlp.experts.down_proj"])


def test_options_and_tensors_of_text_may_stand_among_those_of_images(tmp_path):
    """As in older folders of Qwen 2 VL, whose own words go before its publisher's."""
    arrays = publishers.tensors(TEXT)
    of_images = {"visual.blocks.0.attn.qkv.weight": np.full((2, 3), np.nan, np.float32)}
    save_file(arrays | of_images, tmp_path / WHOLE)
    told = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    images = {"image_token_id": 5, "vision_start_token_id": 6, "vision_config": {"depth": 1}}
    text = PUBLISHED | {"rope_scaling": {"type": "mrope", "mrope_section": [1]}, "logit_scale": 2}
    (tmp_path / "config.json").write_text(json.dumps(told | images | text), encoding="utf-8")
    part = text_part(open_checkpoint(tmp_path))
    assert part.config == text | {"model_type": "qwen2_5_vl_text", "tie_word_embeddings": False}
    assert part.aliases == {name: name for name in arrays}


REFUSED = {
    "another family": ({"config": {"model_type": "idefics3"}}, "model_type = 'idefics3' with text"),
    "weights of another family": (
        {"config": {"architectures": ["Gemma3ForConditionalGeneration"]}}, "architectures = Gemma3",
    ),
    "text that is no object": ({"config": {"text_config": [1]}}, "got text_config = list"),
    "an option outside": ({"config": {"logit_scale": 2.0}}, "got logit_scale = 2.0"),
    "another value than the text's": (
        {"config": {"num_key_value_heads": 4}}, "got num_key_value_heads = 4, expected 2",
    ),
    "an option inside": (
        {"config": {"text_config": TEXT | {"logit_scale": 2.0}}}, "got logit_scale = 2.0",
    ),
    "an unknown text": (
        {"config": {"model_type": "new_vl", "text_config": {"model_type": "new"}}},
        "model_type = 'new', expected one of the",
    ),
    "a text of other layers": (
        {"config": {"model_type": "new_vl", "text_config": {"model_type": "mamba"}}},
        "model_type = 'mamba' with Mamba layers, expected a known family, with attention, delta",
    ),
    "a multimodal family of others": (
        {"config": {"model_type": "kimi_k3"}}, "model_type = 'kimi_k3' with layers that read what",
    ),
    "another part": ({"more": ["speech.weight"]}, "got speech.weight, which is neither"),
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
def test_multimodal_configurations_that_are_not_known_are_refused(tmp_path, case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, **options))
