"""Reading of a decoder by its recipe."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax.checkpoints.implied_options import implied_options
from lim_jax.checkpoints.options import refuse_unknown, require_in
from lim_jax.checkpoints.placement import (
    ON_DEVICE,
    WeightPlacement,
    place_by_kind,
    published_precision,
)
from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.sublayers import read_norm
from lim_jax.checkpoints.tensor_reader import Reader, Source, Tensor, Weights
from lim_jax.network.field import SumOfFields, TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.masks import AttentionMask, SwitchedMask, layer_masks
from lim_jax.network.norms import Norm
from lim_jax.network.slots import Field
from lim_jax.weights import HalfRows, Rows, slice_rows


def read_decoder(
    checkpoint: Source,
    dtype: str,
    recipe: Recipe,
    placement: WeightPlacement = ON_DEVICE,
    compute: str | None = None,
) -> Weights:
    """Read a decoder's weights from a checkpoint, layer by layer.

    Parameters
    ----------
    checkpoint
        The files, of `open_checkpoint` or of `gguf_file.open_gguf`.
    dtype
        The precision of the arrays, ``"float32"`` or ``"float64"``.
    recipe
        The decoder: its sizes, the masks of its layers, the names of its tensors, and readers of
        its parts.
    placement
        Where layers and embeddings are put as they are read; by default all on the device.
    compute
        The precision of products, of `network.ResidualFlow`: "bfloat16" rounds their operands; None
        is for what `jax.default_matmul_precision` says.

    Returns
    -------
    Weights
        The arguments of `CausalLM`, ``parts``, and ``read_names``, the names of all tensors that
        the network accounts for.

    Raises
    ------
    ValueError
        If a tensor is missing, of another shape or not finite, the head is none over words, or the
        configuration has an option that nobody read.
    """
    refuse_unknown(checkpoint.config, implied_options(checkpoint.config, recipe))
    sizes = recipe.sizes
    names = recipe.names
    read = _reader(checkpoint, dtype, recipe, placement)
    shape = sizes.vocabulary, sizes.width
    rows = placement.rows(read, f"{read.prefix}{names.embedding}.weight", shape)
    flow = ResidualFlow(
        _read_layers(read, recipe, placement),
        horizon=recipe.increment * sizes.depth,
        step=recipe.step,
        compute=compute,
    )
    _account_for_mtp(read, recipe)
    positions = _positions(read, recipe)
    head_bias = None
    if recipe.biases.head:
        head_bias = read.read_named(f"{names.head}.bias", sizes.vocabulary)
    norm = recipe.norm(read, names.last, sizes.width, sizes.norm_eps)
    positions, head_bias, norm = jax.device_put((positions, head_bias, norm))
    parts = {
        "embedding": rows if names.embedding_norm is None else _normalise_rows(read, recipe, rows),
        "positions": positions,
        "flow": flow,
        "norm": norm,
        "head": _head(read, recipe, rows, shape, placement),
        "head_bias": head_bias,
        "embedding_scale": recipe.embedding_scale,
        "logit_scale": recipe.logit_scale,
        "logit_cap": recipe.logit_cap,
    }
    return Weights(parts, frozenset(read.read_names))


def _reader(checkpoint: Source, dtype: str, recipe: Recipe, placement: WeightPlacement) -> Reader:
    """Return a reader of the tensors, in half precision where they are published and kept so."""
    # Matrices that are kept as they are published need not go through full precision.
    precision = placement.precision
    as_published = precision is not None and published_precision(checkpoint) == precision
    return Reader(checkpoint, dtype, recipe.names.prefix, precision if as_published else None)


def _read_layers(read: Reader, recipe: Recipe, placement: WeightPlacement) -> Any:
    """Read and place all layers, and account for the tensors of those that are read later."""
    # Weights that stay on the host are fetched inside a program, so no mask may be on a device.
    masks = jax.tree.map(np.asarray, layer_masks(list(recipe.masks)))

    def layer(index: int) -> Field:
        """Read the field of one layer."""
        layer_recipe = recipe.layers[index] if recipe.layers else recipe
        return _layer(read, index, layer_recipe, masks[index])

    layers = _place_layers(placement, layer, recipe)
    if not placement.each_layer:
        _account_for_layers(read, recipe, layer)
    return layers


def _positions(read: Reader, recipe: Recipe) -> Tensor | None:
    """Read the embedding of learned positions, or return None if there is none."""
    name = recipe.names.positions
    if name is None:
        return None
    count = recipe.offset + recipe.num_positions
    return read(f"{name}.weight", count, recipe.sizes.width)[recipe.offset :]


def _place_layers(placement: WeightPlacement, layer: Callable[[int], Field], recipe: Recipe) -> Any:
    """Read and place all layers, those of each kind together if there are several kinds."""
    kinds = list(dict.fromkeys(recipe.layers))
    if len(kinds) > 1:
        return place_by_kind(placement, layer, list(map(kinds.index, recipe.layers)))
    return placement.layers(layer, recipe.sizes.depth)


def _layer_tensors(read: Reader, at: str) -> list[str]:
    """Return the names of all tensors that begin with a prefix."""
    return [name for name in read.checkpoint.files if name.startswith(at)]


def _account_for_layers(read: Reader, recipe: Recipe, layer: Callable[[int], object]) -> None:
    """Mark the tensors of all layers as read, and read one layer of each set of tensor names.

    The first set was read before, for the shapes.
    """
    kinds = set()
    for index in range(recipe.sizes.depth):
        at = f"{read.prefix}{recipe.names.layer}.{index}."
        tensors = _layer_tensors(read, at)
        kind = frozenset(name.removeprefix(at) for name in tensors)
        if kind in kinds:
            read.read_names.update(tensors)
        elif kinds:
            layer(index)
        kinds.add(kind)


def _account_for_mtp(read: Reader, recipe: Recipe) -> None:
    """Mark the tensors that predict further tokens as read, in layers behind the last or apart."""
    names = recipe.names
    depth = recipe.sizes.depth
    for index in range(depth, depth + recipe.num_mtp_layers):
        read.read_names.update(_layer_tensors(read, f"{read.prefix}{names.layer}.{index}."))
    if names.mtp_prefix is not None:
        read.read_names.update(_layer_tensors(read, names.mtp_prefix))


def _head(
    read: Reader, recipe: Recipe, rows: Rows, shape: tuple[int, int], placement: WeightPlacement
) -> Rows | None:
    """Read the head's own matrix; return None if the head is the embedding."""
    # A file's head goes before an option that ties it to the embedding, as in transformers.
    names = recipe.names
    name = f"{names.head}.weight"
    read.read_names.add(name)
    if recipe.tied and name not in read.checkpoint.files:
        # Rows that were normalised as they are embedded are not the head's.
        return None if names.embedding_norm is None else rows
    require_in(
        "tensor",
        name in read.checkpoint.files,
        f"no {name}",
        "a head that gives logits over words",
        (
            "Take the publisher's ...ForCausalLM: a model of embeddings or a classifier has no "
            "such tensor. Or state tie_word_embeddings as true, if the head is the embedding."
        ),
    )
    head = placement.rows(read, name, shape)
    return None if recipe.tied and _alike(head, rows) and names.embedding_norm is None else head


