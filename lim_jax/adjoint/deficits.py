"""Certificates of Lost-in-the-Middle from the channels: outside `jax.jit`, as in `criteria`."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lim_jax._checks import (
    as_int,
    described,
    error_if_not_finite,
    is_real,
    require,
    require_floats,
    require_key,
    require_kind,
    require_scalar,
)
from lim_jax._jit import filter_jit
from lim_jax.adjoint.certificate import (
    Certificate,
    Inequality,
    Premise,
    make_inequality,
    require_concrete,
)
from lim_jax.adjoint.ledger import CHANNELS, CONE, PAIRS, RESIDUAL, RegionalChannels
from lim_jax.grid.partition import LEFT, MIDDLE, REGIONS, RIGHT

REGIONAL = "Take it from regional_channels."


def exact_characterisation(regional: RegionalChannels) -> Certificate:
    r"""Certify Lost-in-the-Middle by an exact comparison of channels (`cor:exact-double-deficit`).

    `eq:exact-left-middle-channel-condition` and `eq:exact-right-middle-channel-condition`:

    .. math:: \sum_\alpha [J_\alpha(E_B) - J_\alpha(E_M)] > \Xi(E_M) - \Xi(E_B),\qquad B = L, R.

    An equivalence: it holds if and only if its conclusion does, and a tie is a tie of both.

    Parameters
    ----------
    regional
        The result of `regional_channels`, concrete numbers.

    Returns
    -------
    Certificate
        Both comparisons; it is vacuous where no position has any influence.

    Raises
    ------
    ValueError
        If `regional` is no `RegionalChannels`, is traced, has NaN or infinity, or holds no
        examples, or numbers that are no products of vectors.
    """
    require_kind(regional, RegionalChannels, "regional", REGIONAL)
    require_concrete("regional", regional)
    _require_products(regional)
    sums = np.asarray(regional.energies).sum(axis=1)
    cross = np.asarray(regional.cross_terms)
    added = _absolute_sums(regional)
    precision = jnp.result_type(regional.products)
    sides = []
    for b in (LEFT, RIGHT):
        statement = f"sum of J({REGIONS[b]}) - J(middle) > Ξ(middle) - Ξ({REGIONS[b]})"
        contrast = sums[b] - sums[MIDDLE]
        bound = cross[MIDDLE] - cross[b]
        size = added[b] + added[MIDDLE]
        sides.append(make_inequality(statement, contrast, bound, precision, scale=size))
    # The total energies, by adding the vectors' products rather than energies and cross terms.
    totals = np.asarray(regional.means).sum(axis=(1, 2))
    zero = not (totals > 0).any()
    return Certificate(
        name="exact characterisation",
        source="cor:exact-double-deficit",
        premises=(),
        inequalities=tuple(sides),
        conclusion="Lost-in-the-Middle: both boundaries above the middle",
        measured=_lost_in_the_middle(totals, regional),
        vacuous="no position has any influence (Z = 0)" if zero else "",
        decisive="under a loss that the network's answer can still change" if zero else "",
    )


class ChannelBounds(NamedTuple):
    r"""Bounds on regional channel energies and correlations.

    Attributes
    ----------
    upper
        The upper bounds :math:`u_{\alpha,B}` on the energies, by region (left, middle, right) and
        channel (residual, cone, local) (`eq:channel-upper-bounds`).
    left
        The lower bound :math:`\ell_L \le J_{\rm cone}(E_L)` (`eq:boundary-channel-lower-bounds`).
    right
        The lower bound :math:`\ell_R \le J_{\rm res}(E_R)`, of the same equation.
    correlations
        :math:`\rho_{\alpha\beta,B}`, by region and by pair (residual-cone, residual-local,
        cone-local); 1 is always true.
    """

    upper: Float[Array, "3 3"]
    left: Float[Array, ""]
    right: Float[Array, ""]
    correlations: Float[Array, "3 3"]


@filter_jit
def bootstrap_bounds(
    regional: RegionalChannels,
    *,
    key: Key[Array, ""],
    confidence: float = 0.95,
    resamples: int = 1000,
) -> ChannelBounds:
    """Estimate bounds from the data, each with bootstrap confidence over the examples.

    Of one example they are its own values, and say nothing of others.

    Parameters
    ----------
    regional
        The result of `regional_channels`, of one example at least.
    key
        The random key by which examples are drawn.
    confidence
        The confidence of each bound by itself, a probability above 0 and below 1.
    resamples
        How many times as many examples are drawn: ``1 / (1 - confidence)`` at least, or no
        quantile is that far out.

    Returns
    -------
    ChannelBounds
        One-sided quantiles of the resampled energies and correlations. No upper bound is below the
        data's own value and no lower bound above it, so that what follows from them is true of the
        data themselves too.

    Raises
    ------
    ValueError
        If an argument is none of these.
    EquinoxRuntimeError
        If a product is infinite or NaN.
    """
    require_kind(regional, RegionalChannels, "regional", REGIONAL)
    require_key(key)
    examples = regional.products.shape[0]
    require(
        examples > 0, "regional.products", got="no example", expected="at least one", cure=REGIONAL
    )
    require(
        is_real(confidence) and 0 < confidence < 1,
        "confidence",
        got=described(confidence),
        expected="a probability above 0 and below 1",
        cure="Try 0.95.",
    )
    resamples = as_int(resamples, "resamples")
    require(
        confidence <= 1 - 1 / resamples,
        "resamples",
        got=f"{resamples} at a confidence of {confidence:g}",
        expected="at least 1 / (1 - confidence) resamples",
        cure="Try 1000.",
    )
    products = error_if_not_finite(regional.products, "regional.products")
    draws = jax.random.randint(key, (resamples, examples), 0, examples)

    def resample(draw: Array) -> tuple[Array, Array]:
        """Compute the channels' energies and correlations of one bootstrap sample."""
        sample = RegionalChannels(products[draw])
        return sample.energies, sample.correlations

    energies, correlations = jax.lax.map(resample, draws)
    upper = jnp.maximum(jnp.quantile(energies, confidence, axis=0), regional.energies)
    lower = jnp.minimum(jnp.quantile(energies, 1 - confidence, axis=0), regional.energies)
    rho = jnp.maximum(jnp.quantile(correlations, confidence, axis=0), regional.correlations)
    return ChannelBounds(upper, lower[LEFT, CONE], lower[RIGHT, RESIDUAL], jnp.minimum(rho, 1))


