"""Small calls on CPU ranks against Gloo and against autograd alone, in one run.

    python docs/benchmarks/latency.py [--rounds 7] [--calls 300] [--json FILE]

With 1, 2 and 4 ranks, each a process: rows of 1 KB, one for each pair of ranks. The candidates take turns in every
round; a figure is the median over rounds of the time of a call on the slowest rank, and beside it the least one, which
other work on the host disturbs less. "python" counts the Python functions that a call enters on rank 0, compiled ones
included, and "builtins" the C functions that they call. Every result is compared with what it must be; a wrong one ends
the run with exit status 1.

    comm.expand          rows in, rows out, nothing recorded
    graph_allgather      the same, by its public name
    forward + backward   graph_allgather of rows that require a gradient, and the gradient
    identity             an autograd.Function that does nothing, forward and backward: the least that autograd takes
    gloo                 all_to_all_single of the same rows
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import dgcl
from dgcl.cli.info import describe_machine
from dgcl.ranks.context import context

WIDTH = 256  # float32: 1 KB


class Identity(torch.autograd.Function):
    """Nothing, forward and backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        """The rows."""
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient."""
        return grad


def pairs(num_ranks: int) -> tuple[np.ndarray, list[int]]:
    """Edges and parts of a graph in which every rank has one vertex for each other rank, which reads it."""
    each = max(num_ranks - 1, 1)
    edges = [
        (r * each + (s - (s > r)), s * each) for r in range(num_ranks) for s in range(num_ranks) if s != r
    ] or [(0, 0)]
    return np.array(edges), [v // each for v in range(num_ranks * each)]


def count(call: Callable[[], object]) -> tuple[int, int]:
    """Python functions and builtins that a call enters; the least of several calls, since waits add some."""
    found = []
    for _ in range(20):
        events: list[str] = []

        def note(frame: FrameType, event: str, argument: Any, events: list[str] = events) -> None:
            events.append(event)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        found.append((events.count("call") - 1, events.count("c_call") - 1))  # without `call`, and setprofile
    return min(found)


def measure(num_rounds: int, num_calls: int) -> dict[str, dict[str, float]] | None:
    """The table of one number of ranks, on rank 0."""
    torch.set_num_threads(1)
    control = context.require_control()
    rank, size = control.rank, control.world_size
    edges, part = pairs(size)
    graph = edges.T if rank == 0 else None
    comm = dgcl.build_comm_info(graph, "uniform", part=part if rank == 0 else None)
    ids, halo = comm.owned_ids, comm.halo_ids
    x = ids[:, None] + torch.arange(WIDTH) / WIDTH
    wanted = torch.cat([ids, halo])[:, None] + torch.arange(WIDTH) / WIDTH
    leaf = x.clone().requires_grad_()
    gradient = torch.ones(comm.num_local, WIDTH)
    single = torch.ones_like(leaf)

    def backward(forward: Callable[[Tensor], Tensor], grad: Tensor) -> Tensor:
        leaf.grad = None
        forward(leaf).backward(grad)
        assert leaf.grad is not None
        return leaf.grad

    calls: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
        "comm.expand": (lambda: comm.expand(x), wanted),
        "graph_allgather": (lambda: dgcl.graph_allgather(x), wanted),
        "forward + backward": (
            lambda: backward(dgcl.graph_allgather, gradient),
            torch.full_like(x, 2.0 if size > 1 else 1.0),
        ),
        "identity": (lambda: backward(Identity.apply, single), single),
    }
    if size > 1:
        received = torch.empty(size - 1, WIDTH)
        splits = [int(peer != rank) for peer in range(size)]

        def gloo() -> Tensor:
            dist.all_to_all_single(received, x, splits, splits)
            return received

        order = torch.tensor(
            [peer * (size - 1) + (rank - (rank > peer)) for peer in range(size) if peer != rank]
        )
        calls["gloo"] = (gloo, order[:, None] + torch.arange(WIDTH) / WIDTH)
    table: dict[str, dict[str, float]] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, (call, expected) in calls.items():
        right = all(torch.equal(call().detach(), expected) for _ in range(20))
        python, builtins = count(call)
        table[name] = {"python": python, "builtins": builtins, "wrong": float(not right)}
    for _ in range(num_rounds):
        for name, (call, expected) in calls.items():
            control.barrier()
            begin = time.perf_counter()
            for _ in range(num_calls):
                result = call()
            took = (time.perf_counter() - begin) / num_calls * 1e6
            table[name]["wrong"] += not torch.equal(result.detach(), expected)
            times[name].append(max(control.exchange(took)))
    for name, taken in times.items():
        table[name] |= {"median us": statistics.median(taken), "least us": min(taken)}
        table[name]["wrong"] = sum(control.exchange(table[name]["wrong"]))
    if size > 1:
        for name in table:
            ratios = [theirs / ours for theirs, ours in zip(times["gloo"], times[name], strict=True)]
            table[name]["below gloo"] = statistics.median(ratios)
    comm.close()
    return table if rank == 0 else None


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", help="file for the same figures")
    given = parser.parse_args()
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores; load average {os.getloadavg()[0]:.1f}")
    print(f"{given.rounds} rounds of {given.calls} calls\n")
    columns = ("median us", "least us", "below gloo", "python", "builtins", "wrong")
    print(f"| ranks | call | {' | '.join(columns)} |\n| --- | --- |{' --- |' * len(columns)}")
    found = {}
    for size in (1, 2, 4):
        run = functools.partial(measure, given.rounds, given.calls)
        found[size] = dgcl.launch(run, size, ranks="processes")[0]
        for name, line in found[size].items():
            cells = [
                "" if each not in line else f"{line[each]:.{1 if each in columns[:3] else 0}f}"
                for each in columns
            ]
            print(f"| {size} | `{name}` | {' | '.join(cells)} |", flush=True)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(found, file, indent=1)
    return int(any(line["wrong"] for table in found.values() for line in table.values()))


if __name__ == "__main__":
    raise SystemExit(main())
