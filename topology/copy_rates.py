"""Measures how fast this host copies memory, and stores the best rates of each machine in one file.

Two rates: one thread alone, and all copying threads together. Other work on the host only slows a copy down, so the
best of many short rounds, and of all measurements before, is nearest to what the memory can do. The file is shared by
all machines with one home folder; entries are by machine and number of threads.
Called by `host`, `dgcl/ranks/machines`, `dgcl/cli/topo_detect`, `dgcl/ranks/threads`, `dgcl/calibration/run` and
others. Free to change while the best of all measurements stays, and a damaged file or a folder that cannot be written
to stops nothing (`tests/topology/test_copy_rates.py`).
"""

import json
import logging
import os
import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgcl.topology.checks import check_number

_LOGGER = logging.getLogger("dgcl")

_SECONDS = 0.1  # for each of the two rates
_ROUNDS = 5  # at least
# A round copies this much, by all threads together: with as much that is written, more than the caches of most hosts,
# and so little that some rounds of a busy host are over before their threads are interrupted.
_ROUND_BYTES = 64 << 20
_MAX_COPIERS = 16  # a few cores saturate the memory


@dataclass(frozen=True)
class CopyRates:
    """Copy rates in GB/s of bytes copied (each is read once and written once)."""

    one: float  # one thread alone
    all: float  # all copying threads together

    def __post_init__(self) -> None:
        check_number(self.one, "one", positive=True)
        check_number(self.all, "all", positive=True)


def available_cores() -> int:
    """How many cores this thread may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_copiers(num_ranks: int) -> int:
    """How many threads show what ``num_ranks`` ranks can copy together on the cores of this process."""
    return min(num_ranks, available_cores(), _MAX_COPIERS)


def rates_file() -> Path:
    """Where the rates of this user's machines are stored."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgcl" / "copy_rates.json"


def copy_rates(copiers: int, *, anew: bool = False) -> CopyRates:
    """The best rates that were measured on this machine.

    Args:
        copiers: Threads that copy together.
        anew: Measure also where the machine's rates are stored, and keep the better ones.
    """
    file, key = rates_file(), f"{platform.node()}, {copiers} threads"
    stored = _read(file)
    best = stored.get(key)
    if best is None or anew:
        rates = measure_copy_rates(copiers)
        best = rates if best is None else CopyRates(max(rates.one, best.one), max(rates.all, best.all))
        _write(file, {**stored, key: best})
    _LOGGER.info("memory copies: %g GB/s by one thread, %g GB/s by %d together", best.one, best.all, copiers)
    return best


def measure_copy_rates(copiers: int) -> CopyRates:
    """Time copies from one buffer to another, by one thread alone and by ``copiers`` at once; to two digits."""
    shares = np.zeros((2, copiers, _ROUND_BYTES // copiers), np.uint8)
    together = _fastest_round(shares)
    alone = together if copiers == 1 else _fastest_round(shares.reshape(2, 1, -1))
    # Where others kept the cores busy, one thread may have had more of them.
    return CopyRates(one=float(f"{alone:.1e}"), all=float(f"{max(alone, together):.1e}"))


def _fastest_round(shares: np.ndarray[Any, np.dtype[np.uint8]]) -> float:
    """GB/s that threads copy together, each from its part of the first half to its part of the second."""
    start = threading.Barrier(shares.shape[1])

    def copy(share: int) -> tuple[float, float]:
        start.wait()
        begin = time.perf_counter()
        np.copyto(shares[1, share], shares[0, share])  # releases the GIL
        return begin, time.perf_counter()

    with ThreadPoolExecutor(shares.shape[1]) as threads:
        # The first round gives the pages their memory, from the node of the thread that writes them.
        list(threads.map(lambda share: shares[:, share].fill(1), range(shares.shape[1])))
        best, rounds, until = 0.0, 0, time.perf_counter() + _SECONDS
        while rounds < _ROUNDS or time.perf_counter() < until:
            begins, ends = zip(*threads.map(copy, range(shares.shape[1])), strict=True)
            best, rounds = max(best, shares[0].nbytes / (max(ends) - min(begins)) / 1e9), rounds + 1
    return best


def _read(file: Path) -> dict[str, CopyRates]:
    """The stored rates by machine; none where the file is missing or damaged."""
    try:
        return {key: CopyRates(**rates) for key, rates in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path, rates: dict[str, CopyRates]) -> None:
    """Store rates, where that is possible."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(json.dumps({key: asdict(value) for key, value in rates.items()}, indent=1))
        temporary.replace(file)
    except OSError as error:
        _LOGGER.info("copy rates are not stored: %s", error)
