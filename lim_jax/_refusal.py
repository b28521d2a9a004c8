"""The error of an argument that is refused. Without JAX: the command line starts with it."""

import re


class Refusal(ValueError):
    """An argument is refused: what was passed, what is accepted, and how to fix it."""

    def __reduce__(self) -> tuple:
        return _refuse, self.args


class MissingPackage(ModuleNotFoundError):
    """A package is missing that is installed with one of our extras."""

    def __reduce__(self) -> tuple:
        return _miss, (str(self), self.name)


def _refuse(words: str) -> Refusal:
    return Refusal(words)


def _miss(words: str, name: str) -> MissingPackage:
    return MissingPackage(words, name=name)


# As equinox does: a traceback shows the class without the file that holds it. So the class is not
# found by its module, and what another process raises is pickled by the functions above.
Refusal.__module__ = MissingPackage.__module__ = "builtins"


def refusal(error: Exception) -> str | None:
    """The words of an error of ours; None of others.

    What `jax.jit` raises is known by the form of its words, which Equinox and XLA wrap in their
    own.
    """
    if isinstance(error, Refusal | MissingPackage):
        return str(error)
    if not isinstance(error, RuntimeError):
        return None
    wrapped = re.search(r"EquinoxRuntimeError: (.+?)\n\n", str(error), re.DOTALL)
    words = wrapped[1] if wrapped else str(error)
    return words if re.match(r"[^\n]+?: (got .+, )?expected ", words, re.DOTALL) else None
