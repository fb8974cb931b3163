"""CPU ranks of one host as a topology, from the measured copy rates of its cores.

Ranks exchange rows through shared memory: the sender reads them from its own memory and writes them into the
receiver's. Two rates bound that. A rank copies with one thread, so at the rate of one core. All ranks share the memory
and the cores, and together reach a rate that is often not much above that of one.

So a link runs over ``core<src>`` (bandwidth: one thread's rate), then over ``memory``, a half-duplex connection that
every link shares (bandwidth: the rate of all together), then over ``store<dst>``, which only the memory limits. Links
are given explicitly: a rank has one wire for reading and one for being written to, and the widest route would leave by
the wrong one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.checks import check_index, check_num_devices, check_number
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link

_LOGGER = logging.getLogger("dgcl")

_CHUNK = 1 << 22  # bytes of one copy: long enough to hide the call, short enough to read the clock often
_ROUNDS = 3  # the fastest counts: other work on the host only ever slows a copy down
# Memory traffic is to be measured, not caches: together the buffers exceed the last-level cache of most
# hosts, and each copier's the slice of it that is near its core. A few cores saturate the memory, so more
# copiers add no information.
_MIN_ARENA = 256 << 20
_MIN_COPIER = 64 << 20
_MAX_COPIERS = 16


@dataclass(frozen=True)
class CopyRates:
    """Measured copy rates in GB/s of bytes copied (each is read once and written once)."""

    one: float  # one thread alone
    all: float  # all copying threads together


def measure_host(num_ranks: int, *, seconds: float = 1.0) -> Topology:
    """The topology ``host<num_ranks>`` of this host, measured in about ``seconds``.

    The rates are those of the cores that this process may run on. They become the bandwidths of the
    connections, to two significant digits (repeated measurements differ by more), so that a saved topology
    or a plan's ``meta`` records them. A single rank sends nothing, so nothing is measured for it.

    Args:
        num_ranks: Devices of the topology.
        seconds: About how long to measure.
    """
    if check_index(num_ranks, "num_ranks") < 1:
        raise ValueError(f"num_ranks must be at least 1 (got {num_ranks})")
    check_num_devices(num_ranks, f"'host:{num_ranks}'")
    check_number(seconds, "seconds", positive=True)
    if num_ranks == 1:
        return Topology("host1", (Device("rank0"),), ())
    return host_topology(num_ranks, measure_copy_rates(num_copiers(num_ranks), seconds))


def host_topology(num_ranks: int, rates: CopyRates) -> Topology:
    """The topology of ``num_ranks`` CPU ranks that copy at these rates."""
    ranks = range(num_ranks)
    return Topology(
        name=f"host{num_ranks}",
        devices=tuple(Device(f"rank{r}") for r in ranks),
        connections=(
            Connection("memory", "memory", "loads", "stores", rates.all, duplex="half"),
            *(Connection(f"core{r}", "core", f"rank{r}", "loads", rates.one) for r in ranks),
            *(Connection(f"store{r}", "memory", "stores", f"rank{r}", rates.all) for r in ranks),
        ),
        links=tuple(
            Link(f"rank{src}", f"rank{dst}", (f"core{src}", "memory", f"store{dst}"))
            for src in ranks
            for dst in ranks
            if src != dst
        ),
    )


def num_copiers(num_ranks: int) -> int:
    """How many threads show what ``num_ranks`` ranks can copy together on the cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(num_ranks, cores, _MAX_COPIERS)


def measure_copy_rates(copiers: int, seconds: float = 1.0) -> CopyRates:
    """Time copies from one buffer to another, by one thread alone and by ``copiers`` at once."""
    chunks = max(_MIN_ARENA // copiers, _MIN_COPIER) // 2 // _CHUNK
    shares = [[_Pair.empty() for _ in range(chunks)] for _ in range(copiers)]
    # Pages get their memory when they are first written, far slower than a copy, and from the node of the
    # thread that does it.
    _run_together([functools.partial(_touch, share) for share in shares])
    window = seconds / (2 * _ROUNDS)
    together = max(_copy_rate(shares, window) for _ in range(_ROUNDS))
    # One thread alone walks through all the memory, so that the caches serve it no better than the others.
    everything = [pair for share in shares for pair in share]
    alone = together if copiers == 1 else max(_copy_rate([everything], window) for _ in range(_ROUNDS))
    rates = CopyRates(one=_two_digits(alone), all=_two_digits(together))
    _LOGGER.info(
        "memory copies: %g GB/s by one thread, %g GB/s by %d together", rates.one, rates.all, copiers
    )
    return rates


@dataclass(frozen=True, eq=False)
class _Pair:
    source: NDArray[np.uint8]
    target: NDArray[np.uint8]

    @classmethod
    def empty(cls) -> _Pair:
        return cls(np.empty(_CHUNK, np.uint8), np.empty(_CHUNK, np.uint8))


def _touch(share: list[_Pair]) -> None:
    for pair in share:
        pair.source.fill(1)
        pair.target.fill(0)


def _copy_rate(shares: list[list[_Pair]], window: float) -> float:
    """GB/s that threads, one for each share, copy together, going round their shares for ``window`` s."""
    start = threading.Barrier(len(shares))
    rates = [0.0] * len(shares)

    def copy(index: int) -> None:
        start.wait()
        begin = now = time.perf_counter()
        copies = 0
        for pair in itertools.cycle(shares[index]):
            np.copyto(pair.target, pair.source)  # releases the GIL
            copies += 1
            now = time.perf_counter()
            if now - begin >= window:
                break
        rates[index] = copies * _CHUNK / (now - begin) / 1e9

    _run_together([functools.partial(copy, index) for index in range(len(shares))])
    return sum(rates)


def _run_together(jobs: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(jobs)) as threads:
        for done in [threads.submit(job) for job in jobs]:
            done.result()


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")
