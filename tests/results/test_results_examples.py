"""What small functions of the room give, written down by hand."""

import math

import numpy as np

from lim_jax.density.common_grid import common_regions
from lim_jax.results.context_energies import energies_before_queries
from lim_jax.results.percentages import error_words, percent, points_in_words


def test_points_in_words():
    assert (points_in_words(-0.125, 0.1)) == (
        "12.5 ± 10.0 points less",
        ", which is within two errors",
    )
    assert (
        (points_in_words(0.125, 0.0)[1])
        == ", the same in every context, so that the error says nothing"
    )


def test_error_words():
    assert (error_words(0.25), error_words(0.0), error_words(math.inf)) == (
        " ± 0.2",
        " (error 0)",
        "",
    )


def test_energies_before_queries():
    (before,) = energies_before_queries([np.array([4.0, 8.0, 1.0, 1.0])], [2]) or []
    assert before.tolist() == [2.0, 4.0]


def test_common_regions():
    assert (
        [common_regions(lengths, 0.2).grid.size for lengths in ([7, 7], [7, 9, 12], [300, 400])]
    ) == [7, 9, 100]


def test_percent():
    assert (percent(0.6149, 0.023), percent(0.6149), percent(0.0042), percent(0.6149, 0.0)) == (
        "61 % ± 2 %",
        "61 %",
        "0.4 %",
        "61 % (error 0)",
    )
