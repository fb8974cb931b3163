"""Programs to exchange rows by, for measurements."""

from __future__ import annotations

from typing import Final

import numpy as np

from dgcl.program import Program

_LOCAL_EDGES: Final = 0.7  # share of the edges that stay in a part


#: The machine that plans are made for. On a line of PCIe switches multi-stage plans pay; which machine it is matters
#: for nothing else here.
TOPOLOGY: Final = "pcie8"


def make_edges(num_ranks: int, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """``(2, E)`` random edges that mostly stay in their part, and the part of each vertex."""
    generator = np.random.default_rng(num_ranks)
    part = np.arange(num_nodes) * num_ranks // num_nodes
    tails = generator.integers(0, num_nodes, 4 * num_nodes)
    size = num_nodes // num_ranks
    inside = tails // size * size + generator.integers(0, size, len(tails))
    anywhere = generator.integers(0, num_nodes, len(tails))
    heads = np.where(generator.random(len(tails)) < _LOCAL_EDGES, inside, anywhere)
    return np.stack([tails, np.minimum(heads, num_nodes - 1)]), part


def make_programs(num_ranks: int, num_nodes: int, method: str) -> list[Program]:
    """Programs for such a graph."""
    from dgcl.build import prepare
    from dgcl.planner import PlanOptions
    from dgcl.topology import resolve_topology
    from dgcl.topology.latencies import without_latencies

    edges, part = make_edges(num_ranks, num_nodes)
    machine = without_latencies(resolve_topology(TOPOLOGY, num_ranks))  # with them a plan may have one stage
    shares = prepare(edges, num_ranks, machine, part=part, method=method, options=PlanOptions())
    return [share.program for share in shares]
