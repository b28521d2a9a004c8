"""Networks that map every token by itself, as fields whose `context` slot is not read."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import as_int, require_key
from lim_jax._jit import filter_jit
from lim_jax._products import linear
from lim_jax._random import fan_in
from lim_jax.grid.measure import Grid
from lim_jax.network.norms import LayerNorm, Norm, RMSNorm, normalise_rows
from lim_jax.network.slots import Field, State, require_pair
from lim_jax.weights import Weight

# Devices may share these arrays along the axis of hidden features, counted from the last.
GATED_AXES = {"gate": -2, "up": -2, "down": -1, "gate_bias": -1, "up_bias": -1}


class FeedForward(eqx.Module):
    r"""The tokenwise network :math:`W_2\,\sigma(W_1 \mathrm{LN}(x)_i + b_1) + b_2`.

    `eq:mlp-block`. A field whose `context` slot is not read.

    Attributes
    ----------
    norm
        A map of one token before the matrices; `equinox.nn.Identity` for none.
    inner, inner_bias
        :math:`W_1` and :math:`b_1`, to the hidden features; without a bias None.
    outer, outer_bias
        :math:`W_2` and :math:`b_2`, back to the width; without a bias None.
    activation
        The elementwise activation :math:`\sigma`; GELU by default.
    output_norm
        A map of one token that follows the network, or None.
    activation_numbers
        Learned numbers that the activation is passed after its argument, or None.
    sharded_axes
        The axis of each array, that of hidden features, along which devices may share it, counted
        from the last.
    """

    norm: Norm
    inner: Float[Weight, "hidden width"]
    inner_bias: Float[Weight, " hidden"] | None
    outer: Float[Weight, "width hidden"]
    outer_bias: Float[Weight, " width"] | None
    activation: Callable[..., Array] = eqx.field(static=True, default=jax.nn.gelu)
    output_norm: Norm | None = None
    activation_numbers: Float[Weight, " numbers"] | None = None
    # Devices may share an array along this axis, counted from the last: that of hidden features.
    sharded_axes: ClassVar[Mapping[str, int]] = {"inner": -2, "inner_bias": -1, "outer": -1}

    @classmethod
    @filter_jit
    def init(
        cls,
        width: int,
        *,
        intermediate_size: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.gelu,
        norm_eps: float = 1e-5,
        key: Key[Array, ""],
    ) -> "FeedForward":
        r"""Make a random network: Gaussian matrices and zero biases.

        Parameters
        ----------
        width
            The width of a state, at least 2.
        intermediate_size
            How many hidden features there are; by default four times the width.
        activation
            The elementwise activation; GELU by default.
        norm_eps
            The :math:`\eta` of the `LayerNorm` before the matrices.
        key
            The random key of the matrices, of variance one over their fan-in.

        Returns
        -------
        FeedForward
            The network.

        Raises
        ------
        ValueError
            If a size is no positive whole number, the width is 1, or `norm_eps` is not positive.
        """
        width = as_int(width, "width", least=2)
        if intermediate_size is None:
            intermediate_size = 4 * width
        features = as_int(intermediate_size, "intermediate_size")
        require_key(key)
        inner_key, outer_key = jax.random.split(key)
        return cls(
            LayerNorm.init(width, norm_eps),
            fan_in(inner_key, features, width),
            jnp.zeros(features),
            fan_in(outer_key, width, features),
            jnp.zeros(width),
            activation,
        )

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Apply the network to every token of `x`."""
        require_pair(x, context, grid, self.inner.shape[-1])
        # Whole matrices of tokens: a product for each token under vmap is half as fast on a CPU.
        hidden = affine(self.inner, self.inner_bias, jax.vmap(self.norm)(x))
        if self.activation_numbers is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(hidden, self.activation_numbers)
        return normalise_rows(self.output_norm, affine(self.outer, self.outer_bias, hidden))


