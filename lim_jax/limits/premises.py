"""Premises of the paper's limits: they are said by a user, and refused where points refute them.

Without its premise nothing is claimed. No finite number of points proves one, so that a refusal
says what is not resolved, and never more.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._errors import filter_jit

FieldOfOne = Callable[[Float[Array, " points"]], Float[Array, "points features"]]
PLACES = 100  # each compared for itself: what is rough in one hides nothing in another


def require_smooth(states: FieldOfOne) -> None:
    r"""Refuse a field of position that 25,600 points do not resolve as smooth.

    How uneven its slopes are is measured by their fourth differences, and by what they miss of
    its secants. Everywhere this must fall by a fifth at least from 1,600 points to 25,600: of a
    field like :math:`|p-a|^\beta` it changes by the factor :math:`16^{1-\beta}`, so that of a kink
    it stays, and of a jump it grows.

    That is a proof of nothing, neither way. What falls between all points passes, or what smooth
    parts outweigh at 1,600 of them, such as a jump of 1e-5 beside :math:`\sin 400p`. And refused
    are continuously differentiable fields that are finer than these points, such as
    :math:`\sin 10^5p`, or whose slopes are barely continuous, such as :math:`p^{1.02}`.

    Raises
    ------
    ValueError
        Where they do not fall, or a slope is not finite.

    Examples
    --------
    >>> require_smooth(lambda p: jnp.sin(9 * p)[:, None])
    """
    _require_resolved(states, "states", "smooth", 0.8, "four fifths of that at most")


def require_lipschitz(field: FieldOfOne, name: str = "field") -> None:
    r"""Refuse a field of position that 25,600 points do not resolve as Lipschitz.

    The unevenness of `require_smooth`, which sees and misses the same, may grow by a quarter at
    most. Of a kink it stays: kinks pass, unless they are within four of the 1,600 points of an end.
    Of a jump it grows, and of :math:`|p-a|^\beta` with :math:`\beta < 0.9`.

    Raises
    ------
    ValueError
        Where it grows, or a slope is not finite, with the `name` of what made the field.

    Examples
    --------
    >>> require_lipschitz(lambda p: jnp.abs(p - 0.5)[:, None])
    """
    _require_resolved(field, name, "Lipschitz", 1.25, "a quarter more at most")


def _require_resolved(
    field: FieldOfOne, name: str, word: str, growth: float, expected: str
) -> None:
    """Refuse a field that is more uneven than it should be at more points, in some place."""
    (coarse, _), (fine, rounding) = jax.tree.map(np.asarray, _unevenness(field))
    near = np.lib.stride_tricks.sliding_window_view(np.pad(coarse, 1, "edge"), 3).max(axis=1)
    fails = ~(fine <= np.maximum(growth * near, rounding))  # of NaN too
    at = int(np.argmax(fails))
    require(
        not fails.any(),
        name,
        got=f"a field that is not resolved as {word} on this grid: from {at / PLACES:.2f} to "
        f"{(at + 1) / PLACES:.2f} it is uneven by {near[at]:.2g} at 1,600 points and by "
        f"{fine[at]:.2g} at 25,600",
        expected=expected,
        cure=f"It may be {word} nonetheless. Leave {word.lower()} out: unsaid, nothing is claimed.",
    )


@filter_jit
def _unevenness(field: FieldOfOne) -> list[tuple[Array, Array]]:
    """How uneven slopes are in every place, and what rounding makes of it; at few points, at many.

    Fourth differences of a smooth field's slopes fall like h^4, those of a kink stay whatever lies
    beside it; a jump is in secants only, less the integral of the slopes' cubics.
    """
    # Uneven ends, so that no kink at a round number falls on a point.
    points = [(np.arange(count) + 0.382) / count for count in (1600, 25600)]

    def linear(p: Array) -> tuple[Array, Array]:
        return jax.jvp(field, (p,), (jnp.ones_like(p),))

    # By as many points at a time, so that the field is compiled once.
    parts = jnp.asarray(np.concatenate(points).reshape(-1, 1600), float)
    found = jax.tree.map(lambda of: of.reshape(-1, of.shape[-1]), jax.lax.map(linear, parts))

    def uneven(values: Array, slopes: Array) -> tuple[Array, Array]:
        count = len(values)
        bends = jnp.diff(slopes, n=4, axis=0)
        means = (13 * (slopes[1:-2] + slopes[2:-1]) - slopes[:-3] - slopes[3:]) / 24
        missed = jnp.diff(values, axis=0)[1:-1] * count - means
        worse = jnp.maximum(jnp.abs(bends), jnp.abs(missed[1:])).max(axis=1)
        size = jnp.abs(values).max() + jnp.abs(slopes).max()
        rounding = 10 * jnp.finfo(values.dtype).eps * count * size
        return jnp.pad(worse, 2).reshape(PLACES, -1).max(axis=1), rounding

    return [uneven(*(of[:1600] for of in found)), uneven(*(of[1600:] for of in found))]


def require_resnet_premises(
    defects: Mapping[int, float], rounding: float, constants: Sequence[float] = ()
) -> None:
    r"""Refuse constants of `thm:resnet-ode` that are not finite, and defects that are too large.

    :math:`\|d_k\| \le C_{split}\,\varepsilon^2` (`eq:discrete-residual-with-defect`) of a step
    that is Euler's up to this and of a Lipschitz field. From one depth to its double
    :math:`\|d_k\|/\varepsilon^2` may grow by a fifth, as of a defect of order 1.75.

    Parameters
    ----------
    defects
        The largest :math:`\|d_k\|/\varepsilon^2` at each depth, of which the last two count.
    rounding
        That of :math:`\|d_k\|`, times :math:`T^{-2}`.
    constants
        Sampled Lipschitz constants and speeds.

    Raises
    ------
    ValueError
        Where one is not finite, or defects grow.

    Examples
    --------
    >>> require_resnet_premises({8: 0.9, 16: 1.0}, rounding=0.0)
    """
    *_, coarse, fine = sorted(defects)
    grown = defects[fine] / max(defects[coarse], rounding * fine**2, np.finfo(float).tiny)
    require(
        bool(np.isfinite(constants).all() and grown <= (fine / coarse) ** 0.25),
        "lipschitz",
        got=f"True, constants {[float(one) for one in constants]}, and defects over eps^2 that "
        f"grow by the factor {grown:.3g} from {coarse} layers to {fine}",
        expected="finite constants and no growth, of a Lipschitz field and a step near Euler's",
        cure="More layers may resolve them. Leave lipschitz out: unsaid, nothing is claimed.",
    )
