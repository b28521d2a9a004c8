"""Normalisation of one token."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import as_int, require, require_floats, require_positive
from lim_jax._precision import promote
from lim_jax.network.slots import EMBED
from lim_jax.weights import Weight

Norm = Callable[[Array], Array]


class LayerNorm(eqx.Module):
    r"""Regularised layer normalisation of one token (`eq:smooth-layernorm`).

    .. math:: \mathrm{LN}(z) = \gamma \odot
              \frac{z - \bar z \mathbf 1}{\sqrt{d^{-1}\sum_m (z_m - \bar z)^2 + \eta}} + \beta

    A width of 1, of which the result would not depend on z, and a token of another width raise
    ValueError.

    Attributes
    ----------
    scale, shift
        :math:`\gamma` and :math:`\beta`, of shape ``(width,)``.
    norm_eps
        :math:`\eta_{LN} > 0`, which removes the singularity at zero variance; one that is not
        positive and finite raises ValueError.

    Examples
    --------
    >>> norm = LayerNorm.init(2, norm_eps=3.0)
    >>> norm(jnp.array([4.0, 2.0])).tolist()  # (z - mean) / sqrt(1 + 3)
    [0.5, -0.5]
    """

    scale: Float[Weight, " width"]
    shift: Float[Weight, " width"]
    norm_eps: float = eqx.field(static=True, default=1e-5)

    def __check_init__(self):
        """Raise ValueError unless the epsilon is positive."""
        require_positive(
            self.norm_eps, "norm_eps", expected="a positive finite number", cure="Try 1e-5."
        )

    @classmethod
    def init(cls, width: int, norm_eps: float = 1e-5) -> "LayerNorm":
        r"""Make a norm of scale one and shift zero.

        Parameters
        ----------
        width
            The width of a token, at least 2.
        norm_eps
            :math:`\eta_{LN} > 0`.

        Returns
        -------
        LayerNorm
            The norm.

        Raises
        ------
        ValueError
            If the width is no whole number from 2, or `norm_eps` is not positive and finite.
        """
        constant = "Use eqx.nn.Identity(): layer normalisation of one feature is constant."
        width = as_int(width, "width", least=2, cure=constant)
        return cls(jnp.ones(width), jnp.zeros(width), norm_eps)

    def __call__(self, z: Float[Array, " width"]) -> Float[Array, " width"]:
        """Normalise one token, with sums in float32 at least; NaN and infinity pass on."""
        require_floats(z, "z", "width", cure=EMBED, width=self.scale.shape[-1])
        wide = promote(z)
        centred = wide - jnp.mean(wide)
        variance = jnp.mean(centred**2)
        normalised = centred * jax.lax.rsqrt(variance + self.norm_eps)
        return self.scale * normalised.astype(z.dtype) + self.shift

    def bound(self) -> Float[Array, ""]:
        r"""Return a bound :math:`C_{LN}` on :math:`\|\mathrm{LN}(z)\|`, uniform over all z.

        :math:`\sqrt d\,\|\gamma\|_\infty + \|\beta\|` (`eq:preln-uniform-normalized-bound`), each
        norm the largest where the arrays have a leading axis of layers.
        """
        width = self.scale.shape[-1]
        scale, shift = promote((self.scale, self.shift))
        largest_shift = jnp.max(jnp.linalg.norm(shift, axis=-1))
        return math.sqrt(width) * jnp.max(jnp.abs(scale)) + largest_shift


class RMSNorm(eqx.Module):
    r"""Division of one token by its root mean square, without centring or shift.

    .. math:: \mathrm{RMS}(z) = \gamma \odot \frac{z}{\sqrt{d^{-1}\sum_m z_m^2 + \eta}}

    It is smooth, and bounded by :math:`\sqrt d\,\|\gamma\|_\infty`. Over a head's size it is the
    norm of queries and keys. A token of another width raises ValueError.

    Attributes
    ----------
    scale
        :math:`\gamma`, of shape ``(width,)``.
    norm_eps
        :math:`\eta > 0`, which removes the singularity at zero; one that is not positive and finite
        raises ValueError.

    Examples
    --------
    >>> norm = RMSNorm.init(2, norm_eps=3.0)
    >>> norm(jnp.array([1.0, -1.0])).tolist()  # z / sqrt(1 + 3)
    [0.5, -0.5]
    """

    scale: Float[Weight, " width"]
    norm_eps: float = eqx.field(static=True, default=1e-5)

    def __check_init__(self):
        """Raise ValueError unless the epsilon is positive."""
        require_positive(
            self.norm_eps, "norm_eps", expected="a positive finite number", cure="Try 1e-5."
        )

    @classmethod
    def init(cls, width: int, norm_eps: float = 1e-5) -> "RMSNorm":
        r"""Make a norm of scale one.

        Parameters
        ----------
        width
            The width of a token, at least 1.
        norm_eps
            :math:`\eta > 0`.

        Returns
        -------
        RMSNorm
            The norm.

        Raises
        ------
        ValueError
            If the width is no positive whole number, or `norm_eps` is not positive and finite.
        """
        return cls(jnp.ones(as_int(width, "width")), norm_eps)

    def __call__(self, z: Float[Array, " width"]) -> Float[Array, " width"]:
        """Normalise one token, with sums in float32 at least; NaN and infinity pass on."""
        require_floats(z, "z", "width", cure=EMBED, width=self.scale.shape[-1])
        wide = promote(z)
        normalised = wide * jax.lax.rsqrt(jnp.mean(wide**2) + self.norm_eps)
        return self.scale * normalised.astype(z.dtype)


class GroupedNorm(eqx.Module):
    """An `RMSNorm` over the joint vector of neighbouring heads.

    Attributes
    ----------
    scale
        One factor for each feature of each head, of shape ``(heads, features)``.
    groups
        How many groups the heads are cut into: 1 for all heads together, as many as heads for a
        norm of each by itself.
    norm_eps
        Added to the mean square, positive and finite.
    sharded_axes
        The axis of each array, that of heads, along which devices may share it, counted from the
        last.
    """

    scale: Float[Weight, "heads features"]
    groups: int = eqx.field(static=True)
    norm_eps: float = eqx.field(static=True, default=1e-5)
    sharded_axes: ClassVar[Mapping[str, int]] = {"scale": -2}

    def __check_init__(self):
        """Raise ValueError unless the epsilon is positive and the groups divide the heads."""
        require_positive(
            self.norm_eps, "norm_eps", expected="a positive finite number", cure="Try 1e-5."
        )
        heads = self.scale.shape[-2]
        require(
            heads % self.groups == 0,
            "groups",
            got=f"{self.groups} for {heads} heads",
            expected="a number that divides the heads",
            cure="Take 1, or a group for each head.",
        )

    def __call__(
        self, vectors: Float[Array, "heads rows features"]
    ) -> Float[Array, "heads rows features"]:
        """Normalise what heads read for each row, with sums in float32 at least."""
        heads, rows, features = vectors.shape
        wide = promote(vectors).reshape(self.groups, heads // self.groups, rows, features)
        means = jnp.mean(wide**2, axis=(1, 3), keepdims=True)
        normed = (wide * jax.lax.rsqrt(means + self.norm_eps)).reshape(vectors.shape)
        return self.scale[:, None, :] * normed.astype(vectors.dtype)


class Scaled(eqx.Module):
    """The map :math:`b f(a x)` of a token or of numbers, with a checkpoint's multipliers.

    Attributes
    ----------
    function
        f.
    inside, outside
        a and b.
    """

    function: Callable[[Array], Array] = eqx.field(static=True)
    inside: float = eqx.field(static=True, default=1.0)
    outside: float = eqx.field(static=True, default=1.0)

    def __call__(self, x: Array) -> Array:
        """Multiply before and after the map."""
        return self.outside * self.function(self.inside * x)


class AcrossHeads(eqx.Module):
    """A norm of all heads' vectors of one token, side by side, for `multihead.CausalAttention`."""

    norm: Norm


