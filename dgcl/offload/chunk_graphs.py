"""Builds the graphs of a rank's chunks when layers need them, and sums rows over the edges of a chunk.

Graphs are kept for the next time, or there is one chunk's at a time. Sums take rows where they are in slots (places of
rows in device memory), without a copy. ``ChunkRows`` tells vertex dropout the global ids of a chunk's rows.
Called by `layer`, `offload` and `rehearsal`. Free to change while vertex dropout drops what one device drops, sums of
16 bits are rounded once (`tests/dgcl/offload/test_layer.py`), and training equals that on one device
(`tests/dgcl/offload/test_equality.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.block import Side, side_class
from dgcl.aggregation.grouped_edges import NONE, EdgeGroups, group_edges
from dgcl.aggregation.sparse import sum_dtype
from dgcl.frameworks import local_graph, module_of
from dgcl.offload.batch_tables import RankTables
from dgcl.offload.chunks import Chunk, cut_chunk
from dgcl.offload.residency import Ids
from dgcl.ranks.torch_private import import_compiler
from dgcl.relation.local_graph import LocalGraph


class ChunkGraphs:
    """Cuts chunks out of a rank's edges when they are computed.

    Args:
        local: The rank's edges.
        rows: Of each batch the rows of ``local.owned_ids`` in the chunk.
        kind: Of the graphs that layers get, as in ``comm.local_graph``.
        keep: Keep what was cut, so that it is done once; else one chunk's edges are there at a time.
        tables: Which slots it reads.
        device: Where layers run.
    """

    def __init__(
        self,
        local: LocalGraph,
        rows: Sequence[Ids],
        kind: str,
        keep: bool,
        tables: RankTables,
        device: torch.device,
    ) -> None:
        self._local, self._rows, self.kind, self._keep, self._tables = local, rows, kind, keep, tables
        self._device = device
        with suppress(
            ImportError
        ):  # that of the first chunk says more; and peers would wait for imports there
            module_of(kind)
        if kind == "csr":
            import_compiler()
        self._kept: dict[tuple[int, str], Any] = {}

    def chunk(self, batch: int) -> Chunk:
        """The chunk that is computed in a batch."""
        return self._kept_or(batch, "chunk", lambda: cut_chunk(self._local, self._rows[batch]))

    def graph(self, batch: int) -> Any:
        """Its graph: sources are its own rows, then the others that it reads."""
        return self._kept_or(
            batch, "graph", lambda: local_graph(self.kind, self.chunk(batch).local).to(self._device)
        )

    def edges(self, batch: int) -> SlotEdges:
        """Its edges between slots and its own rows."""
        sources, num_slots = self._tables.batches[batch].sources, self._tables.num_slots
        return self._kept_or(
            batch, "edges", lambda: SlotEdges.of(self.chunk(batch), sources, num_slots, self._device)
        )

    def _kept_or(self, batch: int, what: str, make: Callable[[], Any]) -> Any:
        graph = self._kept.get((batch, what))
        if graph is None:
            graph = make()
            if self._keep:
                self._kept[batch, what] = graph
        return graph


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
        self.local, self._calls, self._next_call, self._made = local, calls, next_call, 0

    @property
    def owned_ids(self) -> Tensor:
        """Global ids of the chunk's own rows."""
        return torch.from_numpy(self.local.owned_ids)

    @property
    def halo_ids(self) -> Tensor:
        """Global ids of the others."""
        return torch.from_numpy(self.local.halo_ids)

    def next_dropout_call(self) -> int:
        """The number of the chunk's next call."""
        if self._made == len(self._calls):
            self._calls.append(self._next_call())
        self._made += 1
        return self._calls[self._made - 1]


@dataclass(frozen=True, eq=False)
class SlotEdges:
    """The edges of a chunk between slots and its own rows, for sums that need no copy of what is in slots.

    Attributes:
        places: (E_c,) int64, of each edge among the rank's edges.
        to_rows, to_slots: From slots to rows, and back.
        degrees: ``(c, 1)`` int64 in-degrees of rows; 1 for those that have none.
    """

    places: Tensor
    to_rows: Side
    to_slots: Side
    degrees: Tensor

    @classmethod
    def of(cls, chunk: Chunk, sources: Ids, num_slots: int, device: torch.device) -> SlotEdges:
        """Those of a chunk whose sources are in these slots."""
        indptr, slots = chunk.local.indptr, sources[chunk.local.indices].astype(np.int32)
        degrees = np.diff(indptr)
        rows = np.repeat(np.arange(len(degrees), dtype=np.int32), degrees)
        side, sizes = side_class(device), (len(degrees), num_slots)
        return cls(
            torch.from_numpy(chunk.edges).to(device),
            side(EdgeGroups(indptr, slots, NONE, NONE), sizes, device),
            side(group_edges(slots, rows, num_slots), sizes[::-1], device),
            torch.from_numpy(degrees).clamp(min=1).unsqueeze(1).to(device),
        )


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums or means over the in-edges of a chunk, and their adjoint.

    Attributes:
        mean: Means instead of sums.
        weight: ``(E,)`` constant weights of the rank's edges; None: ones.
    """

    mean: bool
    weight: Tensor | None

    def forward(self, edges: SlotEdges, held: Tensor) -> Tensor:
        """``(c, *F)`` of what is in slots ``(num_slots, *F)``."""
        x = _flat(held)
        total = x.new_empty(len(edges.degrees), x.shape[1], dtype=sum_dtype(x.dtype))
        edges.to_rows.sum(x, total, self._weight(edges), add=False)
        total = total.div_(edges.degrees) if self.mean else total
        return total.to(held.dtype).view(len(total), *held.shape[1:])

    def adjoint(self, edges: SlotEdges, grad: Tensor, held: Tensor) -> None:
        """Add to slots ``(num_slots, *F)`` the gradients of what was in them, from those ``(c, *F)`` of their sums."""
        out, rows = _flat(held), _flat(grad)
        rows = rows / edges.degrees if self.mean else rows
        sums = out.to(sum_dtype(out.dtype))  # itself, but for 16 bits
        edges.to_slots.sum(rows, sums, self._weight(edges), add=True)
        if sums is not out:
            out.copy_(sums)

    def _weight(self, edges: SlotEdges) -> Tensor | None:
        return None if self.weight is None else self.weight[edges.places]


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), rows.shape[1:].numel())
