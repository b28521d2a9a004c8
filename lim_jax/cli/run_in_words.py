"""How large a run is, in words: its contexts, and the time that it takes."""

from collections.abc import Sequence


def describe_contexts(lengths: Sequence[int], orders: int = 0) -> str:
    """Say how many contexts there are, of how many tokens, and in how many orders of each line."""
    spread = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else lengths[0]
    contexts = "1 context" if len(lengths) == 1 else f"{len(lengths)} contexts"
    description = f"{contexts} of {spread} tokens"
    return f"{description}, {orders} orders of each line" if orders > 0 else description


def duration(seconds: float) -> str:
    """Write seconds in words, as seconds, minutes or hours."""
    if seconds < 90:
        whole_seconds = max(1, round(seconds, -1 if seconds >= 10 else 0))
        return "1 second" if whole_seconds == 1 else f"{whole_seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