def _alike(head: Rows, rows: Rows) -> bool:
    """Tell whether two matrices are equal and both in this process's memory."""
    tables = [part.bits if isinstance(part, HalfRows) else part for part in (head, rows)]
    in_memory = [isinstance(part, Array) and part.is_fully_addressable for part in tables]
    return all(in_memory) and np.array_equal(np.asarray(tables[0]), np.asarray(tables[1]))


def _normalise_rows(read: Reader, recipe: Recipe, rows: Rows) -> Array:
    """Apply the embedding's norm to all rows of the matrix once, as it maps each row by itself."""
    assert recipe.names.embedding_norm is not None
    norm = recipe.norm(read, recipe.names.embedding_norm, recipe.sizes.width, recipe.sizes.norm_eps)

    @jax.jit
    def normalise(norm: Norm, rows: Rows) -> Array:
        """Normalise all rows in one compiled program."""
        return jax.vmap(norm)(slice_rows(rows, jnp.array(0), rows.shape[0]))

    return normalise(norm, rows)


def _layer(read: Reader, index: int, recipe: Recipe, mask: AttentionMask | SwitchedMask) -> Field:
    """Read one layer as a field: attention and network, or one of them alone."""
    names = recipe.names
    at = f"{recipe.names.layer}.{index}"
    read.ignore(*(f"{at}.{name}" for name in names.ignored))
    attention = None
    network = None
    if recipe.attention is not None:
        attention = recipe.attention(read, at, recipe, mask)
    if recipe.network is not None:
        before = read_norm(read, at, names.before_network, recipe) or eqx.nn.Identity()
        after = read_norm(read, at, names.after_network, recipe)
        network = recipe.network(read, at, recipe, before, after)
    if attention is not None and network is not None:
        return TransformerField(attention, network)
    return SumOfFields(tuple(part for part in (attention, network) if part is not None))
