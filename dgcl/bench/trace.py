"""Trace files of where one exchange spends its time, for chrome://tracing and ui.perfetto.dev.

One process per rank, with three lanes: the call; what its engine does, write by write, with the waits between
them; and when rows were seen to have arrived, with an arrow from the write that brought them. A rank's engine
does one thing at a time, so whatever is no write is a wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgcl.bench.barrier import Barrier
from dgcl.bench.transports import planned_transport
from dgcl.transport.shared_memory.engine import FOLD
from dgcl.transport.shared_memory.tasks import CallRecord
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.program import Schedule

_CALL, _ENGINE, _ARRIVALS = range(3)
_LANES = ("call", "engine", "arrivals")
_SHORTEST_WAIT = 200  # nanoseconds; less is the time between two readings of the clock
_WARMUP = 3


@dataclass(frozen=True, eq=False)
class RankTrace:
    """One rank's trace: its records and the schedules they refer to."""

    rank: int
    row_bytes: int
    schedules: tuple[Schedule, Schedule]
    records: list[CallRecord]


def record_exchange(comm: Communicator, width: int, dtype: torch.dtype, barrier: Barrier) -> RankTrace:
    """Record one allgather and its backward of rows of ``width`` elements, after a few that are not recorded.
    Collective."""
    records: list[CallRecord] = []
    rows = torch.zeros(comm.num_owned, width, dtype=dtype)
    transport = planned_transport(comm)
    assert isinstance(transport, SharedMemoryTransport), type(transport)
    gradient = torch.zeros(comm.num_local, width, dtype=dtype)
    for sample in range(_WARMUP + 1):
        if sample == _WARMUP:
            transport.record_calls(records.append)
        barrier()
        transport.expand(rows)
        barrier()
        transport.fold(gradient)
    transport.record_calls(None)
    program = comm.exchanges["halo"].program
    return RankTrace(comm.rank, width * dtype.itemsize, (program.expand, program.fold), records)


def chrome_trace(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """The trace event object of all ranks' traces; times in microseconds from the first rank's begin."""
    start = min(record.begin for trace in traces for record in trace.records)
    events: list[dict[str, Any]] = []
    for trace in traces:
        events.append(_name("process_name", trace.rank, 0, f"rank {trace.rank}"))
        events += [_name("thread_name", trace.rank, lane, name) for lane, name in enumerate(_LANES)]
        for record in trace.records:
            events += _rank_events(trace, record, start)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _name(kind: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}


def _rank_events(trace: RankTrace, record: CallRecord, start: int) -> Iterator[dict[str, Any]]:
    verb = ("expand", "fold")[record.verb]
    schedule = trace.schedules[record.verb]

    def event(lane: int, name: str, begin: int, end: int, **args: Any) -> dict[str, Any]:
        where = {"name": name, "cat": verb, "ph": "X", "pid": trace.rank, "tid": lane}
        return {**where, "ts": (begin - start) / 1e3, "dur": (end - begin) / 1e3, "args": args}

    def arrow(phase: str, lane: int, when: int, sender: int, receiver: int, stage: int) -> dict[str, Any]:
        name = f"{verb} {record.call}: {sender} > {receiver}, stage {stage}"
        where = {"name": "rows", "cat": verb, "ph": phase, "id": name, "pid": trace.rank, "tid": lane}
        return {**where, "ts": (when - start) / 1e3, **({"bp": "e"} if phase == "f" else {})}

    yield event(_CALL, f"{verb} {record.call}", record.begin, record.end, call=record.call)
    free = record.begin
    for i in np.argsort(record.sends[:, 0], kind="stable"):
        begin, end = (int(value) for value in record.sends[i])
        peer, stage = int(schedule.send_peer[i]), int(schedule.send_stage[i])
        rows = int(schedule.send_count[i].sum())
        yield from _wait(event, record, schedule, free, begin)
        yield event(
            _ENGINE,
            f"write to {peer}",
            begin,
            end,
            stage=stage,
            rows=rows,
            bytes=rows * trace.row_bytes,
            relayed_rows=int(schedule.send_count[i, 1]),
        )
        yield arrow("s", _ENGINE, end - 1, trace.rank, peer, stage)
        free = end
    yield from _wait(event, record, schedule, free, record.arrived)
    if record.verb == FOLD:
        yield event(_ENGINE, "add what arrived", record.arrived, record.end)
    for j, when in enumerate(record.receives.tolist()):
        peer, stage = int(schedule.recv_peer[j]), int(schedule.recv_stage[j])
        rows = int(schedule.recv_count[j].sum())
        yield event(_ARRIVALS, f"from {peer}", when, when + 1, stage=stage, rows=rows)
        yield arrow("f", _ARRIVALS, when, peer, trace.rank, stage)


def _wait(
    event: Any, record: CallRecord, schedule: Schedule, begin: int, end: int
) -> Iterator[dict[str, Any]]:
    """The gap between two writes, and which rows arrived in it."""
    if end - begin < _SHORTEST_WAIT:
        return
    came = np.flatnonzero((record.receives > begin) & (record.receives <= end))
    peers = sorted({int(schedule.recv_peer[j]) for j in came})
    yield event(_ENGINE, "wait", begin, end, arrived_from=peers)
