"""A rank's edges as CSR tensors of plain torch, with sums, means, softmaxes and dot products over them.

Rows are ``[owned | halo]``: those of the rank's own vertices, then those that it got from other ranks. A layer::

    g = comm.local_graph("csr")
    x = torch.relu(linear(g.mean(dgcl.graph_allgather(x))))

Called by `dgcl/frameworks/__init__`, for ``comm.local_graph("csr")``, and `dgcl/nn/attention`. Free to change while
values, first and second derivatives equal a loop over the whole graph's edges (`tests/dgcl/frameworks/test_csr.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.frameworks.csr_ops import (
    Adjacency,
    at_edges,
    build_adjacency,
    edge_dots,
    edge_sum,
    sum_dtype,
    weighted_sum,
)
from dgcl.frameworks.movable import Movable
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.torch_private import import_compiler

if TYPE_CHECKING:
    from dgcl.relation.local_graph import LocalGraph


@dataclass(frozen=True, eq=False)
class CSRLocalGraph(Movable):
    """One rank's in-edges as torch tensors, with E edges, n owned and L = n + halo rows.

    Every method is differentiable, to any order, in all its tensors, takes any trailing shape ``(rows, *F)``,
    and sums in a fixed order.

    Attributes:
        edges: the edges both ways round; ``indptr``, ``sources`` and ``heads`` are its tensors.
        edge_ids: (E,) int64, the position of each edge in the user's edge order.
        in_degrees: (n,) int64, in-degrees of the owned rows.
        out_degrees: (L,) int64, out-degrees in the whole graph.
        owned_ids: (n,) int64, global ids of the owned rows.
    """

    edges: Adjacency
    edge_ids: Tensor
    in_degrees: Tensor
    out_degrees: Tensor
    owned_ids: Tensor

    @property
    def num_owned(self) -> int:
        """Rows of a layer's output."""
        return self.edges.heads.num_rows

    @property
    def num_local(self) -> int:
        """Rows of a layer's input: owned, then halo."""
        return self.edges.tails.num_rows

    @property
    def num_edges(self) -> int:
        """Edges whose head this rank owns."""
        return len(self.edge_ids)

    @property
    def indptr(self) -> Tensor:
        """(n + 1,): the in-edges of owned row i are ``indptr[i]:indptr[i + 1]``."""
        return self.edges.heads.indptr

    @property
    def sources(self) -> Tensor:
        """(E,): the row in [0, L) that each edge reads."""
        return self.edges.tails.rows

    @property
    def heads(self) -> Tensor:
        """(E,): the row in [0, n) that each edge writes; ascending."""
        return self.edges.heads.rows

    def sum(self, x_all: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """(n, *F): the sum of the in-neighbours' rows of each owned vertex, weighted if weights are given.

        Args:
            x_all: (L, *F) rows, owned then halo, as ``dgcl.graph_allgather`` returns them.
            edge_weight: (E,), or (E, H) for rows (L, H, *F): one weight for each head of attention.
        """
        self._check_local(x_all)
        _check_summable(x_all, "x_all")
        self._check_edges(edge_weight, "edge_weight")
        if edge_weight is not None and edge_weight.is_complex() and not x_all.is_complex():
            raise TypeError(
                f"edge_weight must be real, as x_all is (got {edge_weight.dtype} and {x_all.dtype}); convert x_all"
            )
        if edge_weight is not None and (
            edge_weight.dim() > 2 or (edge_weight.dim() == 2 and x_all.shape[1:2] != edge_weight.shape[1:])
        ):
            raise ValueError(
                "edge_weight must have shape (E,), or (E, H) for rows of shape (L, H, ...)"
                f" (got {tuple(edge_weight.shape)} for {tuple(x_all.shape)})"
            )
        return weighted_sum(x_all, edge_weight, self.edges)

    def mean(self, x_all: Tensor) -> Tensor:
        """(n, *F): the mean of the in-neighbours' rows of each owned vertex; zero where there is none."""
        self._check_local(x_all)
        total = self.sum(x_all.to(sum_dtype(x_all.dtype)))  # a hub's sum may be beyond float16
        count = self.in_degrees.clamp(min=1).to(total.dtype)
        return (total / count.view(-1, *[1] * (total.dim() - 1))).to(x_all.dtype)

    def at_sources(self, x_all: Tensor) -> Tensor:
        """(E, *F): for each edge the row (L, *F) that it reads."""
        self._check_local(x_all)
        return at_edges(x_all, self.edges.tails)

    def at_heads(self, x_owned: Tensor) -> Tensor:
        """(E, *F): for each edge the row (n, *F) that it writes."""
        self._check(x_owned, "x_owned", self.num_owned, "this rank's own rows")
        return at_edges(x_owned, self.edges.heads)

    def sum_edges(self, values: Tensor) -> Tensor:
        """(n, *F): the sum of what (E, *F) the in-edges of each owned vertex carry."""
        self._check_edges(values, "values")
        _check_summable(values, "values")
        return edge_sum(values, self.edges.heads)

    def softmax(self, scores: Tensor) -> Tensor:
        """(E, *F): the softmax of (E, *F) scores over the in-edges of each owned vertex."""
        self._check_edges(scores, "scores")
        if not scores.is_floating_point():
            raise TypeError(f"scores must be floating point (got {scores.dtype}); convert them first")
        # Shifting by the largest score changes no value and no gradient, so it is held constant.
        largest = torch.segment_reduce(scores.detach(), "max", offsets=self.indptr.long())
        powers = torch.exp(scores - self.at_heads(largest.masked_fill_(largest == -torch.inf, 0)))
        total = self.sum_edges(powers)
        return powers / self.at_heads(total.masked_fill(total == 0, 1))

    def dots(self, x_owned: Tensor, x_all: Tensor) -> Tensor:
        """(E, H): the dot products of the rows (n, H, D) that edges write and those (L, H, D) that they read.

        Those of 16 bits are multiplied and added in float32, which the result is.
        """
        self._check(x_owned, "x_owned", self.num_owned, "this rank's own rows")
        self._check_local(x_all)
        if x_all.dim() != 3 or x_owned.shape[1:] != x_all.shape[1:]:
            raise ValueError(
                "x_owned and x_all must be rows of one shape, (n, H, D) and (L, H, D) (got"
                f" {tuple(x_owned.shape)} and {tuple(x_all.shape)})"
            )
        return edge_dots(x_owned, x_all, self.edges)

    def _check_local(self, x_all: Tensor) -> None:
        self._check(
            x_all, "x_all", self.num_local, "the rows [owned | halo]; apply dgcl.graph_allgather first"
        )

    def _check(self, x: Tensor, name: str, num_rows: int, what: str) -> None:
        require_tensors(**{name: x})
        if x.dim() == 0 or len(x) != num_rows:
            raise ValueError(f"{name} must hold {num_rows} rows, {what} (got shape {tuple(x.shape)})")
        if x.device != self.indptr.device:
            raise ValueError(f"{name} must be on {self.indptr.device}, where the graph is (got {x.device})")

    def _check_edges(self, values: Tensor | None, name: str) -> None:
        if values is not None:
            self._check(
                values, name, self.num_edges, "one for each local edge as comm.dispatch_edges gives them"
            )


def _check_summable(rows: Tensor, name: str) -> None:
    if not (rows.is_floating_point() or rows.is_complex()):
        raise TypeError(
            f"{name} must be rows of floats or complex numbers (got {rows.dtype}); convert them first"
        )


def build(local: LocalGraph, *, device: torch.device | str | None) -> CSRLocalGraph:
    """The plain torch view of one rank's edges; see :class:`CSRLocalGraph`.

    Args:
        local: the rank's edges, from ``comm.local``.
        device: where the tensors live; None means the CPU.
    """
    import_compiler()
    with torch.device("cpu"):
        graph = CSRLocalGraph(
            edges=build_adjacency(torch.tensor(local.indptr), torch.tensor(local.indices), local.num_local),
            edge_ids=torch.tensor(local.edge_ids),
            in_degrees=torch.tensor(local.in_degrees[: local.num_owned]),
            out_degrees=torch.tensor(local.out_degrees),
            owned_ids=torch.tensor(local.owned_ids),
        )
    return graph.to(device or "cpu")
