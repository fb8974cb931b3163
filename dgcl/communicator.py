"""The communicator: what a rank holds after :func:`dgcl.build_comm_info`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex
from weakref import WeakSet

import torch
from torch import Tensor

from dgcl.aggregation.grid_rows import GridRows
from dgcl.autograd import operators as ops
from dgcl.autograd.pending import PendingRows, fold_halo
from dgcl.changing.rewiring import Rewiring
from dgcl.grid.grid import Grid
from dgcl.program.exchange import HALO, Exchange
from dgcl.program.layout import Layout, layout_of_vertices
from dgcl.ranks.control import Control
from dgcl.ranks.tensors import require_tensors, untransformed
from dgcl.ranks.warned import warn_of_own_sums
from dgcl.relation.local_graph import LocalGraph
from dgcl.transport.base import HoldsTransports, Transport
from dgcl.transport.describe import describe_channels
from dgcl.transport.memory import MemoryReport, check_model_of_rows
from dgcl.transport.rounding import WIRED, Rounding, number_on_wire
from dgcl.transport.row_checks import as_memory, check_rows, check_summable
from dgcl.whole_graph_rows import WholeGraphRows

if TYPE_CHECKING:
    from dgcl.aggregation.aggregator import Aggregator
    from dgcl.aggregation.windows import HaloWindows


class Communicator(GridRows, WholeGraphRows, Rewiring, HoldsTransports):
    """One rank's end of the planned exchanges over one partitioned graph.

    A communicator is a set of exchanges over one transport, with one sequence of calls and one buffer pool. The
    exchange "halo" brings the rows that a rank's edges read; the numbers and ids of rows below are those of it.

    Rows are numbered locally: first this rank's own vertices (``owned_ids``: ascending, or as it gave them), then the
    halo, the vertices of other ranks that this rank's edges read (``halo_ids``, in the plan's order).

    Attributes:
        rank: This rank, as in the group.
        world_size: The number of ranks.
        num_nodes: Vertices of the whole graph.
        num_edges: Edges of the whole graph.
        exchanges: The exchanges by name, "halo" among them.
        layouts: Which rows each exchange takes and returns (slices of rows where a grid has some).
        layout: That of "halo", of vertices.
        plan: The plan of "halo".
        choice: Why this plan, where there was a choice.
        edges: Which rank sums an edge: "head", the owner of its head; "tail", "cover" and its bounds, "grid".
        grid: Parts x depth x slices (:class:`dgcl.grid.grid.Grid`).
        local: This rank's edges and degrees (:class:`~dgcl.relation.local_graph.LocalGraph`).
        control: The control plane.
        transport: Moves the rows (:class:`dgcl.transport.base.Transport`).
        rounding: The same for calls of a wire type (:class:`dgcl.transport.rounding.Rounding`).
        timeout: Seconds that a rank waits for another inside a call.
        device: Where the rows are that it moves.
        offloads: Of this communicator that are open; :meth:`memory` reports them.
        side_transports: What moves their rows.
        windows: In which sums and means take halo rows (strategy "windows:W"); None: all at once.
        message_edges: ``(2, E)`` of which a distributed model is making messages, and their exchange; None otherwise.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        local: LocalGraph,
        sizes: tuple[int, int],
        control: Control,
        transport: Transport,
        *,
        timeout: float,
        device: torch.device | None = None,
        choice: str = "",
        edges: str = "head",
        grid: Grid | None = None,
        first_exchange: int = 0,
    ) -> None:
        self.rank, self.world_size = control.rank, control.world_size
        self.num_nodes, self.num_edges = sizes
        self.exchanges: Mapping[str, Exchange] = MappingProxyType({each.name: each for each in exchanges})
        self.layouts: Mapping[str, Layout] = MappingProxyType(
            {each.name: Layout(each.program.owned_ids, each.program.halo_ids) for each in exchanges}
        )
        self.grid = Grid(control.world_size) if grid is None else grid
        self.layout = layout_of_vertices(self.layouts[HALO], self.grid.slices)
        self.plan, self.local, self.control, self.timeout = self.exchanges[HALO].plan, local, control, timeout
        self.transport, self.choice, self.edges = transport, choice, edges
        self._calls = transport.control_calls
        self.device = torch.device("cpu") if device is None else device
        self._numbers = {each.name: number for number, each in enumerate(exchanges, first_exchange)}
        self._programs = {self._numbers[each.name]: each.program for each in exchanges}
        self.rounding = transport if isinstance(transport, Rounding) else Rounding(transport, self._programs)
        self._num_local = {number: program.num_local for number, program in self._programs.items()}
        self._halo, self._dropout_calls = self._numbers[HALO], 0
        self.message_edges: tuple[Tensor, str] | None = None
        self.dispatched: Any = {}, {}  # by dgcl.dispatch: kinds of rows by store and name, and where they are
        self.end_ids: Mapping[str, tuple[Tensor, Tensor]] = {}  # of edges, by the exchange of their type
        self.windows: HaloWindows | None = None
        self.offloads: WeakSet[Any] = WeakSet()
        self.side_transports: WeakSet[Transport] = WeakSet()
        self._number = ops.register_communicator(self)

    @property
    def sums_elsewhere(self) -> bool:
        """Whether sums over in-edges are the aggregator's business, which knows where and when edges are summed."""
        return self.edges != "head" or self.windows is not None

    @property
    def num_owned(self) -> int:
        """Vertices that this rank owns, whose rows it computes."""
        return self.layout.num_owned

    @property
    def num_halo(self) -> int:
        """Vertices of other ranks that this rank's edges read."""
        return self.layout.num_halo

    @property
    def num_local(self) -> int:
        """``num_owned + num_halo``: the rows that :func:`dgcl.graph_allgather` returns."""
        return self.layout.num_local

    @property
    def owned_ids(self) -> Tensor:
        """``(num_owned,)`` int64 global ids, ascending, or as given; a copy."""
        return torch.from_numpy(self.layout.owned_ids).clone()

    @property
    def halo_ids(self) -> Tensor:
        """``(num_halo,)`` int64 global ids, in the order of the halo rows; a copy."""
        return torch.from_numpy(self.layout.halo_ids).clone()

    def expand(
        self,
        rows: Tensor,
        exchange: str = HALO,
        *,
        wire: torch.dtype | None = None,
        wire_gradients: bool = False,
    ) -> Tensor:
        """Owned rows to owned and halo rows: what :func:`dgcl.graph_allgather` does.

        Args:
            rows: ``(num_owned, *F)``, any dtype, any strides; collective, with the same ``F`` and dtype on every rank.
            exchange: Name of the exchange; rows are those of its layout.
            wire: ``torch.bfloat16``, ``float16``, ``float32`` or ``int8``, to which halo rows are rounded on the way,
                and gradients on theirs (:mod:`dgcl.transport.rounding`); None: the communicator's.
            wire_gradients: int8 is also for rows that require a gradient, which travels in bfloat16.

        Returns:
            ``(num_local, *F)``, bit for bit the owners' rows if not rounded; the gradient of floats is :meth:`fold`.

        Raises:
            ValueError, TypeError: Wrong shape, device or dtype, or no such exchange.
            CommError: A peer is lost, late, or makes another call.
        """
        number = self._numbers.get(exchange, -1) if isinstance(exchange, str) else -1
        program = self._programs[number] if number >= 0 else self._no_exchange(exchange)
        check_rows(rows, program.num_owned, "num_owned", self.rank, self.device)
        if wire is not None:
            number = number_on_wire(number, rows, wire, wire_gradients)
        return ops.expand(rows, self, self._number, number)

    def fold(self, rows: Tensor, exchange: str = HALO) -> Tensor:
        """The adjoint: for each owned row the sum of the rows that all ranks hold for it.

        Args:
            rows: ``(num_local, *F)``; floating point, complex or integer (no bool).
            exchange: Name of the exchange; rows are those of its layout.

        Returns:
            ``(num_owned, *F)``, in a fixed order of summation, so the same input gives the same bits. 16-bit
            floats are added in float32 on each rank and rounded once per hop.

        Raises:
            ValueError, TypeError, CommError: As :meth:`expand`.
        """
        number = self._numbers.get(exchange, -1) if isinstance(exchange, str) else -1
        num_local = self._num_local[number] if number >= 0 else self._no_exchange(exchange)
        check_rows(rows, num_local, "num_owned + num_halo", self.rank, self.device)
        return ops.fold(rows, self, self._number, number)

    def expand_async(self, rows: Tensor, exchange: str = HALO) -> PendingRows:
        """Start to exchange halo rows; what :func:`dgcl.graph_allgather_async` does."""
        number = self.number_of(exchange)
        self._check(rows, self._programs[number].num_owned, "num_owned")
        return PendingRows(self, as_memory(rows), number)

    def fold_halo(self, halo_rows: Tensor, into: Tensor, exchange: str = HALO) -> Tensor:
        """Add rows of other ranks' vertices to those vertices' rows, in place.

        Args:
            halo_rows: ``(num_halo, *F)``, what this rank adds, in the order of ``halo_ids``.
            into: ``(num_owned, *F)``, to which others' rows are added, in a fixed order.
            exchange: Name of the exchange; rows are those of its layout.

        Returns:
            ``into``. Not differentiable.

        Raises:
            ValueError, TypeError, CommError: As :meth:`fold`.
        """
        number = self.number_of(exchange)
        self._check(halo_rows, self._programs[number].num_halo, "num_halo")
        self._check(into, self._programs[number].num_owned, "num_owned")
        check_summable(halo_rows)
        return fold_halo(self, halo_rows.detach(), into, number)

    def rows_of(self, exchange: int) -> tuple[int, int]:
        """(num_owned, num_local) of the exchange with this number."""
        number = int(exchange) % WIRED
        return self._programs[number].num_owned, self._num_local[number]

    def number_of(self, exchange: str) -> int:
        """The number of the exchange with this name, as the transport calls it."""
        number = self._numbers.get(exchange, -1) if isinstance(exchange, str) else -1
        return number if number >= 0 else self._no_exchange(exchange)

    def _no_exchange(self, exchange: str) -> NoReturn:
        self.require_current("expand and fold")
        raise ValueError(
            f"exchange must be one of {', '.join(map(repr, self._numbers))}, the exchanges of this communicator"
            f" (got {exchange!r})"
        )

    def all_reduce_sum(self, tensor: Tensor, name: str = "all_reduce_sum") -> Tensor:
        """The sum of a tensor over the ranks, in rank order: the same bits on every rank. Messages call it ``name``.

        Differentiable; the backward is collective, too.
        """
        require_tensors(tensor=tensor)
        return ops.sum_over_ranks(tensor, self, self._number, name)

    def next_dropout_call(self) -> int:
        """Number the calls of :func:`dgcl.nn.dropout`, from 0; ranks with the same program count alike."""
        self._dropout_calls += 1
        return self._dropout_calls - 1

    def state_dict(self) -> dict[str, int]:
        """What a resumed run needs besides model and optimizer; the same on every rank, for any number of them."""
        return {"dropout_calls": self._dropout_calls}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a :meth:`state_dict`, of a run on any number of ranks. Every rank calls it."""
        if not isinstance(state, Mapping) or not isinstance(state.get("dropout_calls"), SupportsIndex):
            raise ValueError(f"state must be what comm.state_dict() gave (got {str(state)[:80]})")
        self._dropout_calls = int(state["dropout_calls"])

    @untransformed
    def aggregator(
        self,
        reduce: Literal["sum", "mean", "max", "min"] = "sum",
        *,
        edge_weight: Tensor | None = None,
        windows: int | None = None,
        by: Literal["mixed", "owner"] = "mixed",
    ) -> Aggregator:
        """Sums over in-edges wherever they are summed, with the exchanges inside; differentiable. Collective.

            >>> agg = comm.aggregator("mean")
            >>> y = agg(x)                              # (num_owned, *F) -> (num_owned, *F); collective

        Args:
            reduce: "sum", "mean", or "max" and "min" column by column.
            edge_weight: ``(num_local_edges,)``, by which rows are multiplied, as :meth:`dispatch_edges` gives them;
                where it requires a gradient, each edge gets its own.
            windows: Parts in which halo rows are expanded and summed, at most two held at a time; None: the strategy's.
            by: "mixed": each rank's halo is divided evenly; "owner": window q are the rows of rank q.

        Raises:
            ValueError, TypeError: An unknown reduction, weights of another shape or type, windows that cannot be, or
                ranks that ask for different reductions or windows; raised on every rank.
        """
        from dgcl.aggregation.connect import connect_aggregator

        return connect_aggregator(self, reduce, edge_weight, windows, by)

    def local_graph(self, kind: str = "csr", **options: Any) -> Any:
        """This rank's graph: "dgl" (a block), "pyg" or "csr" (torch); see :func:`dgcl.frameworks.local_graph`.

        Raises:
            ValueError: This rank does not have all in-edges of its vertices (``edges`` is not "head").
        """
        from dgcl.frameworks import local_graph
        from dgcl.frameworks.edge_sets import remembered

        self.require_current("local_graph")
        self.require_neighbourhoods("local_graph")
        return remembered(local_graph(kind, self.local, **options), self)

    def slice_graph(self, kind: str = "csr", **options: Any) -> Any:
        """This rank's graph of slices of rows, on a grid of depth 1, as :meth:`local_graph` gives graphs. Collective.

        Raises:
            ValueError: The grid's depth is above 1.
        """
        from dgcl.frameworks import local_graph

        return local_graph(kind, self.slice_neighbourhoods(), **options)

    def describe(self) -> str:
        """The plan (stages, relays, time, bound), and how rows travel to and from each other rank, and why."""
        reasons = self.transport.describe()
        text = describe_channels(self.exchanges, reasons, self.rank, self.choice)
        return "\n  ".join([text, *self.rounding.errors()])

    @property
    def bytes_sent(self) -> dict[str, Tensor]:
        """Bytes written to each peer so far, ``(world_size,)`` int64 each, for "expand" and "fold"."""
        return dict(zip(("expand", "fold"), torch.from_numpy(self.transport.bytes_sent.sum(0)), strict=True))

    def bytes_sent_by(self, exchange: str) -> dict[str, Tensor]:
        """As :attr:`bytes_sent`, by one exchange alone."""
        self.number_of(exchange)
        counts = self.transport.bytes_sent[list(self.exchanges).index(exchange)].copy()
        return dict(zip(("expand", "fold"), torch.from_numpy(counts), strict=True))

    def memory(
        self,
        widths: Sequence[int | tuple[int, str]],
        dtype: torch.dtype = torch.float32,
        *,
        training: bool = True,
        input_grad: bool = False,
        constants: Sequence[int] = (),
    ) -> MemoryReport:
        """Predict what this rank's buffers and tables take for a model.

            >>> comm.memory([602, 256, 256]).total              # three layers that exchange their inputs

        Args:
            widths: Elements of a row in each allgather, in their order; (elements, name) for another exchange's.
            dtype: Of the rows.
            training: Every result is kept until its layer's backward, as by layers that multiply it with
                parameters; else each is given up before the next.
            input_grad: The first allgather's input needs a gradient, which is given up before the next step.
            constants: Elements of a row in each input that was dispatched with ``halo=True``.

        Returns what a steady state holds; models that keep results longer hold more.
        """
        check_model_of_rows(widths, dtype, training, input_grad, constants)
        calls = [(w[0], self.number_of(w[1])) if isinstance(w, tuple) else (w, self._halo) for w in widths]
        kinds: dict[str, Any] = {"training": training, "input_grad": input_grad, "constants": constants}
        report = self.transport.memory(calls, dtype, wire=self.rounding.wire, **kinds)
        offload = tuple(off.memory(training=training) for off in self.offloads)
        return replace(report, offload=offload)

    def use_transport(self, transport: Transport) -> Transport:
        """Let another transport move the rows from now on, as baselines do, and return the one that did so far, which
        whoever replaces it closes; called on every rank."""
        before, self.transport = self.transport, transport
        return before

    def synchronize(self) -> None:
        """Wait until the current stream's work is done, and raise the CommError of calls, which return before it is."""
        self.transport.synchronize()

    def record_stream(self, rows: Tensor, stream: torch.cuda.Stream) -> None:
        """Keep a result's memory until ``stream`` has read it, as ``torch.Tensor.record_stream`` does."""
        self.transport.record_stream(rows, stream.cuda_stream)

    def close(self) -> None:
        """Give the communicator up. Idempotent, not collective; results of earlier calls stay valid."""
        warn_of_own_sums(self, closing=True)
        self.end(self.failure)

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # No weakref.finalize: it would keep the transport, and a recorder of calls there may refer to this object.
        if not exiting() and "transport" in self.__dict__ and self._is_last:
            self.transport.close()

    def __repr__(self) -> str:
        rows = f"{self.num_owned} owned and {self.num_halo} halo rows, plan {self.plan.method!r}"
        return f"<dgcl.Communicator rank {self.rank} of {self.world_size}: {rows} with {self.plan.num_stages} stage(s)>"

    def _check(self, rows: Tensor, expected: int, words: str) -> None:
        check_rows(rows, expected, words, self.rank, self.device)
