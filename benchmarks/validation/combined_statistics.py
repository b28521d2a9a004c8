"""Statistics of an answer made into one, to see whether it tells more than one of them alone.

A logistic regression of whether a document states the answer, fitted to the answers of even seeds
and judged on those of odd ones; and the lesser of two, which fits nothing.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from benchmarks.validation.intervals import Interval
from benchmarks.validation.support import Row, auroc_of_statistic, over_questions

COLUMNS = ("lost", "given", "beside the rest")
ALONE = "lost"
COMBINATIONS = ("regression", "lesser")
RIDGE = 0.01  # of the squared coefficients, without which those of groups that part are infinite


class Regression(NamedTuple):
    """A logistic regression of `COLUMNS`, each less its mean and over its deviation.

    Attributes
    ----------
    means, deviations
        Of the rows that it was fitted to.
    coefficients
        Of the columns, and then the constant.
    """

    means: Float[np.ndarray, " columns"]
    deviations: Float[np.ndarray, " columns"]
    coefficients: Float[np.ndarray, " columns_and_one"]

    def log_odds(self, rows: Sequence[Row]) -> Float[np.ndarray, " rows"]:
        """Return the log odds that a document states each row's answer."""
        *slopes, constant = self.coefficients
        return (_values(rows) - self.means) / self.deviations @ np.array(slopes) + constant


def fit_regression(rows: Sequence[Row]) -> Regression:
    r"""Fit a regression: the least mean of :math:`\log(1 + e^{\mp z})`, and a small ridge."""
    values = _values(rows)
    signs = np.array([1.0 if int(row["supported"]) else -1.0 for row in rows])
    means = values.mean(axis=0)
    deviations = values.std(axis=0)
    start = np.zeros(len(COLUMNS) + 1)

    def risk(coefficients: np.ndarray) -> float:
        """Return the mean loss of the rows with these coefficients, and the ridge's."""
        log_odds = Regression(means, deviations, coefficients).log_odds(rows)
        ridge = RIDGE / 2 * np.sum(coefficients[:-1] ** 2)
        return float(np.logaddexp(0, -signs * log_odds).mean() + ridge)

    return Regression(means, deviations, minimize(risk, start).x)


def with_combinations(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows of odd seeds with both combinations, fitted to those of even seeds."""
    odd = [row for row in rows if int(row["seed"]) % 2]
    regression = fit_regression([row for row in rows if not int(row["seed"]) % 2])
    return [
        {
            **row,
            "regression": float(log_odds),
            "lesser": min(float(row["lost"]), float(row["given"])),
        }
        for row, log_odds in zip(odd, regression.log_odds(odd), strict=True)
    ]


def gain_of(rows: Sequence[Row], name: str, below: Collection[str]) -> Interval:
    """Return by how much more often a combination is above the groups `below` than `ALONE` is."""

    def gain(drawn: Sequence[Row]) -> float:
        """Compare both on the same rows."""
        both = [auroc_of_statistic(drawn, column, below) for column in (name, ALONE)]
        return both[0] - both[1]

    return over_questions(rows, gain)


def _values(rows: Sequence[Row]) -> Float[np.ndarray, "rows columns"]:
    """Return the columns of the rows as numbers."""
    return np.array([[float(row[name]) for name in COLUMNS] for row in rows])
