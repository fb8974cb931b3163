"""Small calls on CPU ranks against Gloo and against autograd alone: rows of 1 KB, one for each pair of ranks.

"python" counts the Python functions that a call enters on rank 0, compiled ones included, and "builtins" the C
functions that they call. Every result is compared with what it must be. A minute.

    comm.expand          rows in, rows out, nothing recorded
    graph_allgather      the same, by its public name
    forward + backward   graph_allgather of rows that require a gradient, and the gradient
    identity             an autograd.Function that does nothing, forward and backward: the least that autograd takes
    gloo                 all_to_all_single of the same rows
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import dgcl
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, machine, on_ranks, turns

PAGE = "performance.md"
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
    each, ranks = max(num_ranks - 1, 1), range(num_ranks)
    edges = [(r * each + (s - (s > r)), s * each) for r in ranks for s in ranks if s != r] or [(0, 0)]
    return np.array(edges).T, [v // each for v in range(num_ranks * each)]


def count(call: Callable[[], object]) -> tuple[int, int]:
    """Python functions and builtins that a call enters; the least of several calls, since waits add some."""
    counts = []
    for _ in range(20):
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument, events=events: events.append(event))
        try:
            call()
        finally:
            sys.setprofile(None)
        counts.append(
            (events.count("call") - 1, events.count("c_call") - 1)
        )  # without `call`, and setprofile
    return min(counts)


def measure(rounds: int) -> list[list[Any]]:
    """The rows of one number of ranks."""
    torch.set_num_threads(1)
    control = context.require_control()
    rank, size = control.rank, control.world_size
    graph, part = pairs(size) if rank == 0 else (None, None)
    comm = dgcl.build_comm_info(graph, "uniform", part=part)
    ids, columns = comm.owned_ids, torch.arange(WIDTH) / WIDTH
    x, expected = ids[:, None] + columns, torch.cat([ids, comm.halo_ids])[:, None] + columns
    leaf, ones = x.clone().requires_grad_(), torch.ones(comm.num_local, WIDTH)

    def backward(forward: Callable[[Tensor], Tensor], grad: Tensor) -> Tensor:
        leaf.grad = None
        forward(leaf).backward(grad)
        return leaf.grad

    calls: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
        "comm.expand": (lambda: comm.expand(x), expected),
        "graph_allgather": (lambda: dgcl.graph_allgather(x), expected),
        "forward + backward": (
            lambda: backward(dgcl.graph_allgather, ones),
            torch.full_like(x, 2.0 if size > 1 else 1.0),
        ),
        "identity": (lambda: backward(Identity.apply, torch.ones_like(x)), torch.ones_like(x)),
    }
    if size > 1:
        received, splits = torch.empty(size - 1, WIDTH), [int(peer != rank) for peer in range(size)]

        def gloo() -> Tensor:
            dist.all_to_all_single(received, x, splits, splits)
            return received

        sources = torch.tensor([p * (size - 1) + (rank - (rank > p)) for p in range(size) if p != rank])
        calls["gloo"] = gloo, sources[:, None] + columns
    wrong, entered = {}, {}
    for name, (call, right) in calls.items():
        wrong[name] = sum(not torch.equal(call().detach(), right) for _ in range(20))
        entered[name] = count(call)
    times = turns(comm, {name: call for name, (call, _) in calls.items()}, rounds)
    for name, (call, right) in calls.items():
        wrong[name] += not torch.equal(call().detach(), right)
        wrong[name] = sum(control.exchange(wrong[name]))
    return [
        [
            size, f"`{name}`", 1e6 * time.median, 1e6 * time.best,
            times["gloo"].ratio(time) if size > 1 else None, *entered[name], wrong[name],
        ]
        for name, time in times.items()
    ]  # fmt: skip


def latency(run: Run) -> Figure:
    """One, two and four ranks, each a process."""
    columns = {
        "ranks": "", "call": "", "median us": ".1f", "least us": ".1f", "Gloo's / it": ".1f", "python": "",
        "builtins": "", "#wrong": "",
    }  # fmt: skip
    rows = (row for ranks in (1, 2, 4) for row in on_ranks(measure, ranks, run.rounds))
    return Figure(columns, rows, machine())


FIGURES = {"latency": latency}
