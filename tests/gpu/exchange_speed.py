"""How fast whole exchanges of ranks on one device are, and what a call costs the host.

All ranks of a loopback (:mod:`tests.gpu.loopback`) share the device's memory, so the bytes of the
exchange, read plus written, over its time can be held against the device's own copy. torch's way to the
same result is one ``index_select`` into place per sender and receiver.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch

from dgcl.program import Program
from dgcl.transport.cuda.program import EXPAND, FOLD
from tests.gpu.device import Target
from tests.gpu.loopback import Loopback
from tests.gpu.row_speed import Size, median_seconds

#: Microseconds of host time that one call may take.
HOST_TARGET: Final = 60.0


class Exchange(Protocol):
    """Calls of all ranks (:class:`tests.gpu.streams.Streams`)."""

    def run(self, loopback: Loopback, verb: int) -> None:
        """One call; waits for its end."""

    def enqueue(self, verb: int) -> list[float]:
        """One call; returns seconds of host time per rank."""

    def num_operations(self, verb: int) -> int:
        """How many operations the busiest rank enqueues."""


@dataclass(frozen=True)
class ExchangeLine:
    """One exchange.

    Attributes:
        verb, method, num_ranks, width, stages: What was done. operations: How many operations a rank
        enqueues. host: Microseconds of host time to enqueue one rank's call, median and 90th percentile,
        while the device is
            idle. The stages are enqueued one by one here, which costs a little more than all in one.
        milliseconds: Of the device, for all ranks.
        speed, copy: GB/s, rows read plus written: of the exchange, and of the device's own copy.
        torch: GB/s of torch's way, for an expand in one stage.
        right: Whether every row is right.
    """

    verb: str
    method: str
    num_ranks: int
    width: int
    stages: int
    operations: int
    host: tuple[float, float]
    milliseconds: float
    speed: float
    copy: float
    torch: float | None
    right: bool

    @property
    def good(self) -> bool:
        """Whether it is right and cheap enough for the host."""
        return self.right and self.host[0] <= HOST_TARGET

    def __str__(self) -> str:
        theirs = "" if self.torch is None else f"{self.torch:.0f}"
        cheap = "yes" if self.host[0] <= HOST_TARGET else "MISSED"
        cells = [
            self.verb,
            self.method,
            str(self.num_ranks),
            str(self.width),
            str(self.stages),
            str(self.operations),
            f"{self.host[0]:.1f} ({self.host[1]:.1f}) {cheap}",
            f"{self.milliseconds:.2f}",
            f"{self.speed:.0f}",
            f"{self.speed / self.copy:.2f}",
            theirs,
            "yes" if self.right else "NO",
        ]
        return "| " + " | ".join(cells) + " |"

    def to_json(self) -> dict[str, Any]:
        """Itself as a JSON object."""
        return asdict(self)


HEAD: Final = (
    "| verb | plan | ranks | float32 | stages | operations "
    f"| host us (p90), at most {HOST_TARGET:.0f} | ms | GB/s | of copy | torch | right |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)


def measure_exchange(
    target: Target, loopback: Loopback, exchange: Exchange, size: Size, method: str, copy: float
) -> Iterator[ExchangeLine]:
    """An expand and a fold of float32 rows."""
    programs = [rank.program for rank in loopback.ranks]
    width = loopback.ranks[0].local.shape[1]
    num_stages = programs[0].num_stages
    for verb, name in ((EXPAND, "expand"), (FOLD, "fold")):
        right = _is_right(loopback, exchange, verb)
        enqueue = partial(exchange.enqueue, verb)
        seconds = median_seconds(target, enqueue, size.repeats)
        host = []
        for _ in range(size.repeats):
            _synchronize(target)
            host += [1e6 * rank_seconds for rank_seconds in enqueue()]
        _synchronize(target)
        host.sort()
        num_bytes = width * 4 * sum(_rows_moved(program, verb) for program in programs)
        theirs = None
        if verb == EXPAND and num_stages == 1:
            theirs = 1e-9 * num_bytes / _torch_seconds(target, loopback, size.repeats)
        yield ExchangeLine(
            verb=name,
            method=method,
            num_ranks=len(programs),
            width=width,
            stages=num_stages,
            operations=exchange.num_operations(verb),
            host=(statistics.median(host), host[-(-9 * len(host) // 10) - 1]),
            milliseconds=1e3 * seconds,
            speed=1e-9 * num_bytes / seconds,
            copy=copy,
            torch=theirs,
            right=right,
        )


def _synchronize(target: Target) -> None:
    if target.device.type == "cuda":
        torch.cuda.synchronize()


def _rows_moved(program: Program, verb: int) -> int:
    """Rows that one rank reads and writes. A fold reads each arrival, and each own row, once."""
    sent = program.expand.rows_sent
    if verb == EXPAND:
        return 2 * sent
    return sent + program.num_local + program.fold.rows_sent + program.num_owned


def _values(ids: torch.Tensor, width: int) -> torch.Tensor:
    """Small whole numbers that differ from vertex to vertex and column to column: their sums are exact."""
    columns = torch.arange(width, device=ids.device)
    return ((ids[:, None] * 31 + columns * 7) % 251 - 125).to(torch.float32)


def _is_right(loopback: Loopback, exchange: Exchange, verb: int) -> bool:
    """One call on known rows, whose outcome is known vertex by vertex."""
    device, width = loopback.ranks[0].local.device, loopback.ranks[0].local.shape[1]
    num_nodes = sum(rank.program.num_owned for rank in loopback.ranks)
    holders = torch.zeros(num_nodes, device=device)
    for rank in loopback.ranks:
        ids = _ids(rank.program, device)
        holders[ids] += 1
        rank.local.copy_(_values(ids, width))
        if verb == EXPAND:
            rank.local[rank.program.num_owned :] = torch.nan
        for buffer in (rank.relay, rank.arrivals, rank.result):
            buffer.fill_(torch.nan)
    exchange.run(loopback, verb)
    for rank in loopback.ranks:
        ids = _ids(rank.program, device)
        if verb == EXPAND:
            good = torch.equal(rank.local, _values(ids, width))
        else:
            owned = ids[: rank.program.num_owned]
            # Every holder of a vertex had the same row.
            good = torch.equal(rank.result, _values(owned, width) * holders[owned, None])
        if not good:
            return False
    return True


def _ids(program: Program, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([program.owned_ids, program.halo_ids])).to(device)


def _torch_seconds(target: Target, loopback: Loopback, repeats: int) -> float:
    """The expand of a one-stage plan by ``index_select`` straight into the receivers' rows."""
    moves: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for rank in loopback.ranks:
        schedule = rank.program.expand
        table = torch.from_numpy(rank.program.send_rows.astype(np.int64)).to(target.device)
        for i, peer in enumerate(schedule.send_peer):
            count, start, to = (
                int(x[i, 0]) for x in (schedule.send_count, schedule.send_from, schedule.send_to)
            )
            into = loopback.ranks[int(peer)].local[to : to + count]
            moves.append((rank.local, table[start : start + count], into))

    def run() -> None:
        for rows, index, into in moves:
            torch.index_select(rows, 0, index, out=into)

    return median_seconds(target, run, repeats)
