"""The error of an argument that is refused. Without JAX: the command line starts with it."""

# Begins what a check of a compiled program says: JAX and Equinox raise it in classes of their own.
MARK = "lim_jax: "


class Refusal(ValueError):
    """An argument is refused: what was passed, what is accepted, and how to fix it."""

    def __reduce__(self) -> tuple:
        """Pickle the error by a function, as its class is not found under its module's name."""
        return _refuse, self.args


class MissingPackage(ModuleNotFoundError):
    """A package is missing that is installed with one of our extras."""

    def __reduce__(self) -> tuple:
        """Pickle the error by a function, as its class is not found under its module's name."""
        return _miss, (str(self), self.name)


def _refuse(words: str) -> Refusal:
    """Make a `Refusal` again when it is unpickled."""
    return Refusal(words)


def _miss(words: str, name: str) -> MissingPackage:
    """Make a `MissingPackage` again when it is unpickled."""
    return MissingPackage(words, name=name)


# As equinox does: a traceback shows the class without the file that holds it. So the class is not
# found by its module, and what another process raises is pickled by the functions above.
Refusal.__module__ = MissingPackage.__module__ = "builtins"


def refusal(error: Exception) -> str | None:
    """Return the message of an error of this library, unwrapped, or None for other errors."""
    if isinstance(error, Refusal | MissingPackage):
        return str(error)
    if not isinstance(error, RuntimeError):
        return None
    _, _, marked = str(error).partition(MARK)
    words, _, _ = marked.partition("\n\n")
    return words or None
