"""A rank's edges for PyG layers: ``edge_index`` from ``[owned | halo]`` rows to owned rows.

For scripts that exchange rows themselves (:func:`dgcl.distribute` does it inside layers). Most layers take a pair
``(x_all, x_owned)``; they are exact, because a rank has every in-edge of its vertices::

    g = comm.local_graph("pyg")
    x = conv(g.pair(dgcl.graph_allgather(x)), g.edge_index)  # SAGEConv, GINConv, GATConv, ...

Called by `dgcl/frameworks/__init__`, for ``comm.local_graph("pyg")``. Free to change while PyG's layers on a rank's
edges give the rows of the whole graph, and column k is the edge ``edge_ids[k]`` (`tests/dgcl/frameworks/test_pyg.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.frameworks.movable import Movable

if TYPE_CHECKING:
    from dgcl.relation.local_graph import LocalGraph


@dataclass(frozen=True, eq=False)
class PyGLocalGraph(Movable):
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
