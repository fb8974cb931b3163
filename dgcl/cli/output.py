"""What commands print: one JSON object, or aligned tables with units; progress only on a terminal."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dgcl.planner.reading.render import seconds, size, table

__all__ = ["print_fields", "print_json", "print_table", "seconds", "size", "step"]

_SOON = 3.0  # seconds; what takes less needs no percent


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


def print_legend(meanings: dict[str, str]) -> None:
    """Say below a table what its terse columns mean."""
    print()
    for name, meaning in meanings.items():
        print(textwrap.fill(f"{name}: {meaning}", 100, initial_indent="  ", subsequent_indent="    "))


def print_written(*files: tuple[str, str | None]) -> None:
    """Confirm (what, path) of files that were written; those without a path were not asked for."""
    for what, path in files:
        if path is not None:
            link = f", a link to {os.path.realpath(path)}" if os.path.islink(path) else ""
            print(f"{what} written to {path}{link}")


class Progress:
    """How far a step is, and how long the rest takes if it goes on like that.

    Args:
        what: The step.
        begin: By ``time.monotonic``.
    """

    def __init__(self, what: str, begin: float) -> None:
        self._what, self._begin, self._fraction = what, begin, 0.0

    def done(self, fraction: float) -> None:
        """So much of the work is done, of 1."""
        self._fraction = min(max(fraction, 0.0), 1.0)

    def text(self, now: float) -> str:
        """What to show: in the first seconds only what is being done."""
        passed = now - self._begin
        if passed <= _SOON:
            return f"{self._what} ..."
        if self._fraction == 0:
            return f"{self._what} ... {duration(passed)}"
        left = passed * (1 - self._fraction) / self._fraction
        return f"{self._what} ... {self._fraction:.0%}, {duration(left)} left"


def duration(value: float) -> str:
    """Seconds of a wait for people: ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def on_terminal() -> bool:
    """Whether standard error is a terminal, where progress may be shown."""
    return sys.stderr is not None and sys.stderr.isatty()


def show(text: str) -> None:
    """Show this in the last line of the terminal, in place of what was there; "": nothing."""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def _compiled_output_on_stderr() -> Iterator[None]:
    """Send what libraries print on standard output, as METIS does, to standard error: output may be JSON."""
    sys.stdout.flush()
    try:
        output = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(output, 1)
        os.close(output)


@contextmanager
def step(what: str) -> Iterator[Progress]:
    """Say on standard error what is being done, while it is being done; only where that is a terminal.

    After three seconds how long it has taken is shown, too; or, where the work reports how far it is
    (:meth:`Progress.done`), percent and the time that is left.
    """
    progress = Progress(what, time.monotonic())
    if not on_terminal():
        with _compiled_output_on_stderr():
            yield progress
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            show(progress.text(time.monotonic()))

    show(f"{what} ...")
    watcher = threading.Thread(target=watch, name="dgcl progress", daemon=True)
    watcher.start()
    try:
        with _compiled_output_on_stderr():
            yield progress
    finally:
        over.set()
        watcher.join()
        show("")
