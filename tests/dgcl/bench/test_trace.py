"""The trace says what happened: every transfer once, nothing at the same time, no row before its write."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import dgcl
from dgcl.bench.barrier import Barrier
from dgcl.bench.trace import RankTrace, chrome_trace, record_exchange
from tests.dgcl.awkward import CASES
from tests.dgcl.rank_pool import RankPool
from tests.planner.machines import line


def record(world_size: int) -> RankTrace:
    comm = dgcl.build_comm_info(CASES[0].graph, line(world_size), part=CASES[0].part(world_size))
    barrier = Barrier(comm.control, 30.0)
    trace = record_exchange(comm, 6, torch.float32, barrier)
    before = len(trace.records)
    comm.expand(torch.zeros(comm.num_owned, 6))  # after the recording
    assert len(trace.records) == before == 2
    barrier.close()
    return trace


@pytest.fixture(scope="module", params=[2, 4])
def traces(request: pytest.FixtureRequest) -> list[RankTrace]:
    return dgcl.launch(record, request.param, request.param)


def bars(events: list[dict[str, Any]], rank: int, lane: int, verb: str) -> list[dict[str, Any]]:
    chosen = [e for e in events if (e["ph"], e["pid"], e["tid"]) == ("X", rank, lane) and e["cat"] == verb]
    return sorted(chosen, key=lambda e: e["ts"])


@pytest.mark.parametrize("verb", ["expand", "fold"])
def test_every_transfer_once_and_in_turn(traces: list[RankTrace], verb: str) -> None:
    events = json.loads(json.dumps(chrome_trace(traces)))["traceEvents"]
    for trace in traces:
        (call,) = bars(events, trace.rank, 0, verb)
        engine = bars(events, trace.rank, 1, verb)
        schedule = trace.schedules[verb == "fold"]
        writes = [(e["name"], e["args"]["stage"]) for e in engine if e["name"].startswith("write")]
        peers = zip(schedule.send_peer.tolist(), schedule.send_stage.tolist(), strict=True)
        assert sorted(writes) == sorted((f"write to {peer}", stage) for peer, stage in peers)
        sent = sum(e["args"]["bytes"] for e in engine if e["name"].startswith("write"))
        assert sent == schedule.rows_sent * 6 * 4
        for before, after in itertools.pairwise(engine):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
        for bar in engine:
            assert call["ts"] - 1e-6 <= bar["ts"]
            assert bar["ts"] + bar["dur"] <= call["ts"] + call["dur"] + 1e-6


@pytest.mark.parametrize("verb", [0, 1])
def test_rows_arrive_after_they_were_written(traces: list[RankTrace], verb: int) -> None:
    begins = {}
    for trace in traces:
        schedule, record = trace.schedules[verb], trace.records[verb]
        for i, (peer, stage) in enumerate(zip(schedule.send_peer, schedule.send_stage, strict=True)):
            assert 0 < record.sends[i, 0] <= record.sends[i, 1]
            begins[trace.rank, int(peer), int(stage)] = record.sends[i, 0]
    seen = 0
    for trace in traces:
        schedule, record = trace.schedules[verb], trace.records[verb]
        for j, (peer, stage) in enumerate(zip(schedule.recv_peer, schedule.recv_stage, strict=True)):
            # Not after its end: the sender reads the clock when the flag is set, which may be seen before.
            assert record.receives[j] >= begins[int(peer), trace.rank, int(stage)]
            assert record.begin <= record.receives[j] <= record.arrived <= record.end
            seen += 1
    assert seen == len(begins)


def test_arrows_have_two_ends(traces: list[RankTrace]) -> None:
    events = chrome_trace(traces)["traceEvents"]
    starts, finishes = ([e["id"] for e in events if e["ph"] == phase] for phase in "sf")
    assert len(starts) == len(set(starts)) > 0
    assert sorted(starts) == sorted(finishes)
    assert all(e["ts"] >= 0 for e in events if e["ph"] == "X")


def profiled(world_size: int) -> tuple[set[str], set[str]]:
    """The names of the ranges that a profiler saw of an exchange and its backward, and those that are due."""
    comm = dgcl.build_comm_info(CASES[0].graph, line(world_size), part=CASES[0].part(world_size))
    rows = torch.randn(comm.num_owned, 3, requires_grad=True)
    expected, gradient = comm.expand(rows.detach()), comm.fold(torch.ones(comm.num_local, 3))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        found = comm.expand(rows)
        found.sum().backward()
    assert rows.grad is not None
    assert torch.equal(found, expected)
    assert torch.equal(rows.grad, gradient)
    due = set()
    for verb, schedule in (
        ("expand", comm.exchanges["halo"].program.expand),
        ("fold", comm.exchanges["halo"].program.fold),
    ):
        parts = (schedule.send_stage, schedule.send_peer, schedule.send_count.sum(1))
        for stage, peer, count in zip(*(part.tolist() for part in parts), strict=True):
            text = f"stage {stage} to rank {peer}, {count} rows, {count * 12} bytes"
            due.add(f"dgcl.{verb} rank {comm.rank}: {text}")
    comm.close()
    return {event.key for event in profiler.key_averages()}, due


def test_a_profiler_sees_calls_sends_and_waits(rank_pool: Callable[[int], RankPool]) -> None:
    """Each send is a range with its stage and its peer; the rows are those of a call that nobody profiles."""
    for rank, (names, due) in enumerate(rank_pool(3).run(profiled, 3)):
        ranges = {name for name in names if name.startswith("dgcl.") and ": stage " in name}
        assert ranges == due
        assert len(due) > 2
        for verb in ("expand", "fold"):
            assert any(name.startswith(f"dgcl.{verb} rank {rank}: waits for") for name in names)
            calls = [n for n in names if n.startswith(f"dgcl.{verb} rank {rank}:") and "peer(s) in" in n]
            assert len(calls) == 1


def test_a_profiler_sees_the_calls_of_one_rank() -> None:
    ((names, due),) = dgcl.launch(profiled, 1, 1)
    assert not due
    assert "dgcl.expand rank 0: 0 bytes to 0 peer(s) in 0 stage(s)" in names
    assert "dgcl.fold rank 0: 0 bytes to 0 peer(s) in 0 stage(s)" in names
