"""The families of networks that are supported, by ``model_type``, and why others are not."""

from collections.abc import Callable, Mapping
from typing import Any

from lim_jax.models import (
    deepseek_family,
    gemma_family,
    hybrid_family,
    layer_norm_family,
    linear_family,
    llama_family,
    mixture_family,
)
from lim_jax.models.options import Configuration, Options, require_config
from lim_jax.models.recipe import Recipe

FILES = (
    llama_family, layer_norm_family, gemma_family, mixture_family, deepseek_family, hybrid_family,
    linear_family,
)  # fmt: skip
# A family is a function of these files that makes a recipe of a configuration; its name is the
# ``model_type``.
SIGNATURE = {"config": Configuration, "return": Recipe}
FAMILIES: Mapping[str, Callable[[Configuration], Recipe]] = dict(sorted(
    (name, function) for file in FILES for name, function in vars(file).items()
    if getattr(function, "__annotations__", None) == SIGNATURE and not name.startswith("_")
))  # fmt: skip
# Families with layers that are no attention, by what these layers are.
OTHER_LAYERS = {
    "Mamba": ("falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"),
    "linear attention": ("rwkv",),
    "recurrent": ("recurrent_gemma", "xlstm"),
}  # fmt: skip
# Families whose layers are no flow on one state, or differ in shape, by what they have.
OTHER_FLOWS = {
    "attention to compressed tokens, and several residual streams": ("deepseek_v4",),
    "experts whose output goes around the sublayers that follow them": ("longcat_flash",),
    "layers that read what blocks of earlier layers gave": ("kimi_k3",),
    "layers that use earlier layers' keys and values": ("gemma3n", "gemma3n_text"),
    "attention to blocks of tokens that an index chooses": ("minimax_m3", "minimax_m3_vl"),
    "layers that differ in their numbers of key heads": ("mimo_v2", "mimo_v2_flash"),
    "layers that differ in their numbers of heads": ("step3p5", "step3p7"),
    "layers that differ in their sizes, some without attention": ("nemotron-nas",),
}
# How options begin, and layers are called, where a family that is not known has other layers.
TELLING = {
    "Mamba": ("mamba", "ssm_"),
    "linear attention": ("linear_attention", "linear_attn", "linear_conv", "lightning", "kda_"),
    "short convolution": ("conv", "short_conv"),
    "cross-attention": ("cross_attention",),
    "indexed attention": ("index", "sparse_attention", "compress", "deepseek_sparse"),
}
WRITE = "Write the network's field, and give influence a loss of your own."


def recipe_of(config: Configuration) -> Recipe:
    """Return the recipe of a configuration's family, or raise ValueError if it is not supported."""
    refuse_unsupported(config)
    family = config.get("model_type")
    if family not in FAMILIES:
        _require_attention(family, _other_kind(config))
    expected = f"one of the {len(FAMILIES)} families in models.families.FAMILIES"
    require_config(family in FAMILIES, f"model_type = {family!r}", expected, WRITE)
    return FAMILIES[str(family)](config)


def refuse_unsupported(config: Options) -> None:
    """Raise ValueError, with the reason, if the parts here do not make a network or its text."""
    text = config.get("text_config")
    for options in (config, text if isinstance(text, Mapping) else {}):
        family = options.get("model_type")
        for kind, families in OTHER_LAYERS.items():
            _require_attention(family, kind if family in families else None)
        for what, families in OTHER_FLOWS.items():
            got = f"model_type = {family!r} with {what}"
            expected = "layers of one shape, which read the state before them and no other"
            require_config(family not in families, got, expected, WRITE)


def _require_attention(family: Any, kind: str | None) -> None:
    got = f"model_type = {family!r} with {kind} layers"
    known = "attention, delta rules, Mamba-2, lightning attention or short convolutions"
    require_config(kind is None, got, f"a known family, with {known}", WRITE)


def _other_kind(config: Options) -> str | None:
    names = [name for name, value in config.items() if value]
    names += [str(kind) for name in names if "layer" in name and isinstance(config[name], list)
              for kind in config[name]]  # fmt: skip
    told = (kind for kind, starts in TELLING.items() if any(n.startswith(starts) for n in names))
    return next(told, None)
