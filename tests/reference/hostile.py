"""Arguments of right calls, and what can mean nothing in their place."""

import numpy as np

LENGTH = 3  # of an axis along which rows are counted


class Argument:
    """The right value of an argument, and what can mean nothing in its place."""

    def __init__(self, right):
        self.right = right

    def malformed(self):
        return {"none": None} | JUNK | {"int": 3, "float": 0.5, "array": np.ones((2, 5, 7))}

    def poisoned(self):
        return {}


class Thing(Argument):
    """A grid, regions, a function, a key."""

    def malformed(self):
        # Of a function the type is a function, too.
        its_class = {} if callable(self.right) else {"its class": type(self.right)}
        return super().malformed() | its_class


class Anything(Argument):
    """A result, numbers, strings, lists and dictionaries of them: all but what is none."""

    def malformed(self):
        return {"object": object(), "complex number": 1j, "its class": type(self.right)}


class Several(Thing):
    """A list; one without entries means nothing at all."""

    def malformed(self):
        found = super().malformed()
        del found["empty list"]
        return found


class Numbers(Thing):
    """A list of numbers."""

    def malformed(self):
        found = super().malformed()
        del found["list"]
        return found


class Free(Argument):
    """An array whose rows are the caller's choice."""

    def malformed(self):
        a = np.asarray(self.right)
        return {"none": None, "int": 3, "float": 0.5, "as a list": a.tolist()} | JUNK | {
            "complex": a + 1j, "integers": (10 * a).astype(int), "booleans": a > 0,
            "numbers as strings": a.astype(str), "objects": a.astype(object), "batched": a[None],
        }  # fmt: skip

    def poisoned(self):
        first = np.arange(self.right.size).reshape(self.right.shape) == 0
        return {name: np.where(first, value, self.right) for name, value in NOT_FINITE.items()}


class Shaped(Free):
    """An array of which the shape is read, and of its numbers not the first."""

    def poisoned(self):
        return {}


class Samples(Free):
    """An array of any shape, of which only the first axis must not be empty."""

    def malformed(self):
        found = super().malformed()
        del found["batched"]
        return found


class Layers(Thing):
    """Any pytree of arrays with a leading axis; an array is one."""

    def malformed(self):
        found = super().malformed()
        del found["array"]
        return found


class Given(Argument):
    """What the caller's own function is: its errors are the caller's."""

    def malformed(self):
        return {}


class Rows(Free):
    """An array with a row for each position, or for each row of another argument."""

    def malformed(self):
        a, found = np.asarray(self.right), super().malformed()
        for axis in (axis for axis, size in enumerate(a.shape) if size == LENGTH):
            found[f"one more along {axis}"] = np.concatenate([a, a.take([0], axis)], axis)
            found[f"one less along {axis}"] = a.take(range(LENGTH - 1), axis)
            found[f"none along {axis}"] = a.take([], axis)
        return found


class Sizes(Rows):
    """Rows of which none is below zero."""

    def malformed(self):
        return super().malformed() | {"negative": -np.asarray(self.right)}


class Unread(Rows):
    """Rows that are not read, so that what is in them does not matter."""

    def poisoned(self):
        return {}


class Whole(Argument):
    """An array of whole numbers."""

    def malformed(self):
        a = np.asarray(self.right)
        return super().malformed() | {
            "floats": a + 0.0,
            "as a list": a.tolist(),
            "none of them": a[:0],
        }


class Known(Argument):
    """A whole number that must be known before tracing."""

    def malformed(self):
        return {
            "none": None, "float": 0.5, "array": np.ones(2, int), "negative": -1, "boolean": True,
        } | JUNK  # fmt: skip


class Stated(Known):
    """A whole number of a call that is dear: only what must be refused is tried."""


class Real(Argument):
    """A real number."""

    def malformed(self):
        return {"none": None, "boolean": True, "array": np.ones((2, 5, 7))} | JUNK

    def poisoned(self):
        return NOT_FINITE


class Above(Real):
    """A number above zero, known before tracing."""

    def malformed(self):
        return super().malformed() | NOT_FINITE | {"zero": 0, "negative": -4.0}

    def poisoned(self):
        return {}


class Epsilon(Real):
    """A number that is not negative."""

    def malformed(self):
        return super().malformed() | {"negative": -1e-3}


class Share(Real):
    """A share below one, of a call that is dear."""

    def malformed(self):
        return super().malformed() | {"negative": -1e-3, "one": 1.0}

    def poisoned(self):
        return {}


class Unpoisoned(Real):
    """A real number of a call that is dear: that NaN stays visible is held in its room."""

    def poisoned(self):
        return {}


class Delta(Argument):
    """A fraction of the context, a string among others."""

    def malformed(self):
        return {"none": None, "array": np.ones(2)} | JUNK | NOT_FINITE


class Text(Argument):
    """A string."""

    def malformed(self):
        found = super().malformed()
        del found["string"]
        return found


class Texts(Several):
    """A list of strings, at least one."""

    def malformed(self):
        found = super().malformed()
        del found["list of strings"]
        return found | {"empty list": []}


class Named(Argument):
    """A dictionary by names."""


def but(argument, *kinds):
    """The same, where these kinds mean something."""

    class But(type(argument)):
        def malformed(self):
            found = super().malformed()
            return {kind: value for kind, value in found.items() if kind not in kinds}

    return But(argument.right)


def optional(argument):
    """The same, where None stands for a default."""
    return but(argument, "none")


NOT_FINITE = {"NaN": np.nan, "infinity": np.inf}
JUNK = {
    "string": "3?", "list": [1.0, 2.0], "list of strings": ["1", "2"], "empty list": [],
    "dictionary": {"size": 3}, "complex number": 1j, "object": object(),
}  # fmt: skip
