"""How much replication copies, and what that takes at least, before anything is copied.

Finding out takes 24 bytes for each vertex of the graph and K + 1 passes over its edges for every 64 machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dgcl.partition.replication import holders_by_hop
from dgcl.relation.local_graph import local_graph_bytes

if TYPE_CHECKING:
    from dgcl.graph import Graph
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology


@dataclass(frozen=True, eq=False)
class Holdings:
    """What each of P ranks holds.

    Attributes:
        owned: (P,) int64, rows that it computes in every layer, replicas included.
        halo: (P,) int64, rows that it receives before each layer.
        edges: (P,) int64, edges that it sums over in each layer.
    """

    owned: NDArray[np.int64]
    halo: NDArray[np.int64]
    edges: NDArray[np.int64]

    def bytes_held(self, row_bytes: int, layers: int, edge_order: bool) -> NDArray[np.int64]:
        """(P,) bytes: the local graph, and all rows of ``row_bytes`` in each layer's input and in the output.

        What layers keep beside their inputs, and the frameworks' own forms of the graph, come on top.
        """
        rows = (layers + 1) * row_bytes * (self.owned + self.halo)
        return rows + local_graph_bytes(self.owned, self.halo, self.edges, edge_order)


@dataclass(frozen=True, eq=False)
class CopyCounts:
    """How many copies the machines of a job hold, for K layers.

    Attributes:
        hops: K.
        machine_of_rank: (P,) int64, machines numbered from 0.
        core: (P,) int64, vertices that each rank owns.
        rows: (M,) int64, copies on each machine, core included.
        edges: (M,) int64, in-edges of all copies but those of hop K.
        num_nodes, num_edges: Of the graph.
    """

    hops: int
    machine_of_rank: NDArray[np.int64]
    core: NDArray[np.int64]
    rows: NDArray[np.int64]
    edges: NDArray[np.int64]
    num_nodes: int
    num_edges: int

    @property
    def row_factor(self) -> float:
        """Copies of a vertex, on average: memory, and the dense part of every layer."""
        return float(self.rows.sum()) / self.num_nodes

    @property
    def edge_factor(self) -> float:
        """Times that an edge is summed over in a layer, on average."""
        return float(self.edges.sum()) / max(self.num_edges, 1)

    def owned(self) -> NDArray[np.int64]:
        """(P,) int64: how many copies each rank is to keep; as even within a machine as core rows allow."""
        kept = np.empty_like(self.core)
        for machine, total in enumerate(self.rows.tolist()):
            ranks = np.flatnonzero(self.machine_of_rank == machine)
            kept[ranks] = level(self.core[ranks], total)
        return kept

    def expected(self) -> Holdings:
        """What is known of each rank before anything is copied; the fullest rank will hold at least that.

        Owned rows exactly, edges on average over its machine, and no halo rows, which depend on who keeps what.
        """
        ranks = np.bincount(self.machine_of_rank, minlength=len(self.rows))
        edges = (self.edges // np.maximum(ranks, 1))[self.machine_of_rank]
        return Holdings(self.owned(), np.zeros_like(self.core), edges)

    def bytes_to_build(self, edge_order: bool) -> int:
        """Bytes that rank 0 takes for the graph of all copies, and for the local graphs of all ranks."""
        copies, edges = int(self.rows.sum()), int(self.edges.sum())
        graph = 20 * copies + 4 * edges  # indptr, origin and part; indices
        return graph + int(local_graph_bytes(copies, 0, edges, edge_order))

    def __str__(self) -> str:
        hops = f"{self.hops} hop" + "s" * (self.hops > 1)
        return (
            f"replicas of {hops} make {self.row_factor:.2f} copies of a vertex and {self.edge_factor:.2f} of an edge on"
            f" {len(self.rows)} machines"
        )


def count_copies(
    graph: Graph, part: NDArray[np.int32], machine_of_rank: NDArray[np.int64], hops: int
) -> CopyCounts:
    """Count the copies of all machines; nothing is copied."""
    num_machines = int(machine_of_rank.max()) + 1
    rows, edges = np.zeros((2, num_machines), np.int64)
    degrees = graph.in_degrees()
    home = machine_of_rank[part].astype(np.int32)
    for first, hop, masks in holders_by_hop(graph, home, num_machines, hops):
        if hop < hops - 1:
            continue
        for machine in range(first, min(first + 64, num_machines)):
            held = masks >> np.uint64(machine - first) & np.uint64(1)
            if hop == hops:
                rows[machine] = held.sum()
            else:
                edges[machine] = held @ degrees.view(np.uint64)
    core = np.bincount(part, minlength=len(machine_of_rank)).astype(np.int64)
    return CopyCounts(hops, machine_of_rank, core, rows, edges, graph.num_nodes, graph.num_edges)


def machine_numbers(topology: Topology) -> NDArray[np.int64]:
    """(P,) int64: the machine of each device, numbered from 0 in the order in which devices name them."""
    names: dict[int, int] = {}
    return np.array([names.setdefault(device.machine, len(names)) for device in topology.devices], np.int64)


def holdings(graph: Graph, part: NDArray[np.int32], relation: Relation) -> Holdings:
    """What ranks hold of a graph in these parts, with this relation."""
    world_size = relation.world_size
    edges = np.bincount(part, weights=graph.in_degrees(), minlength=world_size)
    return Holdings(
        owned=np.bincount(part, minlength=world_size).astype(np.int64),
        halo=relation.pair_rows().sum(axis=0),
        edges=edges.astype(np.int64),
    )


def level(low: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Numbers of at least ``low`` that sum up to ``total``, the largest of them as small as can be.

    >>> level(np.array([5, 1, 2]), 11)
    array([5, 3, 3])
    """
    high = low.copy()
    left = total - int(low.sum())
    assert left >= 0
    order = np.argsort(low, kind="stable")
    for count in range(1, len(low) + 1):  # raise the `count` lowest to the next one's height
        below = order[:count]
        step = int(low[order[count]] - high[below[0]]) if count < len(low) else left
        if step * count >= left or count == len(low):
            high[below] += left // count
            high[below[: left % count]] += 1
            break
        high[below] += step
        left -= step * count
    return high
