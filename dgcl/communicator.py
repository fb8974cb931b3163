"""A rank's communicator over one partitioned graph: its rows' numbers, its exchanges, and the calls on them.

Rows are numbered locally: owned ones first, then the halo, the other ranks' vertices that this rank's edges read.
Called by users, `api`, `build`, `dgcl/nn/convolutions`, `dgcl/rows/view`, `dgcl/offload/offload` and others. Free to
change while ids and sizes are the partition's, dispatched rows come back by ``collect``, a mistake of one rank is an
error on all, and after ``close`` nothing stays mapped (`tests/dgcl/test_communicator.py`; other edges by ``rewire``:
`tests/dgcl/test_rewire.py`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex
from weakref import WeakSet, ref

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.once import refusing
from dgcl.aggregation.slice_places import SlicePlaces, find_places
from dgcl.autograd import operators as ops
from dgcl.autograd.fetch import fetch_rows
from dgcl.autograd.pending import PendingRows, fold_halo
from dgcl.errors import CommError
from dgcl.grid.grid import Grid
from dgcl.placement.exchanges import EDGES
from dgcl.planner import PlanOptions
from dgcl.planner.array_types import Int32Array, Int64Array
from dgcl.planner.methods import METHODS, make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.prepare.local_edges import plan_together, share_of_edges
from dgcl.program.exchange import HALO, PARTIAL, Exchange
from dgcl.program.row_layout import Layout, layout_of_vertices
from dgcl.ranks.context import add_communicator, context
from dgcl.ranks.control import Control
from dgcl.ranks.handle import Handle
from dgcl.ranks.requests import Requests
from dgcl.ranks.tensors import beside_the_graph, refuse_transforms, require_tensors, untransformed
from dgcl.ranks.whole_rows import agree, collect_rows, dispatch_rows, require_same
from dgcl.relation.local_graph import LocalGraph
from dgcl.topology.checks import check_choice, check_flag, check_path, shown
from dgcl.transport.base import Transport
from dgcl.transport.describe import describe_channels
from dgcl.transport.rounding import WIRED, Rounding, number_on_wire
from dgcl.transport.row_checks import as_memory, check_rows, check_summable_dtype

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dgcl.aggregation.aggregator import Aggregator
    from dgcl.aggregation.windowed import HaloWindows

_log = logging.getLogger("dgcl")


class Communicator(Handle, ops.Exchanging, Aggregating):
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
        offloads: Of this communicator that are open.
        side_transports: What moves their rows.
        windows: In which sums and means take halo rows (strategy "windows:W"); None: all at once.
        was_rewired: Whether it took the place of another one.
    """

    #: Types of vertices of a dispatched graph: the first id of each, and how many there are.
    node_types: Mapping[str, tuple[int, int]] = MappingProxyType({})
    was_rewired = False
    _part: Tensor | None = None
    #: All wirings of a transport by their exchange number, the newest last, shared by them; they keep none alive.
    _wirings: dict[int, ref[Any]] | None = None
    _told_of_idle_ranks = False
    _places: SlicePlaces | None = None

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
        self._halo, self._dropout_calls = self._numbers[HALO], 0
        self.end_ids: Mapping[str, tuple[Tensor, Tensor]] = {}  # of edges, by the exchange of their type
        self.windows: HaloWindows | None = None
        self.view: Any
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
        known = isinstance(exchange, str) and exchange in self._numbers
        number = self._numbers[exchange] if known else self.number_of(exchange)  # a call is spared here
        check_rows(rows, self._programs[number].num_owned, "num_owned", self.rank, self.device)
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
        number = self.number_of(exchange)
        program = self._programs[number]
        num_rows = program.num_owned + program.num_halo  # a call is spared here, and one below
        check_rows(rows, num_rows, "num_owned + num_halo", self.rank, self.device)
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
        check_summable_dtype(halo_rows.dtype)
        return fold_halo(self, halo_rows.detach(), into, number)

    def rows_of(self, exchange: int) -> tuple[int, int]:
        """(num_owned, num_local) of the exchange with this number."""
        program = self._programs[int(exchange) % WIRED]
        return program.num_owned, program.num_local

    def number_of(self, exchange: str) -> int:
        """The number of the exchange with this name, as the transport calls it."""
        number = self._numbers.get(exchange) if isinstance(exchange, str) else None
        if number is not None:
            return number
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
        """Continue from a :meth:`state_dict` of a run on any number of ranks. Every rank calls it."""
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
        """Make an aggregator: sums over in-edges, exchanges included; differentiable. Collective.

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
        from dgcl.aggregation.connect_aggregators import connect_aggregator

        return connect_aggregator(self, reduce, edge_weight, windows, by)

    def local_graph(self, kind: str = "csr", **options: Any) -> Any:
        """This rank's graph: "dgl" (a block), "pyg" or "csr" (torch); see :func:`dgcl.frameworks.local_graph`.

        Raises:
            ValueError: This rank does not have all in-edges of its vertices (``edges`` is not "head").
        """
        from dgcl.aggregation.edge_sets import remembered
        from dgcl.frameworks import local_graph

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
        """Describe the plan (stages, relays, time, bound), how rows travel to and from each other rank, and why."""
        reasons = self.transport.describe()
        text = describe_channels(self.exchanges, reasons, self.rank, self.choice)
        return "\n  ".join([text, *self.rounding.errors()])

    @property
    def bytes_sent(self) -> dict[str, Tensor]:
        """Bytes written to each peer so far, ``(world_size,)`` int64 each, for "expand" and "fold"."""
        return dict(zip(("expand", "fold"), torch.from_numpy(self.transport.bytes_sent.sum(0)), strict=True))

    def bytes_sent_by(self, exchange: str) -> dict[str, Tensor]:
        """As :attr:`bytes_sent`, of one exchange."""
        self.number_of(exchange)
        counts = self.transport.bytes_sent[list(self.exchanges).index(exchange)].copy()
        return dict(zip(("expand", "fold"), torch.from_numpy(counts), strict=True))

    @property
    @untransformed
    def part(self) -> Tensor:
        """``(num_nodes,)`` int32, the owner of each vertex; read only. Collective when it is first read, then kept."""
        if self._part is None:
            part = torch.empty(self.num_nodes, dtype=torch.int32, device="cpu")
            with self.collective("part"):
                for rank, ids in enumerate(self.control.exchange(self.layout.owned_ids)):
                    part[torch.from_numpy(ids)] = rank
            self._part = part
        return self._part

    def keep_part(self, part: Int32Array) -> None:
        """Keep the owner of each vertex, which all ranks know already."""
        self._part = torch.from_numpy(part)

    @beside_the_graph
    def fetch(self, rows: Tensor, ids: Tensor, node_type: str | None = None) -> Tensor:
        """Rows of vertices anywhere; see :func:`dgcl.fetch`."""
        problem = None
        try:
            self.require_current("fetch")
            mine, first, number = self._vertices(node_type)
            check_rows(rows, len(mine), "num_owned", self.rank, self.device, any_device=True)
            _check_ids(ids, number)
        except (TypeError, ValueError) as error:
            problem = error
        with self.collective("fetch"):
            self._agree_on_kind(problem, rows, "rows")
            part = self.part.numpy()[first : first + number]
            return fetch_rows(self.control, self.collective, rows, ids.cpu().numpy(), part, mine)

    def _agree_on_kind(self, problem: Exception | None, rows: Tensor, name: str) -> None:
        """Raise on every rank if one has a problem, or rows of another kind. Collective."""
        kind = None if problem is not None else (tuple(rows.shape[1:]), rows.dtype)
        kinds = agree(self.control, problem, kind)
        require_same(**{f"trailing shape and dtype of {name}": kinds})

    def _vertices(self, node_type: str | None) -> tuple[Int64Array, int, int]:
        """Of a type, or of all: the ids that this rank owns, from 0; the first in the whole graph; their number."""
        ids = self.layout.owned_ids
        if node_type is None:
            return ids, 0, self.num_nodes
        if node_type not in self.node_types:
            raise ValueError(f"node_type must be one of {list(self.node_types)} (got {node_type!r})")
        first, number = self.node_types[node_type]
        return ids[(ids >= first) & (ids < first + number)] - first, first, number

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Give calls on the control plane a name for messages; they fail when a rank is late or has left this one."""
        return self.control.collective(name, self._calls, self.timeout)

    @beside_the_graph
    def dispatch_features(self, features: Tensor | ArrayLike | None, *, halo: bool = False) -> Tensor:
        """This rank's rows of a feature matrix of the whole graph.

        They are constants: no gradient goes back to ``features``. Inputs that are learned are parameters of their
        own on each rank, made of its rows.

        Args:
            features: ``(num_nodes, *F)``, torch or numpy, any dtype, on rank 0 alone (others pass None) or on
                every rank (then nothing is sent).
            halo: Return the halo rows as well, exchanged here once: for an input that never changes, use
                this instead of exchanging it again in the first layer of every step. The rows are held in
                the communicator's memory (``num_halo`` rows more than without) as long as the tensor lives.
                They are constants: a gradient that they got would not reach their owners.

        Returns:
            ``(num_owned, *F)``; with ``halo`` ``(num_local, *F)``, bit for bit what :meth:`expand` gives.

        Raises:
            ValueError: No rank 0 features, or a wrong number of rows; raised on every rank.
        """
        self.require_current("dispatch_features")
        if check_flag(halo, "halo"):
            self.require_neighbourhoods("dispatch_features(halo=True)")
        ids = self.layout.owned_ids
        with self.collective("dispatch_features"):
            rows = dispatch_rows(
                self.control, features, self.num_nodes, ids, "features", "vertices", self.num_edges
            )
        rows = rows.to(self.device)
        return self.transport.expand(rows, self._halo) if halo else rows

    @beside_the_graph
    def dispatch_edges(self, values: Tensor | ArrayLike | None) -> Tensor:
        """This rank's rows of per-edge data, one per edge of the local graph.

        Args:
            values: ``(num_edges, *F)`` in the order of the given edges: row k is of column k of an ``edge_index``, of
                DGL's edge k (all orders: :func:`dgcl.graph.as_graph`); on rank 0 alone or on every rank. Where
                each rank gave its own edges (:func:`dgcl.build_from_local`): theirs, in their order; collective where
                other ranks sum some of them.

        Returns:
            ``(num_local_edges, *F)`` on this rank's device, row ``k`` for edge ``local.edge_ids[k]``: the
            order of ``at_sources``, of ``g.edge_index``, and of the edges of the DGL block.
        """
        self.require_current("dispatch_edges")
        ids = self.local.edge_ids
        if self.local.first_edges is not None:
            return self._rows_of_edges(values, self.local.first_edges, ids).to(self.device)
        with self.collective("dispatch_edges"):
            rows = dispatch_rows(self.control, values, self.num_edges, ids, "values", "edges")
        return rows.to(self.device)

    def _rows_of_edges(self, values: Any, first: Int64Array, ids: Int64Array) -> Tensor:
        """Rows of the edges that this rank sums, of which each rank has those that it gave."""
        rows, problem = torch.zeros(0, device="cpu"), None
        number = first[self.rank + 1] - first[self.rank]
        try:
            rows = torch.as_tensor(values, device="cpu")
            if rows.dim() == 0 or len(rows) != number:
                raise ValueError(
                    f"values must have one row for each of the {number} edges of rank {self.rank}, in the order in"
                    f" which it gave them (got shape {tuple(rows.shape)})"
                )
        except (RuntimeError, TypeError, ValueError) as error:
            problem = error
        if self.edges == "head":
            if problem is not None:
                raise problem
            return rows[torch.from_numpy(ids - first[self.rank])]
        with self.collective("dispatch_edges"):
            self._agree_on_kind(problem, rows, "values")
            owner = np.searchsorted(first, ids, side="right") - 1
            requests = Requests(self.control, ids - first[owner], owner)
            return requests.answer([rows[torch.from_numpy(each)] for each in requests.incoming])

    @beside_the_graph
    def collect(
        self,
        rows: Tensor | Mapping[str, Tensor],
        dst: int | None = 0,
        *,
        file: str | PathLike[str] | None = None,
    ) -> Any:
        """Owned rows of all ranks back in global order.

        Args:
            rows: ``(num_owned, *F)``; or such rows by type of vertices, of a graph that was dispatched with types.
            dst: The rank that gets them; None for every rank.
            file: Write them there as ``.npy`` (by rank ``dst``) instead of returning them.

        Returns:
            ``(num_nodes, *F)`` on ``dst``; None elsewhere, and when written to a file.

        Raises:
            ValueError, TypeError: Wrong rows on some rank, or a file that cannot be written; raised on every
                rank.
        """
        if isinstance(rows, Mapping):
            unknown = [name for name in rows if name not in self.node_types]
            problem = ValueError(
                f"rows must be by type of vertices, {list(self.node_types)} (got {list(rows)}); a graph has types where"
                " dgcl.dispatch was given a HeteroData"
            )
            with self.collective("collect"):
                names = agree(self.control, problem if unknown else None, list(rows))
            require_same(**{"types of rows": names})
            return {
                name: self._collect("collect", rows[name], dst, None, *self._vertices(name)[::2])
                for name in rows
            }
        return self._collect("collect", rows, dst, file, self.layout.owned_ids, self.num_nodes)

    @beside_the_graph
    def collect_edges(
        self, values: Tensor, dst: int | None = 0, *, file: str | PathLike[str] | None = None
    ) -> Tensor | None:
        """Rows of this rank's edges, as :meth:`dispatch_edges` gives them, back in the order of the user's edges.

        Args:
            values: ``(num_local_edges, *F)``.
            dst, file: As of :meth:`collect`.

        Returns:
            ``(num_edges, *F)`` on ``dst``; None elsewhere, and when written to a file.
        """
        self.require_neighbourhoods("collect_edges")
        return self._collect("collect_edges", values, dst, file, self.local.edge_ids, self.num_edges)

    def _collect(
        self,
        name: str,
        rows: Tensor,
        dst: int | None,
        file: str | PathLike[str] | None,
        ids: Int64Array,
        num_rows: int,
    ) -> Tensor | None:
        refuse_transforms(name)
        problem = None
        try:
            self.require_current(name)
            words = "num_owned" if name == "collect" else "num_local_edges"
            check_rows(rows, len(ids), words, self.rank, self.device, any_device=True)
            if dst is not None and not (
                isinstance(dst, Integral) and not isinstance(dst, bool) and 0 <= dst < self.world_size
            ):
                raise ValueError(f"dst must be a rank below {self.world_size} or None (got {shown(dst)})")
            if file is not None:
                check_path(file, "file")
        except (TypeError, ValueError) as error:
            problem = error
        with self.collective(name):
            agree(self.control, problem)
            result = collect_rows(self.control, rows, ids, num_rows, dst, file)
        if result is None or not (rows.requires_grad and torch.is_grad_enabled()):
            return result
        return refusing(
            "collected rows carry no gradient back: collect rows.detach(), or take a loss of this rank's rows"
            " (dgcl.nn.loss), or of rows from anywhere (dgcl.fetch)",
            result,
            rows,
        )

    @property
    def _newest(self) -> Self | None:
        """What took its place, or itself; None: that is gone. Older ones make no calls but backwards."""
        return self if self._wirings is None else next(reversed(self._wirings.values()))()

    @property
    def _is_last(self) -> bool:
        """Whether no other wiring of the transport is in use."""
        return all(wired() in (None, self) for wired in (self._wirings or {}).values())

    def rewire(self, edges: Any, *, owned_ids: Any = None, method: str = "direct") -> Self:
        """Replace this communicator by one with new in-edges, and new owners if vertices move.

            >>> comm = comm.rewire((sources, heads))                        # the same owners
            >>> x = dgcl.fetch(x, ids)                                      # or rows follow their vertices
            >>> comm = comm.rewire((sources, heads), owned_ids=ids)

        Collective. Ranks stay connected: transport, buffers and process groups are those of before, and so is the count
        of dropout's calls. Local graphs, aggregators and models that hold a communicator are made anew; this one
        raises. A backward of an earlier call runs along the wiring of that call.

        Args:
            edges: ``(sources, heads)`` by id: the in-edges of this rank's vertices.
            owned_ids: ``(n,)`` ids of this rank's vertices from now on; None: those of before.
            method: "direct", which every rank plans by itself; or another planner's, which rank 0 plans.

        Returns:
            The new communicator, which is the current one of this thread.

        Raises:
            ValueError, TypeError: As of :func:`dgcl.build_from_local`; the strategy or the transport cannot be rewired;
                ``owned_ids`` on some ranks alone. On every rank; this communicator goes on.
            CommError: A rank is gone, or makes another call.
        """
        control = self.control
        wirings = self._wirings or {self._halo: ref(self)}
        problem: Exception | None = None
        try:
            self._check_rewirable(method)
        except (TypeError, ValueError) as error:
            problem = error

        def planned(relation: Relation) -> Plan:
            options = PlanOptions(row_bytes=self.plan.row_bytes)
            if method == "direct":
                return make_plan(relation, self.plan.topology, method, options)
            return plan_together(control, relation, self.plan.topology, method, options)

        with control.watched(), self.collective("rewire"):
            idle = {number for number, wired in wirings.items() if wired() is None}
            ids, part = (self.layout.owned_ids, self.part.numpy()) if owned_ids is None else (owned_ids, None)
            share, part, idle_of_ranks = share_of_edges(
                control,
                ids,
                edges,
                planned,
                part,
                problem=problem,
                method=method,
                placement=self.edges,
                report=idle,
            )
            if len(part) != self.num_nodes:
                raise ValueError(
                    f"owned_ids must be the {self.num_nodes} vertices of before, shared out anew (got {len(part)})"
                )
            idle = set.intersection(*idle_of_ranks)
            # As many for each wiring, one behind the other.
            number, *_ = [
                self.transport.add_exchanges({each.name: each.program}, i, min(idle) + i if idle else None)
                for i, each in enumerate(share.exchanges)
            ]
        new = type(self)(
            share.exchanges,
            share.local,
            share.sizes,
            control,
            self.transport,
            timeout=self.timeout,
            device=self.device,
            edges=self.edges,
            first_exchange=number,
        )
        new.was_rewired = True
        new.load_state_dict(self.state_dict())
        new.keep_part(part)
        wirings.pop(number, None)
        wirings[number] = ref(new)
        self._wirings = new._wirings = wirings
        self._numbers = {}
        add_communicator(new)
        return new

    def _check_rewirable(self, method: str) -> None:
        check_choice(method, "method", METHODS)
        self.require_current("rewire")
        what = ""
        if self.edges not in EDGES:
            what = f"strategy={self.edges!r} is decided by the whole graph"
        elif self.exchanges.keys() - {HALO, PARTIAL}:
            what = "edges of several types have an exchange each"
        elif self.offloads or self.windows:
            what = "windows, and the chunks of an open Offload, are those of the old edges"
        elif self.transport.fixed:
            what = f'{self.transport.fixed}; channel="collective" can be rewired'
        if what:
            raise ValueError(f"rewire: {what}; build a new communicator")

    def require_current(self, what: str) -> None:
        """Raise where another communicator has taken the place of this one."""
        if self._newest is not self:
            raise ValueError(
                f"{what}: this communicator was rewired, and its edges are those of before; use the one that"
                " comm.rewire() returned, and local graphs, aggregators and layers made of that"
            )

    def to_items(self, rows: Tensor) -> Tensor:
        """Rows as items: ``(n, F)`` to ``(n * slices, slice width)``, row i's slices one behind the other.

        A view where slices divide F; else zeros fill the last ones up.
        """
        slices, width = self.grid.slices, rows.shape[1]
        if slices == 1:
            return rows
        if 0 < width < slices and not self._told_of_idle_ranks:
            self._told_of_idle_ranks = True
            if self.rank == 0:
                idle = slices - width
                _log.info("rows of %d element(s) in %d slices: %d of them are empty", width, slices, idle)
        each = self.grid.slice_width(width)
        if each * slices != width:
            rows = torch.nn.functional.pad(rows, (0, each * slices - width))
        return rows.reshape(len(rows) * slices, each)

    def from_items(self, items: Tensor, width: int) -> Tensor:
        """The inverse: ``(n * slices, slice width)`` to ``(n, width)``, what fills slices up cut off."""
        slices = self.grid.slices
        if slices == 1:
            return items
        rows = items.reshape(len(items) // slices, slices * items.shape[1])
        if rows.shape[1] == width:
            return rows
        return rows[:, :width].clone(memory_format=torch.contiguous_format)  # complex rows are views of pairs

    def slices(self, x: Tensor) -> Tensor:
        """This rank's slice of rows: of all vertices of its part, ascending by id, then of others that these read.

        Differentiable. Collective. :meth:`rows` is the adjoint of its first ``slice_graph(...).num_owned`` rows, and
        brings them back.

        Args:
            x: ``(num_owned, C)`` or ``(num_owned, C, *F)``, whole rows; C columns, or heads, are divided.

        Returns:
            ``(num_rows, C / slices, *F)``: columns ``[s * w, (s + 1) * w)`` of w = C / slices on a rank of slice s.
            Columns that slices do not divide are filled up with zeros; heads must be divided.

        Raises:
            ValueError: The depth is above 1, C heads are not divided by the slices, or a wrong shape.
        """
        places = self._slice_places("slices")
        require_tensors(x=x)
        if x.dim() < 2 or len(x) != self.layout.num_owned:
            raise ValueError(
                f"x must have shape (num_owned, C, ...) with num_owned = {self.layout.num_owned} (got {tuple(x.shape)})"
            )
        slices = self.grid.slices
        if x.dim() > 2 and x.shape[1] % slices:
            raise ValueError(
                f"x has {x.shape[1]} heads, which {slices} slices do not divide; choose a number of heads that is a"
                " multiple of it, or a grid with other slices"
            )
        heads = x.shape[1] // slices
        items = self.to_items(x) if x.dim() == 2 else x.reshape(len(x) * slices, heads, *x.shape[2:])
        return self.expand(items, places.expand).index_select(0, places.taken)

    def rows(self, h: Tensor) -> Tensor:
        """Turn slices, as a layer made them of :meth:`slices`, back into whole rows. Differentiable. Collective.

        Args:
            h: ``(num_rows, w, *F)``, this rank's slice of all vertices of its part; further rows are left out.

        Returns:
            ``(num_owned, slices * w, *F)``, columns slice by slice.

        Raises:
            ValueError: The depth is above 1, or a wrong shape.
        """
        places = self._slice_places("rows")
        require_tensors(h=h)
        if h.layout != torch.strided or h.device != self.device:
            raise ValueError(f"h must be a dense tensor on {self.device} (got {h.layout} on {h.device})")
        num_rows = len(places.put)
        if h.dim() < 2 or len(h) not in (num_rows, len(places.taken)):
            raise ValueError(
                f"h must hold the {num_rows} rows of this rank's part, of w columns each (got {tuple(h.shape)})"
            )
        layout = self.layouts[places.fold]
        held = h.new_zeros(layout.num_local, *h.shape[1:]).index_copy(0, places.put, h[:num_rows])
        items = self.fold(held, places.fold)
        return items.reshape(self.layout.num_owned, self.grid.slices * h.shape[1], *h.shape[2:])

    def are_slices(self, num_rows: int) -> bool:
        """Whether so many rows are this rank's :meth:`slices`, and not whole rows of its vertices."""
        if self._places is None or self.grid.slices == 1 or num_rows == self.layout.num_owned:
            return False
        return num_rows in (len(self._places.put), len(self._places.taken))

    def slice_neighbourhoods(self) -> LocalGraph:
        """The edges of this rank between rows of :meth:`slices`, made anew in each call. Collective.

        Raises:
            ValueError: The depth is above 1.
        """
        places, local, slices = self._slice_places("slice_graph"), self.local, self.grid.slices
        owned = np.stack([local.in_degrees, local.out_degrees], 1)[: local.num_owned]
        degrees = self.expand(torch.from_numpy(owned).to(self.device), places.expand)
        return places.local_graph(local, slices, degrees.index_select(0, places.taken).cpu().numpy())

    def _slice_places(self, what: str) -> SlicePlaces:
        if self.grid.depth > 1:
            raise ValueError(
                f"{what} needs complete neighbourhoods of a slice, and on grid ({self.grid}) they are spread over"
                f" {self.grid.depth} ranks; aggregate with comm.aggregator() or a layer of dgcl.nn, or choose a grid of"
                " depth 1"
            )
        if self.edges not in ("head", "grid"):
            self.require_neighbourhoods(what)
        if self._places is None:
            with torch.inference_mode(False):  # its indices are kept, and saved for backwards
                self._places = find_places(
                    self.grid.slice_of(self.rank), self.grid.slices, self.layouts, self.device
                )
        return self._places

    def require_neighbourhoods(self, what: str) -> None:
        """Raise where this rank does not have all in-edges of its vertices.

        Args:
            what: What needs them.

        Raises:
            ValueError: With the ways out.
        """
        if self.edges == "head":
            return
        here, instead = f"strategy={self.edges!r}", "with strategy='halo'"
        if self.edges == "grid":
            here, instead = f"grid ({self.grid})", "without a grid"
        slices = ""
        if self.edges == "grid" and self.grid.depth == 1:
            slices = ", run it on comm.slice_graph() with the rows of comm.slices(), bring them back by comm.rows()"
        raise ValueError(
            f"{what} needs all in-edges of a rank's vertices, and with {here} rank {self.rank} has"
            f" the {self.local.num_edges} edges that it sums: the others' sums for its vertices come as partial"
            f" sums. Either aggregate with comm.aggregator() or a layer of dgcl.nn{slices}, or build the communicator"
            f" {instead}"
        )

    def end(self, failure: CommError | None) -> None:
        """Close it, because of a failure if there is one: who waits for rows of this rank hears whose fault it is."""
        failure = failure or self.control.lost()
        for transport in (self.transport, *self.side_transports):
            if failure is not None:
                transport.fail(failure)
            transport.close()

    @property
    def failure(self) -> CommError | None:
        """Why it, or one of its offloads, is unusable; None if all can be used, or were closed."""
        every = (self.transport, *self.side_transports)
        return next((failure for each in every if (failure := each.failure) is not None), None)

    def fail(self, reason: str) -> None:
        """Report to the peers that this rank has failed, so that they stop waiting for it at once."""
        for transport in (self.transport, *self.side_transports):
            transport.fail(CommError(f"rank {self.rank}: {reason}"))

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
        """Close the communicator. Idempotent, not collective; results of earlier calls stay valid."""
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


def _check_ids(ids: Tensor, num_nodes: int) -> None:
    """Refuse what are no ids of vertices."""
    require_tensors(ids=ids)
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1:
        raise TypeError(
            f"ids must be (n,) int64 or int32, ids of vertices in the whole graph (got {ids.dtype}, shape"
            f" {tuple(ids.shape)}); a mask selects rows by itself: rows[mask]"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise ValueError(
            f"ids must lie in [0, {num_nodes}), vertices of the whole graph (got {int(ids.min())} to {int(ids.max())})"
        )


def given_or_current(comm: Communicator | None) -> Communicator:
    """The communicator of a call: the one that was given, or the current one."""
    if comm is None:
        return context.communicator or context.require_communicator()
    if not isinstance(comm, Communicator):
        raise TypeError(
            f"comm must be a dgcl.Communicator, or None for the current one (got {type(comm).__name__})"
        )
    return comm
