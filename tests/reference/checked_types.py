"""What checks the types and shapes of every function of the package in tests, at less cost.

``--jaxtyping-packages`` decorates each by `jaxtyping.jaxtyped`, looked up here: some 30
microseconds a call, and a millisecond for a nested function whenever its outer one runs. Together
that was a tenth of the tests' time.
"""

import functools
import inspect
from typing import Any

import jaxtyping
from jaxtyping import _decorator, jaxtyped


def install():
    """Decorate what is imported from now on by `checked`, which makes its checks once."""
    jaxtyping.jaxtyped = checked
    for name in {"_make_fn_with_signature", "_apply_typechecker"} & vars(_decorator).keys():
        setattr(_decorator, name, once(getattr(_decorator, name)))


def once(make):
    """Remember what it made of the same arguments, if they can be hashed."""
    known = functools.cache(make)

    def made(*args, **options):
        try:
            return known(*args, **options)
        except TypeError:
            return make(*args, **options)

    return made


def checked(function=None, *, typechecker):
    """As `jaxtyping.jaxtyped`, whose shapes are named by its calls, where there are shapes.

    A function without them is checked by the type checker alone, a nested one of `Any` by nothing.
    What checks one is made when it is called first: a third of the package's time at import, and
    many are not called by the tests of one worker.
    """
    if function is None:
        return functools.partial(checked, typechecker=typechecker)
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return jaxtyped(function, typechecker=typechecker)
    hints = function.__annotations__.values()
    nested = "<locals>" in function.__qualname__
    if nested and all(hint is Any for hint in hints):
        return function
    shapes = any(isinstance(hint, str) or "jaxtyping" in repr(hint) for hint in hints)

    @functools.cache
    def strict():
        if nested or shapes:
            return jaxtyped(function, typechecker=typechecker)
        return typechecker(function)

    @functools.wraps(function)
    def call(*args, **options):
        told = function if jaxtyping.config.jaxtyping_disable else strict()
        return told(*args, **options)

    return call
