"""A reader of latent attention."""

from collections.abc import Callable

import equinox as eqx
import numpy as np

from lim_jax.checkpoints.options import Configuration
from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.sublayers import deinterleave, read_norm, rms_norm
from lim_jax.checkpoints.tensor_reader import Reader, split_heads
from lim_jax.network.latent import LatentAttention
from lim_jax.network.masks import AttentionMask, SwitchedMask

LATENT_NORM_EPS = 1e-6  # of the norms of latent vectors, whatever the other norms have


def read_mla(
    config: Configuration, rope_interleaved: bool = True
) -> Callable[..., LatentAttention]:
    """Return a reader of multi-head latent attention, for `recipe.Recipe.attention`.

    As in DeepSeek, or with halves of the rotated features that are rotated together.
    """
    rotary = config.get_int("qk_rope_head_dim")
    unrotated = config.get_int("qk_nope_head_dim")
    features = config.get_int("v_head_dim")
    rank = config.get_int("kv_lora_rank")
    latent = config.get_int_or("q_lora_rank", None)
    size = unrotated + rotary

    def attention(
        read: Reader, at: str, recipe: Recipe, mask: AttentionMask | SwitchedMask
    ) -> LatentAttention:
        """Read a layer's latent attention, with rotated features before the others."""
        width = recipe.sizes.width
        heads = recipe.sizes.heads
        rotated = recipe._replace(rope_interleaved=rope_interleaved)
        norm = read_norm(read, at, recipe.names.before_attention, recipe) or eqx.nn.Identity()
        names = recipe.names
        place = f"{at}.{names.output.rpartition('.')[0]}"
        parts = {}
        if latent is not None:
            parts["query_down"] = read(f"{place}.q_a_proj.weight", latent, width)
            norm_name = f"{place}.q_a_layernorm"
            parts["query_down_norm"] = rms_norm(read, norm_name, latent, LATENT_NORM_EPS)
        if latent is None:
            query = read(f"{place}.q_proj.weight", heads * size, width)
        else:
            query = read(f"{place}.q_b_proj.weight", heads * size, latent)
        query = query.reshape(heads, size, -1)
        down = read(f"{place}.kv_a_proj_with_mqa.weight", rank + rotary, width)
        up = read(f"{place}.kv_b_proj.weight", heads * (unrotated + features), rank)
        up = up.reshape(heads, unrotated + features, rank)
        # Files hold the rotated features last, the module first.
        query = deinterleave(np.roll(query, rotary, axis=1), rotated)
        shared = deinterleave(down[None, rank:], rotated)[0]
        output = read(f"{at}.{names.output}.weight", width, heads * features)
        if names.output_gate is not None:  # the same of all features of a head
            gate = read(f"{at}.{names.output_gate}.weight", heads, width)
            parts["gate"] = np.repeat(gate[:, None, :], features, axis=1)
        return LatentAttention(
            norm,
            query,
            up[:, :unrotated],
            up[:, unrotated:],
            split_heads(output, heads),
            down=down[:rank],
            rope_key=shared,
            **parts,
            down_norm=rms_norm(read, f"{place}.kv_a_layernorm", rank, LATENT_NORM_EPS),
            mask=mask,
            scale=recipe.scale,
        )

    return attention
