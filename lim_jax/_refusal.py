"""Which errors are refusals, in words of ours. Without JAX: the command line starts with it."""

import re


def refusal(error: Exception) -> str | None:
    r"""The words of an error of ours, which name what was refused and the cure; None of others.

    Equinox and XLA wrap what is raised while a compiled program runs in words of their own.

    Examples
    --------
    >>> refusal(ValueError("delta: got 0.6, expected less than one half. Take 0.2."))
    'delta: got 0.6, expected less than one half. Take 0.2.'
    >>> refusal(ValueError("zip() argument 2 is longer than argument 1"))
    >>> refusal(RuntimeError("INTERNAL: ... _EquinoxRuntimeError: x: expected ones.\n\n\n---"))
    'x: expected ones.'
    """
    wrapped = re.search(r"EquinoxRuntimeError: (.+?)\n\n", str(error), re.DOTALL)
    words = wrapped[1] if wrapped else str(error)
    got = "(got .+, )?" if isinstance(error, RuntimeError) else "got .+, "
    return words if re.match(rf"[^\n]+?: {got}expected ", words, re.DOTALL) else None
