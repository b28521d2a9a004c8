"""A regression that is shrunk towards scores known before, with the errors of what it finds."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

# The ratios of noise to what is not known of a coefficient before, of which one is chosen: from
# texts that say all to texts that hardly count.
STRENGTHS = np.logspace(-3, 1.5, 19)


class ShrunkFit(NamedTuple):
    """The effect of keeping each part, and its error, the standard deviation after the texts."""

    scores: Float[np.ndarray, " parts"]
    errors: Float[np.ndarray, " parts"]


class _Posterior(NamedTuple):
    """A fit at one strength, and the mean square of its errors on each text from the others."""

    fit: ShrunkFit
    slope: float
    left_out: float


def shrunk_regression(
    kept: Bool[np.ndarray, "texts parts"],
    values: Float[np.ndarray, " texts"],
    prior: Float[np.ndarray, " parts"],
) -> ShrunkFit:
    r"""Fit a value, such as the answer's log odds, to which parts a text keeps.

    .. math:: v_i = a + \sum_j x_{ij}\beta_j + \varepsilon_i, \quad
              \beta_j \sim N(c\,s_j, \tau^2 w_j), \quad \varepsilon \sim N(0, \sigma^2 I)

    with :math:`x_{ij}` a half where text i keeps part j, and minus a half else, and `prior` the
    scores s. Most parts do next to nothing, and what is not known of a part grows with what it
    does: :math:`w_j` is :math:`|s_j|` plus their mean, scaled to a mean of one; that was chosen on
    prompts by which docs/study/prices.md does not judge. Nothing is assumed of a and c before, but
    that c is not negative. The strength :math:`\sigma^2/\tau^2` is that whose errors are least
    where each text is left out, in closed form; :math:`\sigma^2` is estimated at it. Takes three
    texts at least.
    """
    fit = _best_posterior(kept, values, prior)
    if fit.slope < 0:
        fit = _best_posterior(kept, values, np.zeros_like(prior))
    return fit.fit


def _best_posterior(
    kept: Bool[np.ndarray, "texts parts"],
    values: Float[np.ndarray, " texts"],
    prior: Float[np.ndarray, " parts"],
) -> _Posterior:
    """Return the fit of the strength that foretells each text best from the others."""
    roots = np.sqrt(_relative_variances(prior))
    x = (kept - 0.5) * roots  # of coefficients over their roots, of one variance
    scaled = prior / roots
    directions = np.stack([np.zeros_like(prior), scaled], axis=1)  # of a and c
    if np.ptp(x @ scaled) == 0:  # c is not seen
        directions = directions[:, :1]
    best = min(
        (_posterior(x, values, directions, strength) for strength in STRENGTHS),
        key=lambda fit: fit.left_out,
    )
    fit = ShrunkFit(roots * best.fit.scores, roots * best.fit.errors)
    return best._replace(fit=fit)


def _relative_variances(prior: Float[np.ndarray, " parts"]) -> Float[np.ndarray, " parts"]:
    """Return the variances of coefficients before, of mean one; all are one if nothing is known."""
    sizes = np.abs(prior)
    if not sizes.any():
        return np.ones_like(prior)
    variances = sizes + sizes.mean()
    return variances / variances.mean()


def _posterior(
    x: Float[np.ndarray, "texts parts"],
    values: Float[np.ndarray, " texts"],
    directions: Float[np.ndarray, "parts fixed"],
    strength: float,
) -> _Posterior:
    """Fit at one strength, by the texts' covariance given a and c.

    Robinson, "That BLUP is a good thing" (1991), has the estimates and their covariance; the error
    of a text that is left out is its residual over its own entry of the same matrix.
    """
    texts, parts = x.shape
    fixed = x @ directions
    fixed[:, 0] = 1  # a is in every text
    precision = np.linalg.inv(np.eye(texts) + x @ x.T / strength)
    of_fixed = np.linalg.inv(fixed.T @ precision @ fixed)
    weighted = precision @ fixed
    residual = precision - weighted @ of_fixed @ weighted.T
    estimates = of_fixed @ weighted.T @ values
    scores = directions @ estimates + x.T @ residual @ values / strength
    noise = values @ residual @ values / (texts - fixed.shape[1])
    unseen = np.eye(parts) / strength - x.T @ precision @ x / strength**2
    carried = directions - x.T @ weighted / strength
    covariance = noise * (unseen + carried @ of_fixed @ carried.T)
    left_out = np.mean((residual @ values / np.diag(residual)) ** 2)
    slope = float(estimates[-1]) if directions.shape[1] == 2 else 0.0
    errors = np.sqrt(np.maximum(np.diag(covariance), 0))  # rounding leaves some below zero
    return _Posterior(ShrunkFit(scores, errors), slope, float(left_out))
