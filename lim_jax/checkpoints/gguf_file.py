"""GGUF files of llama.cpp, whose tensors get the names and shapes that families read."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lim_jax.checkpoints import sublayers
from lim_jax.checkpoints.checkpoint import require_shape
from lim_jax.checkpoints.expert_sublayers import ByExpert, Mixture, Stacked
from lim_jax.checkpoints.families.family_table import recipe_of
from lim_jax.checkpoints.gguf_architectures import (
    ARCHITECTURES,
    FREQUENCIES,
    LONG,
    SHORT,
    published_config,
)
from lim_jax.checkpoints.gguf_checkpoint import (
    GGUFCheckpoint,
    Published,
    dequantize_rows,
    require_converted,
)
from lim_jax.checkpoints.gguf_header import Stored, read_header, words_of
from lim_jax.checkpoints.options import Configuration, require_in
from lim_jax.checkpoints.recipe import Recipe

Tensors = Mapping[str, Stored]
FACTORS = (FREQUENCIES, LONG, SHORT)
# llama.cpp's names of tensors, and the fields of a recipe's names that have the publisher's.
OUTSIDE = {
    "token_embd": "embedding",
    "position_embd": "positions",
    "output_norm": "last",
    "output": "head",
}
LAYER = {
    "attn_norm": "before_attention", "attn_q": "query", "attn_k": "key", "attn_v": "value",
    "attn_qkv": "fused_qkv", "attn_output": "output", "attn_gate": "output_gate",
    "attn_q_norm": "query_norm", "attn_k_norm": "key_norm",
    "post_attention_norm": "after_attention", "ffn_norm": "before_network",
    "post_ffw_norm": "after_network",
}  # fmt: skip
LATENT = {
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
}  # fmt: skip
# What llama.cpp calls otherwise, by the publisher's name of the family.
BEFORE = {"post_attention_norm": "post_attention_layernorm"}
OTHER_NAMES = {
    "gpt_oss": BEFORE, "seed_oss": BEFORE,
    "gemma4_text": {
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    },
}  # fmt: skip
GATED = ("gate", "up", "down")


def open_gguf(file: Path) -> GGUFCheckpoint:
    """Open a GGUF file of one of `gguf_architectures.ARCHITECTURES`, and leave weights in it."""
    file_tensors, options = read_header(file)
    kind = options.get("general.type", "model")  # others are adapters, and parts that read images
    require_in(
        file.name,
        kind == "model",
        f"general.type = {kind}",
        "model: a whole one",
        "Merge an adapter by llama.cpp's own programs.",
    )
    name = options.get("general.architecture")
    require_in(
        file.name,
        name in ARCHITECTURES,
        f"the architecture {name!r}",
        f"one of the {len(ARCHITECTURES)} in checkpoints.gguf_architectures.ARCHITECTURES",
        "Take the publisher's folder with safetensors.",
    )
    architecture_options = {
        k.removeprefix(f"{name}."): v for k, v in options.items() if k.startswith(f"{name}.")
    }
    factors = {}
    for stem in FACTORS:
        if (tensor := file_tensors.pop(f"{stem}.weight", None)) is not None:
            factors[stem] = dequantize_rows(stem, tensor, slice(0, tensor.shape[0])).tolist()
    words = len(words_of(options))
    config = published_config(
        str(name), architecture_options, words, frozenset(file_tensors), factors
    )
    recipe = recipe_of(Configuration(config))
    permuted = ARCHITECTURES[str(name)].permuted
    names = _layer_names(recipe, config["model_type"])
    tensors = {}
    for tensor_name in file_tensors:
        tensors |= _published_tensors(tensor_name, file_tensors, recipe, names, permuted)
    return GGUFCheckpoint(Configuration(config), tensors, options)


def _layer_names(recipe: Recipe, family: str) -> dict[str, str]:
    """Map llama.cpp's names of a layer's tensors to the publisher's, without their endings."""
    # Whole names stand for tensors whose names have no ending in the publisher's files, as sinks.
    names = recipe.names
    mixture = recipe.network
    network = f"{names.network}." if names.network else ""
    published = LATENT | {stem: getattr(names, field) for stem, field in LAYER.items()}
    published |= {f"ffn_{part}": f"{network}{getattr(names, part)}" for part in GATED}
    published["attn_sinks.weight"] = names.sinks
    if isinstance(mixture, Mixture):
        published["ffn_gate_inp"] = f"{network}{mixture.router}"
        if mixture.preference is not None:
            published["exp_probs_b.bias"] = f"{network}{mixture.preference}"
        if mixture.shared is not None:
            shared = f"{network}{mixture.shared[0]}."
            published |= {f"ffn_{part}_shexp": f"{shared}{getattr(names, part)}" for part in GATED}
    published |= OTHER_NAMES.get(family, {})
    return {stem: name for stem, name in published.items() if name is not None}


def _published_tensors(
    name: str, tensors: Tensors, recipe: Recipe, names: Mapping[str, str], permuted: bool
) -> dict[str, Published]:
    """Return the publisher's tensors made of one of the file's; unknown ones keep their names."""
    tensor = tensors[name]
    stem, _, kind = name.rpartition(".")
    as_it_is = Published((tensor,), tensor.shape)
    prefix = recipe.names.prefix
    if recipe.norm is sublayers.unit_offset_rms_norm and name.endswith("norm.weight"):
        as_it_is = as_it_is._replace(from_rows=lambda rows: rows - 1)
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None:
        published_name = getattr(recipe.names, OUTSIDE.get(stem, ""), None)
        if published_name is None:
            return {name: as_it_is}
        at = "" if stem == "output" else prefix
        return {f"{at}{published_name}.{kind}": as_it_is}
    at = f"{prefix}{recipe.names.layer}.{block[1]}."
    stem = block[2]
    if (published_name := names.get(f"{stem}.{kind}")) is not None:
        return {at + published_name: as_it_is}
    if stem.endswith("_exps"):
        return _experts(name, tensors, at, recipe)
    if stem in ("attn_k_b", "attn_v_b"):
        return _latent_keys_and_values(name, tensors, at)
    if stem not in names or kind not in ("weight", "bias"):
        return {name: as_it_is}
    as_it_is = as_it_is._replace(from_all_rows=_reordering(stem, recipe, permuted))
    return {f"{at}{names[stem]}.{kind}": as_it_is}


