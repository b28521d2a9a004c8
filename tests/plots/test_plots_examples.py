"""What small functions of the room give, written down by hand."""

import numpy as np

from lim_jax.plots.figure_style import error_band, headed


def test_headed():
    assert (
        headed("a network, last token", 48, 16, left_out=1)
    ) == "a network, last token (48 positions, n = 16, 1 left out)"


def test_error_band():
    value = np.array([4.0])
    error = np.array([2.0])
    assert ([end.tolist() for end in error_band(value, error, log=False)]) == [[0.0], [8.0]]
    assert ([round(float(end[0]), 6) for end in error_band(value, error, log=True)]) == [
        1.471518,
        10.873127,
    ]
