r"""The paper's criteria, run on data: certificates with their premises checked.

A certificate says what a proposition claims of the data in hand: whether its premises hold, by
what margin its inequality is satisfied, whether it could have been satisfied at all, and whether
the conclusion, measured apart, is true. Whenever a certificate holds, its conclusion does.

These functions judge concrete numbers: they are called outside `jax.jit`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lim_jax._checks import require
from lim_jax.adjoint.cone import JointCone
from lim_jax.adjoint.ledger import CHANNELS, PAIRS, RegionalChannels
from lim_jax.adjoint.residual import query_masses
from lim_jax.grid import Regions, regional_averages

REGIONS = ("left", "middle", "right")


class Premise(NamedTuple):
    """An assumption of a proposition.

    Attributes
    ----------
    statement
        In words and letters.
    value
        The number that it speaks of.
    holds
        Whether it is true here.
    """

    statement: str
    value: float
    holds: bool


class Inequality(NamedTuple):
    """A strict inequality, greater above lesser."""

    statement: str
    greater: float
    lesser: float

    @property
    def margin(self) -> float:
        """By how much it holds; not positive where it does not."""
        return self.greater - self.lesser


class Certificate(NamedTuple):
    """What a proposition says of the data.

    Attributes
    ----------
    name, source
        The criterion, and the paper's label.
    premises
        Assumptions with their values.
    inequalities
        All of them must hold.
    conclusion
        What follows where the certificate holds.
    concluded
        Whether the conclusion is true on the data, measured apart from the criterion.
    vacuous
        Why the criterion could not have held here, whatever the inequality's other side; empty
        where it could.
    """

    name: str
    source: str
    premises: tuple[Premise, ...]
    inequalities: tuple[Inequality, ...]
    conclusion: str
    concluded: bool
    vacuous: str = ""

    @property
    def margin(self) -> float:
        """The least margin of the inequalities."""
        return min(inequality.margin for inequality in self.inequalities)

    @property
    def holds(self) -> bool:
        """Whether premises and inequalities hold, so that the conclusion follows."""
        return not self.vacuous and all(p.holds for p in self.premises) and self.margin > 0

    def record(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        return {
            **self._asdict(),
            "premises": [premise._asdict() for premise in self.premises],
            "inequalities": [
                {**inequality._asdict(), "margin": inequality.margin}
                for inequality in self.inequalities
            ],
            "margin": self.margin,
            "holds": self.holds,
        }


def primacy_noncancellation(cone: JointCone, regions: Regions) -> Certificate:
    r"""Primacy of the cone channel where contributions do not cancel.

    `prop:primacy-noncancellation`: with :math:`\kappa_L` the least :math:`\Gamma` over E_L and
    :math:`K_M` the largest :math:`|\Gamma|` over E_M,
    :math:`\kappa_L A_{E_L} > K_M A_{E_M}` implies that the cone energy is on average larger over
    E_L than over E_M. On a grid :math:`A_B` averages the square of the cone's own length,
    :math:`(L - j + 1)/L` on tokens, not of 1 - q.

    It is sufficient and far from necessary: causal averaging, which is primacy itself, fails it.

    Parameters
    ----------
    cone
        From `cone.joint_cone`.
    regions
        On the same grid.
    """
    inside = np.asarray(regions.weights) > 0
    lower = float(np.asarray(cone.lowest)[inside[0]].min())
    upper = float(np.asarray(cone.largest)[inside[1]].max())
    areas = regional_averages(cone.future**2, regions)
    energies = regional_averages(cone.energy, regions)
    return Certificate(
        name="primacy of the cone channel",
        source="prop:primacy-noncancellation",
        premises=(Premise("kappa_L > 0: no cancellation on the left", lower, lower > 0),),
        inequalities=(
            Inequality("kappa_L A_L > K_M A_M", lower * float(areas[0]), upper * float(areas[1])),
        ),
        conclusion="the cone energy averages more over the left than over the middle",
        concluded=bool(energies[0] > energies[1]),
        vacuous=""
        if lower > 0
        else f"some pair of contributions to the left cancels (kappa_L = {lower:.3g}), "
        "so its lower bound is not positive",
    )


def recency_survival(
    terminal: Float[Array, "examples length width"],
    initial: Float[Array, "examples length width"],
    amplification: Float[Array, " examples"],
    regions: Regions,
) -> Certificate:
    r"""Survival of a right-heavy terminal covector (`prop:regional-recency-persistence`).

    .. math:: \mathsf R_{\rm res} > \Bigl(\tfrac{1}{|E_R|} + \tfrac{1}{|E_M|}\Bigr)
              \mathbb E\bigl[(2c + c^2)\,\|P_T\|^2\bigr]

    implies that the influence is on average larger over E_R than over E_M. As
    :math:`\mathsf R_{\rm res} \le \mathbb E\|P_T\|^2/|E_R|`, it cannot hold where every
    :math:`(1+c)^2 \ge 1 + |E_M|/(|E_R| + |E_M|)`: with the paper's c, where
    :math:`T\Lambda \ge \tfrac12\log(1 + \frac{1-2\delta}{1-\delta})`.

    Parameters
    ----------
    terminal, initial
        :math:`P_T` and :math:`P_0` of every example.
    amplification
        c of every example: either bound of `residual.amplification`.
    regions
        On the covectors' grid.
    """
    weights = regions.grid.weights
    squares = (terminal**2).sum(axis=2)
    before = regional_averages(squares.mean(axis=0), regions)
    after = regional_averages((initial**2).sum(axis=2).mean(axis=0), regions)
    growth = 2 * amplification + amplification**2
    _, middle, right = (float(size) for size in regions.weights.sum(axis=1))
    bound = (1 / right + 1 / middle) * float((growth * (squares @ weights)).mean())
    ceiling = math.sqrt(1 + middle / (right + middle)) - 1
    least, contrast = float(amplification.min()), float(before[2] - before[1])
    return Certificate(
        name="survival of recency",
        source="prop:regional-recency-persistence",
        premises=(
            Premise("R_res > 0: the terminal covector is right-heavy", contrast, contrast > 0),
            Premise("E[(2c + c^2) |P_T|^2] is finite", bound, math.isfinite(bound)),
        ),
        inequalities=(
            Inequality("R_res > (1/|E_R| + 1/|E_M|) E[(2c + c^2) |P_T|^2]", contrast, bound),
        ),
        conclusion="influence averages more over the right than over the middle",
        concluded=bool(after[2] > after[1]),
        vacuous=""
        if least < ceiling
        else f"the layers may amplify too much: every c >= {least:.3g}, and the criterion cannot "
        f"hold from c = {ceiling:.3g} on",
    )


def exact_characterisation(regional: RegionalChannels) -> Certificate:
    r"""Lost-in-the-Middle as an exact comparison of channels (`cor:exact-double-deficit`).

    .. math:: \sum_\alpha [J_\alpha(E_B) - J_\alpha(E_M)] > \Xi(E_M) - \Xi(E_B),\qquad B = L, R.

    An equivalence: it holds if and only if its conclusion does.

    Parameters
    ----------
    regional
        From `ledger.regional_channels`.
    """
    sums, cross = regional.energies.sum(axis=1), regional.cross_terms
    sides = [
        Inequality(
            f"sum of J({name}) - J(middle) > Xi(middle) - Xi({name})",
            float(sums[b] - sums[1]),
            float(cross[1] - cross[b]),
        )
        for name, b in (("left", 0), ("right", 2))
    ]
    # The total energies, by adding the vectors' products rather than energies and cross terms.
    totals = regional.means.sum(axis=(1, 2))
    zero = not bool((totals > 0).any())
    return Certificate(
        name="exact characterisation",
        source="cor:exact-double-deficit",
        premises=(),
        inequalities=tuple(sides),
        conclusion="Lost-in-the-Middle: both boundaries above the middle",
        concluded=_lost_in_the_middle(totals),
        vacuous="no position has any influence (Z = 0)" if zero else "",
    )


class ChannelBounds(NamedTuple):
    r"""Bounds on regional channel energies and correlations.

    Attributes
    ----------
    upper
        :math:`u_{\alpha,B}`, by region (left, middle, right) and channel (residual, cone, local).
    left, right
        The lower bounds :math:`\ell_L \le J_{\rm cone}(E_L)`, :math:`\ell_R \le J_{\rm res}(E_R)`.
    correlations
        :math:`\rho_{\alpha\beta,B}`, by region and pair (residual-cone, residual-local,
        cone-local); 1 is always true.
    """

    upper: Float[Array, "3 3"]
    left: Float[Array, ""]
    right: Float[Array, ""]
    correlations: Float[Array, "3 3"]


def bootstrap_bounds(
    regional: RegionalChannels,
    *,
    key: Key[Array, ""],
    confidence: float = 0.95,
    resamples: int = 1000,
) -> ChannelBounds:
    """Take bounds from the data, each with bootstrap confidence over the examples.

    One-sided quantiles of the resampled energies and correlations, and never inside the data's
    own values, so that the criterion's conclusion is true of the data themselves too.

    Parameters
    ----------
    regional
        From `ledger.regional_channels`.
    key
        For resampling.
    confidence
        Of each bound by itself.
    resamples
        How many.
    """
    examples = regional.products.shape[0]
    draws = jax.random.randint(key, (resamples, examples), 0, examples)

    def resampled(draw: Array) -> tuple[Array, Array]:
        sample = RegionalChannels(regional.products[draw])
        return sample.energies, sample.correlations

    energies, correlations = jax.lax.map(resampled, draws)
    upper = jnp.maximum(jnp.quantile(energies, confidence, axis=0), regional.energies)
    lower = jnp.minimum(jnp.quantile(energies, 1 - confidence, axis=0), regional.energies)
    rho = jnp.maximum(jnp.quantile(correlations, confidence, axis=0), regional.correlations)
    return ChannelBounds(upper, lower[0, 1], lower[2, 0], jnp.minimum(rho, 1))


def double_deficit(regional: RegionalChannels, bounds: ChannelBounds) -> Certificate:
    r"""The independently checkable criterion (`thm:channel-energy-double-deficit`).

    With :math:`\Gamma_B = 2\sum_{\alpha<\beta}\rho_{\alpha\beta,B}\sqrt{u_{\alpha,B}u_{\beta,B}}`
    and :math:`U_M = \sum_\alpha u_{\alpha,E_M}`,

    .. math:: \ell_L > U_M + \Gamma_M + \Gamma_L, \qquad \ell_R > U_M + \Gamma_M + \Gamma_R

    imply that both boundaries average more influence than the middle.

    Parameters
    ----------
    regional
        From `ledger.regional_channels`.
    bounds
        From `bootstrap_bounds`, or your own.

    Raises
    ------
    ValueError
        Where the data contradict a bound; the message names it.
    """
    _refuse_contradicted(regional, bounds)
    upper = bounds.upper
    scales = jnp.stack([jnp.sqrt(upper[:, a] * upper[:, b]) for a, b in PAIRS], axis=1)
    left, middle, right = (float(gamma) for gamma in 2 * (bounds.correlations * scales).sum(axis=1))
    spent = float(upper[1].sum()) + middle
    lower = {"left": float(bounds.left), "right": float(bounds.right)}
    crossed = {"left": left, "right": right}
    hopeless = [name for name in lower if lower[name] <= crossed[name]]
    return Certificate(
        name="double deficit from channel bounds",
        source="thm:channel-energy-double-deficit",
        premises=tuple(
            Premise(f"l({name}) > 0", value, value > 0) for name, value in lower.items()
        ),
        inequalities=tuple(
            Inequality(
                f"l({name}) > U(middle) + Gamma(middle) + Gamma({name})",
                lower[name],
                spent + crossed[name],
            )
            for name in lower
        ),
        conclusion="Lost-in-the-Middle: both boundaries above the middle",
        concluded=_lost_in_the_middle(regional.totals),
        vacuous=""
        if not hopeless
        else f"cross terms alone may undo the {' and the '.join(hopeless)} boundary "
        "(l <= Gamma there), whatever the middle is",
    )


def right_biased_queries(
    query_weights: Float[Array, " length"],
    residual_energies: Float[Array, " length"],
    regions: Regions,
) -> Certificate:
    r"""Recency of the terminal covector from where the loss asks.

    `eq:right-biased-squared-query-mass`, made sufficient. For a tokenwise readout
    :math:`\mathbb E\|P_T(i)\|^2 = \chi_i^2\rho_i` (`eq:finite-recency-energy-contrast`), so with
    :math:`\rho_- \le \rho_i \le \rho_+` over the queries of E_R and E_M,

    .. math:: \rho_-\,|E_R|^{-1}\int_{E_R}\chi^2 > \rho_+\,|E_M|^{-1}\int_{E_M}\chi^2

    implies :math:`\mathsf R_{\rm res} > 0`. Uniform teacher forcing has equal sides at
    :math:`\rho_- = \rho_+`, and so never holds.

    Parameters
    ----------
    query_weights
        :math:`\alpha`.
    residual_energies
        :math:`\rho_i`, from `readout_residual_energies`.
    regions
        On the loss's grid.
    """
    asked = query_weights > 0
    squares = query_masses(query_weights, regions).squares
    density = query_weights / regions.grid.weights
    energies = regional_averages(density**2 * residual_energies, regions)

    def extreme(region: int, of: Any, empty: float) -> float:
        chosen = np.asarray(asked & (regions.weights[region] > 0))
        return float(of(np.asarray(residual_energies)[chosen])) if chosen.any() else empty

    least, most = extreme(2, np.min, 0.0), extreme(1, np.max, 0.0)
    reason = ""
    if not float(squares[2]) > 0:
        reason = "no query asks in the right region"
    elif least == 0:
        reason = "some query of the right region has no readout residual (rho = 0)"
    return Certificate(
        name="right-biased queries",
        source="eq:right-biased-squared-query-mass",
        premises=(Premise("rho_- > 0 over the right queries", least, least > 0),),
        inequalities=(
            Inequality(
                "rho_- mean of chi^2 on the right > rho_+ mean of chi^2 in the middle",
                least * float(squares[2]),
                most * float(squares[1]),
            ),
        ),
        conclusion="R_res > 0: the terminal covector is right-heavy",
        concluded=bool(energies[2] > energies[1]),
        vacuous=reason,
    )


def readout_residual_energies(
    readout: Any,
    states: Float[Array, "examples length width"],
    targets: Float[Array, "examples length vocabulary"],
    regions: Regions,
) -> Float[Array, " length"]:
    r"""The energies :math:`\rho_i = \mathbb E\,\|C_i^*(\mathrm{softmax}(H_i) - Y_{i+1})\|^2`.

    Of a tokenwise readout, where no query weight enters: the derivative of the cross-entropy of
    token i in the state of token i.

    Parameters
    ----------
    readout
        ``readout(x, grid)``, tokenwise.
    states
        The terminal states of every example.
    targets
        Their labels.
    regions
        On the states' grid.
    """
    grid = regions.grid

    def energies(state: Array, target: Array) -> Array:
        logits, pull = jax.vjp(lambda x: readout(x, grid), state)
        totals = target.sum(axis=1, keepdims=True)
        (covector,) = pull(totals * jax.nn.softmax(logits, axis=1) - target)
        return (covector**2).sum(axis=1)

    return jax.vmap(energies)(states, targets).mean(axis=0)


def _lost_in_the_middle(totals: Float[Array, "3"]) -> bool:
    return bool(jnp.minimum(totals[0], totals[2]) > totals[1])


def _refuse_contradicted(regional: RegionalChannels, bounds: ChannelBounds) -> None:
    """Name the first bound that the data contradict, beyond rounding."""
    energies, correlations = np.asarray(regional.energies), np.asarray(regional.correlations)
    slack = math.sqrt(np.finfo(energies.dtype).eps)

    def check(name: str, below: Any, above: Any, kind: str) -> None:
        below, above = float(below), float(above)
        require(
            below <= above + slack * abs(above),
            name,
            got=f"a bound that the data contradict: {below:.6g} > {above:.6g}",
            expected=f"a true {kind} bound",
            cure="Widen it, or take bootstrap_bounds.",
        )

    for b, region in enumerate(REGIONS):
        for a, channel in enumerate(CHANNELS):
            check(f"upper[{region}, {channel}]", energies[b, a], bounds.upper[b, a], "upper")
        for c, (first, second) in enumerate(PAIRS):
            name = f"correlations[{region}, {CHANNELS[first]}-{CHANNELS[second]}]"
            check(name, correlations[b, c], bounds.correlations[b, c], "upper")
    check("left", bounds.left, energies[0, 1], "lower")
    check("right", bounds.right, energies[2, 0], "lower")


def certificate_table(certificates: Sequence[Certificate]) -> str:
    """Certificates as text, one block for each."""
    lines = []
    for certificate in certificates:
        verdict = "HOLDS" if certificate.holds else "does not hold"
        verdict = f"vacuous: {certificate.vacuous}" if certificate.vacuous else verdict
        lines.append(f"{certificate.name} ({certificate.source}): {verdict}")
        for premise in certificate.premises:
            mark = "yes" if premise.holds else "NO"
            lines.append(f"    premise   {premise.statement}: {premise.value:.4g}  {mark}")
        for one in certificate.inequalities:
            lines.append(
                f"    compare   {one.statement}: {one.greater:.4g} against {one.lesser:.4g}, "
                f"margin {one.margin:+.4g}"
            )
        truth = "true" if certificate.concluded else "false"
        lines.append(f"    measured  {certificate.conclusion}: {truth}")
    return "\n".join(lines)
