"""Premises of the paper's limits: the user states them, and samples may refute them.

No finite number of samples proves a premise, so an error says what is not resolved, and no more.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._jit import filter_jit

FieldOfOne = Callable[[Float[Array, " points"]], Float[Array, "points features"]]
INTERVALS = 100  # each is compared with itself: roughness in one hides nothing in another


def require_smooth(states: FieldOfOne) -> None:
    """Raise ValueError unless a field's unevenness falls by a fifth from 1,600 points to 25,600."""
    _require_resolved(states, "states", "smooth", 0.8, "four fifths of that at most")


def require_lipschitz(field: FieldOfOne, name: str = "field") -> None:
    """Raise ValueError if unevenness, as in `require_smooth`, grows by over a quarter."""
    _require_resolved(field, name, "Lipschitz", 1.25, "a quarter more at most")


def _require_resolved(
    field: FieldOfOne, name: str, word: str, growth: float, expected: str
) -> None:
    """Raise ValueError if a field's unevenness grows by more than a factor in some interval."""
    (coarse, _), (fine, rounding) = _slope_unevenness(field)
    near = np.lib.stride_tricks.sliding_window_view(np.pad(coarse, 1, "edge"), 3).max(axis=1)
    fails = ~(fine <= np.maximum(growth * near, rounding))  # of NaN too
    at = int(np.argmax(fails))
    require(
        not fails.any(),
        name,
        got=f"a field that is not resolved as {word} on this grid: from {at / INTERVALS:.2f} to "
        f"{(at + 1) / INTERVALS:.2f} it is uneven by {near[at]:.2g} at 1,600 points and by "
        f"{fine[at]:.2g} at 25,600",
        expected=expected,
        cure=f"Leave {word.lower()}=True out, which then claims nothing; the field may be {word} "
        "nonetheless.",
    )


def _slope_unevenness(field: FieldOfOne) -> list[tuple[np.ndarray, float]]:
    """Return the unevenness of slopes in every interval and its rounding error, coarse and fine."""
    # Uneven ends, so that no kink at a round number falls on a point.
    points = np.concatenate([(np.arange(count) + 0.382) / count for count in (1600, 25600)])
    samples = _values_and_slopes(field, jnp.asarray(points.reshape(-1, 1600), float))
    values, slopes = (np.asarray(array).reshape(points.size, -1) for array in samples)

    def unevenness(values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, float]:
        """Compute how uneven slopes are in every interval, and the rounding error of that."""
        count = len(values)
        bends = np.diff(slopes, n=4, axis=0)
        means = (13 * (slopes[1:-2] + slopes[2:-1]) - slopes[:-3] - slopes[3:]) / 24
        missed = np.diff(values, axis=0)[1:-1] * count - means
        worse = np.maximum(np.abs(bends), np.abs(missed[1:])).max(axis=1)
        size = float(np.abs(values).max() + np.abs(slopes).max())
        rounding = 10 * float(np.finfo(values.dtype).eps) * count * size
        return np.pad(worse, 2).reshape(INTERVALS, -1).max(axis=1), rounding

    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused
        return [unevenness(values[part], slopes[part]) for part in (slice(1600), slice(1600, None))]


@filter_jit
def _values_and_slopes(
    field: FieldOfOne, parts: Float[Array, "parts points"]
) -> tuple[Array, Array]:
    """Return a field's values and slopes, in parts of one size so that it is compiled once."""

    def linear(p: Array) -> tuple[Array, Array]:
        """Return the field and its derivative at positions."""
        return jax.jvp(field, (p,), (jnp.ones_like(p),))

    return jax.lax.map(linear, parts)


def require_resnet_premises(
    defects: Mapping[int, float], rounding: float, constants: Sequence[float] = ()
) -> None:
    r"""Raise ValueError if constants of `thm:resnet-ode` are not finite, or defects too large.

    `defects`, the largest :math:`\|d_k\|/\varepsilon^2` at each depth
    (`eq:discrete-residual-with-defect`), may grow by a fifth where the depth doubles.
    """
    require(
        len(defects) >= 2,
        "depths",
        got=f"{list(defects)}",
        expected="two or more with lipschitz=True, to see whether defects grow",
        cure="Pass more numbers of layers, each double the one before.",
    )
    *_, coarse, fine = sorted(defects)
    grown = defects[fine] / max(defects[coarse], rounding * fine**2, np.finfo(float).tiny)
    require(
        bool(np.isfinite(constants).all() and grown <= (fine / coarse) ** 0.25),
        "lipschitz",
        got=f"True, constants {list(map(float, constants))}, and defects over eps^2 that "
        f"grow by the factor {grown:.3g} from {coarse} layers to {fine}",
        expected="finite constants and no growth, of a Lipschitz field and a step near Euler's",
        cure=(
            "Take more layers, which may resolve them, or leave lipschitz=True out, which then "
            "claims nothing."
        ),
    )
