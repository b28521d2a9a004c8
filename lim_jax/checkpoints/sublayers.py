"""Readers of the parts that decoders share: norms, projections, attention, tokenwise networks."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import equinox as eqx
import jax
import numpy as np

from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.tensor_reader import Reader, Tensor, split_heads
from lim_jax.network.masks import AttentionMask, SwitchedMask
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import AcrossHeads, Clipped, EachHead, HeadNorm, LayerNorm, Norm, RMSNorm
from lim_jax.network.tokenwise import FeedForward, GatedFeedForward

Arrays = dict[str, Tensor]  # by the names of a module's fields


def rms_norm(read: Reader, name: str, width: int, norm_eps: float, offset: int = 0) -> RMSNorm:
    """Read an RMS norm; `offset` is added to the stored scale."""
    return RMSNorm(offset + read(f"{name}.weight", width), norm_eps)


def layer_norm(
    read: Reader, name: str, width: int, norm_eps: float, offset: int = 0, shifted: bool = True
) -> LayerNorm:
    """Read a layer norm; `offset` is added to the stored scale, and there may be no shift."""
    scale = offset + read(f"{name}.weight", width)
    shift = read(f"{name}.bias", width) if shifted else np.zeros_like(scale)
    return LayerNorm(scale, shift, norm_eps)


unit_offset_rms_norm = partial(rms_norm, offset=1)
unit_offset_layer_norm = partial(layer_norm, offset=1)
layer_norm_without_shift = partial(layer_norm, shifted=False)


def layer_norm_without_weights(read: Reader, name: str, width: int, norm_eps: float) -> LayerNorm:
    """Return a layer norm that has neither a scale nor a shift."""
    return LayerNorm(1 + read.zeros(width), read.zeros(width), norm_eps)


def rms_norm_without_weights(read: Reader, name: str, width: int, norm_eps: float) -> RMSNorm:
    """Return an RMS norm that has no scale."""
    return RMSNorm(1 + read.zeros(width), norm_eps)


def shared_head_norm(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """Read the recipe's norm over a head's features, which all heads share."""
    norm = recipe.norm(read, name, recipe.sizes.head_dim, recipe.sizes.norm_eps)
    return jax.tree.map(lambda leaf: deinterleave(leaf[None], recipe)[0], norm)


def across_heads(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """Read the recipe's norm over the features of all heads together."""
    sizes = recipe.sizes
    return AcrossHeads(recipe.norm(read, name, heads * sizes.head_dim, sizes.norm_eps))


