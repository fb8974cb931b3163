"""Edge sets: the communicator and the exchange that an ``edge_index`` belongs to, and whether edges are of it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.aggregation.aggregator import Aggregator
from dgcl.program.exchange import HALO
from dgcl.ranks.warned import warn_once


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """In-edges of a rank's vertices, which read rows that one exchange brings.

    Attributes:
        comm: A :class:`dgcl.Communicator`.
        exchange: The name of its exchange.
        num_heads: Rows in which edges end: this rank's.
        norms: Weights of GCN that were made of these edges, by how.
        sums: What sums over these edges with weights of their own; None: the communicator's aggregators.
    """

    comm: Any
    exchange: str
    num_heads: int
    norms: dict[Any, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    sums: Callable[[Tensor], Tensor] | None = None

    @property
    def num_owned(self) -> int:
        """Rows that the exchange takes."""
        return int(self.comm.layouts[self.exchange].num_owned)

    @property
    def num_sources(self) -> int:
        """Rows that edges read: owned, then halo."""
        return int(self.comm.layouts[self.exchange].num_local)

    def count(self, end: str) -> int:
        """Rows of this rank at an end of the edges, "sources" or "heads"; of others the more of both."""
        counts = {"sources": self.num_owned, "heads": self.num_heads}
        return counts.get(end, max(counts.values()))

    @contextmanager
    def messages(self, edge_index: Tensor) -> Iterator[None]:
        """While messages are made of edges, or what is ours computes with them."""
        before, self.comm.message_edges = self.comm.message_edges, (edge_index, self.exchange)
        try:
            yield
        finally:
            self.comm.message_edges = before

    def expand(self, rows: Tensor, dim: int = 0) -> Tensor:
        """This rank's rows to those that its edges read, along ``dim``. Collective."""
        out: Tensor = self.comm.expand(rows.movedim(dim, 0) if dim else rows, self.exchange)
        return out.movedim(0, dim) if dim else out

    def aggregate(self, rows: Tensor, reduce: Any, weight: Tensor | None) -> Tensor:
        """Sums, means, ... over these edges, wherever they are summed. Collective."""
        return (self.sums or Aggregator(self.comm, reduce, weight))(rows)

    def require(self, edge_index: Tensor) -> None:
        """Refuse edges that are neither of this set nor self loops.

        Raises:
            ValueError: With the first of them.
        """
        source, head = edge_index.long()
        odd = (head < 0) | (head >= self.num_heads) | (source < 0) | (source >= self.num_sources)
        if self.exchange == HALO:  # of others the communicator does not know the edges
            ends = self.comm.local.heads, self.comm.local.indices
            heads, sources = (torch.from_numpy(each).to(edge_index.device) for each in ends)
            known = (heads.long() * self.num_sources + sources).sort().values
            numbers = head * self.num_sources + source
            place = torch.searchsorted(known, numbers).clamp(max=max(len(known) - 1, 0))
            odd |= ~(known[place] == numbers if len(known) else odd) & (source != head)
        if odd.any():
            first = int(odd.nonzero()[0])
            raise ValueError(
                f"edge_index must hold edges of this rank, from its {self.num_sources} rows [owned | halo] to its"
                f" {self.num_heads} own, and self loops of those (got edge {first}, from {int(source[first])} to"
                f" {int(head[first])}): take this rank's edge_index, whole or by a mask. For edges turned round"
                " (flip(0), flow='target_to_source') dispatch the graph turned round, or, beside these, as a second"
                " type (HeteroData); new edges need a plan"
            )


def edges_of(comm: Any, exchange: str = HALO) -> EdgeSet:
    """A rank's edges whose sources an exchange of the communicator brings."""
    num_heads = len(comm.end_ids[exchange][1]) if exchange in comm.end_ids else comm.num_owned
    return EdgeSet(comm, exchange, num_heads)


_sets = WeakTensorKeyDictionary()
#: Of rows that were dispatched, of edges too, the ids of this rank's vertices in their graph.
_vertices = WeakTensorKeyDictionary()


def remember(edge_index: Tensor, edges: EdgeSet) -> Tensor:
    """Let :func:`edge_set_of` know an ``edge_index``, this very tensor, and return it."""
    _sets[edge_index] = edges
    return edge_index


def remembered(graph: Any, comm: Any) -> Any:
    """A rank's graph, of which the edges are remembered where it has an ``edge_index``."""
    if hasattr(graph, "edge_index"):
        remember(graph.edge_index, edges_of(comm))
    return graph


def remember_rows(rows: Tensor, comm: Any) -> Tensor:
    """Let :func:`warn_of_others_rows` know of which graph rows are, these very ones, and return them."""
    _vertices[rows] = comm.layout.owned_ids
    return rows


def warn_of_others_rows(comm: Any, tensors: Iterable[Tensor]) -> None:
    """Warn where a model gets edges of this graph, and rows of vertices that all are another graph's."""
    own = comm.layout.owned_ids
    rows = [_vertices.get(each) for each in tensors if each.dim() and len(each) == len(own)]
    if rows and not any(each is None or np.array_equal(each, own) for each in rows):
        warn_once(
            comm,
            "rows of one dispatched graph meet edges of another, in which this rank owns other vertices: dispatch the"
            " second graph with part=comm.part of the first one's comm = dgcl.current_communicator()",
        )


def edge_set_of(edge_index: Tensor) -> EdgeSet | None:
    """What was remembered of this tensor; None for any other, also one that was made of it."""
    return _sets.get(edge_index)
