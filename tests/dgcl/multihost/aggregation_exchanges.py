"""An aggregation and its backward between hosts, and a training step: what ``aggregation_figures`` runs on a rank."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from dgcl.graph import Graph, as_graph
from dgcl.graph.graph_files import read_graph
from dgcl.ranks.context import context
from tests.dgcl.multihost.hosts import read_counter

WIDTH, CLASSES, CALLS, STEPS = 128, 40, 5, 3


def both_ways(graph: Graph) -> Graph:
    """Every edge in both directions, once, and a self loop at each vertex."""
    tails, heads = (ends.astype(np.int64) for ends in graph.edges())
    own, n = np.arange(graph.num_nodes), graph.num_nodes
    keys = np.unique(np.concatenate([tails * n + heads, heads * n + tails, own * n + own]))
    return as_graph(np.stack([keys // n, keys % n]), n)


def aggregation_on_rank(
    path: str, topology: dgcl.Topology, strategy: str, hosts: Sequence[int]
) -> dict[str, Any]:
    """Bytes and seconds of the exchanges there and back, and seconds of a step of three GCN layers.

    Returns:
        ``planned``: bytes that this rank's programs send to other hosts, there and back; ``crossing``: those that the
        transport counted; ``counted``: what the card of the rank's host has sent meanwhile; ``predicted``,
        ``exchanges``: seconds; ``step``: seconds of a step; ``losses`` of the first ones.
    """
    control = context.require_control()
    graph = both_ways(read_graph(Path(path)).graph) if control.rank == 0 else None
    comm = dgcl.build_comm_info(
        graph, topology, strategy=strategy, plan=dgcl.PlanOptions(row_bytes=4 * WIDTH)
    )
    far = np.asarray(hosts) != hosts[comm.rank]
    schedules = [s for each in comm.exchanges.values() for s in (each.program.expand, each.program.fold)]
    rows = sum(int(s.send_count[far[s.send_peer]].sum()) for s in schedules)
    operation = comm.aggregator().operation
    assert isinstance(operation, Operation)
    x, out = torch.rand(comm.num_owned, WIDTH), torch.zeros(comm.num_owned, WIDTH)

    def there_and_back():
        for each in (operation, operation.transposed):
            _exchange(each, comm, x, out)

    there_and_back()
    before, counter = comm.transport.bytes_sent.sum((0, 1)), read_counter()
    seconds = _seconds(there_and_back, comm)
    counted = read_counter() - counter
    crossing = (comm.transport.bytes_sent.sum((0, 1)) - before)[far].sum()
    predicted = sum(each.plan.predicted_seconds for each in comm.exchanges.values())
    step, losses = _training(comm)
    step_seconds = _seconds(step, comm)
    comm.close()
    return {
        "planned": 4 * WIDTH * rows,
        "crossing": int(crossing) / CALLS,
        "counted": counted / CALLS,
        "predicted": 2 * predicted,
        "exchanges": seconds,
        "step": step_seconds,
        "losses": losses,
    }


def _exchange(operation: Operation, comm: dgcl.Communicator, x: Tensor, out: Tensor):
    """What an aggregation moves, with nothing summed but what the fold adds."""
    if operation.expand is not None:
        comm.transport.begin_expand(x, operation.expand, wait=True).wait()
    if operation.fold is not None:
        partial = x[:1].expand(operation.blocks[1].num_heads, -1)
        comm.transport.begin_fold(partial, operation.fold, wait=True).wait(out)


def _seconds(call: Callable[[], object], comm: dgcl.Communicator) -> float:
    """Seconds of one of ``CALLS`` calls that all ranks begin together."""
    comm.control.barrier()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    comm.control.barrier()
    return (time.perf_counter() - begin) / CALLS


def _training(comm: dgcl.Communicator) -> tuple[Callable[[], float], list[float]]:
    """A step of three GCN layers, 128 wide, and the losses of the first few."""
    torch.manual_seed(0)
    widths = [WIDTH, WIDTH, WIDTH, CLASSES]
    layers = nn.ModuleList(dgcl.nn.GCNConv(a, b, add_self_loops=False) for a, b in itertools.pairwise(widths))
    generator = torch.Generator().manual_seed(1)
    x = comm.dispatch_features(torch.rand(comm.num_nodes, WIDTH, generator=generator))
    labels = comm.owned_ids % CLASSES
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = layer(h if layer is layers[0] else torch.relu(h), comm)
        loss = dgcl.nn.loss(F.cross_entropy, comm=comm)(h, labels)
        loss.backward()
        dgcl.nn.sync_gradients(layers, comm=comm)
        optimizer.step()
        return loss.item()

    return step, [step() for _ in range(STEPS)]
