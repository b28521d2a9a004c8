"""Mixtures of experts and latent attention, as files hold them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from lim_jax.models.options import whole
from lim_jax.models.parts import matrix, norm_of, rms_norm, unpaired
from lim_jax.models.reading import Reader, by_head, put
from lim_jax.models.recipe import Recipe
from lim_jax.network.experts import Experts, Gate, MixtureOfExperts, Routing
from lim_jax.network.latent import LatentAttention
from lim_jax.network.norms import Norm
from lim_jax.network.span import Span, Spans
from lim_jax.network.tokenwise import GatedFeedForward

Arrays = dict[str, np.ndarray]
LATENT_ETA = 1e-6  # of the norms of latent vectors, whatever the others have


class Mixture(NamedTuple):
    """A family's experts, and where their tensors stand in the tokenwise network's.

    Attributes
    ----------
    size, hidden
        How many there are, and how wide each is inside.
    routing
        How they are chosen.
    read
        Reads the matrices of all experts of a layer by the names of `network.experts.Experts`.
    router, router_bias, preference
        Names of the router's matrix and of `MixtureOfExperts.preference`, and whether the former
        has a bias.
    shared
        The name and the hidden size of a gated network that every token has besides, or None.
    weighs_input
        As in `MixtureOfExperts`.
    combine
        How gates gate, or None for the recipe's activation.
    dense
        The layers that have a plain gated network instead, and how `wide` that is, by default as
        the recipe's sizes say.
    """

    size: int
    hidden: int
    routing: Routing
    read: Callable[[Reader, str, "Mixture", Recipe], Arrays]
    router: str = "gate"
    router_bias: bool = False
    preference: str | None = None
    shared: tuple[str, int] | None = None
    weighs_input: bool = False
    combine: Callable[..., Any] | None = None
    dense: frozenset[int] = frozenset()
    wide: int | None = None


def mixed(mixture: Mixture) -> Callable[..., MixtureOfExperts]:
    """What reads a layer's experts, for `recipe.Recipe.network`.

    So that one scan serves all layers, a dense one is a mixture whose experts are zero, beside a
    shared network; what is narrower than others is filled up with zeros, which give zero.
    """

    def network(
        read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
    ) -> MixtureOfExperts:
        dense = int(at.rpartition(".")[2]) in mixture.dense
        at = f"{at}.{recipe.names.network}"
        width, count = recipe.sizes.width, mixture.size
        router = np.zeros((count, width), read.dtype)
        arrays = _nothing(mixture, recipe, read.dtype)
        parts = {}
        if not dense:
            router = read(f"{at}.{mixture.router}.weight", count, width)
            arrays = mixture.read(read, at, mixture, recipe)
        if mixture.router_bias:
            parts["router_bias"] = put(read(f"{at}.{mixture.router}.bias", count))[0]
        if mixture.preference is not None:
            preference = f"{at}.{mixture.preference}"
            found = np.zeros(count, read.dtype) if dense else read(preference, count)
            parts["preference"] = put(found)[0]
        names = list(arrays)
        combine = mixture.combine or Gate(recipe.activation)
        experts = Experts(**dict(zip(names, put(*arrays.values()), strict=True)), combine=combine)
        return MixtureOfExperts(
            norm, put(router)[0], experts, mixture.routing, **parts,
            shared=_shared(read, at, mixture, recipe, dense),
            weighs_input=mixture.weighs_input, output_norm=output_norm,
        )  # fmt: skip

    return network


def _nothing(mixture: Mixture, recipe: Recipe, dtype: str) -> Arrays:
    up = np.zeros((mixture.size, mixture.hidden, recipe.sizes.width), dtype)
    return {"gate": up, "up": up, "down": up.transpose(0, 2, 1)}


def _shared(
    read: Reader, at: str, mixture: Mixture, recipe: Recipe, dense: bool
) -> GatedFeedForward | None:
    """The network that every token has: of a dense layer its only one."""
    wide = recipe.sizes.hidden if mixture.wide is None else mixture.wide
    name, hidden = mixture.shared or (None, 0)
    if name is None and not mixture.dense:
        return None
    most = max(hidden, wide if mixture.dense else 0)
    matrices = [np.zeros((most, recipe.sizes.width), read.dtype) for _ in range(3)]
    at, size = (at, wide) if dense else (f"{at}.{name}", hidden)
    if dense or name is not None:
        for rows, part in zip(matrices, ("gate", "up", "down"), strict=True):
            shape = (recipe.sizes.width, size) if part == "down" else (size, recipe.sizes.width)
            found = matrix(read, f"{at}.{getattr(recipe.names, part)}", *shape, recipe)
            rows[:size] = found.T if part == "down" else found
    gate, up, down = put(*matrices[:2], matrices[2].T)
    return GatedFeedForward(eqx.nn.Identity(), gate, up, down, activation=recipe.activation)


def by_expert(gate: str, up: str, down: str) -> Callable[..., Arrays]:
    """Experts by their numbers, each with three matrices of these names."""

    def read_all(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
        arrays = _nothing(mixture, recipe, read.dtype)
        arrays["up"], arrays["down"] = arrays["up"].copy(), arrays["down"].copy()
        for name, stored in (("gate", gate), ("up", up), ("down", down)):
            for expert, rows in enumerate(arrays[name]):
                rows[...] = read(f"{at}.experts.{expert}.{stored}.weight", *rows.shape)
        return arrays

    return read_all


def together(up: str, down: str) -> Callable[..., Arrays]:
    """All experts in two tensors of these names, gates before what they let through."""

    def read_all(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
        count, hidden, width = mixture.size, mixture.hidden, recipe.sizes.width
        gates, ups = np.split(read(f"{at}.{up}.weight", count, 2 * hidden, width), 2, axis=1)
        return {"gate": gates, "up": ups, "down": read(f"{at}.{down}.weight", count, width, hidden)}

    return read_all


def together_by_width(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
    """The same from the input to the output side: Llama 4's."""
    count, hidden, width = mixture.size, mixture.hidden, recipe.sizes.width
    both = read(f"{at}.experts.gate_up_proj", count, width, 2 * hidden)
    down = read(f"{at}.experts.down_proj", count, hidden, width)
    gates, ups = np.split(both.transpose(0, 2, 1), 2, axis=1)
    return {"gate": gates, "up": ups, "down": down.transpose(0, 2, 1)}


