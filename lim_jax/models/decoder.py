"""A decoder, read by its recipe."""

import equinox as eqx
import jax
from jaxtyping import Array

from lim_jax.models.parts import layer_norm, norm_of
from lim_jax.models.reading import Reader, Source, Weights, head_of, put, stacked
from lim_jax.models.recipe import Recipe
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.span import Span, Spans, spans_of


def read_decoder(checkpoint: Source, dtype: str, recipe: Recipe) -> Weights:
    """Read the weights of a decoder, layer by layer."""
    sizes, names = recipe.sizes, recipe.names
    read = Reader(checkpoint, dtype, names.prefix)
    (rows,) = put(read(f"{names.embedding}.weight", sizes.vocabulary, sizes.width))
    spans = spans_of(list(recipe.spans))
    layers = stacked(lambda index: _layer(read, index, recipe, spans[index]), sizes.depth)
    shape = sizes.vocabulary, sizes.width
    _pass_over_further(read, recipe)
    parts = {
        "embedding": rows if names.embedding_norm is None else _normed_rows(read, recipe, rows),
        "positions": _positions(read, recipe),
        "flow": ResidualFlow(layers, horizon=recipe.increment * sizes.depth, step=recipe.step),
        "norm": recipe.norm(read, names.last, sizes.width, sizes.eta),
        "head": _head(read, recipe, rows, shape),
        "head_bias": _head_bias(read, recipe),
        "embedding_scale": recipe.embedding_scale,
        "logit_scale": recipe.logit_scale,
        "logit_cap": recipe.logit_cap,
    }
    return Weights(parts, frozenset(read.known))


def _pass_over_further(read: Reader, recipe: Recipe) -> None:
    """Know of the layers that guess further words, and are no part of the network."""
    for index in range(recipe.sizes.depth, recipe.sizes.depth + recipe.further):
        at = f"{recipe.names.prefix}{recipe.names.layer}.{index}."
        read.known.update(name for name in read.checkpoint.files if name.startswith(at))


def _head(read: Reader, recipe: Recipe, rows: Array, shape: tuple[int, int]) -> Array | None:
    name = f"{recipe.names.head}.weight"
    read.known.add(name)
    head = head_of(read, name, recipe.tied, rows, *shape)
    # Rows that were normalised as they are embedded are not the head's.
    return rows if head is None and recipe.names.embedding_norm is not None else head


def _head_bias(read: Reader, recipe: Recipe) -> Array | None:
    if not recipe.biases.head:
        return None
    return put(read.whole(f"{recipe.names.head}.bias", recipe.sizes.vocabulary))[0]


def _normed_rows(read: Reader, recipe: Recipe, rows: Array) -> Array:
    """The embedding, whose norm maps every word by itself: it is taken once."""
    assert recipe.names.embedding_norm is not None
    norm = layer_norm(read, recipe.names.embedding_norm, recipe.sizes.width, recipe.sizes.eta)
    return jax.jit(jax.vmap(norm))(rows)


def _positions(read: Reader, recipe: Recipe) -> Array | None:
    if recipe.names.positions is None:
        return None
    rows = recipe.places + recipe.offset
    table = read(f"{recipe.names.positions}.weight", rows, recipe.sizes.width)
    return put(table[recipe.offset :])[0]


def _layer(read: Reader, index: int, recipe: Recipe, span: Span | Spans) -> TransformerField:
    names, at = recipe.names, f"{recipe.names.layer}.{index}"
    read.passed_over(*(f"{at}.{name}" for name in names.passed_over))
    before = norm_of(read, at, names.before_network, recipe) or eqx.nn.Identity()
    after = norm_of(read, at, names.after_network, recipe)
    attention = recipe.attention(read, at, recipe, span)
    return TransformerField(attention, recipe.network(read, at, recipe, before, after))
