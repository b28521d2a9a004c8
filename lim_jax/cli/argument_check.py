"""Arguments of a command that are wrong, told in one line before the command is run."""

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

from lim_jax._argument_error import Refusal

# White space before an equals sign is in a text, such as "-who are you?", and in no option.
FLAG = re.compile(r"--?[A-Za-z][^\s=]*(=.*)?", re.DOTALL)
NUMBERS = {int: "a whole number", float: "a finite number"}


class Bounds(NamedTuple):
    """A mark of an annotation: the least number that an argument takes, and the largest.

    With `beyond` the least is itself refused.
    """

    least: int
    most: int | None = None
    beyond: bool = False

    def __str__(self) -> str:
        """Return the words after those of a number."""
        if self.beyond:
            return f"above {self.least}"
        if self.most is None:
            return f"of at least {self.least}"
        return f"from {self.least} to {self.most}"

    def hold(self, number: int | float) -> bool:
        """Tell whether a number is within the bounds."""
        from_least = number > self.least if self.beyond else number >= self.least
        return from_least and (self.most is None or number <= self.most)


class Argument(NamedTuple):
    """An argument of a command: its name on the command line, and the values that it takes."""

    flag: str  # such as --out; of a positional one too, which is given without
    metavar: str
    kind: Any
    required: bool
    positional: bool
    bounds: Bounds | None = None  # of the numbers that it takes

    @property
    def name(self) -> str:
        """What errors call it: its flag, or what stands in its place in the usage."""
        return self.metavar if self.positional else self.flag

    @property
    def usage(self) -> str:
        """How it is given, if it must be."""
        return self.metavar if self.positional else f"{self.flag} {self.metavar}"


class Option(NamedTuple):
    """An option that was given: its flag, as it was written, and its values."""

    flag: str
    argument: Argument
    values: list[str]

    @property
    def words(self) -> list[str]:
        """The words of the command line, in which a value that begins with a dash is one."""
        if len(self.values) == 1:
            return [f"{self.flag}={self.values[0]}"]
        return [self.flag, *self.values]


def as_arguments(name: str, command: Callable[..., int], words: Sequence[str]) -> list[str]:
    """Return a command's words with its options first, which no text is then taken for.

    Raise a `Refusal` of one line unless the command takes these arguments.
    """
    if {"-h", "--help"} & set(words):
        return list(words)
    arguments = _arguments(command)
    options, positional = _by_option(name, arguments, words)
    wanted = [argument for argument in arguments if argument.positional]
    if len(positional) > len(wanted):
        extra = positional[len(wanted)]
        expected = " and ".join(argument.metavar for argument in wanted) or "options alone"
        raise _refusal(name, repr(extra), "is one argument too many", f"it takes {expected}")
    reached = [option.argument for option in options] + wanted[: len(positional)]
    missing = [a.usage for a in arguments if a.required and a not in reached]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        usage = " ".join(a.usage for a in arguments if a.required)
        names = ", ".join(missing)
        raise _refusal(name, names, f"{verb} missing", f"the command is lim-jax {name} {usage}")
    for option in options:
        _require_values(name, option.argument, option.values)
    for argument, word in zip(wanted, positional, strict=False):
        _require_values(name, argument, [word])
    words_of_options = [word for option in options for word in option.words]
    return [*words_of_options, "--", *positional] if positional else words_of_options


def _by_option(
    name: str, arguments: Sequence[Argument], words: Sequence[str]
) -> tuple[list[Option], list[str]]:
    """Return each option with its words, and the words of none; refuse flags of no option."""
    by_flag = {flag: a for a in arguments if not a.positional for flag in _flags(a)}
    options: list[Option] = []
    positional: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not FLAG.fullmatch(word):
            positional.append(word)
            continue
        flag, equals, value = word.partition("=")
        spelt = flag.replace("_", "-")
        argument = by_flag.get(spelt)
        if argument is None:
            raise _refusal(
                name, flag, "is no option", f"the options are {_list_flags(by_flag)}", by_flag
            )
        if equals:
            rest.insert(0, value)
        values = _option_values(argument, rest, literal=bool(equals))
        del rest[: len(values)]
        if not values:
            _require_values(name, argument, values)
        options.append(Option(spelt, argument, values))
    return options, positional


