"""Ten shades from least to most, on light and on dark, and the ink that is readable on each."""

from typing import NamedTuple

import numpy as np

from lim_jax.results.scales import spans_decades

# Even steps of lightness in OKLCH; the first is nearly the page's own colour.
LIGHT = ("#fcfaf1", "#f6e6bf", "#f4cc8e", "#f5ac62", "#ea803f",
         "#d15833", "#ad372f", "#802532", "#581932", "#36122c")  # fmt: skip
DARK = ("#1f2026", "#332640", "#542850", "#7b2b54", "#9f3753",
        "#c24b4b", "#e16a3e", "#f29641", "#f8c264", "#f9e99a")  # fmt: skip
COUNT = len(LIGHT)
BLACK = "#000000"
WHITE = "#ffffff"
DECADES_AT_MOST = 4


class Shading(NamedTuple):
    """The edges of the shades' intervals, one more than shades; equal in ratio or in difference."""

    edges: np.ndarray
    logarithmic: bool

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the shade of each value, from 0; what lies beyond the edges has the nearest."""
        intervals = np.searchsorted(self.edges, np.asarray(values), side="right") - 1
        return np.clip(intervals, 0, COUNT - 1)


def choose_shades(values: np.ndarray) -> Shading:
    """Choose shades from zero to the greatest value; logarithmic ones for over two decades.

    These begin at the least positive value, or four decades below the greatest.
    """
    values = np.asarray(values, float)
    positive = values[values > 0]
    top = float(positive.max()) if positive.size else 1.0
    if spans_decades(values):
        least = max(float(positive.min()), top * 10.0**-DECADES_AT_MOST)
        return Shading(np.geomspace(least, top, COUNT + 1), True)
    return Shading(np.linspace(0, top, COUNT + 1), False)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours by WCAG 2, from 1 to 21; text needs 4.5."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def ink(shade: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return max((BLACK, WHITE), key=lambda colour: contrast(colour, shade))


def style() -> str:
    """Return the shades' style sheet: light on paper and by default, dark where users prefer it."""
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_variables(DARK)}}}\n"
    used = "".join(
        f".shade-{n} {{ background: var(--shade-{n}); color: var(--ink-{n}); }}\n"
        for n in range(COUNT)
    )
    return _variables(LIGHT) + dark + used


def _variables(scale: tuple[str, ...]) -> str:
    """Return the style sheet's variables of these shades, and of the ink on each."""
    pairs = (f"--shade-{n}: {c}; --ink-{n}: {ink(c)};\n" for n, c in enumerate(scale))
    return f":root {{\n{''.join(pairs)}}}\n"


def _luminance(colour: str) -> float:
    """Compute the relative luminance of a colour by WCAG 2, from 0 to 1."""
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
