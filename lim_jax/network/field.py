"""Layers as vector fields with two slots: a Transformer's, and sums of any fields."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from lim_jax._checks import require_key
from lim_jax._jit import filter_jit
from lim_jax.grid.measure import Grid
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.network.short_convolution import ShortConvolution
from lim_jax.network.slots import Field, State
from lim_jax.network.tokenwise import FeedForward

# Fields whose heads read the context, and a pull of each by itself is known (`adjoint.stages`).
FIELDS_WITH_HEADS = CausalAttention | RecurrentMixer | ShortConvolution


class TransformerField(eqx.Module):
    r"""The complete field :math:`\mathscr F = \mathrm{Attn} + \mathrm{FNN}`.

    `eq:complete-vector-field-finite` on tokens, `eq:induced-transformer-field` in the continuum. In
    steps of one `steps.split`, which applies its sublayers one after the other, is a layer of GPT-2
    or Llama, and `steps.euler` the parallel block of GPT-NeoX,
    :math:`x + \mathrm{Attn}(x) + \mathrm{FNN}(x)`.

    Attributes
    ----------
    attention
        The sublayer that reads the context: `CausalAttention`, a recurrent sublayer, or a sum of
        both.
    feed_forward
        A tokenwise field: `FeedForward`, `GatedFeedForward` or one's own.

    Examples
    --------
    >>> field = TransformerField.init(6, heads=2, key=jax.random.key(0))
    >>> x = jax.random.normal(jax.random.key(1), (5, 6))
    >>> eqx.filter_jit(field)(x, x, lim.token_grid(5)).shape
    (5, 6)
    """

    attention: Any
    feed_forward: Field

    @classmethod
    @filter_jit
    def init(
        cls,
        width: int,
        *,
        heads: int = 1,
        intermediate_size: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.gelu,
        norm_eps: float = 1e-5,
        key: Key[Array, ""],
        **attention_options: Any,
    ) -> "TransformerField":
        r"""Make a random field of a `CausalAttention` and a `FeedForward`.

        Parameters
        ----------
        width
            The width of a state, at least 2.
        heads
            How many heads attend; they divide the width, unless `head_dim` is given.
        intermediate_size
            How many hidden features the tokenwise network has; by default four times the width.
        activation
            The elementwise activation of the tokenwise network; GELU by default.
        norm_eps
            The :math:`\eta` of both layer normalisations.
        key
            The random key of all weights.
        **attention_options
            Further arguments of `CausalAttention.init`: `num_kv_heads`, `head_dim`, `bias`,
            `rotary`, `window` and `attend`.

        Returns
        -------
        TransformerField
            The field, with Gaussian matrices and zero biases.

        Raises
        ------
        ValueError
            If a size is no positive whole number, or sizes do not divide one another.
        """
        require_key(key)
        attention_key, network_key = jax.random.split(key)
        return cls(
            CausalAttention.init(
                width, heads=heads, norm_eps=norm_eps, key=attention_key, **attention_options
            ),
            FeedForward.init(
                width,
                intermediate_size=intermediate_size,
                activation=activation,
                norm_eps=norm_eps,
                key=network_key,
            ),
        )

    @property
    def sublayers(self) -> tuple[Any, Field]:
        """The fields whose sum this is, in the order in which a layer applies them."""
        return self.attention, self.feed_forward

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Add the outputs of the sublayers, which check their arguments."""
        return self.attention(x, context, grid) + self.feed_forward(x, context, grid)


class SumOfFields(eqx.Module):
    """A sum of any fields: a layer of other sublayers, or a sublayer of several side by side."""

    sublayers: tuple[Field, ...]

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Add the outputs of the fields; each gets the log weights of its own heads."""
        total = jnp.zeros_like(x)
        heads = 0
        for field in self.sublayers:
            field_grid = grid
            if grid.log_weights is not None and grid.log_weights.ndim == 2:
                field_grid = replace(grid, log_weights=grid.log_weights[heads:])
            total = total + field(x, context, field_grid)
            heads = heads + heads_of(field)
        return total


def heads_of(field: Any) -> int:
    """Return the number of heads by which a field reads its context, or 0 if none is known."""
    if isinstance(field, TransformerField | SumOfFields):
        return sum(map(heads_of, field.sublayers))
    if not isinstance(field, FIELDS_WITH_HEADS):
        return 0
    return 1 if isinstance(field, ShortConvolution) else field.output.shape[-3]