def double_deficit(regional: RegionalChannels, bounds: ChannelBounds) -> Certificate:
    r"""Certify Lost-in-the-Middle by bounds on the channels (`thm:channel-energy-double-deficit`).

    This is the criterion that can be checked independently. With
    :math:`\Gamma_B = 2\sum_{\alpha<\beta}\rho_{\alpha\beta,B}\sqrt{u_{\alpha,B}u_{\beta,B}}`
    and :math:`U_M = \sum_\alpha u_{\alpha,E_M}`,

    .. math:: \ell_L > U_M + \Gamma_M + \Gamma_L, \qquad \ell_R > U_M + \Gamma_M + \Gamma_R

    imply that both boundaries average more influence than the middle
    (`eq:channel-cross-bound-gamma`, `eq:checkable-double-deficit-conditions`).

    Parameters
    ----------
    regional
        The result of `regional_channels`, concrete numbers.
    bounds
        The result of `deficits.bootstrap_bounds`, or your own.

    Returns
    -------
    Certificate
        Both comparisons; it is vacuous where the cross terms :math:`\Gamma` of a boundary alone
        reach its :math:`\ell`, and then says whether more examples may help.

    Raises
    ------
    ValueError
        If the data contradict a bound, which the message names; if a bound has another shape; if a
        number is traced, NaN or infinite; or if `regional` holds no examples, or numbers that are
        no products of vectors.
    """
    require_kind(regional, RegionalChannels, "regional", REGIONAL)
    require_kind(bounds, ChannelBounds, "bounds", "Take them from bootstrap_bounds, or your own.")
    require_concrete("regional and bounds", (regional, bounds))
    _require_products(regional)
    cure = "Pass a bound for each region and channel, or pair of channels."
    require_floats(bounds.upper, "upper", "regions channels", cure, regions=3, channels=3)
    require_floats(bounds.correlations, "correlations", "regions pairs", cure, regions=3, pairs=3)
    require_scalar(bounds.left, "left")
    require_scalar(bounds.right, "right")
    _require_true(regional, bounds)
    left, middle, right = _cross_terms(bounds)
    spent = float(np.asarray(bounds.upper)[MIDDLE].sum()) + middle
    lower = {"left": float(bounds.left), "right": float(bounds.right)}
    cross_terms = {"left": left, "right": right}
    hopeless = [name for name in lower if lower[name] <= cross_terms[name]]
    vacuous = ""
    decisive = ""
    if hopeless:
        boundaries = " and the ".join(hopeless)
        vacuous = (
            f"cross terms alone may undo the {boundaries} boundary (l <= Γ there), whatever the "
            "middle is"
        )
        decisive = _enough_data(regional, hopeless)
    precision = jnp.result_type(regional.products)
    return Certificate(
        name="double deficit from channel bounds",
        source="thm:channel-energy-double-deficit",
        premises=tuple(
            Premise(f"l({name}) > 0", value, value > 0) for name, value in lower.items()
        ),
        inequalities=tuple(
            make_inequality(
                f"l({name}) > U(middle) + Γ(middle) + Γ({name})",
                value,
                spent + cross_terms[name],
                precision,
            )
            for name, value in lower.items()
        ),
        conclusion="Lost-in-the-Middle: both boundaries above the middle",
        measured=_lost_in_the_middle(np.asarray(regional.totals), regional),
        vacuous=vacuous,
        decisive=decisive,
    )


