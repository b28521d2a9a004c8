"""Statistics made into one: the regression's own equations, its halves, and what it gains."""

import numpy as np
from scipy.special import expit

from benchmarks.validation import combined_statistics
from benchmarks.validation.combined_statistics import COLUMNS, RIDGE


def made_rows(count=40):
    """Rows of two seeds in turn, whose columns overlap between the groups."""
    rng = np.random.default_rng(3)
    supported = rng.integers(2, size=count)
    values = rng.normal(size=(count, 3)) * [2.0, 0.5, 30.0] + supported[:, None] * [1.0, 0.5, -40.0]
    return [
        {"kind": "keys", "seed": n, "supported": int(is_stated), "held": int(is_stated)}
        | dict(zip(COLUMNS, map(float, row), strict=True))
        for n, (is_stated, row) in enumerate(zip(supported, values, strict=True))
    ]


def test_the_slope_of_the_regression_is_zero():
    rows = made_rows()
    regression = combined_statistics.fit_regression(rows)
    values = np.array([[row[name] for name in COLUMNS] for row in rows])
    scaled = (values - np.mean(values, axis=0)) / np.std(values, axis=0)
    slopes = regression.coefficients[:3]
    log_odds = scaled @ slopes + regression.coefficients[3]
    np.testing.assert_allclose(regression.log_odds(rows), log_odds, rtol=1e-9)
    residual = expit(log_odds) - np.array([row["supported"] for row in rows])
    np.testing.assert_allclose(residual @ scaled / len(rows) + RIDGE * slopes, 0, atol=1e-5)
    np.testing.assert_allclose(residual.mean(), 0, atol=1e-5)
    assert (np.sign(slopes) == [1, 1, -1]).all()


def test_questions_of_even_number_fit_what_is_judged_on_odd_ones():
    rows = made_rows()
    found = combined_statistics.with_combinations(rows)
    assert [row["seed"] for row in found] == [*range(1, 40, 2)]
    regression = combined_statistics.fit_regression(rows[::2])
    np.testing.assert_allclose(
        [row["regression"] for row in found], regression.log_odds(rows[1::2]), rtol=1e-12
    )
    assert [row["lesser"] for row in found] == [
        min(row["lost"], row["given"]) for row in rows[1::2]
    ]
    assert all(row.items() <= more.items() for row, more in zip(rows[1::2], found, strict=True))


def test_a_gain_is_over_what_is_lost_on_the_same_questions():
    rows = [
        {"kind": "keys", "seed": seed, "supported": n, "held": n}
        | {"lost": float(n if seed % 4 else 1 - n), "lesser": float(n)}
        for seed in range(16)
        for n in (0, 1)
    ]
    gain = combined_statistics.gain_of(rows, "lesser", ("absent",))
    # Three quarters of each group are as they should be: pairs of such are right, mixed ones tie.
    assert gain.value == 1 - (9 / 16 + 6 / 16 / 2)
    assert 0 <= gain.low < gain.value < gain.high < 0.6
    assert combined_statistics.gain_of(rows, "lost", ("absent",)) == (0, 0, 0)
