"""A profiler sees a range for each call."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

import dgcl
from tests.support.awkward import CASES
from tests.support.rank_pool import RankPool
from tests.support.small_machines import line


def profiled(world_size: int) -> set[str]:
    """The names of the ranges that a profiler saw of an exchange and its backward."""
    comm = dgcl.build_comm_info(CASES[0].graph, line(world_size), part=CASES[0].part(world_size))
    rows = torch.randn(comm.num_owned, 3, requires_grad=True)
    expected, gradient = comm.expand(rows.detach()), comm.fold(torch.ones(comm.num_local, 3))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        found = comm.expand(rows)
        found.sum().backward()
    assert rows.grad is not None
    assert torch.equal(found, expected)
    assert torch.equal(rows.grad, gradient)
    comm.close()
    return {event.key for event in profiler.key_averages()}


def test_a_profiler_sees_calls(rank_pool: Callable[[int], RankPool]):
    """The rows are those of a call that nobody profiles."""
    for rank, names in enumerate(rank_pool(3).run(profiled, 3)):
        for verb in ("expand", "fold"):
            calls = [n for n in names if n.startswith(f"dgcl.{verb} rank {rank}:") and "peer(s) in" in n]
            assert len(calls) == 1