class EachHead(eqx.Module):
    """A norm of its own for each head, one whose arrays have a leading axis of heads."""

    norms: Norm


class Clipped(eqx.Module):
    """A map of one vector whose entries are clipped at a limit on both sides (OLMo)."""

    limit: float = eqx.field(static=True)

    def __call__(self, z: Float[Array, " size"]) -> Float[Array, " size"]:
        """Clip one vector."""
        return jnp.clip(z, -self.limit, self.limit)


HeadNorm = Norm | AcrossHeads | EachHead


def normalise_rows(
    norm: Norm | None, rows: Float[Array, "rows width"]
) -> Float[Array, "rows width"]:
    """Normalise each row; return the rows unchanged if there is no norm."""
    return rows if norm is None else jax.vmap(norm)(rows)


def normalise_heads(
    norm: HeadNorm | None, vectors: Float[Array, "heads length size"]
) -> Float[Array, "heads length size"]:
    """Normalise heads' vectors: by one norm, by one of each, or all together; None leaves them."""
    if norm is None:
        return vectors
    if isinstance(norm, EachHead):
        return jax.vmap(lambda norm, rows: jax.vmap(norm)(rows))(norm.norms, vectors)
    if isinstance(norm, AcrossHeads):
        heads, length, size = vectors.shape
        concatenated = jnp.swapaxes(vectors, 0, 1).reshape(length, heads * size)
        return jnp.swapaxes(jax.vmap(norm.norm)(concatenated).reshape(length, heads, size), 0, 1)
    return jax.vmap(jax.vmap(norm))(vectors)
