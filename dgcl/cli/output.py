"""What commands print: one JSON object, or aligned tables with units; progress only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dgcl.planner.reading.render import seconds, size, table

__all__ = ["print_fields", "print_json", "print_table", "seconds", "size", "step"]


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; numpy numbers and arrays become plain ones, and NaN or infinity is refused."""
    print(json.dumps(value, default=_plain, allow_nan=False, indent=2))


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print rows under a header: the first ``left`` columns flush left, the others flush right."""
    print(table(header, rows, range(left)))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print "name  value" lines with the values aligned."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name.ljust(width)}  {value}".rstrip())


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say on standard error what is being done, while it is being done; only where that is a terminal."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
