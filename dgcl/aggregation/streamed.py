"""An aggregation whose edges are streamed (:mod:`dgcl.grid.streamed`): they come, are summed and are forgotten.

::

    rows = x expanded                                        owned and halo rows
    send window 0 of all ranks' blocks of edges; sum over the blocks that this rank keeps
    for q = 0, 1, ...: finish window q, start window q + 1, sum over the edges of window q
    y = the sums folded

Rows travel whole; windows divide the edges, of which at most two are held besides those that are kept. The adjoint is
the same with heads and tails, and both exchanges of rows, changed for each other: the same blocks travel. Edges are
added in a fixed order, so the same input gives the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation import edges
from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.block import Block
from dgcl.aggregation.results import ResultMemory
from dgcl.aggregation.sparse import sum_dtype
from dgcl.grid.grid import Grid
from dgcl.grid.streamed import StreamedGraph
from dgcl.planner.windows import By, check_windows
from dgcl.program.exchange import EDGES
from dgcl.program.model import Program
from dgcl.program.windows import window_programs
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree
from dgcl.transport.base import Transport
from dgcl.transport.steps import FOR_SUM, WEIGHTED

__all__ = ["StreamedOperation", "check_streamed", "connect_edge_windows"]

#: What is done with some edges: rows of heads and of tails, (E,) int32 each.
TakeEdges = Callable[[NDArray[np.int32], NDArray[np.int32]], None]


@dataclass(frozen=True, eq=False)
class StreamedOperation:
    """A rank's part of an aggregation; as :class:`~dgcl.aggregation.operation.Operation`, every call is collective.

    Attributes:
        graph: The rows, and the edges that this rank keeps.
        windows: Numbers of the exchanges of blocks; empty: no rank sends one.
        pieces: In how many pieces its own blocks are summed, each about as large as a window.
        expand, fold: Numbers of the exchanges of rows; None: no rank sends a row.
        scales: What each edge's row is multiplied by: ``(num_heads,)`` of its head and ``(num_local,)`` of its tail;
            None: ones.
        is_adjoint: Whether rows go from heads to tails.
        memory: Of sums.
        purpose: What it is for (:data:`dgcl.transport.steps.FOR_SUM`); ranks that disagree are named.
    """

    graph: StreamedGraph
    windows: range
    pieces: int
    expand: int | None
    fold: int | None
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    is_adjoint: bool = False
    memory: ResultMemory = field(default_factory=ResultMemory)
    purpose: int = FOR_SUM

    @classmethod
    def of(
        cls, graph: StreamedGraph, windows: range, grid: Grid, expand: int | None, fold: int | None
    ) -> StreamedOperation:
        """The sum over all edges; arguments as the attributes."""
        pieces = max(1, -(-len(windows) // (grid.slices - 1)))
        edges.prepare()
        return cls(graph, windows, pieces, expand, fold)

    @cached_property
    def transposed(self) -> StreamedOperation:
        """The adjoint."""
        return replace(self, expand=self.fold, fold=self.expand, is_adjoint=not self.is_adjoint)

    def weighted(
        self, of_heads: Tensor, of_tails: Tensor | None = None, purpose: int = 0
    ) -> StreamedOperation:
        """The same with ``scales``, of rows: edges have no weights of their own."""
        return replace(self, scales=(of_heads, of_tails), purpose=purpose or self.purpose | WEIGHTED)

    def run(
        self, x: Tensor, transport: Transport, *, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Aggregate.

        Args:
            x: ``(num_owned, width)``, dense floating point.
            transport: Carries out the exchanges.
            out: Where to put the result, contiguous, of the type of sums; None: memory of its own.

        Returns:
            ``(num_owned, width)`` of x's type, and nothing else.
        """
        result = self._sum(x.resolve_neg().contiguous(), transport)
        if self.fold is not None:
            result = transport.fold(result, self.fold)
        if out is not None:
            result = out.copy_(result).to(x.dtype)
        return result, ()

    def _sum(self, x: Tensor, transport: Transport) -> Tensor:
        """What this rank's edges add to rows, its own and then others', rounded to x's type."""
        rows = x if self.expand is None else transport.expand(x, self.expand)
        num_sums = self.graph.num_local if self.is_adjoint else self.graph.num_heads
        sums = self.memory.empty(x, num_sums, x.shape[1], sum_dtype(x.dtype)).zero_()

        def add(heads: NDArray[np.int32], tails: NDArray[np.int32]) -> None:
            weight = self._weight(heads, tails, sums.dtype)
            ends = (tails, heads) if self.is_adjoint else (heads, tails)
            Block(*ends, len(sums), len(rows)).add(rows, sums, weight)

        self.visit_edges(transport, add)
        return sums.to(x.dtype)

    def visit_edges(self, transport: Transport, take: TakeEdges) -> None:
        """Have all edges that this rank sums pass by: its own blocks, then those of its group, window by window."""
        graph, last = self.graph, len(self.windows) - 1
        own = torch.from_numpy(graph.blocks)
        started = transport.begin_expand(own, self.windows[0], purpose=self.purpose) if self.windows else None
        for piece in np.array_split(graph.blocks, self.pieces):
            take(*graph.rows_of(piece))
        for q in range(len(self.windows)):
            assert started is not None
            blocks = started.wait().numpy()
            if q < last:
                started = transport.begin_expand(own, self.windows[q + 1], purpose=self.purpose)
            take(*graph.rows_of(blocks))
            del blocks  # or it would live until the next window's have arrived

    def _weight(
        self, heads: NDArray[np.int32], tails: NDArray[np.int32], dtype: torch.dtype
    ) -> Tensor | None:
        """``(E,)`` what each edge's row is multiplied by."""
        weight: Tensor | None = None
        for scale, rows in zip(self.scales, (heads, tails), strict=True):
            if scale is not None:
                more = scale.index_select(0, torch.from_numpy(rows))
                weight = more if weight is None else weight * more
        return None if weight is None else weight.to(dtype)


