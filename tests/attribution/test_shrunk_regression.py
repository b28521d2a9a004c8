"""Regressions shrunk towards known scores: beside normal distributions written out, and refits."""

import numpy as np
import pytest

from lim_jax.attribution import shrunk_regression as shrunk
from lim_jax.attribution.shrunk_regression import shrunk_regression

TEXTS, PARTS = 9, 5
RNG = np.random.default_rng(0)
KEPT = RNG.integers(2, size=(TEXTS, PARTS)).astype(bool)
EFFECTS = np.array([2.0, -0.7, 0.1, 0.0, 1.1])
PRIOR = np.array([0.9, -0.2, 0.2, -0.1, 0.4])
VALUES = -3 + KEPT @ EFFECTS + 0.3 * RNG.normal(size=TEXTS)


def relative_variances(prior):
    """Half of each size over their mean, and a half."""
    mean = sum(map(abs, prior.tolist())) / len(prior)
    return np.array([(abs(size) / mean + 1) / 2 for size in prior.tolist()])


def dense_posterior(kept, values, prior, strength, *, flat=1e6):
    """The posterior of a joint normal distribution of a, c and the coefficients' rest.

    Of the rest the variances are in proportion to the sizes of `prior` and their mean. A prior
    of variance `flat` on a and c stands for none; variances are in units of the noise's.
    """
    x = np.where(kept, 0.5, -0.5)
    columns = np.concatenate([np.ones((len(x), 1)), (x @ prior)[:, None], x], axis=1)
    variances = np.diag([flat, flat, *relative_variances(prior) / strength])
    gain = variances @ columns.T @ np.linalg.inv(columns @ variances @ columns.T + np.eye(len(x)))
    mean = gain @ values
    covariance = variances - gain @ columns @ variances
    scores = np.concatenate([np.zeros((len(prior), 1)), prior[:, None], np.eye(len(prior))], axis=1)
    return scores @ mean, np.sqrt(np.diag(scores @ covariance @ scores.T)), mean


@pytest.mark.parametrize("strength", [0.02, 1.0, 30.0])
def test_scores_and_errors_are_those_of_the_joint_normal_distribution(strength, monkeypatch):
    """Errors in units of the noise, whose variance is the weighted residual's over its degrees."""
    monkeypatch.setattr(shrunk, "STRENGTHS", np.array([strength]))
    fit = shrunk_regression(KEPT, VALUES, PRIOR)
    scores, errors, _ = dense_posterior(KEPT, VALUES, PRIOR, strength)
    np.testing.assert_allclose(fit.scores, scores, rtol=1e-4, atol=1e-5)
    noise = noise_variance(KEPT, VALUES, PRIOR, strength)
    np.testing.assert_allclose(fit.errors, errors * np.sqrt(noise), rtol=1e-4)


def noise_variance(kept, values, prior, strength):
    """The generalised least squares' residual, over texts less what was estimated."""
    x = np.where(kept, 0.5, -0.5)
    fixed = np.stack([np.ones(len(x)), x @ prior], axis=1)
    unknown = x @ np.diag(relative_variances(prior)) @ x.T
    lower = np.linalg.cholesky(np.eye(len(x)) + unknown / strength)
    whitened = np.linalg.solve(lower, np.concatenate([fixed, values[:, None]], axis=1))
    residual = np.linalg.lstsq(whitened[:, :2], whitened[:, 2], rcond=None)[1]
    return float(residual[0]) / (len(x) - 2)


def test_the_strength_is_that_which_foretells_texts_that_are_left_out():
    """Each text is foretold by a fit to the others, at every strength."""

    def squares(strength):
        errors = []
        for left_out in range(TEXTS):
            rest = np.arange(TEXTS) != left_out
            scores, _, mean = dense_posterior(KEPT[rest], VALUES[rest], PRIOR, strength)
            foretold = mean[0] + np.where(KEPT[left_out], 0.5, -0.5) @ scores
            errors.append(VALUES[left_out] - foretold)
        return np.mean(np.square(errors))

    best = min(shrunk.STRENGTHS, key=squares)
    scores, _, _ = dense_posterior(KEPT, VALUES, PRIOR, best)
    assert shrunk.STRENGTHS[0] < best < shrunk.STRENGTHS[-1]
    np.testing.assert_allclose(shrunk_regression(KEPT, VALUES, PRIOR).scores, scores, atol=1e-4)


def test_scores_known_before_that_point_the_other_way_are_not_used():
    """The fit is the same with minus the true effects as with nothing known."""
    against = shrunk_regression(KEPT, VALUES, -EFFECTS)
    nothing = shrunk_regression(KEPT, VALUES, np.zeros(PARTS))
    np.testing.assert_array_equal(against.scores, nothing.scores)
    assert np.corrcoef(nothing.scores, EFFECTS)[0, 1] > 0.8


def test_where_nothing_is_known_all_coefficients_are_as_unknown():
    """Ridge regression, whose strength is the one that leaves texts out best."""
    fit = shrunk_regression(KEPT, VALUES, np.zeros(PARTS))
    x = np.where(KEPT, 0.5, -0.5)

    def ridge(strength, texts):
        """The coefficients and the value that any text has before they count."""
        centred = x[texts] - x[texts].mean(axis=0)
        penalised = centred.T @ centred + strength * np.eye(PARTS)
        coefficients = np.linalg.solve(penalised, centred.T @ VALUES[texts])
        return coefficients, VALUES[texts].mean() - x[texts].mean(axis=0) @ coefficients

    def squares(strength):
        errors = []
        for left_out in range(TEXTS):
            coefficients, start = ridge(strength, np.arange(TEXTS) != left_out)
            errors.append(VALUES[left_out] - start - x[left_out] @ coefficients)
        return np.mean(np.square(errors))

    best = min(shrunk.STRENGTHS, key=squares)
    assert shrunk.STRENGTHS[0] < best < shrunk.STRENGTHS[-1]
    np.testing.assert_allclose(fit.scores, ridge(best, np.arange(TEXTS))[0], rtol=0, atol=1e-9)


def test_exact_scores_known_before_leave_only_their_scale_to_be_found():
    """Of values that follow the known scores the scores are three times those known."""
    kept = np.array([[True, True, False], [False, True, False], [True, False, True]])
    known = np.array([1.0, 0.5, -0.25])
    fit = shrunk_regression(kept, 3 * (kept @ known), known)
    np.testing.assert_allclose(fit.scores, 3 * known, rtol=1e-8)
    np.testing.assert_allclose(fit.errors, 0, atol=1e-6)


def test_true_effects_are_as_far_from_the_scores_as_the_errors_say():
    """Of effects drawn as the model says some two thirds are within one error, most within two."""
    rng = np.random.default_rng(1)
    within = []
    for _ in range(200):
        kept = rng.integers(2, size=(24, 12)).astype(bool)
        known = rng.normal(size=12)
        effects = 2 * known + 0.5 * np.sqrt(relative_variances(known)) * rng.normal(size=12)
        values = kept @ effects + 0.4 * rng.normal(size=24)
        fit = shrunk_regression(kept, values, known)
        within.append(np.abs(fit.scores - effects)[:, None] < np.outer(fit.errors, [1, 2]))
    one, two = np.mean(within, axis=(0, 1))
    assert 0.6 < one < 0.75
    assert 0.9 < two < 0.98
