"""``tail``: every edge is summed by the owner of its tail; partial sums travel instead of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph

__all__ = ["tail"]


def tail(graph: Graph, part: NDArray[np.int32]) -> NDArray[np.int32]:
    """(E,) int32 the owner of each edge's tail, in the order of ``graph.indices``."""
    return part.astype(np.int32)[graph.indices]