def check_streamed(reduce: str, edge_weight: object) -> None:
    """Refuse what needs to know an edge again.

    Raises:
        ValueError: With the ways out.
    """
    if edge_weight is not None:
        raise ValueError(
            "edge_weight goes without adjacency='streamed': edges come and go, and no rank has one long enough to know"
            " its weight, or to give it a gradient. Build the communicator with adjacency='held'. Weights that are"
            " products of a number of the tail and one of the head need none: multiply rows by the one before, and by"
            " the other after"
        )
    if reduce in ("max", "min"):
        raise ValueError(
            f"reduce={reduce!r} goes without adjacency='streamed', which has sums and means; build the communicator"
            " with adjacency='held'"
        )


#: Of each communicator the numbers of the exchanges of its windows, by their number and how blocks are divided.
_windows: WeakKeyDictionary[Any, dict[tuple[int, By], range]] = WeakKeyDictionary()


@functools.partial(set_up_call, name="aggregator")
def connect_edge_windows(comm: Aggregating, windows: int | None = None, by: By = "mixed") -> range:
    """The exchanges of the windows of blocks of edges. Collective the first time.

    Args:
        comm: The communicator.
        windows: Their number; None: so many that two of them hold as many edges as a rank keeps.
        by: How blocks are divided, as rows are.

    Raises:
        ValueError, TypeError: Windows that cannot be.
    """
    streamed, whole = comm.exchanges[EDGES], comm.number_of(EDGES)
    if windows is None and by == "mixed":
        number = 2 * (comm.grid.slices - 1)
    else:
        number = check_windows(windows, by, comm.num_nodes, comm.world_size)
    if not streamed.relation.deliveries:
        return range(0)
    if number == 1:
        return range(whole, whole + 1)
    of_comm = _windows.setdefault(comm, {})
    if (number, by) not in of_comm:
        programs: list[Program] = []
        problem: Exception | None = None
        with comm.control.collective("aggregator"):
            num_owned = np.array(comm.control.exchange(streamed.program.num_owned))
            try:  # all that a rank does alone comes first: after the others have added windows it must not fail
                programs = window_programs(streamed.program, streamed.plan, num_owned, number, by)
            except (MemoryError, ValueError) as error:
                problem = error
            agree(comm.control, problem)
            named = {f"{EDGES}, window {i} of {number}": each for i, each in enumerate(programs, start=1)}
            first = comm.transport.add_exchanges(named, whole)
        of_comm[number, by] = range(first, first + number)
    return of_comm[number, by]
