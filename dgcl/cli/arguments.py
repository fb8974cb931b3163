"""The argument parser of all commands, and the types of their options: whole numbers, sizes in bytes, lists.

A mistake raises `CliError`, one line that names the command, where argparse prints its usage and exits; a misspelt word
or option gets the closest right one. Options may not be abbreviated.

Called by `option_groups`, `jobs`, `topologies`, `plans` and by most commands, such as `bench` and `plan`. Free to
change while each wrong option or value is refused with status 2 and one line that names it
(`tests/dgcl/cli/test_bad_input.py`).
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from dgcl.cli.command_errors import CliError
from dgcl.topology.checks import nearest

T = TypeVar("T")

_ELSEWHERE = {"--parts": "--ranks", "--num-parts": "--ranks", "-k": "--ranks"}  # what others call it


class Parser(argparse.ArgumentParser):
    """argparse with one line per mistake, no abbreviations, and ``args.prog`` naming the command."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing a usage text and exiting."""
        raise CliError(f"{message} (see {self.prog} --help)", prog=self.prog)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is none of an argument's choices; the closest of them is proposed."""
        if action.choices is not None and value not in action.choices:
            words = [str(word) for word in action.choices]
            choose = f"invalid choice: {value!r} (choose from {', '.join(words)}){nearest(value, words)}"
            raise argparse.ArgumentError(action, choose)

    def unknown(self, words: list[str]) -> NoReturn:
        """Refuse arguments that no option takes; argparse itself would not say of which command."""
        word = words[0].partition("=")[0]
        close = nearest(_ELSEWHERE.get(word, word), self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(words)}{close}")

    def runs(self, command: Callable[[argparse.Namespace], int]) -> None:
        """Make ``command`` what this parser's arguments are for."""
        self.set_defaults(run=command, parser=self)
        self.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def option(
    parser: Any, usage: str, text: str, kind: Any = None, default: Any = None, **settings: Any
) -> None:
    """Declare an option as its manual writes it: ``"-b, --minbytes SIZE"``; without a value it is a flag.

    Args:
        parser: Or one of its groups.
        usage: Its names, and what its value is called.
        text: Its help.
        kind: Reads the value, or the values that there are to choose from.
        default: Of the value.
        settings: More for ``add_argument``.
    """
    *names, last = usage.split(", ")
    name, _, metavar = last.partition(" ")
    if metavar or kind:
        settings |= {
            "type" if callable(kind) else "choices": kind,
            "metavar": metavar or None,
            "default": default,
        }
    else:
        settings["action"] = "store_true"
    parser.add_argument(*names, name, help=text, **settings)


def refuse(args: argparse.Namespace, names: str, rule: str) -> None:
    """Refuse options that were used; ``rule`` says with what they go, or without what."""
    for name in names.split():
        target = name.replace("-", "_")
        if getattr(args, target) != args.parser.get_default(target):
            raise CliError(f"--{name} {rule}")


def at_least(least: int) -> Callable[[str], int]:
    """An option type: a whole number of at least ``least``."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or value >= 2**63:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least} (got {text!r})")
        return value

    return whole_number


_MOST = 1e12  # what is larger, for seconds and factors alike, ends in infinities


def number(least: float, *, open_end: bool = False) -> Callable[[str], float]:
    """An option type: a number of at least ``least``, or above it where the end is open, and at most 1e12."""

    def finite_number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= _MOST or (open_end and value == least):
            bound = f"above {least:g}" if open_end else f"of at least {least:g}"
            most = f" and at most {_MOST:g}" if value > _MOST else ""
            raise argparse.ArgumentTypeError(f"must be a number {bound}{most} (got {text!r})")
        return value

    return finite_number


def per_rank(value_type: Callable[[str], float]) -> Callable[[str], tuple[int, float]]:
    """An option type: ``RANK:VALUE``."""

    def rank_and_value(text: str) -> tuple[int, float]:
        rank, colon, value = text.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(f"must be RANK:VALUE (got {text!r})")
        return at_least(0)(rank), value_type(value)

    return rank_and_value


def byte_size(text: str) -> int:
    """An option type: a positive number of bytes, like 4096, 64K or 1.5GB (:func:`~dgcl.topology.sizes.as_bytes`)."""
    from dgcl.topology.sizes import as_bytes

    try:
        return as_bytes(text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("it ")) from None


def list_of(value_type: Callable[[str], T]) -> Callable[[str], list[T]]:
    """An option type: values separated by commas."""

    def values(text: str) -> list[T]:
        try:
            return [value_type(part) for part in text.split(",")]
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"must be values separated by commas: each {error}") from None

    return values
