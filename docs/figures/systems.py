"""Each system of the papers on the same graphs, parts and model: as published, and run between 4 ranks (threads).

As published, a system is steps that follow each other, each a relation and the bytes of a row. Each is planned by
`auto`, so it is as good as our planner can make it, and played by the simulator without latencies.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.advisor.counts import Candidates
from dgcl.advisor.model_costs import read_model
from dgcl.advisor.spelling import read_strategy
from dgcl.graph import Graph
from dgcl.partition import partition_graph
from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.event_simulator import simulate
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures.framework import Figure, Run, both_ways, machine, turns

PAGE = "paper.md"
Step = tuple[Relation, int]
WIDTH = 128
GRAPHS, RANKS, WIDTHS = ("coauthor_physics", "uk_2007_05_100k"), 4, (128, 128, 40)
SYSTEMS = {
    "peer-to-peer": "halo", "DGCL": "halo", "CAGNET 1D": "windows:4", "CAGNET 1.5D": "grid:2,2,1",
    "CAGNET 2D": "grid:2,1,2", "CAGNET 3D": "grid:1,2,2", "MG-GCN": "in-place", "SuperGCN": "cover",
    "HongTu": "offload:8",
}  # fmt: skip
"""What each is built as here."""


def played(steps: Iterable[Step], topology: Topology, method: str = "auto") -> float:
    """Seconds of steps, one after the other; links are shared by bytes under way."""
    plans = (
        make_plan(relation, topology, method, PlanOptions(row_bytes=size, time_limit=5.0))
        for relation, size in steps
        if relation.deliveries
    )
    return sum(simulate(plan, shares="bytes").seconds for plan in plans)


def rows(steps: Iterable[Step]) -> float:
    """Rows of WIDTH float32 that all ranks receive."""
    return sum(relation.deliveries * size for relation, size in steps) / (4 * WIDTH)


def step(ranks: int, groups: Iterable[Iterable[int]], senders: Iterable[int], count: int, size: int) -> Step:
    """Each of the senders sends so many rows to all others of its group."""
    sending = set(senders)
    classes = [
        (rank, {*group} - {rank}, count) for group in map(list, groups) for rank in group if rank in sending
    ]
    return Relation.from_classes(ranks, classes), size


def one_d(num_nodes: int, ranks: int) -> list[Step]:
    """CAGNET 1D and MG-GCN: one rank after the other broadcasts its rows."""
    everyone = range(ranks)
    return [step(ranks, [everyone], [rank], num_nodes // ranks, 4 * WIDTH) for rank in everyone]


def one_five_d(num_nodes: int, ranks: int) -> list[Step]:
    """CAGNET 1.5D with c = 2: pairs hold the same rows, each receives half of the others', and sums are exchanged."""
    half, size = ranks // 2, 4 * WIDTH
    columns, pairs = (
        (range(0, ranks, 2), range(1, ranks, 2)),
        zip(range(0, ranks, 2), range(1, ranks, 2), strict=True),
    )
    stages = [
        step(ranks, columns, (2 * turn, 2 * (turn + half // 2) + 1), num_nodes // half, size)
        for turn in range(half // 2)
    ]
    return stages + 2 * [step(ranks, pairs, range(ranks), num_nodes // ranks, size)]


def two_d(num_nodes: int, num_edges: int, side: int) -> list[Step]:
    """CAGNET 2D: blocks of rows go down columns, tiles of edges (8 bytes each) along rows, and results are gathered."""
    ranks, block, size = side * side, num_nodes // side, 4 * WIDTH // side
    across = [range(row * side, row * side + side) for row in range(side)]
    down = [range(column, ranks, side) for column in range(side)]
    stages = [
        each
        for turn in range(side)
        for each in (
            step(ranks, down, across[turn], block, size), step(ranks, across, down[turn], num_edges // ranks, 8),
        )
    ]  # fmt: skip
    return [*stages, step(ranks, across, range(ranks), block, size)]


class Sums(nn.Module):
    """Sums over in-edges and products, with ReLU between; narrow rows are summed where there is a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairwise(WIDTHS))
        for product in self.products:  # the same on all ranks, which may be threads
            shape, generator = product.weight.shape, torch.Generator().manual_seed(0)
            product.weight.data = torch.randn(shape, generator=generator)

    def forward(self, x: Tensor, aggregate: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits."""
        first, second = self.products
        return aggregate(second(torch.relu(first(aggregate(x)))))


@dataclass
class System:
    """A system as one rank has it.

    Attributes:
        comm: Its communicator.
        transport: What carries its rows.
        epoch: Forward, backward and the sum of gradients, which it returns.
        counts: HongTu's V_ori, V_p2p and V_ru, and rows that a forward loads from hosts and between ranks.
    """

    comm: dgcl.Communicator
    transport: Any
    epoch: Callable[[], list[Tensor]]
    counts: tuple[int, ...] = ()


def build(name: str, graph: Graph, part: Any) -> System:
    """Connect ranks and make an epoch."""
    spec, model, counts = SYSTEMS[name], Sums(), ()
    forward: Any
    method = "direct" if name == "peer-to-peer" else "auto"
    place = comm = dgcl.build_comm_info(graph, "uniform", part=part, strategy=spec, method=method)
    transport = comm.transport
    if spec.startswith("offload"):
        place = off = dgcl.Offload(comm, chunks=8)
        transport = off._transport
        counts = off._arrangement.volumes + off._arrangement.delivered
        hidden = nn.Sequential(model.products[0], nn.ReLU())

        def forward(x: Tensor) -> Tensor:
            return off.layer(model.products[1], off.layer(hidden, x, aggregate="sum"), aggregate="sum")

    elif spec == "in-place":
        forward = dgcl.nn.InPlaceGCN(WIDTHS, add_self_loops=False, normalize=False, bias=False)
        for layer, product in zip(forward.convs, model.products, strict=True):
            layer.lin.weight = product.weight
    else:
        options = {"windows": RANKS, "by": "owner"} if "windows" in spec else {}
        forward = partial(model, aggregate=comm.aggregator(**options))
    x = place.dispatch_features(features(graph))

    def epoch() -> list[Tensor]:
        model.zero_grad()
        forward(x).square().sum().backward()
        return [comm.all_reduce_sum(parameter.grad) for parameter in model.parameters()]

    return System(comm, transport, epoch, counts)


def features(graph: Graph) -> Tensor:
    """A row of each vertex."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(graph.num_nodes, WIDTHS[0], generator=generator) / graph.num_nodes


def of_one_device(graph: Graph) -> list[np.ndarray]:
    """The gradients of both products, by sparse products in float64."""
    edges = csr_array((np.ones(graph.num_edges), graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2)
    first, second = (product.weight.detach().double().numpy() for product in Sums().products)
    sums = edges @ features(graph).double().numpy()
    hidden = sums @ first.T
    kept = np.maximum(hidden, 0)
    back = edges.T @ (2 * (edges @ (kept @ second.T)))
    return [((back @ second) * (hidden > 0)).T @ sums, back.T @ kept]


def alone(name: str, graph: Graph, part: Any, truth: list[np.ndarray]) -> list[Any]:
    """Rows of chunks, and how far gradients are off."""

    def on_rank() -> list[Any]:
        system = build(name, graph, part)
        pairs = zip(system.epoch(), truth, strict=True)
        return [system.counts, max(float(np.abs(a.numpy() - b).max() / np.abs(b).max()) for a, b in pairs)]

    return dgcl.launch(on_rank, RANKS)[0]


def epochs(graph: Graph, part: Any, rounds: int) -> dict[str, float]:
    """The time of each system's epoch over DGCL's, in turns."""
    built = {name: build(name, graph, part) for name in SYSTEMS}
    times = turns(built["DGCL"].comm, {name: system.epoch for name, system in built.items()}, rounds)
    return {name: time.ratio(times["DGCL"]) for name, time in times.items()}


def by_owner(relation: Relation) -> list[Step]:
    """The rows of one rank after the other."""
    owners, ranks, counts = relation.source, relation.dest_ranks, relation.count
    owned = [np.flatnonzero(owners == owner) for owner in range(RANKS)]
    return [
        (Relation.from_classes(RANKS, [(owner, ranks(c), counts[c]) for c in mine]), 4 * WIDTHS[0])
        for owner, mine in enumerate(owned)
    ]


def beside(row: dict[str, Any]) -> str:
    """What is sent and how long that takes, as published and as built, and the epoch."""

    def both(name: str, form: str, *values: float | None) -> str:
        return f"{' → '.join('-' if value is None else format(value, form) for value in values)} {name}"

    sent = both("rows", ".2f", row["published: rows"], row["built: rows"])
    epoch = row["epoch / DGCL's"]
    return f"{sent}, {both('us', '.0f', row['us'], row['us '])}, {epoch:.2f}"


def systems(run: Run) -> Figure:
    """What each sends for one aggregation as published and as built, and what an epoch takes."""
    columns = {
        "graph": "", "system": "", "published: rows": ".2f", "us": ".0f", "built as": "", "built: rows": ".2f",
        "us ": ".0f", "from hosts": "", "epoch / DGCL's": ".2f", "error": ".0e",
    }  # fmt: skip
    topology = without_latencies(resolve_topology("dgx1", RANKS))
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: tensors go back to the system

    def of_graph(name: str) -> Iterator[list[Any]]:
        graph = both_ways(run.graph(name))
        n, part, truth = graph.num_nodes, partition_graph(graph, RANKS), of_one_device(graph)
        candidates = Candidates(graph, part, read_model(f"gcn:{','.join(map(str, WIDTHS))}"), topology)

        def steps(spec: str) -> list[Step]:
            counted = candidates.count(read_strategy(spec))
            size = 4 * WIDTHS[0] // counted.slices
            return [(each, size) for each in (counted.expand, counted.fold) if each is not None]

        halo, everything = steps("halo"), one_d(n, RANKS)
        published: dict[str, tuple[list[Step], str]] = {
            "peer-to-peer": (halo, "direct"), "DGCL": (halo, "spst"), "CAGNET 1D": (everything, "auto"),
            "CAGNET 1.5D": (one_five_d(n, RANKS), "auto"), "CAGNET 2D": (two_d(n, graph.num_edges, 2), "auto"),
            "MG-GCN": (everything, "auto"), "SuperGCN": (steps("cover"), "direct"),
        }  # fmt: skip
        ratios = dgcl.launch(epochs, RANKS, graph, part, run.rounds)[0]
        for system, spec in SYSTEMS.items():
            counts, error = alone(system, graph, part, truth)
            first, method = published.get(system, ([], ""))
            ours = [] if counts else by_owner(halo[0][0]) if "windows" in spec else steps(spec)
            sent, hosts = [rows(first), rows(ours)], ""
            if counts:  # by the paper's own counts
                v_ori, v_p2p, v_ru, loaded, between = counts
                sent, hosts = [v_ori - v_p2p, between], f"{v_ori / n:.2f}, {v_ru / n:.2f}, {loaded / n:.2f}"
            yield [
                name, system, sent[0] / n or None, 1e6 * played(first, topology, method) or None, spec, sent[1] / n,
                1e6 * played(ours, topology, "direct" if system == "peer-to-peer" else "auto") or None, hosts,
                ratios[system], error,
            ]  # fmt: skip

    rows = (row for name in run.some(GRAPHS) for row in of_graph(name))
    return Figure(
        columns, rows, machine(), small=("{system}: {built as}".format_map, "{graph}".format_map, beside)
    )


FIGURES = {"systems": systems}
