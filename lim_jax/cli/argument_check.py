"""Arguments of a command that are wrong, told in one line before the command is run."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

from lim_jax._argument_error import Refusal

FLAG = re.compile(r"--?[A-Za-z]")
NUMBERS = {int: "a whole number", float: "a number"}


class Argument(NamedTuple):
    """An argument of a command: its name on the command line, and the values that it takes."""

    usage: str
    kind: Any
    required: bool
    positional: bool


def require_arguments(name: str, command: Callable[..., int], words: Sequence[str]) -> None:
    """Raise a `Refusal` of one line unless the command takes these arguments."""
    if {"-h", "--help"} & set(words):
        return
    arguments = _arguments(command)
    values, positional = _by_option(name, arguments, words)
    wanted = [argument for argument in arguments if argument.positional]
    if len(positional) > len(wanted):
        extra = positional[len(wanted)]
        expected = " and ".join(argument.usage for argument in wanted) or "options alone"
        raise _refusal(name, repr(extra), "is one argument too many", f"it takes {expected}")
    reached = [argument for argument, _ in values] + wanted[: len(positional)]
    missing = [a.usage for a in arguments if a.required and a not in reached]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        usage = " ".join(a.usage for a in arguments if a.required)
        names = ", ".join(missing)
        raise _refusal(name, names, f"{verb} missing", f"the command is lim-jax {name} {usage}")
    for argument, words_of_option in values:
        _require_values(name, argument, words_of_option)
    for argument, word in zip(wanted, positional, strict=False):
        _require_values(name, argument, [word])


def _by_option(
    name: str, arguments: Sequence[Argument], words: Sequence[str]
) -> tuple[list[tuple[Argument, list[str]]], list[str]]:
    """Return each option with its words, and the words of none; refuse flags of no option."""
    flags = {flag: a for a in arguments if not a.positional for flag in _flags(a)}
    values: list[tuple[Argument, list[str]]] = []
    positional: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not FLAG.match(word):
            positional.append(word)
            continue
        flag, equals, value = word.partition("=")
        argument = flags.get(flag.replace("_", "-"))
        if argument is None:
            raise _refusal(
                name, flag, "is no option", f"the options are {_list_flags(flags)}", flags
            )
        if equals:
            rest.insert(0, value)
        words_of_option = _option_values(argument, rest, literal=bool(equals))
        del rest[: len(words_of_option)]
        values.append((argument, words_of_option))
    return values, positional


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
        usage = metavar if positional else f"--{name.replace('_', '-')}"
        usage += f" {metavar}" if required and not positional else ""
        arguments.append(Argument(usage, plain[name], required, positional))
    return arguments


def _flags(argument: Argument) -> list[str]:
    """Return the flags of an option: that of a bool has a negative too."""
    flag = argument.usage.partition(" ")[0]
    return [flag, f"--no-{flag[2:]}"] if argument.kind is bool else [flag]


def _option_values(argument: Argument, rest: Sequence[str], *, literal: bool) -> list[str]:
    """Return the tokens that are an option's values; if `literal`, the first may be a flag."""
    if argument.kind is bool:
        return []
    most = len(rest) if get_origin(argument.kind) is tuple else 1
    values = []
    for number, token in enumerate(rest[:most]):
        if FLAG.match(token) and not (literal and number == 0):
            break
        values.append(token)
    return values


def _require_values(name: str, argument: Argument, values: Sequence[str]) -> None:
    """Raise a `Refusal` if an option lacks its value, or if a value is of another type."""
    flag = argument.usage.partition(" ")[0]
    kinds = _kinds(argument.kind)
    choices = [choice for kind in kinds for choice in _choices(kind)]
    number = next((NUMBERS[kind] for kind in kinds if kind in NUMBERS), None)
    expected = f"one of {', '.join(choices)}" if choices else number or "a value"
    if argument.kind is bool:
        return
    if not values and get_origin(argument.kind) is not tuple:
        raise _refusal(name, flag, "has no value", f"pass {expected} after it")
    for value in values:
        if Path in kinds and not value:  # which would be the current folder
            raise _refusal(name, f"{flag} ''", "is empty", "pass a path")
        if not any(_fits(kind, value) for kind in kinds):
            raise _refusal(name, f"{flag} {value}", "is not accepted", f"pass {expected}", choices)


def _kinds(kind: Any) -> list[Any]:
    """Return the types that a value may have; of a tuple, those of each of its values."""
    if get_origin(kind) in (Union, UnionType):
        return [part for of in get_args(kind) for part in _kinds(of)]
    return _kinds(get_args(kind)[0]) if get_origin(kind) is tuple else [kind]


def _choices(kind: Any) -> list[str]:
    """Return the values of a literal type, and none of others."""
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _fits(kind: Any, value: str) -> bool:
    """Tell whether a word of the command line is a value of this type."""
    if kind is type(None):
        return value == "None"
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind not in NUMBERS:
        return True
    try:
        kind(value)
    except ValueError:
        return False
    return True


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
