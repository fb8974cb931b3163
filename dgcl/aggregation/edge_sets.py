"""Remembers for an ``edge_index`` tensor which communicator and exchange bring the rows that its edges read.

The tensor is known by identity and held weakly: a copy, or a tensor computed from it, is unknown, and callers must then
take edges from elsewhere or refuse. One communicator has an exchange, and so a set of edges, for each type of edges.
Called by `dgcl/communicator`, `dgcl/rows/view`, `dgcl/distributed/adapters`, `dgcl/distributed/message_passing`,
`dgcl/nn/attention` and others. Free to change while layers on a graph's edges, also of several types, give what they
give on one device (`tests/dgcl/rows/test_layers.py`; edges of ``local_graph``: `tests/dgcl/rows/test_own_ranks.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.aggregation.aggregator import Aggregator
from dgcl.program.exchange import HALO


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """In-edges of a rank's vertices, which read rows that one exchange brings.

    Attributes:
        comm: A :class:`dgcl.Communicator`.
        exchange: The name of its exchange.
        num_heads: Rows in which edges end: this rank's.
        norms: Weights of GCN that were made of these edges, by how.
        whole: They are all edges of the exchange, in order.
        sums: What sums over these edges with weights of their own; None: the communicator's aggregators.
    """

    comm: Any
    exchange: str
    num_heads: int
    norms: dict[Any, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    sums: Callable[[Tensor], Tensor] | None = None
    whole: bool = True

    @property
    def num_owned(self) -> int:
        """Rows that the exchange takes."""
        return int(self.comm.layouts[self.exchange].num_owned)

    @property
    def num_sources(self) -> int:
        """Rows that edges read: owned, then halo."""
        return int(self.comm.layouts[self.exchange].num_local)

    def expand(self, rows: Tensor, dim: int = 0) -> Tensor:
        """This rank's rows to those that its edges read, along ``dim``. Collective."""
        out: Tensor = self.comm.expand(rows.movedim(dim, 0) if dim else rows, self.exchange)
        return out.movedim(0, dim) if dim else out

    def aggregate(self, rows: Tensor, reduce: Any, weight: Tensor | None) -> Tensor:
        """Sums, means, ... over these edges, wherever they are summed. Collective."""
        return (self.sums or Aggregator(self.comm, reduce, weight))(rows)


def edges_of(comm: Any, exchange: str = HALO, whole: bool = True) -> EdgeSet:
    """A rank's edges whose sources an exchange of the communicator brings."""
    num_heads = len(comm.end_ids[exchange][1]) if exchange in comm.end_ids else comm.num_owned
    return EdgeSet(comm, exchange, num_heads, whole=whole)


_sets = WeakTensorKeyDictionary()


def remember(edge_index: Tensor, edges: EdgeSet) -> Tensor:
    """Let :func:`edge_set_of` know an ``edge_index``, this very tensor, and return it."""
    _sets[edge_index] = edges
    return edge_index


def remembered(graph: Any, comm: Any) -> Any:
    """A rank's graph, of which the edges are remembered where it has an ``edge_index``."""
    if hasattr(graph, "edge_index"):
        remember(graph.edge_index, edges_of(comm))
    return graph


def edge_set_of(edge_index: Tensor) -> EdgeSet | None:
    """What was remembered of this tensor; None for any other, also one that was made of it."""
    return _sets.get(edge_index)