class GatedFeedForward(eqx.Module):
    r"""The gated tokenwise network :math:`W_D\,(\sigma(W_G z) \odot W_U z)` at z = LN(x)_i.

    SwiGLU where the `activation` :math:`\sigma` is `jax.nn.silu`, GeGLU where it is `jax.nn.gelu`.
    A field whose `context` slot is not read.

    Attributes
    ----------
    norm
        A map of one token before the matrices; `equinox.nn.Identity` for none.
    gate, up, down
        :math:`W_G`, :math:`W_U` and :math:`W_D`: the first two to the hidden features, the last
        back to the width.
    gate_bias, up_bias, down_bias
        Added after the respective matrix, or None, each by itself.
    activation
        The elementwise activation :math:`\sigma`; SiLU by default.
    output_norm
        A map of one token that follows the network, or None.
    sharded_axes
        The axis of each array, that of hidden features, along which devices may share it, counted
        from the last.
    """

    norm: Norm
    gate: Float[Weight, "hidden width"]
    up: Float[Weight, "hidden width"]
    down: Float[Weight, "width hidden"]
    gate_bias: Float[Weight, " hidden"] | None = None
    up_bias: Float[Weight, " hidden"] | None = None
    down_bias: Float[Weight, " width"] | None = None
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.silu)
    output_norm: Norm | None = None
    sharded_axes: ClassVar[Mapping[str, int]] = GATED_AXES

    @classmethod
    @filter_jit
    def init(
        cls,
        width: int,
        *,
        intermediate_size: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.silu,
        norm_eps: float = 1e-5,
        key: Key[Array, ""],
    ) -> "GatedFeedForward":
        r"""Make a random network: Gaussian matrices behind an `RMSNorm`, and no biases.

        Parameters
        ----------
        width
            The width of a state, at least 2.
        intermediate_size
            How many hidden features there are; by default four times the width.
        activation
            The elementwise activation of the gate; SiLU by default.
        norm_eps
            The :math:`\eta` of the norm before the matrices.
        key
            The random key of the matrices, of variance one over their fan-in.

        Returns
        -------
        GatedFeedForward
            The network.

        Raises
        ------
        ValueError
            If a size is no positive whole number, the width is 1, or `norm_eps` is not positive.
        """
        width = as_int(width, "width", least=2)
        if intermediate_size is None:
            intermediate_size = 4 * width
        features = as_int(intermediate_size, "intermediate_size")
        require_key(key)
        gate_key, up_key, down_key = jax.random.split(key, 3)
        gate, up = (fan_in(k, features, width) for k in (gate_key, up_key))
        down = fan_in(down_key, width, features)
        return cls(RMSNorm.init(width, norm_eps), gate, up, down, activation=activation)

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Apply the network to every token of `x`."""
        require_pair(x, context, grid, self.gate.shape[-1])
        normed = jax.vmap(self.norm)(x)
        gate = self.activation(affine(self.gate, self.gate_bias, normed))
        hidden = gate * affine(self.up, self.up_bias, normed)
        return normalise_rows(self.output_norm, affine(self.down, self.down_bias, hidden))


class SideBySide(eqx.Module):
    r"""Tokenwise networks side by side, and a scale s of their sum with the state: Gemma 4's.

    .. math:: F(x) = s\,\mathrm{LN}(\sum_k f_k(x)) + (s - 1)\,x, \qquad
              x + F(x) = s\,(x + \mathrm{LN}(\sum_k f_k(x)))
    """

    networks: tuple[Field, ...]
    output_norm: Norm
    scale: Float[Weight, " one"]

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Apply the networks to every token of `x`, and scale the sum."""
        total = jnp.zeros_like(x)
        scale = self.scale[None, :]
        for network in self.networks:
            total += network(x, context, grid)
        return scale * normalise_rows(self.output_norm, total) + (scale - 1) * x


class NormedResidual(eqx.Module):
    r"""A field that puts a norm on the residual path: :math:`s\,\mathrm{LN}(x) - x`, MiniMax's.

    Beside a sublayer f of the same norm in a `field.SumOfFields`,
    :math:`x + F(x) + f(x) = s\,\mathrm{LN}(x) + f(x)`.
    """

    norm: Norm
    scale: float = eqx.field(static=True, default=1.0)

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Compute the field for every token of `x`."""
        return self.scale * jax.vmap(self.norm)(x) - x


def affine(
    matrix: Float[Weight, "out width"],
    bias: Float[Weight, " out"] | None,
    tokens: Float[Array, "length width"],
) -> Float[Array, "length out"]:
    """Map every token by a matrix, and add its bias."""
    mapped = linear(matrix, tokens)
    return mapped if bias is None else mapped + bias[None, :]
