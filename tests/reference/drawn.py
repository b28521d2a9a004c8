"""What a figure shows of what is drawn in it."""

import numpy as np
from picture_numbers import carried_numbers


def assert_nothing_is_cut(figure):
    """Text, legends and marks lie inside the figure, curves and bands' upper ends in their axes."""
    figure.draw_without_rendering()
    left, bottom, right, top = figure.get_tightbbox().extents
    width, height = figure.get_size_inches()
    assert 0 <= left and right <= width and 0 <= bottom and top <= height
    for axes in figure.axes:
        low, high = axes.get_ylim()
        curves = [np.asarray(line.get_ydata(), float) for line in axes.lines]
        for curve in curves:
            shown = curve[np.isfinite(curve)]
            assert min(low, high) <= shown.min() and shown.max() <= max(low, high)
        for band in axes.collections:
            highest = max(np.asarray(path.vertices)[:, 1].max() for path in band.get_paths())
            assert highest <= max(low, high)


def require_as_drawn(committed, anew):
    """The same pictures, which say the same words and draw the same numbers."""
    files = sorted(committed.glob("*.png")) if committed.exists() else []
    assert [file.name for file in files] == sorted(file.name for file in anew.glob("*.png"))
    for file in files:
        for old, new in zip(carried_numbers(file), carried_numbers(anew / file.name), strict=True):
            assert old["said"] == new["said"], file
            for first, second in zip(old["drawn"], new["drawn"], strict=True):
                close = np.allclose(
                    first, second, rtol=0.01, atol=1e-3 * np.nanmax(np.abs(second)), equal_nan=True
                )
                assert close, (file, first, second)
