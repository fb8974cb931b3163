"""What the papers' systems send as published, step by step; and what the papers claim of each other, computed again.

A step is a relation and the bytes of a row; steps follow each other. Each is planned by `auto`, so it is as good as our
planner can make it, and played by the simulator without latencies.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures.framework import Figure, Run

PAGE = "paper.md"
Step = tuple[Relation, int]
GIB, WIDTH = 2**30, 128
MEMORY = {
    "it-2004": (41_291_594, 1_150_725_436, (256, 128, 128, 64), 298.4),
    "ogbn-papers100M": (111_059_956, 1_615_685_872, (200, 128, 128, 172), 963.0),
    "friendster": (68_349_466, 2_586_147_869, (256, 128, 128, 64), 501.5),
}
"""HongTu's graphs: vertices, edges, widths, and the GiB that it states in all."""


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


def stack_bytes(num_nodes: int, num_edges: int, ranks: int, widths: tuple[int, ...]) -> float:
    """What MG-GCN's stack takes on a rank: rows, three buffers, edges both ways, parameters with Adam."""
    pairs = [*pairwise(widths)]
    elements = widths[0] + sum(map(max, pairs)) + 3 * max(map(min, pairs))
    edges = 2 * (8 * num_edges / ranks + 4 * (num_nodes + ranks))
    return 4 * num_nodes / ranks * elements + edges + 12 * sum(a * b for a, b in pairs)


def claims(run: Run) -> Figure:
    """What papers say of themselves and of each other, beside what the simulator or counting gives."""

    def values() -> Iterator[list[Any]]:
        n = 2**17 if run.quick else 2**23
        one_and_a_half, two = ("1.5D", one_five_d), ("2D", lambda n, ranks: two_d(n, 16 * n, 4))
        for paper, machine, ranks, (name, steps), stated in (
            ("MG-GCN of CAGNET", "dgx1", 8, one_and_a_half, 6 / 4),
            ("MG-GCN of CAGNET", "dgx_a100", 8, one_and_a_half, 12 / 16),
            ("CAGNET", "summitx3", 16, one_and_a_half, None),
            ("CAGNET", "summitx3", 16, two, None),
        ):
            topology = without_latencies(resolve_topology(machine, ranks))
            one, other = one_d(n, ranks), steps(n, ranks)
            ratio = played(other, topology) / played(one, topology)
            what = f"time of {name} over 1D, {ranks} GPUs of {machine}"
            yield [paper, what, stated, ratio, rows(other) / rows(one)]
        for graph, (n, edges, widths, stated) in MEMORY.items():
            hidden = 2 * sum(widths[1:]) + widths[-1]
            total = (8 * n * sum(widths) + 4 * n * hidden + 12 * edges) / GIB
            yield ["HongTu of training in GPU memory", f"GiB that {graph} takes", stated, total, None]
        n, edges, *_ = MEMORY["ogbn-papers100M"]
        fitting = [
            width
            for width in range(16, 1024, 16)
            if stack_bytes(n, edges + n, 8, (128, width, width, 172)) < 80 * GIB
        ]
        yield ["MG-GCN", "widest hidden layer, ogbn-papers100M, 8 GPUs of 80 GiB", 208, fitting[-1], None]

    columns = {"paper": "", "claim": "", "stated": ".4g", "here": ".4g", "rows over 1D's": ".2f"}
    return Figure(columns, values())


FIGURES = {"claims": claims}
