"""Prints what commands say: one JSON object, aligned fields and legends; and progress on standard error.

Commands print by ``say`` alone, which spells control characters, such as those in names of files. During a ``step``
what compiled libraries print goes to standard error, so that JSON stands alone on standard output.

Called by all commands, such as `bench`, `plan`, `topo` and `info`, and by `problem`, `plans` and `topologies`. Free to
change while JSON has no NaN, and a pipe gets a line of progress once a minute at most
(`tests/dgcl/cli/test_output.py`).
"""

import ctypes
import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from dgcl.planner.reading.render import seconds, size

__all__ = ["print_fields", "print_json", "say", "seconds", "size", "step"]

_SOON = 3.0  # seconds; of what takes less no time is shown
PIPED = 60.0  # seconds between lines where nobody watches


def say(text: object = "", **how: Any) -> None:
    """Print text, as all commands do: what is no letter or sign, as names of files may hold, is spelt (``\\x1b``)."""
    print(re.sub(r"[^ -~\n]", lambda match: repr(match[0])[1:-1], str(text)), **how)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; numpy numbers and arrays become plain ones, and NaN or infinity is refused."""
    say(json.dumps(value, default=_plain, allow_nan=False, indent=2))


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print "name  value" lines with the values aligned."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        say(f"{name.ljust(width)}  {value}".rstrip())


def print_legend(meanings: dict[str, str]) -> None:
    """Say below a table what its terse columns mean."""
    say()
    for name, meaning in meanings.items():
        say(textwrap.fill(f"{name}: {meaning}", 100, initial_indent="  ", subsequent_indent="    "))


def print_written(*files: tuple[Any, ...], space: bool = False) -> None:
    """Confirm (what, path, ...) of files that were written; those without a path were not asked for."""
    for what, path, *_ in files:
        if path is not None:
            link = f", a link to {os.path.realpath(path)}" if os.path.islink(path) else ""
            say("\n" * space + f"{what} written to {path}{link}")
            space = False


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
def step(what: str) -> Iterator[None]:
    """Say on standard error what is being done, and after three seconds how long; in a pipe a line once a minute."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    over, begin = threading.Event(), time.monotonic()

    def show(text: str) -> None:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr)
        if sys.stderr is not None:
            say(text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def watch() -> None:
        while not over.wait(1 if terminal else PIPED):
            passed = time.monotonic() - begin
            since = f" {timedelta(seconds=round(passed))}" if passed > _SOON or not terminal else ""
            show(f"{what} ...{since}")

    watcher = threading.Thread(target=watch, name="dgcl progress", daemon=True)
    if terminal:
        show(f"{what} ...")
    watcher.start()
    try:
        with _compiled_output_on_stderr():
            yield
    finally:
        over.set()
        watcher.join()
        if terminal:
            show("")