def per_head_norm(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """Read a layer norm without shift for each head, from one tensor."""
    scale = deinterleave(read(f"{name}.weight", heads, recipe.sizes.head_dim), recipe)
    return _head_norms(scale, recipe.sizes.norm_eps)


def separate_head_norms(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """Read a layer norm without shift for each head, from one tensor each."""
    size = recipe.sizes.head_dim
    scales = [read(f"{name}.norms.{head}.weight", size) for head in range(heads)]
    return _head_norms(scales, recipe.sizes.norm_eps)


def unscaled_head_norm(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """Return an RMS norm of each head that has no scale."""
    return rms_norm_without_weights(read, name, recipe.sizes.head_dim, recipe.sizes.norm_eps)


def keys_as_values(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read queries and keys from one matrix each; values are the keys before their norm."""
    names = recipe.names._replace(value=recipe.names.key)
    return separate_qkv(read, at, recipe._replace(names=names))


def clipped(limit: float) -> Callable[..., HeadNorm]:
    """Return a reader of a norm of heads that clips every number to a limit."""
    return lambda read, name, heads, recipe: Clipped(limit)


def _head_norms(scales: Iterable[Tensor], norm_eps: float) -> EachHead:
    """Return layer norms of heads with these scales and no shift."""
    norms = [LayerNorm(scale, np.zeros_like(scale), norm_eps) for scale in scales]
    return EachHead(jax.tree.map(lambda *rows: np.stack(rows), *norms))


def deinterleave(rows: Tensor, recipe: Recipe) -> Tensor:
    """Reorder a head's features, the second axis, from neighbouring pairs to halves."""
    # Files of `Recipe.rope_interleaved` have neighbours together. Scores stay the same, since
    # queries and keys are both reordered.
    if not recipe.rope_interleaved:
        return rows
    rotary_dim = max(mask.rotary_dim for mask in recipe.masks)
    first = np.arange(0, rotary_dim, 2)
    return rows[:, np.concatenate([first, first + 1, np.arange(rotary_dim, rows.shape[1])])]


def separate_qkv(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read queries, keys and values from one matrix each."""
    sizes = recipe.sizes
    names = recipe.names
    groups = recipe.sizes.num_kv_heads
    query, query_bias = _heads(read, f"{at}.{names.query}", sizes.heads, recipe)
    key, key_bias = _heads(read, f"{at}.{names.key}", groups, recipe)
    value, value_bias = _heads(read, f"{at}.{names.value}", groups, recipe)
    return _named([query, key, value], [query_bias, key_bias, value_bias], recipe)


def rotate_backwards(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read queries, keys and values of heads that files rotate by negative angles."""
    # To turn (a, b) back by an angle is to turn (b, a) by it: the halves of heads change places.
    half = recipe.sizes.head_dim // 2
    arrays = separate_qkv(read, at, recipe)
    turned = {name: np.roll(rows, half, axis=1) for name, rows in arrays.items()}
    return turned | {name: rows for name, rows in arrays.items() if name.startswith("value")}


def gated_queries(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read queries, keys and values; the queries' matrix has each head's gate behind its query."""
    doubled = recipe.sizes._replace(heads=2 * recipe.sizes.heads)
    arrays = separate_qkv(read, at, recipe._replace(sizes=doubled))
    return arrays | {"query": arrays["query"][::2], "gate": arrays["query"][1::2]}


def fused_qkv(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read one matrix that holds all queries, then all keys, then all values."""
    heads = recipe.sizes.heads
    groups = recipe.sizes.num_kv_heads
    return _fused(read, at, recipe, lambda rows: np.split(rows, [heads, heads + groups]))


def fused_qkv_by_group(read: Reader, at: str, recipe: Recipe) -> Arrays:
    """Read one matrix that holds, group by group, the queries, the key and the value."""
    heads = recipe.sizes.heads
    groups = recipe.sizes.num_kv_heads

    def cut(rows: Tensor) -> list[Tensor]:
        """Cut rows of groups into queries, keys and values."""
        by_group = rows.reshape(groups, -1, *rows.shape[1:])
        queries = by_group[:, :-2].reshape(heads, *rows.shape[1:])
        return [queries, by_group[:, -2], by_group[:, -1]]

    return _fused(read, at, recipe, cut)


def _fused(read: Reader, at: str, recipe: Recipe, cut: Callable[[Tensor], list[Tensor]]) -> Arrays:
    """Read one matrix with its bias, and cut it into queries, keys and values."""
    count = recipe.sizes.heads + 2 * recipe.sizes.num_kv_heads
    rows, bias = _heads(read, f"{at}.{recipe.names.fused_qkv}", count, recipe)
    biases = [None, None, None] if bias is None else cut(bias)
    return _named(cut(rows), biases, recipe)


def _named(matrices: Sequence[Tensor], biases: Sequence[Tensor | None], recipe: Recipe) -> Arrays:
    """Return queries, keys and values with their biases, by field names and deinterleaved."""
    names = ("query", "key", "value")
    arrays: Arrays = dict(zip(names, matrices, strict=True))
    for name, bias in zip(names, biases, strict=True):
        if bias is not None:
            arrays[f"{name}_bias"] = bias
    for name in ("query", "query_bias", "key", "key_bias"):
        if name in arrays:
            arrays[name] = deinterleave(arrays[name], recipe)
    return arrays


def _heads(read: Reader, name: str, count: int, recipe: Recipe) -> tuple[Tensor, Tensor | None]:
    """Read a matrix and its bias with an axis of heads; the bias may be None."""
    size = recipe.sizes.head_dim
    width = recipe.sizes.width
    rows = read_matrix(read, name, count * size, width, recipe).reshape(count, size, width)
    bias = read(f"{name}.bias", count * size) if recipe.biases.qkv else None
    return rows, None if bias is None else bias.reshape(count, size)


def read_matrix(read: Reader, name: str, rows: int, columns: int, recipe: Recipe) -> Tensor:
    """Read a matrix of shape (outputs, inputs), which files may hold transposed."""
    if recipe.transposed:
        return read.matrix(f"{name}.weight", columns, rows).T
    return read.matrix(f"{name}.weight", rows, columns)


def gated_mlp(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> GatedFeedForward:
    """Read a gated MLP from three matrices."""
    sizes = recipe.sizes
    names = recipe.names
    at = _network(at, recipe)
    inner = sizes.intermediate_size
    width = sizes.width
    shapes = {names.gate: (inner, width), names.up: (inner, width), names.down: (width, inner)}
    matrices = [read.matrix(f"{at}.{name}.weight", *shape) for name, shape in shapes.items()]
    biases = [_mlp_bias(read, f"{at}.{name}", recipe, shape[0]) for name, shape in shapes.items()]
    return GatedFeedForward(
        norm, *matrices, *biases, activation=recipe.activation, output_norm=output_norm
    )


def fused_gated_mlp(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> GatedFeedForward:
    """Read a gated MLP whose gates stand before the rest in one matrix."""
    sizes = recipe.sizes
    names = recipe.names
    at = _network(at, recipe)
    inner = sizes.intermediate_size
    width = sizes.width
    gate, up = np.split(read.matrix(f"{at}.{names.up}.weight", 2 * inner, width), 2)
    matrices: list[Tensor] = [gate, up, read.matrix(f"{at}.{names.down}.weight", width, inner)]
    return GatedFeedForward(norm, *matrices, activation=recipe.activation, output_norm=output_norm)


def plain_mlp(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> FeedForward:
    """Read an MLP of two matrices without a gate."""
    sizes = recipe.sizes
    names = recipe.names
    inner = sizes.intermediate_size
    width = sizes.width
    at = _network(at, recipe)
    arrays = []
    for name, rows, columns in ((names.up, inner, width), (names.down, width, inner)):
        arrays.append(read_matrix(read, f"{at}.{name}", rows, columns, recipe))
        arrays.append(_mlp_bias(read, f"{at}.{name}", recipe, rows))
    return FeedForward(norm, *arrays, activation=recipe.activation, output_norm=output_norm)


def xielu_mlp(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> FeedForward:
    """Read an MLP of two matrices, and the numbers of its activation `activations.xielu`."""
    numbers = []
    plain = plain_mlp(read, at, recipe, norm, output_norm)
    for name, shape in {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}.items():
        number = read(f"{_network(at, recipe)}.act_fn.{name}", *shape)
        numbers.append(number.reshape(()))
    return dataclasses.replace(plain, activation_numbers=np.stack(numbers))


def _network(at: str, recipe: Recipe) -> str:
    """Return what stands before the names of a layer's tokenwise network."""
    return f"{at}.{recipe.names.network}" if recipe.names.network else at


def _mlp_bias(read: Reader, name: str, recipe: Recipe, size: int) -> Tensor | None:
    """Read the bias of one of an MLP's matrices, or return None if the family has none."""
    return read(f"{name}.bias", size) if recipe.biases.mlp else None


def read_attention(
    read: Reader, at: str, recipe: Recipe, mask: AttentionMask | SwitchedMask
) -> CausalAttention:
    """Read one layer's multi-head attention, with its norms."""
    sizes = recipe.sizes
    names = recipe.names
    width = sizes.width
    heads = sizes.heads
    inner = heads * sizes.head_dim
    output = read_matrix(read, f"{at}.{names.output}", width, inner, recipe)
    norms = {}
    groups = sizes.num_kv_heads
    if recipe.head_norm is not None:
        norms["query_norm"] = recipe.head_norm(read, f"{at}.{names.query_norm}", heads, recipe)
        norms["key_norm"] = recipe.head_norm(read, f"{at}.{names.key_norm}", groups, recipe)
    if recipe.value_norm is not None:
        norms["value_norm"] = recipe.value_norm(read, at, groups, recipe)
    biased = recipe.biases.attention_output
    sinks = names.sinks
    projections = recipe.projections(read, at, recipe)
    if names.output_gate is not None:
        gate = read_matrix(read, f"{at}.{names.output_gate}", inner, width, recipe)
        projections["gate"] = gate.reshape(heads, -1, width)
    return CausalAttention(
        read_norm(read, at, names.before_attention, recipe) or eqx.nn.Identity(),
        output=split_heads(output, heads),
        output_bias=read(f"{at}.{names.output}.bias", width) if biased else None,
        output_norm=read_norm(read, at, names.after_attention, recipe),
        sinks=None if sinks is None else read(f"{at}.{sinks}", heads),
        mask=mask,
        scale=recipe.scale,
        cap=recipe.cap,
        rope_before_qk_norm=recipe.rope_before_qk_norm,
        **projections,
        **norms,
    )


def read_norm(read: Reader, at: str, name: str | None, recipe: Recipe) -> Norm | None:
    """Read a layer's norm over the width, or return None if the name is None."""
    if name is None:
        return None
    return recipe.norm(read, f"{at}.{name}", recipe.sizes.width, recipe.sizes.norm_eps)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return ALiBi's slopes of the heads: powers of :math:`2^{-8/n}`."""
    # n is the largest power of two of heads; further heads have odd powers of 2^(-4/n).
    most = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (k + 1) / most) for k in range(most)]
    slopes += [2 ** (-4 * (2 * k + 1) / most) for k in range(heads - most)]
    return tuple(slopes)
