"""The parts that decoders share, as their files hold them: norms, projections, networks."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from lim_jax.models.reading import Reader, by_head, put
from lim_jax.models.recipe import Recipe
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import AcrossHeads, EachHead, HeadNorm, LayerNorm, Norm, RMSNorm
from lim_jax.network.span import Span, Spans
from lim_jax.network.tokenwise import FeedForward, GatedFeedForward

Projected = dict[str, Array | None]


def rms_norm(read: Reader, name: str, width: int, eta: float) -> RMSNorm:
    """By the root mean square alone."""
    (scale,) = put(read(f"{name}.weight", width))
    return RMSNorm(scale, eta)


def rms_norm_from_one(read: Reader, name: str, width: int, eta: float) -> RMSNorm:
    """The same with scales that the files count from one."""
    (scale,) = put(1 + read(f"{name}.weight", width))
    return RMSNorm(scale, eta)


def layer_norm(read: Reader, name: str, width: int, eta: float) -> LayerNorm:
    """With a scale and a shift."""
    return _layer_norm(read(f"{name}.weight", width), read(f"{name}.bias", width), eta)


def layer_norm_from_one(read: Reader, name: str, width: int, eta: float) -> LayerNorm:
    """The same with scales that the files count from one."""
    return _layer_norm(1 + read(f"{name}.weight", width), read(f"{name}.bias", width), eta)


def layer_norm_without_shift(read: Reader, name: str, width: int, eta: float) -> LayerNorm:
    """With a scale alone."""
    return _layer_norm(read(f"{name}.weight", width), None, eta)


def _layer_norm(scale: np.ndarray, shift: np.ndarray | None, eta: float) -> LayerNorm:
    scales, shifts = put(scale, np.zeros_like(scale) if shift is None else shift)
    return LayerNorm(scales, shifts, eta)


def one_for_all_heads(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """The recipe's norm over a head's size, the same for every head."""
    norm = recipe.norm(read, name, recipe.sizes.size, recipe.sizes.eta)
    return jax.tree.map(lambda leaf: unpaired(leaf[None], recipe)[0], norm)


def across_heads(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """The recipe's norm over all heads side by side."""
    return AcrossHeads(recipe.norm(read, name, heads * recipe.sizes.size, recipe.sizes.eta))


