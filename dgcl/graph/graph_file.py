"""What is read from a graph file: the graph, and features, labels, masks and other arrays. Pure data.

Features that are sparse in the file stay so until `features` is first asked for.
Called by users, `graph_files` and `graph_npz`. Free to change while features, labels, masks and other arrays come back
as they were saved (`tests/dgcl/graph/test_files.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.csr import Graph

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class GraphFile:
    """What a file holds.

    Attributes:
        graph: N vertices.
        stored_features: (N, F) features as they are in the file, a dense array or a scipy csr_array; None:
            none.
        labels: (N,) int64, a class per vertex, -1 where unknown; or (N, ...) of any type; None: none.
        masks: (N,) bool each, by name: those of "train", "val" and "test" that the file has.
        node_ids: (N,) int64, the ids in the file, ascending, where they were compacted; None: they are the
            graph's.
        undirected: of a text edge list, whether each line was read as both directions; None: another kind of file.
        extra: whatever other arrays an npz file holds.
    """

    graph: Graph
    stored_features: NDArray[Any] | csr_array[Any] | None = None
    labels: NDArray[Any] | None = None
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    node_ids: NDArray[np.int64] | None = None
    undirected: bool | None = None
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def features(self) -> NDArray[Any] | None:
        """(N, F) dense features of the file's dtype, or None; made on first use where the file has them sparse."""
        stored = self.stored_features
        if stored is None or isinstance(stored, np.ndarray):
            return stored
        return np.asarray(stored.toarray())
