"""Compiling beside the work: a second process compiles what planning needs last, this one what it needs first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Run ``dgcl warmup search`` beside this, if there is a core for it and its machine code is not on disk."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or _is_compiled():
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "dgcl", "warmup", "search"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _is_compiled() -> bool:
    """Tell whether any machine code of the last step is on disk."""
    from dgcl.planner.column_generation.improvement.exchange import exchange

    return not exchange._cache.is_empty()  # type: ignore[attr-defined]
