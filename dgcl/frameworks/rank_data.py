"""PyG's ``Data`` and ``HeteroData`` of one rank, as :func:`dgcl.dispatch` gives them.

They refuse what needs all vertices and edges, as most transforms do, where it would be wrong without an error.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from torch_geometric.data import Data, HeteroData

#: Transforms of PyG that look at each vertex or edge by itself.
_EXACT = re.compile("Add(Remaining)?SelfLoops|Compose|Constant|Remove(DuplicatedEdges|SelfLoops)|ToDevice")


class _OfRank:
    """One rank's part of the user's data. What needs all vertices and edges is refused, in place of a wrong result."""

    def __copy__(self) -> Any:
        transform = type(
            sys._getframe(2).f_locals.get("self")
        )  # of PyG, which copies data before it changes them
        name = transform.__name__
        if transform.__module__.startswith("torch_geometric.transforms.") and not _EXACT.fullmatch(name):
            _refuse(name)
        return super().__copy__()  # type: ignore[misc]

    def subgraph(self, subset: Any) -> Any:
        """Refused: vertices that other ranks read cannot go."""
        _refuse("subgraph")


def _refuse(name: str) -> None:
    raise ValueError(
        f"{name} needs all vertices and edges, and data has one rank's: apply it to the whole graph, before"
        " dgcl.dispatch"
    )


class RankData(_OfRank, Data):
    """One rank's part of a PyG ``Data``, as :func:`dgcl.dispatch` gives it."""

    whole_kind = Data


class RankHeteroData(_OfRank, HeteroData):
    """One rank's part of a PyG ``HeteroData``, as :func:`dgcl.dispatch` gives it."""

    whole_kind = HeteroData
