"""Premises of the paper's limits: the user states them, and samples may refute them.

No finite number of samples proves a premise, so an error says what is not resolved, and no more.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._errors import filter_jit

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
    (coarse, _), (fine, rounding) = jax.tree.map(np.asarray, _unevenness(field))
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
        cure=f"It may be {word} nonetheless. Without {word.lower()}=True nothing is claimed.",
    )


@filter_jit
def _unevenness(field: FieldOfOne) -> list[tuple[Array, Array]]:
    """Return the unevenness of slopes in every interval and its rounding error, coarse and fine."""
    # Uneven ends, so that no kink at a round number falls on a point.
    points = [(np.arange(count) + 0.382) / count for count in (1600, 25600)]

    def linear(p: Array) -> tuple[Array, Array]:
        return jax.jvp(field, (p,), (jnp.ones_like(p),))

    # The same number of points at a time, so that the field is compiled once.
    parts = jnp.asarray(np.concatenate(points).reshape(-1, 1600), float)
    sampled = jax.tree.map(lambda of: of.reshape(-1, of.shape[-1]), jax.lax.map(linear, parts))

    def uneven(values: Array, slopes: Array) -> tuple[Array, Array]:
        count = len(values)
        bends = jnp.diff(slopes, n=4, axis=0)
        means = (13 * (slopes[1:-2] + slopes[2:-1]) - slopes[:-3] - slopes[3:]) / 24
        missed = jnp.diff(values, axis=0)[1:-1] * count - means
        worse = jnp.maximum(jnp.abs(bends), jnp.abs(missed[1:])).max(axis=1)
        size = jnp.abs(values).max() + jnp.abs(slopes).max()
        rounding = 10 * jnp.finfo(values.dtype).eps * count * size
        return jnp.pad(worse, 2).reshape(INTERVALS, -1).max(axis=1), rounding

    return [uneven(*(of[:1600] for of in sampled)), uneven(*(of[1600:] for of in sampled))]


def require_resnet_premises(
    defects: Mapping[int, float], rounding: float, constants: Sequence[float] = ()
) -> None:
    r"""Raise ValueError if constants of `thm:resnet-ode` are not finite, or defects too large.

    `defects`, the largest :math:`\|d_k\|/\varepsilon^2` at each depth
    (`eq:discrete-residual-with-defect`), may grow by a fifth where the depth doubles.
    """
    *_, coarse, fine = sorted(defects)
    grown = defects[fine] / max(defects[coarse], rounding * fine**2, np.finfo(float).tiny)
    require(
        bool(np.isfinite(constants).all() and grown <= (fine / coarse) ** 0.25),
        "lipschitz",
        got=f"True, constants {list(map(float, constants))}, and defects over eps^2 that "
        f"grow by the factor {grown:.3g} from {coarse} layers to {fine}",
        expected="finite constants and no growth, of a Lipschitz field and a step near Euler's",
        cure="More layers may resolve them. Without lipschitz=True nothing is claimed.",
    )
