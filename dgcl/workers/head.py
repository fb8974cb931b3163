"""``head``: every edge is summed by the owner of its head, as in DGCL: neighbourhoods are complete."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph

__all__ = ["head"]


def head(graph: Graph, part: NDArray[np.int32]) -> NDArray[np.int32]:
    """(E,) int32 the owner of each edge's head, in the order of ``graph.indices``."""
    return np.repeat(part.astype(np.int32), graph.in_degrees())