def together_by_turns(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
    """The same with gates and what they let through by turns, and biases: gpt-oss's."""
    count, hidden, width = mixture.size, mixture.hidden, recipe.sizes.width
    at = f"{at}.experts"
    both = read(f"{at}.gate_up_proj", count, width, 2 * hidden).transpose(0, 2, 1)
    biases = read(f"{at}.gate_up_proj_bias", count, 2 * hidden)
    return {
        "gate": both[:, ::2],
        "up": both[:, 1::2],
        "down": read(f"{at}.down_proj", count, hidden, width).transpose(0, 2, 1),
        "gate_bias": biases[:, ::2],
        "up_bias": biases[:, 1::2],
        "down_bias": read(f"{at}.down_proj_bias", count, width),
    }


def through_latents(config: Any) -> Callable[..., LatentAttention]:
    """What reads DeepSeek's latent attention, for `recipe.Recipe.attention`."""
    turning, still, features, rank = (
        whole(config, name)
        for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
    )
    latent = None if config.get("q_lora_rank") is None else whole(config, "q_lora_rank")

    def attention(read: Reader, at: str, recipe: Recipe, span: Span | Spans) -> LatentAttention:
        width, heads = recipe.sizes.width, recipe.sizes.heads
        norm = norm_of(read, at, recipe.names.before_attention, recipe) or eqx.nn.Identity()
        at = f"{at}.self_attn"
        parts = {}
        if latent is not None:
            parts["query_down"] = put(read(f"{at}.q_a_proj.weight", latent, width))[0]
            name = f"{at}.q_a_layernorm"
            parts["query_down_norm"] = rms_norm(read, name, latent, LATENT_ETA)
        name, columns = ("q_proj", width) if latent is None else ("q_b_proj", latent)
        size = still + turning
        query = read(f"{at}.{name}.weight", heads * size, columns).reshape(heads, size, columns)
        down = read(f"{at}.kv_a_proj_with_mqa.weight", rank + turning, width)
        up = read(f"{at}.kv_b_proj.weight", heads * (still + features), rank)
        up = up.reshape(heads, still + features, rank)
        # What turns stands last in the files.
        query = unpaired(np.roll(query, turning, axis=1), recipe._replace(paired=True))
        shared = unpaired(down[None, rank:], recipe._replace(paired=True))[0]
        output = read(f"{at}.o_proj.weight", width, heads * features)
        arrays = query, up[:, :still], up[:, still:], by_head(output, heads), down[:rank], shared
        names = "query", "key", "value", "output", "down", "turning"
        return LatentAttention(
            norm, **dict(zip(names, put(*arrays), strict=True)), **parts,
            down_norm=rms_norm(read, f"{at}.kv_a_layernorm", rank, LATENT_ETA),
            span=span, scale=recipe.scale,
        )  # fmt: skip

    return attention
