"""Aggregations against the halo exchange that they take the place of: exchanges alone, and epochs of whole models.

    OMP_NUM_THREADS=1 python docs/benchmarks/aggregation.py GRAPHS/ [--rounds 7] [--ranks 2 4]
        [--only exchanges|epochs] [--graph NAME ...] [--model SAGE GCN] [--write docs/aggregation_figures.md]

Ranks are processes on this machine, METIS parts, every edge both ways with self loops. Candidates take turns, in
another order in each round; times are medians over rounds, each of the slowest rank. About ten minutes on a quiet
machine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from marked import print_into
from scipy.sparse import csr_array
from torch import Tensor, nn
from windows import both_ways, in_turns

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from dgcl.cli.info import describe_machine
from dgcl.graph import Graph
from dgcl.graph.files import read_graph
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from dgcl.transport.steps import Begin, Wait

EXCHANGES = ("uk_2007_05_100k", "ogbn_arxiv")
EPOCHS = ("ogbn_arxiv", "uk_2007_05_100k", "amazon_computers", "coauthor_physics")
EDGES = ("head", "tail", "cover")
WIDTH, HIDDEN, CLASSES, LAYERS, STEPS = 128, 128, 40, 3, 4
MODELS = ("SAGE", "GCN")
WAYS = ("DGL's layers", "head", "auto", "cover", "auto, inputs constant")


def graph_on_first_rank(path: str, ranks: int) -> tuple[Graph | None, np.ndarray | None]:
    """The graph and its parts on rank 0, which gives the others theirs."""
    if context.require_control().rank:
        return None, None
    graph = both_ways(read_graph(Path(path)).graph)
    return graph, partition_graph(graph, ranks)


def alone(operation: Operation, comm: dgcl.Communicator) -> Callable[[Tensor, Tensor], bool]:
    """What an aggregation moves, as one that repeats moves it: without sums, but for those that the fold makes."""
    calls = [step for step in operation.steps(rounds=False) if isinstance(step, (Begin, Wait))]
    sequence = comm.transport.sequence(calls, WIDTH, torch.float32)
    assert sequence is not None
    partial = torch.rand(operation.blocks[1].num_heads, WIDTH)
    return lambda x, out: sequence.run(x, out, partial)


def error_of(graph: Graph | None, comm: dgcl.Communicator) -> float:
    """The largest relative difference of a sum from a sparse product, both in float64; on rank 0."""
    whole = torch.rand(comm.num_nodes, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    aggregate, x = comm.aggregator(), comm.dispatch_features(whole)
    aggregate(x)  # the second is carried out as those are whose exchanges are timed
    found = comm.collect(aggregate(x))
    if graph is None or found is None:
        return 0.0
    ones, shape = np.ones(graph.num_edges), (graph.num_nodes, graph.num_nodes)
    wanted = csr_array((ones, graph.indices, graph.indptr), shape=shape) @ whole.numpy()
    return float((np.abs(found.numpy() - wanted) / np.maximum(wanted, 1)).max())


def exchanges(path: str, ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Of each placement: rows planned and rows moved there and back, seconds, error."""
    graph, part = graph_on_first_rank(path, ranks)
    found, steps, comms = [], {}, []
    for edges in EDGES:
        comm = dgcl.build_comm_info(graph, part=part, edges=edges)
        comms.append(comm)
        x, out = (torch.rand(comm.num_owned, WIDTH) for _ in range(2))
        operation = comm.aggregator().operation
        assert isinstance(operation, Operation)
        ways = alone(operation, comm), alone(operation.transposed, comm)

        def step(ways: Any = ways, x: Tensor = x, out: Tensor = out) -> None:
            there_and_back = [way(x, out) for way in ways]
            assert all(there_and_back), "carried out one by one"

        error = error_of(graph, comm)
        before = sum(int(sent.sum()) for sent in comm.bytes_sent.values())
        step()
        moved = sum(int(sent.sum()) for sent in comm.bytes_sent.values()) - before
        wanted = comm.num_halo + len(comm.local.partial_ids)
        told = comm.control.exchange((wanted, moved // (4 * WIDTH)))
        wanted, moved = (sum(column) for column in zip(*told, strict=True))
        steps[edges] = step
        found.append({"name": edges, "wanted": wanted, "moved": moved, "error": error})
    seconds = in_turns(comms[0], steps, rounds)
    return [{**each, "seconds": seconds[each["name"]]} for each in found]


class Ours(nn.Module):
    """Three layers of ours, wherever edges are summed."""

    def __init__(self, model: str) -> None:
        super().__init__()
        kind: Callable[..., nn.Module] = dgcl.nn.SAGEConv
        if model == "GCN":
            kind = _gcn
        self.layers = nn.ModuleList(kind(*widths) for widths in _widths())

    def forward(self, x: Tensor, comm: dgcl.Communicator) -> Tensor:
        """Logits."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, comm))
        out: Tensor = self.layers[-1](x, comm)
        return out


def _gcn(width_in: int, width_out: int) -> nn.Module:
    return dgcl.nn.GCNConv(width_in, width_out, add_self_loops=False)  # they are in the graph


def _widths() -> list[tuple[int, int]]:
    widths = [WIDTH, *[HIDDEN] * (LAYERS - 1), CLASSES]
    return list(itertools.pairwise(widths))


class Theirs(nn.Module):
    """The same model of unmodified DGL layers behind ``graph_allgather``."""

    def __init__(self, ours: Ours, block: Any) -> None:
        super().__init__()
        import dgl.nn

        self.block = block
        self.layers = nn.ModuleList()
        for layer in ours.layers:
            if isinstance(layer, dgcl.nn.SAGEConv):
                width_out, width_in = layer.lin_l.weight.shape
                conv = dgl.nn.SAGEConv(width_in, width_out, "mean")
                values = (layer.lin_l.weight, layer.lin_r.weight, layer.lin_l.bias)
                parameters = (conv.fc_neigh.weight, conv.fc_self.weight, conv.fc_self.bias)
            else:
                assert isinstance(layer, dgcl.nn.GCNConv)
                width_out, width_in = layer.lin.weight.shape
                conv = dgl.nn.GraphConv(width_in, width_out, allow_zero_in_degree=True)
                values, parameters = (layer.lin.weight.t(), layer.bias), (conv.weight, conv.bias)
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data.copy_(value.data)
            self.layers.append(conv)

    def forward(self, x: Tensor, comm: dgcl.Communicator) -> Tensor:
        """Logits."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(self.block, dgcl.graph_allgather(x, comm)))
        out: Tensor = self.layers[-1](self.block, dgcl.graph_allgather(x, comm))
        return out


def epochs(path: str, ranks: int, rounds: int, model: str) -> list[dict[str, Any]]:
    """Of each way: seconds of an epoch, the losses of the first few, what ``auto`` chose."""
    graph, part = graph_on_first_rank(path, ranks)
    found, steps, comms = [], {}, []
    for way in WAYS:
        edges = "head" if way == WAYS[0] else way.split(",")[0]
        comm = dgcl.build_comm_info(graph, part=part, edges=edges)
        comms.append(comm)
        torch.manual_seed(0)
        net: nn.Module = Ours(model)
        if way == WAYS[0]:
            net = Theirs(net, comm.local_graph("dgl"))  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(1)
        x: Any = comm.dispatch_features(torch.rand(comm.num_nodes, WIDTH, generator=generator))
        if way == WAYS[-1]:
            x = comm.aggregator().constant(x)
        labels = comm.owned_ids % CLASSES
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(
            net: nn.Module = net, x: Any = x, labels: Tensor = labels, optimizer: Any = optimizer, comm: Any = comm
        ) -> float:  # fmt: skip
            optimizer.zero_grad()
            loss = dgcl.nn.cross_entropy(net(x, comm), labels, comm=comm)
            loss.backward()
            dgcl.nn.sync_gradients(net, comm=comm)
            optimizer.step()
            return loss.item()

        losses = [step() for _ in range(STEPS)]
        steps[way] = step
        found.append({"name": way, "losses": losses, "edges": comm.edges})
    seconds = in_turns(comms[0], steps, rounds)
    return [{**each, "seconds": seconds[each["name"]]} for each in found]


def launched(function: Callable[..., Any], ranks: int, *given: Any) -> list[dict[str, Any]]:
    """What rank 0 found."""
    found: list[dict[str, Any]] = dgcl.launch(function, ranks, *given, ranks="processes")[0]
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def exchange_table(folder: Path, names: Sequence[str], ranks: int, rounds: int) -> str:
    """Exchanges alone."""
    header = (
        "graph, both ways", "edges", "rows there and back", "moved", "head / it", "ms", "head / it", "us a 1000 rows",
        "error",
    )  # fmt: skip
    rows = []
    for name in names:
        found = launched(exchanges, ranks, str(folder / f"{name}.npz"), ranks, rounds)
        for each in found:
            seconds, moved = each["seconds"], each["moved"]
            rows.append([
                name, each["name"], str(2 * each["wanted"]), str(moved), f"{found[0]['moved'] / max(moved, 1):.2f}",
                f"{1e3 * seconds:.2f}", f"{found[0]['seconds'] / seconds:.2f}",
                f"{1e9 * seconds / max(moved, 1):.1f}", f"{each['error']:.0e}",
            ])  # fmt: skip
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return table(header, rows)


def epoch_table(
    folder: Path, names: Sequence[str], worlds: Sequence[int], models: Sequence[str], rounds: int
) -> str:
    """Epochs of whole models."""
    header = (
        "graph, both ways",
        "ranks",
        "model",
        "way",
        "ms an epoch",
        "DGL's / it",
        "it / head",
        "loss differs by",
    )
    rows = []
    for name, ranks, model in (
        (name, ranks, model) for name in names for ranks in worlds for model in models
    ):
        found = launched(epochs, ranks, str(folder / f"{name}.npz"), ranks, rounds, model)
        seconds = {each["name"]: each["seconds"] for each in found}
        for each in found:
            way = each["name"].replace("auto", f"auto: {each['edges']}")
            differs = max(abs(a / b - 1) for a, b in zip(each["losses"], found[0]["losses"], strict=True))
            own = seconds[each["name"]]
            rows.append([
                name, str(ranks), model, way, f"{1e3 * own:.0f}", f"{seconds[WAYS[0]] / own:.2f}",
                f"{own / seconds['head']:.2f}", f"{differs:.0e}",
            ])  # fmt: skip
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return table(header, rows)


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder of graph files")
    parser.add_argument("--rounds", type=int, default=7, help="times that each candidate is measured")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks of the epochs")
    parser.add_argument("--graph", nargs="+", help="these graphs alone")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS, help="models of the epochs")
    parser.add_argument("--only", choices=["exchanges", "epochs"], help="one table of the two")
    parser.add_argument("--write", default="", help="page to put the tables into")
    given = parser.parse_args()
    os.environ.setdefault("DGLBACKEND", "pytorch")
    machine = describe_machine()
    on = f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    on += f"; {torch.get_num_threads()} thread(s) a rank."
    made = {
        "exchanges": lambda: exchange_table(given.graphs, given.graph or EXCHANGES, 4, given.rounds),
        "epochs": lambda: epoch_table(
            given.graphs, given.graph or EPOCHS, given.ranks, given.model, given.rounds
        ),
    }
    for name, make in made.items():
        if given.only in (None, name):
            print_into(given.write, name, f"{on}\n\n{make()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
