"""What a partition costs: balance, cut, boundary, halo."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.partition.check import as_num_parts, check_part
from dgcl.relation.classes import halo_classes


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
    sizes: NDArray[np.int64]
    edges: NDArray[np.int64]
    cut: NDArray[np.int64]
    boundary_sizes: NDArray[np.int64]
    halo_sizes: NDArray[np.int64]

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


def partition_report(graph: Graph, part: Any, num_parts: int) -> PartitionReport:
    """Count what the partition `part` (N,) costs.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `num_parts`; empty parts are allowed.
    """
    from dgcl.partition.kernels import count_edges

    num_parts = as_num_parts(num_parts)
    owners = check_part(part, graph.num_nodes, num_parts)
    relation = halo_classes(graph, owners, num_parts).relation
    boundary = np.zeros(num_parts, np.int64)
    np.add.at(boundary, relation.source, relation.count)
    halo = np.zeros(num_parts, np.int64)
    block = max(1, (1 << 24) // num_parts)  # classes whose (class, part) table is at hand at one time
    for start in range(0, relation.num_classes, block):
        counts = relation.count[start : start + block]
        halo += counts @ relation.dest_matrix(start, start + block).astype(np.int64)
    edges, cut = count_edges(graph.indptr, graph.indices, owners, num_parts)
    return PartitionReport(num_parts, np.bincount(owners, minlength=num_parts), edges, cut, boundary, halo)


def _relative_to_mean(values: NDArray[np.int64]) -> float:
    """Largest value over mean; 1 where there is nothing."""
    total = int(values.sum())
    return float(values.max() * len(values) / total) if total else 1.0
