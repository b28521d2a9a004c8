"""The families of networks whose checkpoints are known, by the name in their configuration."""

from collections.abc import Callable, Mapping

from lim_jax.models.gpt_family import gpt2, gpt_neox
from lim_jax.models.llama_family import llama, mistral, qwen2, qwen3
from lim_jax.models.reading import Source, Weights

FAMILIES: Mapping[str, Callable[[Source, str], Weights]] = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
}
