"""A decoder, read by its recipe."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax.models.holding import WHOLE, Holding
from lim_jax.models.parts import layer_norm, norm_of
from lim_jax.models.reading import Reader, Source, Weights, put
from lim_jax.models.recipe import Recipe
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.span import Span, Spans, spans_of
from lim_jax.weights import Rows, stretch


def read_decoder(
    checkpoint: Source, dtype: str, recipe: Recipe, holding: Holding = WHOLE
) -> Weights:
    """Read the weights of a decoder, layer by layer, or find where they are."""
    sizes, names = recipe.sizes, recipe.names
    read = Reader(checkpoint, dtype, names.prefix)
    shape = sizes.vocabulary, sizes.width
    rows = holding.rows(read, f"{read.prefix}{names.embedding}.weight", shape)
    # Fetched while a program runs, they are on no device before.
    spans = jax.tree.map(np.asarray, spans_of(list(recipe.spans)))

    def layer(index: int) -> TransformerField:
        return _layer(read, index, recipe, spans[index])

    layers = holding.layers(layer, sizes.depth)
    if not holding.each_layer:
        _look_through(read, recipe, layer)
    _pass_over_further(read, recipe)
    parts = {
        "embedding": rows if names.embedding_norm is None else _normed_rows(read, recipe, rows),
        "positions": _positions(read, recipe),
        "flow": ResidualFlow(layers, horizon=recipe.increment * sizes.depth, step=recipe.step),
        "norm": recipe.norm(read, names.last, sizes.width, sizes.eta),
        "head": _head(read, recipe, rows, shape, holding),
        "head_bias": _head_bias(read, recipe),
        "embedding_scale": recipe.embedding_scale,
        "logit_scale": recipe.logit_scale,
        "logit_cap": recipe.logit_cap,
    }
    return Weights(parts, frozenset(read.known))


def _look_through(read: Reader, recipe: Recipe, layer: Callable[[int], object]) -> None:
    """Know of all layers' tensors; one is read of those that have tensors of the same names.

    The first one was read.
    """
    kinds = set()
    for index in range(recipe.sizes.depth):
        at = f"{read.prefix}{recipe.names.layer}.{index}."
        found = [name for name in read.checkpoint.files if name.startswith(at)]
        kind = frozenset(name.removeprefix(at) for name in found)
        if kind in kinds:
            read.known.update(found)
        elif kinds:
            layer(index)
        kinds.add(kind)


def _pass_over_further(read: Reader, recipe: Recipe) -> None:
    """Know of the layers that guess further words, and are no part of the network."""
    for index in range(recipe.sizes.depth, recipe.sizes.depth + recipe.further):
        at = f"{recipe.names.prefix}{recipe.names.layer}.{index}."
        read.known.update(name for name in read.checkpoint.files if name.startswith(at))


def _head(
    read: Reader, recipe: Recipe, rows: Rows, shape: tuple[int, int], holding: Holding
) -> Rows | None:
    """The head's own matrix; None where it is the embedding, which a file may hold once more.

    A matrix of its own goes first even where the options say that the two are one, as the
    publishers' own readers have it.
    """
    names = recipe.names
    name = f"{names.head}.weight"
    read.known.add(name)
    if recipe.tied and name not in read.checkpoint.files:
        # Rows that were normalised as they are embedded are not the head's.
        return None if names.embedding_norm is None else rows
    head = holding.rows(read, name, shape)
    return None if recipe.tied and _alike(head, rows) and names.embedding_norm is None else head


def _alike(head: Rows, rows: Rows) -> bool:
    """Whether two matrices in this process's memory are the same."""
    held = [isinstance(part, Array) and part.is_fully_addressable for part in (head, rows)]
    return all(held) and np.array_equal(np.asarray(head), np.asarray(rows))


def _head_bias(read: Reader, recipe: Recipe) -> Array | None:
    if not recipe.biases.head:
        return None
    return put(read.whole(f"{recipe.names.head}.bias", recipe.sizes.vocabulary))[0]


def _normed_rows(read: Reader, recipe: Recipe, rows: Rows) -> Array:
    """The embedding, whose norm maps every word by itself: it is taken once, and held whole."""
    assert recipe.names.embedding_norm is not None
    norm = layer_norm(read, recipe.names.embedding_norm, recipe.sizes.width, recipe.sizes.eta)
    of_all = jax.jit(lambda rows: jax.vmap(norm)(stretch(rows, jnp.array(0), rows.shape[0])))
    return of_all(rows)


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
