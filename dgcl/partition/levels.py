"""Partitions a graph over a machine's devices, at once or level by level, with no part left empty.

Levels are machines, sockets and devices; cutting between machines first keeps most traffic off the slowest
connections. METIS or KaMinPar cuts; both leave groups empty and put heavy vertices anywhere, which is repaired here.
Called by `partitioners`, `streaming`, `metis`, `kaminpar` and `dgcl/offload/chunks`. Free to change while levels are
the topology's, groups are filled up (`tests/dgcl/partition/test_metis.py`), part r is for device r
(`tests/dgcl/partition/test_parts.py`), and blocks fit in (`tests/dgcl/partition/test_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.partition.apart import Ids

if TYPE_CHECKING:
    from dgcl.topology import Topology


@dataclass(frozen=True)
class Adjacency:
    """An undirected simple graph.

    Neighbours of v are ``adjncy[xadj[v]:xadj[v + 1]]``; weights (N,) of vertices and (M,) of edges, or None.
    """

    xadj: Ids
    adjncy: NDArray[Any]
    weights: Ids | None
    edge_weights: Ids | None = None

    @property
    def num_nodes(self) -> int:
        """Number of vertices N."""
        return len(self.xadj) - 1

    def induced(self, members: Ids) -> Adjacency:
        """The subgraph on ``members`` (n,) ascending, renumbered 0..n-1; neighbours stay in their order."""
        from scipy.sparse import csr_array

        shape = (self.num_nodes, self.num_nodes)
        edges = np.ones(len(self.adjncy), np.int8) if self.edge_weights is None else self.edge_weights
        part = csr_array((edges, self.adjncy, self.xadj), shape=shape)[members][:, members]
        return Adjacency(
            part.indptr.astype(np.int64),
            part.indices.astype(self.adjncy.dtype),
            None if self.weights is None else self.weights[members],
            None if self.edge_weights is None else part.data,
        )


def device_levels(topology: Topology) -> list[Ids]:
    """Return the levels at which a topology's devices fall into groups, coarsest first.

    Each level gives every device's group, (P,); groups of a level lie within those of the level before, and a
    level that splits no group is left out. The last level has every device by itself.
    """
    places = np.array([[each.machine, each.socket, rank] for rank, each in enumerate(topology.devices)])
    levels: list[Ids] = []
    groups_before = 1
    for columns in (places[:, :1], places[:, :2], places[:, 2:]):
        groups, level = np.unique(columns, axis=0, return_inverse=True)
        if len(groups) > groups_before:
            levels.append(level)
            groups_before = len(groups)
    return levels


def with_blocks(levels: Sequence[Ids], block_of: Ids) -> list[Ids]:
    """Return the levels with one more, of blocks of devices (P,), where these fit between two of them."""
    whole = np.zeros_like(block_of)
    place = next((place for place, level in enumerate(levels) if _is_within(level, block_of)), len(levels))
    chain = [whole, *levels[:place], block_of, *levels[place:]]
    counts = [len(np.unique(level)) for level in chain]
    fits = _is_within(block_of, chain[place]) and counts == sorted(set(counts))
    return chain[1:] if fits else list(levels)


def _is_within(fine: Ids, coarse: Ids) -> bool:
    """Whether each group of one level lies in one group of another."""
    return len(np.unique(np.stack([fine, coarse]), axis=1).T) == len(np.unique(fine))


#: Labels (N,) of groups with so many devices each, whose weights are to be as these, with this tolerance.
Cut = Callable[[Adjacency, Ids, float], Ids]


def partition_levels(
    graph: Adjacency, levels: Sequence[Ids], tolerance: float, cut: Cut
) -> NDArray[np.int32]:
    """Partition an undirected simple graph over devices, level by level.

    Args:
        graph: N vertices.
        levels: of :func:`device_levels`; P devices with P <= N. Cutting first between the groups of the
            coarsest level keeps most traffic off the slowest connections. Targets are in proportion to
            devices.
        tolerance: how much heavier than the mean a part may be, by all levels together.
        cut: what divides a graph into groups.

    Returns:
        (N,) int32, the device of each vertex; every device has at least one.
    """
    part = np.zeros(graph.num_nodes, np.int32)
    if not levels:
        return part
    tolerance = (1 + tolerance) ** (1 / len(levels)) - 1
    members, devices = np.arange(graph.num_nodes), np.arange(len(levels[-1]))
    heavy = members[:0] if graph.weights is None else heavy_vertices(graph.weights, len(devices))
    if len(heavy):
        part[heavy], devices = devices[: len(heavy)], devices[len(heavy) :]
        members = np.delete(members, heavy)
        graph = graph.induced(members)

    def split(graph: Adjacency, members: Ids, devices: Ids, levels: Sequence[Ids]) -> None:
        """Spread the vertices `members`, on which `graph` is induced, over `devices`."""
        if len(devices) == 1:
            part[members] = devices[0]
            return
        groups, device_group = np.unique(levels[0][devices], return_inverse=True)
        if len(groups) == 1:
            split(graph, members, devices, levels[1:])
            return
        num_devices = np.bincount(device_group)
        labels = cut(graph, num_devices, tolerance)
        ensure_minimum(labels, num_devices, np.diff(graph.xadj))
        for group in range(len(groups)):
            inside = np.flatnonzero(labels == group)
            mine = devices[device_group == group]
            if len(mine) == 1:
                part[members[inside]] = mine[0]
            else:
                split(graph.induced(inside), members[inside], mine, levels[1:])

    split(graph, members, devices, levels)
    return part


def heavy_vertices(weights: Ids, num_parts: int) -> Ids:
    """Vertices that each weigh more than a part of the others can, heaviest first: each fills a part by itself."""
    rest = int(weights.sum())
    heaviest = np.argsort(-weights, kind="stable")[:num_parts]
    for count, vertex in enumerate(heaviest):
        if weights[vertex] * (num_parts - count) <= rest:
            return heaviest[:count]
        rest -= int(weights[vertex])
    return heaviest[:0]


def ensure_minimum(labels: NDArray[Any], minimum: Ids, degrees: Ids) -> None:
    """Move vertices, in place, until group g has at least ``minimum[g]``; there must be enough in all.

    A cut may leave a group with fewer vertices than it has devices. Each missing vertex comes from the group
    that has most to spare, and is there the one with the fewest neighbours (ties: lowest group, lowest
    vertex).
    """
    sizes = np.bincount(labels, minlength=len(minimum))
    for group in np.flatnonzero(sizes < minimum):
        while sizes[group] < minimum[group]:
            donor = int(np.argmax(sizes - minimum))
            candidates = np.flatnonzero(labels == donor)
            labels[candidates[np.argmin(degrees[candidates])]] = group
            sizes[donor] -= 1
            sizes[group] += 1
