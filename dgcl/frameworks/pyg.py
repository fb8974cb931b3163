"""A rank's edges for PyG layers: ``edge_index`` from ``[owned | halo]`` rows to owned rows.

:func:`dgcl.distribute` lets layers exchange by themselves. Without it, most take a pair ``(x_all, x_owned)`` and an
``edge_index`` between two sets of vertices, and a rank holds every in-edge of its vertices, so they are exact::

    g = comm.local_graph("pyg")
    x = conv(g.pair(dgcl.graph_allgather(x)), g.edge_index)  # SAGEConv, GINConv, GATConv, ...
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

if TYPE_CHECKING:
    from dgcl.relation.local_graph import LocalGraph


@dataclass(frozen=True, eq=False)
class PyGLocalGraph:
    """One rank's in-edges as PyG layers take them, with E edges, n owned and L = n + halo rows.

    Attributes:
        edge_index: (2, E) int64: the row in [0, L) that each edge reads, and the row in [0, n) that it
            writes. Sorted by the latter; column k is edge k of ``comm.dispatch_edges``, so edge weights fit
            as they come.
        size: (L, n), what layers call ``size``.
        edge_ids: (E,) int64, the position of each edge in the user's edge order.
    """

    edge_index: Tensor
    size: tuple[int, int]
    edge_ids: Tensor

    @property
    def num_owned(self) -> int:
        """Rows of a layer's output."""
        return self.size[1]

    @property
    def num_local(self) -> int:
        """Rows of a layer's input: owned, then halo."""
        return self.size[0]

    def pair(self, x_all: Tensor) -> tuple[Tensor, Tensor]:
        """``(x_all, x_owned)``, the form in which PyG's layers take the features of two sets of vertices."""
        if len(x_all) != self.num_local:
            raise ValueError(
                f"x_all must hold the {self.num_local} rows [owned | halo] (got {len(x_all)}): apply"
                " dgcl.graph_allgather to the owned rows first"
            )
        return x_all, x_all[: self.num_owned]

    def to(self, device: torch.device | str) -> PyGLocalGraph:
        """The same graph with its tensors on ``device``."""
        return replace(self, edge_index=self.edge_index.to(device), edge_ids=self.edge_ids.to(device))


def build(local: LocalGraph, *, device: torch.device | str | None) -> PyGLocalGraph:
    """The PyG view of one rank's edges; see :class:`PyGLocalGraph`.

    Args:
        local: the rank's edges, from ``comm.local``.
        device: where the tensors live; None means the CPU.
    """
    with torch.device("cpu"):
        graph = PyGLocalGraph(
            edge_index=torch.stack([torch.tensor(local.indices).long(), torch.tensor(local.heads).long()]),
            size=(local.num_local, local.num_owned),
            edge_ids=torch.tensor(local.edge_ids),
        )
    return graph.to(device or "cpu")


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