def _reordering(
    stem: str, recipe: Recipe, permuted: bool
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a function that undoes llama.cpp's transposition or reordering, or None."""
    sizes = recipe.sizes
    heads = {"attn_q": sizes.heads, "attn_k": sizes.num_kv_heads}.get(stem)
    if permuted and heads is not None:  # a head's halves are rotated together
        return lambda rows: _swapped(rows, (heads, -1, 2), 1)
    if stem == "attn_qkv" and recipe.projections is sublayers.fused_qkv_by_group:
        return lambda rows: _swapped(rows, (3, sizes.heads, -1), 0)
    return np.transpose if recipe.transposed else None


def _swapped(rows: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Reshape the first axis to `shape`, swap two of its axes, and merge them again."""
    cut = rows.reshape(*shape, *rows.shape[1:])
    return cut.swapaxes(axis, axis + 1).reshape(rows.shape)


def _experts(name: str, tensors: Tensors, at: str, recipe: Recipe) -> dict[str, Published]:
    """Return the publisher's tensors of a layer's experts: one for each expert, or fused ones."""
    tensor = tensors[name]
    stem, _, kind = name.rpartition(".")
    mixture = recipe.network
    reader = Stacked()
    if isinstance(mixture, Mixture):
        inside = f"{recipe.names.network}." if recipe.names.network else ""
        at = f"{at}{inside}"
        reader = mixture.read
    part = re.search(r"ffn_(gate|up|down)_exps$", stem)
    if isinstance(reader, ByExpert) and part is not None:
        matrix = getattr(reader, part[1])
        each = range(tensor.shape[0])
        return {f"{at}experts.{n}.{matrix}.{kind}": _expert(tensor, n) for n in each}
    biased = isinstance(reader, Stacked) and reader.interleaved
    if isinstance(reader, Stacked) and (kind == "weight" or (biased and kind == "bias")):
        return _fused_experts(name, tensors, at, reader)
    return {name: Published((tensor,), tensor.shape)}


def _expert(tensor: Stored, number: int) -> Published:
    """Return the tensor of one expert among those of all."""
    before = number * math.prod(tensor.byte_shape[1:])
    expert = tensor._replace(
        shape=tensor.shape[1:], byte_shape=tensor.byte_shape[1:], offset=tensor.offset + before
    )
    return Published((expert,), expert.shape)


def _fused_experts(name: str, tensors: Tensors, at: str, reader: Stacked) -> dict[str, Published]:
    """Return the publisher's fused tensor of downs, or of gates with ups, of a layer's experts."""
    tensor = tensors[name]
    stem, _, kind = name.rpartition(".")
    turned = reader.transposed
    interleaved = reader.interleaved
    end = "_bias" if kind == "bias" else ""
    fused, down = (at + matrix + end for matrix in reader[:2])

    def transposed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a tensor's shape with the last axes reversed if the publisher's is transposed."""
        return (shape[0], *reversed(shape[1:])) if turned else shape

    def transposed(rows: np.ndarray) -> np.ndarray:
        """Transpose each expert's matrix if the publisher's is transposed."""
        return rows.swapaxes(1, -1) if turned else rows

    if stem.endswith("ffn_down_exps"):
        return {down: Published((tensor,), transposed_shape(tensor.shape), transposed)}
    gate, up = (re.sub(r"ffn_\w+_exps", f"ffn_{part}_exps", name) for part in ("gate", "up"))
    require_converted(tensors, gate)
    require_converted(tensors, up)
    if name != gate:
        return {}
    require_shape(up, tensors[up].shape, tensor.shape)
    shape = tensor.shape[0], 2 * tensor.shape[1], *tensor.shape[2:]

    def gate_up(gates: np.ndarray, ups: np.ndarray) -> np.ndarray:
        """Join gates and ups in one array, by turns or one behind the other."""
        both = np.stack([gates, ups], axis=2 if interleaved else 1)
        return transposed(both.reshape(len(gates), *shape[1:]))

    return {fused: Published((tensor, tensors[up]), transposed_shape(shape), gate_up)}


def _latent_keys_and_values(name: str, tensors: Tensors, at: str) -> dict[str, Published]:
    """Return the publisher's matrix of latent keys and values; files hold the keys' transposed."""
    keys, values = (re.sub(r"attn_\w_b", f"attn_{part}_b", name) for part in "kv")
    require_converted(tensors, keys)
    require_converted(tensors, values)
    if name != keys:
        return {}
    heads, rank, unrotated = tensors[keys].shape
    require_shape(values, tensors[values].shape, (heads, tensors[values].shape[1], rank))

    def join_heads(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Join the keys' and values' rows of each head."""
        return np.concatenate([keys.swapaxes(1, 2), values], axis=1)

    tensor = Published(
        (tensors[keys], tensors[values]),
        (heads, unrotated + tensors[values].shape[1], rank),
        join_heads,
        from_all_rows=lambda rows: rows.reshape(-1, rank),
    )
    return {f"{at}self_attn.kv_b_proj.weight": tensor}
