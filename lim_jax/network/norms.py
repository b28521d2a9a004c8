"""Normalisation of one token."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require

Norm = Callable[[Array], Array]


class LayerNorm(eqx.Module):
    r"""Regularised layer normalisation of one token (`eq:smooth-layernorm`).

    .. math:: \mathrm{LN}(z) = \gamma \odot
              \frac{z - \bar z \mathbf 1}{\sqrt{d^{-1}\sum_m (z_m - \bar z)^2 + \eta}} + \beta

    Attributes
    ----------
    scale, shift
        :math:`\gamma` and :math:`\beta`, of shape ``(width,)``.
    eta
        :math:`\eta_{LN} > 0`, which removes the singularity at zero variance.

    Raises
    ------
    ValueError
        Where the width is 1 (the result would not depend on z), `eta` is not positive, or a token
        of another width is passed.

    Examples
    --------
    >>> norm = LayerNorm.init(2, eta=3.0)
    >>> norm(jnp.array([4.0, 2.0])).tolist()  # (z - mean) / sqrt(1 + 3)
    [0.5, -0.5]
    """

    scale: Float[Array, " width"]
    shift: Float[Array, " width"]
    eta: float = eqx.field(static=True, default=1e-5)

    @classmethod
    def init(cls, width: int, eta: float = 1e-5) -> "LayerNorm":
        """Scale one and shift zero."""
        require(
            width > 1,
            "width",
            got=f"{width}",
            expected="at least 2",
            cure="Layer normalisation of one feature is constant: use eqx.nn.Identity().",
        )
        require(eta > 0, "eta", got=f"{eta}", expected="a positive number", cure="Try 1e-5.")
        return cls(jnp.ones(width), jnp.zeros(width), eta)

    def __call__(self, z: Float[Array, " width"]) -> Float[Array, " width"]:
        """Normalise one token."""
        require_width(z, self.scale.shape[-1])
        centred = z - jnp.mean(z)
        variance = jnp.mean(centred**2)
        return self.scale * centred * jax.lax.rsqrt(variance + self.eta) + self.shift

    def bound(self) -> Float[Array, ""]:
        r"""A bound :math:`C_{LN}` on :math:`\|\mathrm{LN}(z)\|`, uniform over all z.

        :math:`\sqrt d\,\|\gamma\|_\infty + \|\beta\|` (`eq:preln-uniform-normalized-bound`): the
        normalised token has Euclidean norm at most :math:`\sqrt d`.

        Examples
        --------
        >>> float(LayerNorm.init(4).bound())
        2.0
        """
        width = self.scale.shape[-1]
        return math.sqrt(width) * jnp.max(jnp.abs(self.scale)) + jnp.linalg.norm(self.shift)


def require_width(x: Float[Array, "... width"], width: int) -> None:
    """Refuse tokens of another width than the parameters'."""
    require(
        x.shape[-1] == width,
        "state",
        got=f"width {x.shape[-1]} (shape {x.shape})",
        expected=f"width {width}, that of the layer's parameters",
        cure="Embed the input in the layers' width, or build the layers with the input's.",
    )
