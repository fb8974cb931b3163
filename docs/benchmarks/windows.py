"""Aggregations in windows and stacks in place: what they hold, and how long they take.

    python docs/benchmarks/windows.py GRAPH.npz [--rounds 7] [--only windows|stacks] [--write docs/windows.md]

On four ranks that are processes, on the graph with every edge both ways and self loops, in METIS parts. Candidates take
turns, in another order in each round; times are medians over rounds, each of the slowest rank. About five minutes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from marked import print_into
from scipy.sparse import csr_array
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.cli.info import describe_machine
from dgcl.graph import Graph, as_graph
from dgcl.graph.files import read_graph
from dgcl.nn.in_place import _stacks
from dgcl.partition import partition_graph
from dgcl.ranks.context import context

RANKS, WIDTH = 4, 128
ENOUGH = 0.2
"""Seconds for which a step is timed at least."""

WINDOWS: dict[str, dict[str, Any]] = {
    "1": {},
    "2": {"windows": 2},
    "4": {"windows": 4},
    "8": {"windows": 8},
    "4, by owner": {"by": "owner"},
}
CHANNELS = (128, 208, 208, 172)
MB = 1e6


def both_ways(graph: Graph, loops: bool = True) -> Graph:
    """Every edge in both directions, once, and with ``loops`` a self loop at each vertex."""
    tails, heads = (ends.astype(np.int64) for ends in graph.edges())
    own, n = np.arange(graph.num_nodes * loops), graph.num_nodes
    keys = np.unique(np.concatenate([tails * n + heads, heads * n + tails, own * n + own]))
    return as_graph(np.stack([keys // n, keys % n]), n)


def pool_bytes(comm: dgcl.Communicator) -> int:
    """Bytes that a rank's buffers take: whole segments, all windows of all widths so far."""
    allocated: int = comm.transport.runtime.pool.bytes_allocated  # type: ignore[attr-defined]
    return allocated


