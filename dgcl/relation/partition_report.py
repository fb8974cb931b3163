"""Counts what a partition costs: balance of parts, cut edges, boundary vertices, halo rows.

Boundary vertices are read by other parts; the halo of a part is the vertices of others that it reads.
Called by `dgcl/cli/partition`. Free to change while the figures are those of the definitions, computed with sets
(`tests/dgcl/relation/test_partition_report.py`), also for edges in passes (`tests/dgcl/partition/test_streaming.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.graph import Graph
from dgcl.partition.check_part import as_num_parts, check_part
from dgcl.partition.streaming import EdgeStream, blocks_of
from dgcl.planner.array_types import Int64Array


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """Figures of one partition into P parts.

    Attributes:
        num_parts: P.
        sizes: (P,) int64, vertices that each part owns.
        edges: (P,) int64, in-edges of each part's vertices: its share of the work.
        cut: (P,) int64, those of them that come from another part.
        boundary_sizes: (P,) int64, each part's vertices that some other part reads.
        halo_sizes: (P,) int64, vertices of other parts that each part reads.
    """

    num_parts: int
    sizes: Int64Array
    edges: Int64Array
    cut: Int64Array
    boundary_sizes: Int64Array
    halo_sizes: Int64Array

    @property
    def balance(self) -> float:
        """Vertices of the largest part, relative to the mean: 1 is even."""
        return _relative_to_mean(self.sizes)

    @property
    def edge_balance(self) -> float:
        """In-edges of the part with most of them, relative to the mean."""
        return _relative_to_mean(self.edges)

    @property
    def cut_edges(self) -> int:
        """Edges between different parts."""
        return int(self.cut.sum())

    @property
    def boundary_vertices(self) -> int:
        """Vertices that some part other than their owner reads."""
        return int(self.boundary_sizes.sum())

    @property
    def deliveries(self) -> int:
        """Rows that have to arrive in one exchange: the halo sizes' sum, the communication volume."""
        return int(self.halo_sizes.sum())

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain numbers and lists."""
        names = (
            "num_parts", "sizes", "edges", "cut", "boundary_sizes", "halo_sizes",
            "balance", "edge_balance", "cut_edges", "boundary_vertices", "deliveries",
        )  # fmt: skip
        return {name: np.asarray(getattr(self, name)).tolist() for name in names}


def partition_report(graph: Graph | EdgeStream, part: Any, num_parts: int) -> PartitionReport:
    """Count what the partition `part` (N,) costs.

    Time O(E * P / 64), memory some 60 bytes for each vertex beside blocks of edges.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `num_parts`; empty parts are allowed.
    """
    from dgcl.relation.relation_kernels import gather, mark_readers

    num_parts = as_num_parts(num_parts)
    owners = check_part(part, graph.num_nodes, num_parts)
    sizes = np.bincount(owners, minlength=num_parts)
    edges, cut = np.zeros((2, num_parts), np.int64)
    for block in blocks_of(graph):
        in_degrees = block.in_degrees()
        heads = np.repeat(owners, in_degrees)
        edges += np.bincount(owners, in_degrees, num_parts).astype(np.int64)
        cut += np.bincount(heads[heads != gather(owners, block.indices)], minlength=num_parts)
    halo, is_read = np.zeros_like(sizes), np.zeros(len(owners), bool)
    for first in range(0, num_parts, 64):  # of 64 parts a bit each
        inside, readers = np.flatnonzero(owners >> 6 == first >> 6), np.zeros(len(owners), np.uint64)
        for block in blocks_of(graph):
            mark_readers(block.indptr, block.indices, inside, owners, readers)
        readers[inside] &= ~(np.uint64(1) << (owners[inside] & 63).astype(np.uint64))
        is_read |= readers != 0
        for reader in range(first, min(first + 64, num_parts)):
            halo[reader] = np.count_nonzero(readers & np.uint64(1 << reader - first))
    boundary = np.bincount(owners[is_read], minlength=num_parts)
    return PartitionReport(num_parts, sizes, edges, cut, boundary, halo)


def _relative_to_mean(values: Int64Array) -> float:
    """Largest value over mean; 1 where there is nothing."""
    total = int(values.sum())
    return float(values.max() * len(values) / total) if total else 1.0
