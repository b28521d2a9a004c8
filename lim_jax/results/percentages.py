"""Shares and their changes in words: per cent, points and standard errors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def percent(share: Any, error: Any = np.inf) -> str:
    """Write a share in per cent, with its standard error where there is one."""

    def digits(value: Any) -> str:
        """Return a share in per cent, with one digit below one per cent."""
        size = 100 * float(value)
        return f"{size:.0f} %" if abs(size) >= 0.95 or size == 0 else f"{size:.1g} %"

    return digits(share) + error_words(error, digits)


def points_in_words(share: float, error: float) -> tuple[str, str]:
    """Say a change in percentage points, and separately what its standard error leaves open."""
    points = f"{100 * abs(share):.1f}{error_words(100 * error)}"
    if math.isinf(error):
        warning = ", of one context alone, which has no error"
    elif error == 0:
        warning = ", the same in every context, so that the error says nothing"
    else:
        warning = ", which is within two errors" if abs(share) <= 2 * error else ""
    return f"{points} points {'less' if share < 0 else 'more'}", warning


def error_words(error: Any, words: Callable[[float], str] = "{:.1f}".format) -> str:
    """Write a standard error to follow a number: nothing for one context, and zero in words."""
    if float(error) == 0:
        return " (error 0)"
    return "" if math.isinf(error) else f" ± {words(float(error))}"
