"""A graph whose vertices and edges have types, numbered through type by type.

Code for both kinds takes a graph without types for one with a single type of vertices and of edges, named "".
Called by `sources`, `dgcl/prepare/shares`, `dgcl/prepare/typed_exchanges`, `dgcl/distributed/dispatch`,
`dgcl/nn/vertex_dropout` and others. Free to change while types have their ranges of ids in the library's order
(`tests/dgcl/graph/test_sources.py`), and layers by type give what they give on one device
(`tests/dgcl/rows/test_layers.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from dgcl.graph.build_csr import graph_from_edges
from dgcl.graph.csr import Graph
from dgcl.graph.id_arrays import any_outside, as_ids

EdgeType = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class TypedGraph(Graph):
    """A :class:`Graph` that knows which of its vertices and edges are of which type.

    Attributes:
        node_types: (first vertex, number) of each type.
        edge_types: (first edge in the user's order, number) of each type: (of the sources, its name, of the heads).
    """

    node_types: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    edge_types: Mapping[EdgeType, tuple[int, int]] = field(default_factory=dict)

    def edges_of(self, edge_type: EdgeType) -> Graph:
        """All vertices, and the edges of one type."""
        first, number = self.edge_types[edge_type]
        ids = np.arange(self.num_edges) if self.edge_ids is None else self.edge_ids
        chosen = (ids >= first) & (ids < first + number)
        before = np.concatenate([[0], np.cumsum(chosen)])
        return Graph(self.num_nodes, before[self.indptr], self.indices[chosen])


def within(ids: Any, first: int, number: int) -> Any:
    """Ids of one type, an array or a tensor, from 0."""
    return ids[(ids >= first) & (ids < first + number)] - first


def graph_of_types(nodes: Mapping[str, int], edges: Iterable[tuple[EdgeType, Any]]) -> TypedGraph:
    """From numbers of vertices by type, and (2, E) ids within their types by type of edge.

    Raises:
        TypeError, ValueError: As :func:`~dgcl.graph.build_csr.graph_from_edges`, of the type that is wrong.
    """
    starts = [0, *accumulate(nodes.values())]
    node_types = dict(zip(nodes, zip(starts, nodes.values(), strict=False), strict=True))
    ends, edge_types, total = [np.zeros((2, 0), np.int64)], {}, 0
    for edge_type, edge_index in edges:
        ids = as_ids(edge_index, f"edge_index of {edge_type}", ndim=2).astype(np.int64)
        for row, name in zip(ids, edge_type[::2], strict=True):
            if any_outside(row, nodes[name]):
                raise ValueError(
                    f"edge_index of {edge_type}: ids of {name!r} must lie in [0, {nodes[name]})"
                    f" (got {row.min()} to {row.max()})"
                )
            row += node_types[name][0]
        ends.append(ids)
        edge_types[edge_type] = (total, ids.shape[1])
        total += ids.shape[1]
    sources, heads = np.concatenate(ends, 1)
    plain = graph_from_edges(sources, heads, starts[-1], name="graph")
    return TypedGraph(plain.num_nodes, plain.indptr, plain.indices, plain.edge_ids, node_types, edge_types)
