"""What the papers' systems send as published, step by step.

A step is a relation and the bytes of a row; steps follow each other. Each is planned by `auto`, so it is as good as our
planner can make it, and played by the simulator without latencies.
"""

from collections.abc import Iterable

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.topology import Topology

Step = tuple[Relation, int]
WIDTH = 128


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
