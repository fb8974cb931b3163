"""Times exchanges between ranks that start together, with rows that are in no cache.

Between two exchanges of a layer a model computes, and the rows are back in memory by then. So before each
call the ranks walk through memory that together is larger than the caches of most hosts. A call lasts from
when the first rank begins it to when the last rank has ended it, by the host's monotonic clock; copies of a
rank's own rows, which the cost model leaves out, are made before.

Other work on the host only ever slows a call down. So the time of an exchange is the mean of the fastest tenth
of its calls, and of several such rounds, with other exchanges between them, the fastest.

Ranks on GPUs are timed by :mod:`dgcl.calibration.on_device`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgcl.bench.flags import Flags
from dgcl.calibration.effort import Effort
from dgcl.program import Program
from dgcl.program.exchange import HALO
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory import Runtime
from dgcl.transport.shared_memory.dtypes import row_type

if TYPE_CHECKING:
    from dgcl.transport.cuda.gpu import Device

_FLUSH = 64 << 20  # bytes that the ranks of a host walk through together before a call
_TIMEOUT = 120.0


Work = Sequence[
    tuple[list[Program], int]
]  # for each exchange the programs of all ranks, and the bytes of a row


def time_all(
    control: Control,
    prepare: Callable[[], Work],
    effort: Effort,
    device: Device | None = None,
) -> list[float]:
    """Seconds of each of several exchanges. Collective.

    Args:
        control: The ranks.
        prepare: Called on rank 0 alone: what is to be timed.
        effort: How long to measure.
        device: This rank's; None: the CPU.

    Raises:
        ValueError: From ``prepare``; on every rank.
        CommError: A rank is gone or late.
    """
    work = _prepared(control, prepare)
    count = control.broadcast(len(work))
    fastest = [float("inf")] * count
    flags = Flags(control, _TIMEOUT)
    try:
        for _ in range(effort.rounds):
            for number in range(count):
                shares = None
                if control.rank == 0:
                    programs, row_bytes = work[number]
                    shares = [(program, row_bytes) for program in programs]
                program, row_bytes = control.scatter(shares)
                seconds = _time_exchange(program, control, flags, row_bytes, effort, device)
                fastest[number] = min(fastest[number], seconds)
    finally:
        flags.close()
    return fastest


def _prepared(control: Control, prepare: Callable[[], Work]) -> Work:
    """Run a function on rank 0 alone; if it fails, all ranks raise."""
    work: Work = []
    failure: str | None = None
    if control.rank == 0:
        try:
            work = prepare()
        except ValueError as error:
            failure = str(error)
    failure = control.broadcast(failure)
    if failure is not None:
        raise ValueError(failure)
    return work


def _time_exchange(
    program: Program,
    control: Control,
    flags: Flags,
    row_bytes: int,
    effort: Effort,
    device: Device | None,
) -> float:
    """Seconds of one call, on every rank the same. Collective."""
    if device is not None:
        from dgcl.calibration.on_device import time_on_device

        return time_on_device(program, control, flags, row_bytes, effort, device, _TIMEOUT)
    runtime = Runtime({HALO: program}, control, _TIMEOUT)
    try:
        return _time(runtime, control, flags, row_bytes, effort)
    finally:
        runtime.close()


def _time(runtime: Runtime, control: Control, flags: Flags, row_bytes: int, effort: Effort) -> float:
    rows = row_type(torch.uint8, row_bytes)
    block = runtime.expand_buffer(rows)
    block.segment.memory[block.offset : block.offset + block.size] = 1  # first writes get the pages
    flush = np.ones(_FLUSH // control.world_size // 8, np.int64)
    spans: list[tuple[int, int]] = []

    def call() -> None:
        np.add(flush, 1, out=flush)
        flags.barrier()
        begin = time.perf_counter_ns()
        runtime.expand(block, rows)
        spans.append((begin, time.perf_counter_ns()))

    for _ in range(3):  # the first maps the peers' buffers
        call()
    lasted = max(control.exchange(spans[-1][1] - spans[-2][1])) / 1e9  # with the walk
    count = int(np.clip(effort.seconds / max(lasted, 1e-7), effort.least, effort.most))
    spans.clear()
    for _ in range(count):
        call()
    every = np.array(control.exchange(spans))  # (P, count, 2)
    lasting = every[:, :, 1].max(axis=0) - every[:, :, 0].min(axis=0)
    fastest = np.sort(lasting)[: max(1, len(lasting) // 10)]
    return float(fastest.mean()) / 1e9
