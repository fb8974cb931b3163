"""The chunks of a rank at run time: their graphs for layers, and the rows by which dropout knows vertices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgcl.frameworks import local_graph
from dgcl.frameworks.csr import CSRLocalGraph
from dgcl.frameworks.csr_ops import weighted_sum
from dgcl.offload.chunks import Chunk, cut_chunk
from dgcl.offload.residency import Ids
from dgcl.relation.local_graph import LocalGraph

__all__ = ["ChunkGraphs", "ChunkRows", "Sums"]


class ChunkGraphs:
    """Cuts chunks out of a rank's edges when they are computed.

    Args:
        local: The rank's edges.
        rows: Of each batch the rows of ``local.owned_ids`` in the chunk.
        kind: Of the graphs that layers get, as in ``comm.local_graph``.
        keep: Keep what was cut, so that it is done once; else one chunk's edges are there at a time.
    """

    def __init__(self, local: LocalGraph, rows: Sequence[Ids], kind: str, keep: bool) -> None:
        self._local, self._rows, self.kind, self._keep = local, rows, kind, keep
        self._kept: dict[tuple[int, str], Any] = {}

    def chunk(self, batch: int) -> Chunk:
        """The chunk that is computed in a batch."""
        return self._made(batch, "chunk")

    def graph(self, batch: int, kind: str | None = None) -> Any:
        """Its graph: sources are its own rows, then the others that it reads."""
        return self._made(batch, kind or self.kind)

    def _made(self, batch: int, kind: str) -> Any:
        made = self._kept.get((batch, kind))
        if made is None:
            made = (
                cut_chunk(self._local, self._rows[batch])
                if kind == "chunk"
                else local_graph(kind, self.chunk(batch).local)
            )
            if self._keep:
                self._kept[batch, kind] = made
        return made


class ChunkRows:
    """The rows of one chunk, for dropout by vertex.

    Args:
        rank: This rank.
        local: The chunk's edges.
        calls: The numbers of the layer's calls of dropout, which are the same in every chunk and in the backward.
        next_call: Gives the number of one more.
    """

    def __init__(self, rank: int, local: LocalGraph, calls: list[int], next_call: Callable[[], int]) -> None:
        self.rank, self.num_owned, self.num_halo = rank, local.num_owned, local.num_halo
        self._local, self._calls, self._next_call, self._made = local, calls, next_call, 0

    @property
    def owned_ids(self) -> Tensor:
        """Global ids of the chunk's own rows."""
        return torch.from_numpy(self._local.owned_ids)

    @property
    def halo_ids(self) -> Tensor:
        """Global ids of the others."""
        return torch.from_numpy(self._local.halo_ids)

    def next_dropout_call(self) -> int:
        """The number of the chunk's next call."""
        if self._made == len(self._calls):
            self._calls.append(self._next_call())
        self._made += 1
        return self._calls[self._made - 1]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums or means over the in-edges of a chunk, and their adjoint.

    Attributes:
        mean: Means instead of sums.
        weight: ``(E,)`` constant weights of the rank's edges; None: ones.
    """

    mean: bool
    weight: Tensor | None

    def forward(self, graph: CSRLocalGraph, edges: Ids, x: Tensor) -> Tensor:
        """``(c, *F)`` of rows ``(sources, *F)``."""
        total = graph.sum(x, self._weight(edges, x))
        return total / self._divisor(graph, total) if self.mean else total

    def adjoint(self, graph: CSRLocalGraph, edges: Ids, grad: Tensor) -> Tensor:
        """``(sources, *F)`` gradients of rows, from those ``(c, *F)`` of their sums."""
        grad = grad / self._divisor(graph, grad) if self.mean else grad
        return weighted_sum(grad, self._weight(edges, grad), graph.edges.transposed)

    def _weight(self, edges: Ids, x: Tensor) -> Tensor | None:
        return None if self.weight is None else self.weight[torch.from_numpy(edges)].to(x.dtype)

    @staticmethod
    def _divisor(graph: CSRLocalGraph, x: Tensor) -> Tensor:
        return graph.in_degrees.clamp(min=1).to(x.dtype).view(-1, *[1] * (x.dim() - 1))
