"""A rank's edges for PyG layers: ``edge_index`` from ``[owned | halo]`` rows to owned rows.

Most PyG layers take a pair ``(x_all, x_owned)`` and an ``edge_index`` between two sets of vertices, and a
rank holds every in-edge of its vertices, so they are exact as they are::

    g = comm.local_graph("pyg")
    x = conv(g.pair(dgcl.graph_allgather(x)), g.edge_index)  # SAGEConv, GINConv, GATConv, ...

``GCNConv`` takes no pair, and it normalises by degrees that it counts itself. It is exact with
``normalize=False`` and the weights of :meth:`PyGLocalGraph.gcn_norm`, on the square layout that it wants,
with the halo outputs dropped::

    edge_index, weight = g.gcn_norm()  # once, not in every step
    x = conv(dgcl.graph_allgather(x), edge_index, weight)[: g.num_owned]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.relation.local_graph import LocalGraph

try:
    from torch_geometric.utils import add_remaining_self_loops
except (ImportError, OSError) as error:
    raise ImportError(
        f"comm.local_graph('pyg') needs PyG, which cannot be imported here ({error});"
        " install it with: pip install dgcl[pyg]"
    ) from error

__all__ = ["PyGLocalGraph", "build_pyg", "gcn_conv"]


class Expanding(Protocol):
    """What this module needs of a :class:`dgcl.Communicator`.

    Attributes:
        feature_dtype: Of the floating point features that were dispatched last.
    """

    feature_dtype: torch.dtype | None

    def require_neighbourhoods(self, what: str) -> None:
        """Raise where rows are not whole rows of a rank with complete neighbourhoods."""

    def expand(self, rows: Tensor) -> Tensor:
        """Owned rows to owned and halo rows, differentiably."""


@dataclass(frozen=True, eq=False)
class PyGLocalGraph:
    """One rank's in-edges as PyG layers take them, with E edges, n owned and L = n + halo rows.

    Attributes:
        edge_index: (2, E) int64: the row in [0, L) that each edge reads, and the row in [0, n) that it
            writes. Sorted by the latter; column k is edge k of ``comm.dispatch_edges``, so edge weights fit
            as they come.
        size: (L, n), what layers call ``size``.
        edge_ids: (E,) int64, the position of each edge in the user's edge order.
        in_degrees: (n,) int64, in-degrees of the owned rows.
        out_degrees: (L,) int64, out-degrees in the whole graph.
    """

    edge_index: Tensor
    size: tuple[int, int]
    edge_ids: Tensor
    in_degrees: Tensor
    out_degrees: Tensor

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
        names = ("edge_index", "edge_ids", "in_degrees", "out_degrees")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def gcn_norm(
        self,
        edge_weight: Tensor | None = None,
        *,
        improved: bool = False,
        add_self_loops: bool = True,
        dtype: torch.dtype | None = None,
        comm: Expanding | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Edges and weights of GCN, as ``torch_geometric``'s ``gcn_norm`` gives them for the whole graph.

        The weight of u->v is w(u, v) / sqrt(d(u) d(v)), where d sums the weights of all in-edges, self loops
        included (Kipf and Welling, 2017). Owners compute d and send it to those who read the vertex, so this
        call is collective; it is differentiable in ``edge_weight``. Without weights its result can be kept
        for all steps.

        Args:
            edge_weight: (E,) the weight of each edge, default 1.
            improved: as in GCNConv: added self loops weigh 2.
            add_self_loops: give each vertex that has no self loop one.
            dtype: of the weights where ``edge_weight`` is None. Default: float64 if the features that were dispatched
                last (``dgcl.dispatch_features``) are float64, else ``torch.get_default_dtype()``. Give the dtype of
                features that come by another way.
            comm: the communicator; default the current one.

        Returns:
            ``edge_index`` (2, E'), with the same numbering of rows, and (E',) weights.
        """
        if edge_weight is not None and edge_weight.shape != self.edge_index.shape[1:]:
            raise ValueError(
                f"edge_weight must have shape ({self.edge_index.size(1)},), one weight per local edge as"
                f" comm.dispatch_edges returns them (got {tuple(edge_weight.shape)})"
            )
        used: Expanding = context.require_communicator() if comm is None else comm
        used.require_neighbourhoods("gcn_norm")
        edge_index = self.edge_index
        if add_self_loops:  # row i in [0, n) is the same vertex as a source and as a destination
            edge_index, edge_weight = add_remaining_self_loops(
                edge_index, edge_weight, 2.0 if improved else 1.0, self.num_owned
            )
        if edge_weight is None:
            # float32 weights would cost float64 features half of their digits, and nobody would notice.
            wide = used.feature_dtype == torch.float64
            default = torch.float64 if wide else torch.get_default_dtype()
            edge_weight = torch.ones(edge_index.size(1), dtype=dtype or default, device=edge_index.device)
        sources, heads = edge_index
        degree = edge_weight.new_zeros(self.num_owned).index_add(0, heads, edge_weight)
        scale = used.expand(degree.pow(-0.5).masked_fill(degree == 0, 0.0))
        return edge_index, scale[sources] * edge_weight * scale[heads]


def gcn_conv(
    conv: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor, *, comm: Expanding | None = None
) -> Tensor:
    """Run a PyG ``GCNConv`` on owned rows, transform before exchange (DGCL, section 6.3).

    GCN multiplies by its weight matrix first, so each row can be multiplied where it lives, and only the result
    travels: no dense work on halo rows, and where the layer's output is narrower than its input, fewer bytes.

    Args:
        conv: a ``torch_geometric.nn.GCNConv`` made with ``normalize=False``.
        x: (num_owned, in_channels), this rank's rows, not yet exchanged.
        edge_index: from :meth:`PyGLocalGraph.gcn_norm`.
        edge_weight: from :meth:`PyGLocalGraph.gcn_norm`.
        comm: the communicator; default the current one.

    Returns:
        (num_owned, out_channels).
    """
    if conv.normalize:
        raise ValueError(
            "conv must be a GCNConv with normalize=False: the weights of gcn_norm are normalised already"
        )
    h_owned = conv.lin(x)
    if h_owned.dtype == torch.float64 and edge_weight.dtype != torch.float64:
        raise ValueError(
            f"edge_weight must be float64, as x is (got {edge_weight.dtype}): take gcn_norm(dtype=torch.float64)"
        )
    used: Expanding = context.require_communicator() if comm is None else comm
    h_all = used.expand(h_owned)
    out: Tensor = conv.propagate(
        edge_index, x=(h_all, h_owned), edge_weight=edge_weight, size=(len(h_all), len(h_owned))
    )
    return out if conv.bias is None else out + conv.bias


def build_pyg(local: LocalGraph, *, device: torch.device | str | None = None) -> PyGLocalGraph:
    """The PyG view of one rank's edges; see :class:`PyGLocalGraph`.

    Args:
        local: the rank's edges, from ``comm.local``.
        device: where the tensors live; None means the CPU.
    """
    graph = PyGLocalGraph(
        edge_index=torch.stack([torch.tensor(local.indices).long(), torch.tensor(local.heads).long()]),
        size=(local.num_local, local.num_owned),
        edge_ids=torch.tensor(local.edge_ids),
        in_degrees=torch.tensor(local.in_degrees[: local.num_owned]),
        out_degrees=torch.tensor(local.out_degrees),
    )
    return graph if device is None else graph.to(device)
