"""A profiler sees a range for each call, each send and each wait."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

import dgcl
from tests.dgcl.awkward import CASES
from tests.dgcl.rank_pool import RankPool
from tests.planner.machines import line


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


def test_a_profiler_sees_calls_sends_and_waits(rank_pool: Callable[[int], RankPool]):
    """Each send is a range with its stage and its peer; the rows are those of a call that nobody profiles."""
    for rank, (names, due) in enumerate(rank_pool(3).run(profiled, 3)):
        ranges = {name for name in names if name.startswith("dgcl.") and ": stage " in name}
        assert ranges == due
        assert len(due) > 2
        for verb in ("expand", "fold"):
            assert any(name.startswith(f"dgcl.{verb} rank {rank}: waits for") for name in names)
            calls = [n for n in names if n.startswith(f"dgcl.{verb} rank {rank}:") and "peer(s) in" in n]
            assert len(calls) == 1


def test_a_profiler_sees_the_calls_of_one_rank():
    ((names, due),) = dgcl.launch(profiled, 1, 1)
    assert not due
    assert "dgcl.expand rank 0: 0 bytes to 0 peer(s) in 0 stage(s)" in names
    assert "dgcl.fold rank 0: 0 bytes to 0 peer(s) in 0 stage(s)" in names
