"""Compiling beside the work: a second process compiles what planning needs last, this one what it needs first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Run ``dgcl warmup search`` beside this, if there is a core for it and some machine code is not on disk.

    It is ended with this; what it has compiled by then is kept, so that later plans interpret less and less.
    """
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
    """Tell whether there is machine code on disk of the last step, and of what takes long where it is interpreted."""
    from dgcl.planner.bounds.cut_kernels import _cover
    from dgcl.planner.column_generation.improvement.exchange import exchange
    from dgcl.planner.column_generation.rounding.whole_flows import _round

    kernels: tuple[Any, ...] = (exchange, _cover, _round)
    return not any(kernel._cache.is_empty() for kernel in kernels)
