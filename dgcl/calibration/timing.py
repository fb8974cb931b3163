"""Times the exchanges of a calibration between ranks that start together, with rows that are in no cache.

Before a call ranks walk through 64 MB together: a model's computation empties caches, too. A call lasts from its begin
on the first rank to its end on the last, by the host's clock; the copy of a rank's own rows, which the cost model
leaves out, is not made. On GPUs a sample is four calls between events, of the slowest rank, less the copy of own rows.
Other work only slows calls down, so the fastest tenth counts, of the fastest round.
Called by `run` and `dgcl/cli/topo_calibrate`. Free to change while each experiment gets a time above 0, and a rank that
fails ends it on all (`tests/dgcl/calibration/test_calibrate.py`; GPUs: `tests/dgcl/calibration/test_on_device.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgcl.bench.barrier import Barrier
from dgcl.bench.turns import DEVICE, WALL, Lane, combine, in_turns, take_turns
from dgcl.program import Program
from dgcl.program.exchange import HALO
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.control import Control
from dgcl.transport.common.program_agreement import connect_peers
from dgcl.transport.cuda.device_exchange import DeviceExchange
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

if TYPE_CHECKING:
    from dgcl.transport.cuda.gpu import Device

_FLUSH = 64 << 20  # bytes that the ranks of a host walk through together before a call
_IN_A_ROW = 4  # calls of a sample on a device
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: For one round of one exchange, about.
        least, most: Calls in a round.
        rounds: How often all exchanges are measured.
    """

    seconds: float = 0.2
    least: int = 10
    most: int = 100
    rounds: int = 4


def time_all(
    control: Control,
    prepare: Callable[[], Sequence[list[Program]]],
    row_bytes: int,
    effort: Effort,
    device: Device | None,
) -> list[float]:
    """Seconds of each of several exchanges. Collective.

    Args:
        control: The ranks.
        prepare: Called on rank 0 alone: of each exchange the programs of all ranks.
        row_bytes: Bytes of a row; the same on every rank.
        effort: How long to measure.
        device: This rank's; None: the CPU.

    Raises:
        Exception: What ``prepare`` raises; on every rank.
        CommError: A rank is gone or late.
    """
    exchanges = from_rank_0(control, lambda: [*zip(*prepare(), strict=True)])
    fastest = [float("inf")] * len(exchanges)
    with closing(Barrier(control, _TIMEOUT)) as barrier:
        for _ in range(effort.rounds):
            for number, program in enumerate(exchanges):
                lane: _HostLane | _DeviceLane = (
                    _HostLane(program, control, row_bytes)
                    if device is None
                    else _DeviceLane(program, control, row_bytes, device)
                )
                with closing(lane):
                    seconds = _seconds(lane, control, barrier, effort)
                fastest[number] = min(fastest[number], seconds)
    return fastest


class _HostLane(Lane):
    """Expands in memory of the host, with rows that are in no cache."""

    clock, calls, own_seconds = WALL, 1, 0.0

    def __init__(self, program: Program, control: Control, row_bytes: int) -> None:
        programs = {HALO: program}
        runtime = Runtime(programs, connect_peers(programs, control, "memory"), _TIMEOUT)
        self._transport = SharedMemoryTransport(runtime)
        self._rows = torch.ones(program.num_owned, row_bytes, dtype=torch.uint8)
        self._flush = np.ones(_FLUSH // control.world_size // 8, np.int64)

    def prepare(self, first: int, calls: int) -> None:
        """Walk through memory."""
        np.add(self._flush, 1, out=self._flush)

    def run(self, call: int) -> None:
        """One expand, without the copy of the rank's own rows."""
        self._transport.begin_expand(self._rows, wait=True)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


class _DeviceLane(Lane):
    """Expands between devices.

    Attributes:
        clock, calls: Of its samples.
        own_seconds: That the copy of the rank's own rows takes.
    """

    def __init__(self, program: Program, control: Control, row_bytes: int, device: Device) -> None:
        kind = device.tensors.device
        self._exchange = DeviceExchange({HALO: program}, control, _TIMEOUT, device)
        self._rows = torch.ones(program.num_owned, row_bytes, dtype=torch.uint8, device=kind)
        self.clock, self.calls = DEVICE if kind.type == "cuda" else WALL, _IN_A_ROW
        copied = torch.empty_like(self._rows)
        copies = in_turns({"own": lambda: copied.copy_(self._rows)}, 3, clock=self.clock)
        self.own_seconds = copies["own"].best

    def prepare(self, first: int, calls: int) -> None:
        """Bring the ranks into step."""
        self._exchange.expand(self._rows)

    def run(self, call: int) -> None:
        """One expand."""
        self._exchange.expand(self._rows)
        if self.clock is WALL:  # a device without events
            self._exchange.synchronize()

    def close(self) -> None:
        """Close the exchange."""
        self._exchange.close()


def _seconds(lane: _HostLane | _DeviceLane, control: Control, barrier: Barrier, effort: Effort) -> float:
    """Seconds of one call, on every rank the same. Collective."""

    def sample(rounds: int) -> list[float]:
        samples = take_turns({"": lane}, rounds, calls=lane.calls, barrier=barrier, clock=lane.clock)[""]
        return combine(samples, control, one_clock=isinstance(lane, _HostLane)).samples

    sample(2)  # the first maps the peers' buffers
    begin = time.perf_counter()
    sample(1)
    lasted = max(control.exchange(time.perf_counter() - begin))  # with what is not timed
    count = int(np.clip(effort.seconds / lasted, effort.least / lane.calls, effort.most))
    own = max(control.exchange(lane.own_seconds))
    fastest = np.sort(sample(max(count, 1)))[: max(1, count // 10)]
    return float(max(fastest.mean() - own, 1e-9))