def in_turns(comm: dgcl.Communicator, steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each step over rounds, of the slowest rank; after one round that is not counted.

    A step is timed so many times in a row that it takes as long as ``ENOUGH``: ranks leave a barrier one after the
    other, which is no part of it.
    """
    samples: dict[str, list[float]] = {name: [] for name in steps}
    names, repeats = list(steps), dict.fromkeys(steps, 1)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            comm.control.barrier()
            began = time.perf_counter()
            for _ in range(repeats[name]):
                steps[name]()
            slowest = max(comm.control.exchange((time.perf_counter() - began) / repeats[name]))
            if number:
                samples[name].append(slowest)
            else:
                repeats[name] = math.ceil(ENOUGH / slowest)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def aggregations(graph: Graph | None, part: Any, rounds: int) -> list[dict[str, Any]]:
    """Of each way to divide rows: bytes of buffers over all ranks, seconds there and back, largest relative error."""
    found, steps, comms = [], {}, []
    for name, options in WINDOWS.items():
        comm = dgcl.build_comm_info(graph, "uniform", part=part)
        comms.append(comm)
        whole = torch.rand(comm.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
        x = comm.dispatch_features(whole).requires_grad_()
        aggregate = comm.aggregator(**options)

        def step(aggregate: Any = aggregate, x: Tensor = x) -> None:
            x.grad = None
            aggregate(x).sum().backward()

        with torch.no_grad():
            y = comm.collect(aggregate(x), None)
        forward = pool_bytes(comm)
        step()
        told = comm.control.exchange((comm.num_halo * WIDTH * 4, forward, pool_bytes(comm)))
        halo, forward, both = (sum(column) for column in zip(*told, strict=True))
        error = 0.0
        if graph is not None and y is not None:
            ones, shape = np.ones(graph.num_edges), (graph.num_nodes, graph.num_nodes)
            wanted = csr_array((ones, graph.indices, graph.indptr), shape=shape) @ whole.double().numpy()
            error = float((np.abs(y.double().numpy() - wanted) / np.maximum(wanted, 1)).max())
        steps[name] = step
        found.append({"name": name, "halo": halo, "forward": forward, "both": both, "error": error})
    seconds = in_turns(comms[0], steps, rounds)
    return [{**each, "seconds": seconds[each["name"]]} for each in found]


class OneByOne(nn.Module):
    """The stack's model, of layers that autograd differentiates."""

    def __init__(self, stack: dgcl.nn.InPlaceGCN) -> None:
        super().__init__()
        self.convs, self.p = stack.convs, stack.options.p

    def forward(self, x: Any, comm: dgcl.Communicator) -> Tensor:
        """Logits."""
        for conv in self.convs[:-1]:
            x = dgcl.nn.dropout(torch.relu(conv(x, comm)), self.p, comm=comm)
        out: Tensor = self.convs[-1](x, comm)
        return out


def saved_bytes(model: nn.Module, x: Any, comm: dgcl.Communicator) -> int:
    """Bytes of storages that autograd keeps of a forward, parameters left out; and of its result."""
    storages = {}
    left_out = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in left_out:
            storages[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        out = model(x, comm)
    storages[out.untyped_storage().data_ptr()] = out.untyped_storage().nbytes()
    return sum(storages.values())


def stacks(graph: Graph | None, part: Any, rounds: int) -> list[dict[str, Any]]:
    """Of layers one by one, and of the stack: bytes of rows over all ranks, seconds of a step, difference of losses."""
    found, steps, losses, comms = [], {}, [], []
    for name, windows in (("GCNConv", None), ("InPlaceGCN", None), ("InPlaceGCN, 8 windows", 8)):
        comm = dgcl.build_comm_info(graph, "uniform", part=part)
        comms.append(comm)
        stack = dgcl.nn.InPlaceGCN(CHANNELS, dropout=0.5, windows=windows)
        generator = torch.Generator().manual_seed(0)
        for parameter in stack.parameters():
            nn.init.normal_(parameter, 0, 0.1, generator=generator)
        model = OneByOne(stack) if name == "GCNConv" else stack
        x = comm.aggregator().constant(
            comm.dispatch_features(torch.rand(comm.num_nodes, CHANNELS[0], generator=generator))
        )
        labels, mask = comm.owned_ids % CHANNELS[-1], comm.owned_ids % 3 == 0

        def step(
            model: nn.Module = model,
            x: Any = x,
            labels: Tensor = labels,
            mask: Tensor = mask,
            comm: Any = comm,
        ) -> float:
            model.zero_grad()
            loss = dgcl.nn.cross_entropy(model(x, comm), labels, mask=mask, comm=comm)
            loss.backward()
            return loss.item()

        losses.append(step())
        kept = saved_bytes(model, x, comm)
        predicted = 0
        if model is stack:
            kept += _stacks[stack][comm].num_bytes
            predicted = stack.memory(comm, constant=True).total
        told = comm.control.exchange((kept, pool_bytes(comm), predicted))
        kept, pool, predicted = (sum(column) for column in zip(*told, strict=True))
        steps[name] = step
        found.append({"name": name, "kept": kept, "pool": pool, "predicted": predicted})
    seconds = in_turns(comms[0], steps, rounds)
    return [
        {**each, "seconds": seconds[each["name"]], "error": abs(loss / losses[0] - 1)}
        for each, loss in zip(found, losses, strict=True)
    ]


def on_rank(path: str, rounds: int, name: str) -> list[dict[str, Any]]:
    """One table's figures; the graph is on rank 0."""
    graph, part = None, None
    if context.require_control().rank == 0:
        graph = both_ways(read_graph(Path(path)).graph)
        part = partition_graph(graph, RANKS)
    return {"windows": aggregations, "stacks": stacks}[name](graph, part, rounds)


def window_table(found: list[dict[str, Any]]) -> list[str]:
    """Aggregations in windows."""
    whole = found[0]
    lines = [
        f"Rows of {WIDTH} float32: a halo of {whole['halo'] / MB:.1f} MB.",
        "",
        "| windows | buffers, forward | of the halo | and backward | of the halo | ms, both | of whole | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        cells = [
            each["name"],
            f"{each['forward'] / MB:.1f} MB",
            f"{each['forward'] / each['halo']:.3f}",
            f"{each['both'] / MB:.1f} MB",
            f"{each['both'] / each['halo']:.3f}",
            f"{1e3 * each['seconds']:.0f}",
            f"{each['seconds'] / whole['seconds']:.2f}",
            f"{each['error']:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def stack_table(found: list[dict[str, Any]]) -> list[str]:
    """A model's training step."""
    lines = [
        f"A training step of widths {', '.join(map(str, CHANNELS))}, constant inputs, dropout 0.5:",
        "",
        "| stack | rows kept | buffers | together | predicted | ms a step | of GCNConv | loss differs by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        cells = [
            each["name"],
            f"{each['kept'] / MB:.0f} MB",
            f"{each['pool'] / MB:.0f} MB",
            f"{(each['kept'] + each['pool']) / MB:.0f} MB",
            f"{each['predicted'] / MB:.0f} MB" if each["predicted"] else "",
            f"{1e3 * each['seconds']:.0f}",
            f"{each['seconds'] / found[0]['seconds']:.2f}",
            f"{each['error']:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file")
    parser.add_argument("--rounds", type=int, default=7, help="times that each candidate is measured")
    parser.add_argument("--only", choices=["windows", "stacks"], help="one table of the two")
    parser.add_argument("--write", default="", help="page to put the tables into")
    given = parser.parse_args()
    machine = describe_machine()
    on = f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['system']}; {Path(given.graph).stem},"
    on += f" both ways, with self loops; {RANKS} ranks."
    for name, table in (("windows", window_table), ("stacks", stack_table)):
        if given.only in (None, name):
            found = dgcl.launch(on_rank, RANKS, given.graph, given.rounds, name, ranks="processes")[0]
            print_into(given.write, name, "\n".join([on, "", *table(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
