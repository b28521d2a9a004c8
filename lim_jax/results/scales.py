"""On which scale values are drawn: logarithmic where they span more than two decades."""

import numpy as np

DECADES = 100.0


def spans_decades(*profiles: np.ndarray) -> bool:
    """Tell whether positive values span more than two decades, which need a logarithmic scale."""
    values = np.concatenate([np.ravel(profile) for profile in profiles])
    positive = values[values > 0]
    return positive.size > 0 and bool(positive.max() > DECADES * positive.min())