def _arguments(command: Callable[..., int]) -> list[Argument]:
    """Return the arguments of a command, from its signature and its annotations."""
    annotated = get_type_hints(command, include_extras=True)
    plain = get_type_hints(command)
    arguments = []
    for name, parameter in signature(command).parameters.items():
        marks = getattr(annotated[name], "__metadata__", ())
        metavar = next((m.metavar for m in marks if getattr(m, "metavar", None)), "VALUE")
        positional = tyro.conf.Positional in marks
        required = parameter.default is parameter.empty
        flag = f"--{name.replace('_', '-')}"
        bounds = next((mark for mark in marks if isinstance(mark, Bounds)), None)
        arguments.append(Argument(flag, metavar, plain[name], required, positional, bounds))
    return arguments


def _flags(argument: Argument) -> list[str]:
    """Return the flags of an option: that of a bool has a negative too."""
    flag = argument.flag
    return [flag, f"--no-{flag[2:]}"] if argument.kind is bool else [flag]


def _option_values(argument: Argument, rest: Sequence[str], *, literal: bool) -> list[str]:
    """Return the tokens that are an option's values; if `literal`, the first may be a flag."""
    if argument.kind is bool:
        return []
    most = len(rest) if get_origin(argument.kind) is tuple else 1
    values = []
    for number, token in enumerate(rest[:most]):
        if FLAG.fullmatch(token) and not (literal and number == 0):
            break
        values.append(token)
    return values


def _require_values(name: str, argument: Argument, values: Sequence[str]) -> None:
    """Raise a `Refusal` if an option lacks its value, or if a value is of another type."""
    kinds = _kinds(argument.kind)
    choices = [choice for kind in kinds for choice in _choices(kind)]
    number = next((NUMBERS[kind] for kind in kinds if kind in NUMBERS), None)
    if number and argument.bounds:
        number += f" {argument.bounds}"
    expected = f"one of {', '.join(choices)}" if choices else number or "a value"
    if argument.kind is bool:
        return
    if not values and get_origin(argument.kind) is not tuple:
        dash = f", as {argument.flag}=VALUE if it begins with a dash" if str in kinds else ""
        accepted = f"pass {expected} after it{dash}"
        raise _refusal(name, argument.name, "has no value", accepted)
    for value in values:
        if Path in kinds and not value:  # which would be the current folder
            raise _refusal(name, f"{argument.name} ''", "is empty", "pass a path")
        if kinds[0] is str and not value.strip():
            raise _refusal(name, f"{argument.name} {value!r}", "is empty", "pass a text of words")
        if not any(_fits(kind, value, argument.bounds) for kind in kinds):
            raise _refusal(
                name, f"{argument.name} {value}", "is not accepted", f"pass {expected}", choices
            )


def _kinds(kind: Any) -> list[Any]:
    """Return the types that a value may have; of a tuple, those of each of its values."""
    if get_origin(kind) in (Union, UnionType):
        return [part for member in get_args(kind) for part in _kinds(member)]
    return _kinds(get_args(kind)[0]) if get_origin(kind) is tuple else [kind]


def _choices(kind: Any) -> list[str]:
    """Return the values of a literal type, and none of others."""
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _fits(kind: Any, value: str, bounds: Bounds | None) -> bool:
    """Tell whether a word of the command line is a value of this type, a number within bounds."""
    if kind is type(None):
        return value == "None"
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind not in NUMBERS:
        return True
    try:
        number = kind(value)
    except ValueError:
        return False
    return math.isfinite(number) and (bounds is None or bounds.hold(number))


def _list_flags(flags: Sequence[str] | dict[str, Argument]) -> str:
    """Return the flags in one line, without the negative ones."""
    return ", ".join(flag for flag in flags if not flag.startswith("--no-"))


def _refusal(
    name: str, got: str, wrong: str, accepted: str, near: Sequence[str] | dict[str, Argument] = ()
) -> Refusal:
    """Return the error of a command's arguments, which names the closest of `near` as a cure."""
    close = get_close_matches(got.split()[-1], list(near), n=1)
    cure = f"Did you mean {close[0]}?" if close else f"lim-jax {name} --help says more."
    return Refusal(f"{name}: {got} {wrong}; {accepted}. {cure}")
