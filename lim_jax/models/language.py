"""A small byte-level language model, and real text that every Python brings.

Enough to put the diagnostics on a network that has learnt something, in seconds and without a
download.
"""

import sysconfig
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from lim_jax._checks import require
from lim_jax._random import gaussian
from lim_jax.grid import token_grid
from lim_jax.loss import LinearReadout, autoregressive_cross_entropy, teacher_forcing
from lim_jax.network.field import State, TransformerField
from lim_jax.network.flow import ResidualFlow, split
from lim_jax.training.loop import Progress, resumable

BYTES = 256
Tokens = Int[Array, "examples tokens"]


class LanguageModel(eqx.Module):
    """Byte and position embeddings, a pre-norm network, and a linear readout.

    Attributes
    ----------
    embedding, positions
        One vector for each byte, and for each place in the context.
    flow
        The network, in the split scheme at unit step.
    readout
        From states to logits of the next byte.
    """

    embedding: Float[Array, "bytes width"]
    positions: Float[Array, "length width"]
    flow: ResidualFlow
    readout: LinearReadout

    @classmethod
    def init(
        cls, length: int, *, width: int = 32, heads: int = 4, depth: int = 4, key: Key[Array, ""]
    ) -> "LanguageModel":
        """Gaussian embeddings, and the fields' own initialisation.

        Examples
        --------
        >>> LanguageModel.init(8, width=4, heads=2, depth=2, key=jax.random.key(0)).length
        8
        """
        embedding, positions, layers, readout = jax.random.split(key, 4)
        fields = jax.vmap(lambda key: TransformerField.init(width, heads=heads, key=key))(
            jax.random.split(layers, depth)
        )
        return cls(
            gaussian(embedding, (BYTES, width)),
            gaussian(positions, (length, width)),
            ResidualFlow(fields, horizon=float(depth), step=split),
            LinearReadout.init(width, BYTES, key=readout),
        )

    @property
    def length(self) -> int:
        """The context length L."""
        return self.positions.shape[0]

    def embed(self, tokens: Int[Array, " length"]) -> State:
        r"""The input states :math:`X_0` of one context, whose influence is measured."""
        return self.embedding[tokens] + self.positions

    def loss(
        self,
        x: State,
        targets: Float[Array, "length bytes"],
        query_weights: Float[Array, " length"],
    ) -> Float[Array, ""]:
        """The next-byte cross-entropy of one embedded context, in nats."""
        return self.terminal_loss(self.flow(x, token_grid(self.length)), targets, query_weights)

    def terminal_loss(
        self,
        state: State,
        targets: Float[Array, "length bytes"],
        query_weights: Float[Array, " length"],
    ) -> Float[Array, ""]:
        """The same loss, of the network's last state."""
        logits = self.readout(state, token_grid(self.length))
        return autoregressive_cross_entropy(logits, targets, query_weights)


def standard_library_text(size: int = 400_000) -> Int[Array, " bytes"]:
    """The sources of the standard library's own modules, one after another in order of name.

    Raises
    ------
    ValueError
        Where this Python brings fewer bytes of source.

    Examples
    --------
    >>> text = standard_library_text(1000)
    >>> text.shape, int(text.max()) < BYTES
    ((1000,), True)
    """
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = bytearray()
    for file in files:
        found += file.read_bytes()
        if len(found) >= size:
            break
    require(
        len(found) >= size,
        "size",
        got=f"{len(found)} bytes of source in {len(files)} files",
        expected=f"at least {size}",
        cure="Ask for less, or pass your own text as an array of byte values.",
    )
    return jnp.asarray(np.frombuffer(bytes(found[:size]), np.uint8).astype(np.int32))


def sample_windows(
    text: Int[Array, " bytes"], length: int, count: int, *, key: Key[Array, ""]
) -> Tokens:
    """Cut random windows of `length` context bytes and the byte after them.

    Examples
    --------
    >>> sample_windows(jnp.arange(10), 3, 2, key=jax.random.key(0)).shape
    (2, 4)
    """
    require(
        text.size > length,
        "text",
        got=f"{text.size} bytes",
        expected=f"more than the context of {length}",
        cure="Take a longer text or a shorter context.",
    )
    starts = jax.random.randint(key, (count, 1), 0, text.size - length)
    return text[starts + jnp.arange(length + 1)[None, :]]


def batch_of_windows(
    model: LanguageModel, windows: Tokens
) -> tuple[Float[Array, "examples length width"], Float[Array, "examples length bytes"]]:
    """Embed contexts, and turn the bytes after them into one-hot targets."""
    targets = jax.nn.one_hot(windows[:, 1:], BYTES, dtype=model.embedding.dtype)
    return jax.vmap(model.embed)(windows[:, :-1]), targets


def train(
    model: LanguageModel,
    text: Int[Array, " bytes"],
    steps: int,
    *,
    key: Key[Array, ""],
    batch: int = 16,
    rate: float = 3e-3,
    checkpoint: Path | None = None,
    progress: Progress = iter,
) -> tuple[LanguageModel, Float[Array, " steps"]]:
    """Train by Adam under uniform teacher forcing; returns the model and the loss of every step.

    Parameters
    ----------
    model
        Where to start.
    text
        Byte values.
    steps
        Updates.
    key
        For the windows.
    batch, rate
        Contexts a step, and Adam's rate.
    checkpoint, progress
        As in `training.resumable`.
    """
    optimiser = optax.adam(rate)
    weights = teacher_forcing(model.length)

    def risk(model: LanguageModel, windows: Tokens) -> Float[Array, ""]:
        x, targets = batch_of_windows(model, windows)
        return jax.vmap(lambda x, y: model.loss(x, y, weights))(x, targets).mean()

    @eqx.filter_jit
    def update(model, state, key):
        windows = sample_windows(text, model.length, batch, key=key)
        value, gradient = eqx.filter_value_and_grad(risk)(model, windows)
        change, state = optimiser.update(gradient, state)
        return eqx.apply_updates(model, change), state, value

    def step(carried: tuple, index: int) -> tuple[tuple, Float[Array, ""]]:
        model, state, value = update(carried[0], carried[1], jax.random.fold_in(key, index))
        return (model, state), value

    start = model, optimiser.init(eqx.filter(model, eqx.is_array))
    (model, _), losses = resumable(
        step, start, steps, checkpoint=checkpoint, every=50, progress=progress
    )
    return model, losses
