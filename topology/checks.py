"""Checks single arguments: each returns the value in a plain type, or raises with the field's name first.

With the name in front, a reader of files can put the path of the item before it: ``connections[3].`` + ``bandwidth must
be a positive number (got -1)``. Values from outside are cut in messages (`shown`).
Called by `parts`, `model`, `dgcl/api`, `dgcl/communicator`, `planner/plan_io` and others. Free to change while wrong
values raise TypeError or ValueError with the same words (`tests/topology/test_model.py`,
`tests/dgcl/test_messages.py`), sizes are refused before memory is taken, and messages stay short
(`tests/topology/test_limits.py`).
"""

import math
import operator
import os
import reprlib
from collections.abc import Iterable
from numbers import Real

import numpy as np

#: Devices of a topology. It has a link for each ordered pair of them, and a plan looks at all links: a
#: thousand devices are a million links, and some hundred MB.
MOST_DEVICES = 1024

_CUT = reprlib.Repr()
_CUT.maxstring = 80


def shown(value: object) -> str:
    """``repr`` of a value that came from outside, cut to a length that fits an error message."""
    return _CUT.repr(value)


def check_name(value: object, field: str) -> str:
    """A name: text that is not empty and can be printed on one line."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string (got {shown(value)})")
    if not value or value != value.strip() or not value.isprintable():
        raise ValueError(
            f"{field} must be printable text on one line, without blanks at its ends (got {shown(value)})"
        )
    return value


def check_number(value: object, field: str, *, positive: bool) -> float:
    """A finite number, > 0 if ``positive`` and >= 0 otherwise. Booleans are not numbers here."""
    expected = "a positive number" if positive else "a number >= 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{field} must be {expected} (got {shown(value)})")
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of a float
        number = math.inf
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{field} must be {expected} (got {shown(value)})")
    return number


def check_index(value: object, field: str, least: int = 0, most: int | None = None) -> int:
    """An integer from ``least`` on, up to ``most``. Booleans are not integers here."""
    expected = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    try:
        if isinstance(value, bool):
            raise TypeError
        index = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{field} must be {expected} (got {shown(value)})") from None
    if index < least or (most is not None and index > most):
        raise ValueError(f"{field} must be {expected} (got {shown(index)})")
    return index


def check_choice(value: object, field: str, known: Iterable[str]) -> str:
    """One of some words. An array is none of them, and would compare element by element."""
    words = tuple(known)
    if not isinstance(value, str) or value not in words:
        raise ValueError(
            f"{field} must be one of {', '.join(words)} (got {shown(value)}){nearest(value, words)}"
        )
    return value


def check_flag(value: object, field: str) -> bool:
    """True or False, NumPy's as well."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{field} must be True or False (got {shown(value)})")
    return bool(value)


def check_path(value: object, field: str) -> str:
    """A file's name. An integer is none: ``open`` takes it for a file that is open already."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise TypeError(f"{field} must be a path, as text or a pathlib.Path (got {shown(value)})")
    if not path:
        raise ValueError(f"{field} must be a path (got {shown(value)})")
    return path


def check_num_devices(count: int, whole: str) -> None:
    """Raise ValueError for more devices than a topology may have, before anything of that size is made."""
    if count > MOST_DEVICES:
        raise ValueError(f"{whole} would have {count} devices; a topology has at most {MOST_DEVICES}")


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of an error message: the known word that is close to ``word``, if there is one."""
    from difflib import get_close_matches

    spelt = {each.casefold(): each for each in known}
    close = get_close_matches(str(word).casefold(), spelt, n=1, cutoff=cutoff)
    return f"; did you mean {shown(spelt[close[0]])}?" if close else ""
