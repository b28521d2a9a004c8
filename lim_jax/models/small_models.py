"""A small byte-level language model, and real text that every Python brings."""

import sysconfig
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from lim_jax._checks import as_int, require, require_indices, require_key
from lim_jax._jit import filter_jit
from lim_jax._random import gaussian
from lim_jax.loss.readouts import LinearReadout
from lim_jax.models.causal import CausalLM
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.positions import Rotary
from lim_jax.network.steps import split

BYTES = 256
Tokens = Int[Array, "examples tokens"]


@filter_jit
def gaussian_model(
    vocabulary: int,
    length: int | None = None,
    *,
    width: int = 32,
    heads: int = 4,
    depth: int = 4,
    rotary: Rotary | None = None,
    key: Key[Array, ""],
) -> CausalLM:
    """Make a random pre-norm network over any ids, with Gaussian embeddings.

    Split layers at unit step, no last norm, and a head that is not the embedding.

    Parameters
    ----------
    vocabulary
        How many words there are.
    length
        How many learned positions there are, the most ids of a context; None with `rotary`.
    width
        The width of a state.
    heads
        How many heads each layer has; they divide the width.
    depth
        How many layers there are.
    rotary
        Rotary positions in place of the learned ones, for contexts of any length; None for learned
        ones.
    key
        The random key of all weights.

    Returns
    -------
    CausalLM
        The model, in JAX's default precision.

    Raises
    ------
    ValueError
        If a size is no positive whole number, the heads do not divide the width, or there is a
        length with `rotary`.

    Examples
    --------
    >>> from lim_jax.network.frequencies import rotary_frequencies
    >>> rotary = Rotary(rotary_frequencies(4))
    >>> model = gaussian_model(9, width=8, heads=2, rotary=rotary, key=jax.random.key(0))
    >>> model.positions is None, model.logits(jnp.arange(9)).shape
    (True, (9, 9))
    """
    require_key(key)
    vocabulary = as_int(vocabulary, "vocabulary")
    depth = as_int(depth, "depth")
    learned = as_int(length, "length") if rotary is None else None
    require(
        rotary is None or length is None,
        "length",
        got=f"{length} with rotary positions",
        expected="None",
        cure="Leave one of the two out: rotary positions are for contexts of any length.",
    )
    embedding, positions, layers, readout = jax.random.split(key, 4)

    def field(key: Key[Array, ""]) -> TransformerField:
        """Draw one layer."""
        return TransformerField.init(width, heads=heads, rotary=rotary, key=key)

    layers = jax.vmap(field)(jax.random.split(layers, depth))  # first, since it checks the width
    return CausalLM(
        embedding=gaussian(embedding, (vocabulary, width)),
        positions=None if learned is None else gaussian(positions, (learned, width)),
        flow=ResidualFlow(layers, horizon=float(depth), step=split),
        norm=eqx.nn.Identity(),
        head=LinearReadout.init(width, vocabulary, key=readout).weight.T,
    )


def byte_model(
    length: int, *, width: int = 32, heads: int = 4, depth: int = 4, key: Key[Array, ""]
) -> CausalLM:
    """Make a `gaussian_model` over the 256 bytes, with learned positions.

    Parameters
    ----------
    length
        How many learned positions there are, the most bytes of a context.
    width
        The width of a state.
    heads
        How many heads each layer has; they divide the width.
    depth
        How many layers there are.
    key
        The random key of all weights.

    Returns
    -------
    CausalLM
        The model, whose ids are bytes.

    Raises
    ------
    ValueError
        If a size is no positive whole number, or the heads do not divide the width.

    Examples
    --------
    >>> model = byte_model(8, width=4, heads=2, depth=2, key=jax.random.key(0))
    >>> model.logits(jnp.arange(5)).shape
    (5, 256)
    """
    return gaussian_model(BYTES, length, width=width, heads=heads, depth=depth, key=key)


def standard_library_text(size: int = 400_000) -> Int[Array, " bytes"]:
    """Read the sources of the standard library's own modules, one after another in order of name.

    Parameters
    ----------
    size
        How many bytes to return.

    Returns
    -------
    Int[Array, " bytes"]
        The first bytes of the sources, numbers from 0 to 255.

    Raises
    ------
    ValueError
        If this Python brings fewer bytes of source.

    Examples
    --------
    >>> text = standard_library_text(1000)
    >>> text.shape, int(text.max()) < BYTES
    ((1000,), True)
    """
    size = as_int(size, "size")
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= size:
            break
    require(
        len(text) >= size,
        "size",
        got=f"{len(text)} bytes of source in {len(files)} files",
        expected=f"at least {size}",
        cure="Ask for less, or pass your own text as an array of byte values.",
    )
    return jnp.asarray(np.frombuffer(bytes(text[:size]), np.uint8).astype(np.int32))


@filter_jit
def sample_windows(
    text: Int[Array, " ids"], length: int, count: int, *, key: Key[Array, ""]
) -> Tokens:
    """Cut random windows of a text, each of some ids of context and the id after them.

    Parameters
    ----------
    text
        The ids of the text, more than `length`.
    length
        How many ids the context of each window has.
    count
        How many windows to cut; they may overlap.
    key
        The random key of where they begin, uniformly.

    Returns
    -------
    Int[Array, "examples tokens"]
        The windows, of shape ``(count, length + 1)``.

    Raises
    ------
    ValueError
        If the text is not longer than the context, or a number is no positive whole number.

    Examples
    --------
    >>> sample_windows(jnp.arange(10), 3, 2, key=jax.random.key(0)).shape
    (2, 4)
    """
    require_key(key)
    require_indices(text, "text")
    length = as_int(length, "length")
    count = as_int(count, "count")
    require(
        text.size > length,
        "text",
        got=f"{text.size} ids",
        expected=f"more than the context of {length}",
        cure="Take a longer text or a shorter context.",
    )
    starts = jax.random.randint(key, (count, 1), 0, text.size - length)
    return text[starts + jnp.arange(length + 1)[None, :]]