def _cross_terms(bounds: ChannelBounds) -> list[float]:
    r"""Return :math:`\Gamma`, the most that cross terms take or give, of the three regions."""
    roots = np.sqrt(np.asarray(bounds.upper))  # before products, which may under- or overflow
    scales = np.stack([roots[:, a] * roots[:, b] for a, b in PAIRS], axis=1)
    return [float(gamma) for gamma in 2 * (np.asarray(bounds.correlations) * scales).sum(axis=1)]


def _enough_data(regional: RegionalChannels, hopeless: list[str]) -> str:
    """Say whether more examples could tighten the bounds enough."""
    gamma = 2 * np.abs(regional.pairs).sum(axis=1)
    energies = np.asarray(regional.energies)
    boundary_bounds = {
        "left": energies[LEFT, CONE] - gamma[LEFT],
        "right": energies[RIGHT, RESIDUAL] - gamma[RIGHT],
    }
    # With such bounds l is the boundary's channel, and Gamma twice the sizes of the pairs.
    never = [name for name in hopeless if float(boundary_bounds[name]) <= 0]
    if not never:
        return "with more examples: l > Gamma of the data's own values, if not of bounds on them"
    return (
        f"not with more examples, as the data's own cross terms on the {' and the '.join(never)} "
        "outweigh l; at a depth or under a loss where the channels are closer to orthogonal there"
    )


def _absolute_sums(regional: RegionalChannels) -> np.ndarray:
    """Sum the sizes of the terms of each region's energy: channels and twice their pairs."""
    pairs = 2 * np.abs(regional.pairs).sum(axis=1)
    return np.asarray(np.asarray(regional.energies).sum(axis=1) + pairs, float)


def _lost_in_the_middle(
    totals: Float[np.ndarray, "3"], regional: RegionalChannels
) -> tuple[Inequality, ...]:
    """Compare the mean influence on the left and on the right with that in the middle."""
    scales = _absolute_sums(regional)
    precision = jnp.result_type(regional.products)
    return tuple(
        make_inequality(
            f"mean of I, {REGIONS[b]} > middle",
            totals[b],
            totals[MIDDLE],
            precision,
            scale=scales[b] + scales[MIDDLE],
        )
        for b in (LEFT, RIGHT)
    )


def _require_products(regional: RegionalChannels) -> None:
    """Raise ValueError unless the numbers are products of three vectors with each other."""
    axes = "examples regions channels channels"
    require_floats(regional.products, "regional.products", axes, REGIONAL, regions=3, channels=3)
    products = np.asarray(regional.products, float)
    transposed = products.swapaxes(-1, -2)
    slack = math.sqrt(np.finfo(regional.products.dtype).eps) * np.abs(products).sum((-1, -2))
    least = np.linalg.eigvalsh((products + transposed) / 2)[..., 0]
    fails = (np.abs(products - transposed).max((-1, -2)) > slack) | (least < -slack)
    example, region = np.unravel_index(np.argmax(fails), fails.shape)
    require(
        not fails.any(),
        "regional.products",
        got=f"numbers that no three channels have (example {example}, {REGIONS[region]})",
        expected="products of vectors: symmetric, with no negative eigenvalue",
        cure=REGIONAL,
    )


def _require_true(regional: RegionalChannels, bounds: ChannelBounds) -> None:
    """Raise ValueError for the first bound that the data contradict beyond rounding."""
    energies = np.asarray(regional.energies)
    correlations = np.asarray(regional.correlations)
    upper = np.asarray(bounds.upper)
    most_correlated = np.asarray(bounds.correlations)
    slack = math.sqrt(np.finfo(energies.dtype).eps)

    def check(name: str, below: Any, above: Any, kind: str) -> None:
        """Raise ValueError if `below` exceeds `above` by more than rounding."""
        below = float(below)
        above = float(above)
        require(
            below <= above + slack * abs(above),
            name,
            got=f"a bound that the data contradict: {below:.6g} > {above:.6g}",
            expected=f"a true {kind} bound",
            cure="Widen it, or take bootstrap_bounds.",
        )

    for b, region in enumerate(REGIONS):
        for a, channel in enumerate(CHANNELS):
            check(f"upper[{region}, {channel}]", energies[b, a], upper[b, a], "upper")
        for c, (first, second) in enumerate(PAIRS):
            name = f"correlations[{region}, {CHANNELS[first]}-{CHANNELS[second]}]"
            check(name, correlations[b, c], most_correlated[b, c], "upper")
    check("left", bounds.left, energies[LEFT, CONE], "lower")
    check("right", bounds.right, energies[RIGHT, RESIDUAL], "lower")