def of_each_head(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """A layer norm without shift for every head, side by side in one tensor."""
    scale = unpaired(read(f"{name}.weight", heads, recipe.sizes.size), recipe)
    return _norms_of_heads(scale, recipe.sizes.eta)


def of_each_head_apart(read: Reader, name: str, heads: int, recipe: Recipe) -> HeadNorm:
    """The same of tensors by the head's number."""
    size = recipe.sizes.size
    scales = np.stack([read(f"{name}.norms.{head}.weight", size) for head in range(heads)])
    return _norms_of_heads(scales, recipe.sizes.eta)


def _norms_of_heads(scales: np.ndarray, eta: float) -> EachHead:
    """A layer norm of each row of scales, with a leading axis in its arrays."""
    rows = put(scales, np.zeros_like(scales))
    return EachHead(jax.vmap(lambda scale, shift: LayerNorm(scale, shift, eta))(*rows))


def unpaired(rows: np.ndarray | Array, recipe: Recipe) -> np.ndarray:
    """From pairs of neighbouring features to pairs of the halves of what turns of each head.

    Features are the second axis. Scores do not change where queries and keys are both put so.
    """
    rows, turning = np.asarray(rows), max(span.turning for span in recipe.spans)
    if not recipe.paired:
        return rows
    first = np.arange(0, turning, 2)
    return rows[:, np.concatenate([first, first + 1, np.arange(turning, rows.shape[1])])]


def apart(read: Reader, at: str, recipe: Recipe) -> Projected:
    """Queries, keys and values by a matrix each."""
    sizes, names = recipe.sizes, recipe.names
    counts = {names.query: sizes.heads, names.key: sizes.groups, names.value: sizes.groups}
    rows, biases = [], []
    for name, count in counts.items():
        rows.append(_rows(read, f"{at}.{name}", count, recipe))
        biases.append(_bias_rows(read, f"{at}.{name}", count, recipe))
    return projected(rows, biases, recipe)


def joined(read: Reader, at: str, recipe: Recipe) -> Projected:
    """All queries, then all keys, then all values, in one matrix."""
    sizes, name = recipe.sizes, f"{at}.{recipe.names.joined}"
    cuts, count = [sizes.heads, sizes.heads + sizes.groups], sizes.heads + 2 * sizes.groups
    rows = np.split(_rows(read, name, count, recipe), cuts)
    bias = _bias_rows(read, name, count, recipe)
    return projected(rows, [None] * 3 if bias is None else np.split(bias, cuts), recipe)


def joined_by_group(read: Reader, at: str, recipe: Recipe) -> Projected:
    """Group by group in one matrix, each with its queries, its key and its value."""
    sizes, name = recipe.sizes, f"{at}.{recipe.names.joined}"
    each, count = sizes.heads // sizes.groups, sizes.heads + 2 * sizes.groups

    def cut(rows: np.ndarray) -> list[np.ndarray]:
        of_groups = rows.reshape(sizes.groups, each + 2, *rows.shape[1:])
        queries = of_groups[:, :each].reshape(sizes.heads, *rows.shape[1:])
        return [queries, of_groups[:, each], of_groups[:, each + 1]]

    bias = _bias_rows(read, name, count, recipe)
    return projected(
        cut(_rows(read, name, count, recipe)), [None] * 3 if bias is None else cut(bias), recipe
    )


def projected(
    rows: list[np.ndarray], biases: Sequence[np.ndarray | None], recipe: Recipe
) -> Projected:
    """Queries, keys and values and their biases by name, on the device."""
    found = {}
    for name, matrix, bias in zip(("query", "key", "value"), rows, biases, strict=True):
        turns = name != "value"
        found[name] = put(unpaired(matrix, recipe) if turns else matrix)[0]
        if bias is not None:
            found[f"{name}_bias"] = put(unpaired(bias, recipe) if turns else bias)[0]
    return found


def _rows(read: Reader, name: str, count: int, recipe: Recipe) -> np.ndarray:
    size, width = recipe.sizes.size, recipe.sizes.width
    return matrix(read, name, count * size, width, recipe).reshape(count, size, width)


def matrix(read: Reader, name: str, rows: int, columns: int, recipe: Recipe) -> np.ndarray:
    """A matrix from the output to the input side, as it is used."""
    if recipe.transposed:
        return read(f"{name}.weight", columns, rows).T
    return read(f"{name}.weight", rows, columns)


def _bias_rows(read: Reader, name: str, count: int, recipe: Recipe) -> np.ndarray | None:
    if not recipe.biases.projected:
        return None
    return read(f"{name}.bias", count * recipe.sizes.size).reshape(count, recipe.sizes.size)


def gated(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> GatedFeedForward:
    """A gate and what it lets through, by a matrix each."""
    sizes, names, at = recipe.sizes, recipe.names, f"{at}.{recipe.names.network}"
    shapes = {names.gate: (sizes.hidden, sizes.width), names.up: (sizes.hidden, sizes.width)}
    shapes |= {names.down: (sizes.width, sizes.hidden)}
    gate, up, down = put(*(read(f"{at}.{name}.weight", *shape) for name, shape in shapes.items()))
    biases = [bias(read, f"{at}.{name}", recipe, shape[0]) for name, shape in shapes.items()]
    gate_bias, up_bias, down_bias = biases
    return GatedFeedForward(
        norm, gate, up, down, gate_bias, up_bias, down_bias, recipe.activation, output_norm
    )


def jointly_gated(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> GatedFeedForward:
    """All gates, then all that they let through, in one matrix."""
    sizes, names, at = recipe.sizes, recipe.names, f"{at}.{recipe.names.network}"
    together = read(f"{at}.{names.up}.weight", 2 * sizes.hidden, sizes.width)
    down = read(f"{at}.{names.down}.weight", sizes.width, sizes.hidden)
    matrices = put(*np.split(together, 2), down)
    return GatedFeedForward(norm, *matrices, activation=recipe.activation, output_norm=output_norm)


def plain(
    read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
) -> FeedForward:
    """Two matrices without a gate."""
    sizes, names, at = recipe.sizes, recipe.names, inside(at, recipe.names.network)
    up, down = f"{at}.{names.up}", f"{at}.{names.down}"
    inner, outer = put(
        matrix(read, up, sizes.hidden, sizes.width, recipe),
        matrix(read, down, sizes.width, sizes.hidden, recipe),
    )
    inner_bias, outer_bias = (
        bias(read, name, recipe, size) for name, size in ((up, sizes.hidden), (down, sizes.width))
    )
    return FeedForward(norm, inner, inner_bias, outer, outer_bias, recipe.activation, output_norm)


def bias(read: Reader, name: str, recipe: Recipe, size: int) -> Array | None:
    """A bias of the tokenwise network, if it has them."""
    return put(read(f"{name}.bias", size))[0] if recipe.biases.tokenwise else None


def inside(at: str, part: str) -> str:
    """The name of a part, which may have none of its own."""
    return f"{at}.{part}" if part else at


def of_matrices(read: Reader, at: str, recipe: Recipe, span: Span | Spans) -> CausalAttention:
    """Attention whose queries, keys and values are of a matrix each."""
    sizes, names = recipe.sizes, recipe.names
    output = matrix(read, f"{at}.{names.output}", sizes.width, sizes.heads * sizes.size, recipe)
    heads = {"query_norm": (names.query_norm, sizes.heads)}
    heads |= {"key_norm": (names.key_norm, sizes.groups)}
    norms = {}
    if recipe.head_norm is not None:
        for part, (name, count) in heads.items():
            norms[part] = recipe.head_norm(read, f"{at}.{name}", count, recipe)
    mixed, sinks, gate = recipe.biases.mixed, names.sinks, names.output_gate
    return CausalAttention(
        norm_of(read, at, names.before_attention, recipe) or eqx.nn.Identity(),
        output=put(by_head(np.ascontiguousarray(output), sizes.heads))[0],
        output_bias=put(read(f"{at}.{names.output}.bias", sizes.width))[0] if mixed else None,
        output_norm=norm_of(read, at, names.after_attention, recipe),
        span=span,
        scale=recipe.scale,
        cap=recipe.cap,
        sinks=None if sinks is None else put(read(f"{at}.{sinks}", sizes.heads))[0],
        gate=None if gate is None else put(_rows(read, f"{at}.{gate}", sizes.heads, recipe))[0],
        turn_first=recipe.turn_first,
        **recipe.projections(read, at, recipe),
        **norms,
    )


def norm_of(read: Reader, at: str, name: str | None, recipe: Recipe) -> Norm | None:
    """A layer's norm over the width, where it has one of that name."""
    if name is None:
        return None
    return recipe.norm(read, f"{at}.{name}", recipe.sizes.width, recipe.sizes.eta)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    r"""The slopes of linear biases: powers of :math:`2^{-8/n}`.

    n is the largest power of two of heads; heads beyond have odd powers of :math:`2^{-4/n}`.

    Examples
    --------
    >>> alibi_slopes(3)
    (0.0625, 0.00390625, 0.25)
    """
    most = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (k + 1) / most) for k in range(most)]
    slopes += [2 ** (-4 * (2 * k + 1) / most) for k in range(heads - most)]
    return tuple(slopes)
