"""What commands print: one JSON object, or aligned tables with units; progress only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; numpy numbers and arrays become plain ones, and NaN or infinity is refused."""
    print(json.dumps(value, default=_plain, allow_nan=False, indent=2))


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print rows under a header: the first ``left`` columns flush left, the others flush right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print "name  value" lines with the values aligned."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name.ljust(width)}  {value}".rstrip())


def seconds(value: float | None) -> str:
    """A time with a fitting unit, three or four digits: ``1.234 ms``; ``-`` for none."""
    return "-" if value is None else _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def size(value: float) -> str:
    """A number of bytes with a fitting unit (1 GB = 1e9 bytes)."""
    if abs(value) < 1000:
        return f"{value:.0f} B"
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {units[0][1]}"
    scale, unit = next(((s, u) for s, u in units if abs(value) >= s), units[-1])
    return f"{value / scale:.4g} {unit}"


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
