"""The communicator: what a rank holds after :func:`dgcl.build_comm_info`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgcl.autograd import operators as ops
from dgcl.autograd.pending import PendingRows, fold_halo
from dgcl.errors import CommError
from dgcl.planner.plan import Plan
from dgcl.program import Program
from dgcl.program.memory_report import MemoryReport, predict_memory
from dgcl.ranks.control import Control, all_reduce_sum
from dgcl.ranks.handle import Handle
from dgcl.ranks.whole_rows import agree, collect_rows, dispatch_rows
from dgcl.relation.local_graph import LocalGraph
from dgcl.transport.cuda import connect_device
from dgcl.transport.describe import describe_channels, profiled
from dgcl.transport.row_checks import check_rows
from dgcl.transport.shared_memory import Runtime
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.other_communicators import introduce
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.results import as_tensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dgcl.bench.exchange import Exchange
    from dgcl.frameworks.split import SplitGraph
    from dgcl.transport.cuda.gpu import Device


class Communicator(Handle):
    """One rank's end of a planned exchange over one partitioned graph.

    Rows are numbered locally: first this rank's own vertices in ascending global id (``owned_ids``), then the
    halo, the vertices of other ranks that this rank's edges read (``halo_ids``, in the plan's order). With
    replicas (:mod:`dgcl.replication`), the first ``num_core`` owned rows are this rank's own vertices.

    Attributes:
        rank, world_size: This rank and the number of ranks, as in the group.
        num_nodes, num_edges: Of the whole graph.
        plan, choice: The plan that is executed; why this one, where there was a choice.
        local: This rank's edges and degrees (:class:`~dgcl.relation.local_graph.LocalGraph`).
        control: The control plane.
        timeout: Seconds that a rank waits for another inside a call.
        device: Where the rows are that it moves.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        local: LocalGraph,
        sizes: tuple[int, int],
        control: Control,
        timeout: float,
        channel: str = "auto",
        device: Device | None = None,
    ) -> None:
        self.rank, self.world_size = program.rank, program.world_size
        self.num_nodes, self.num_edges = sizes
        self.plan, self.local, self.control, self.timeout = plan, local, control, timeout
        self._program = program
        self._runtime = Runtime(program, control, timeout, channel)
        try:
            self._on_device = connect_device(program, control, timeout, device, self._runtime, channel)
        except BaseException:
            self._runtime.close()  # whoever keeps the error keeps this object, and with it threads and connections
            raise
        self.device = torch.device("cpu") if device is None else device.tensors.device
        self._exchange: Exchange | None = self._on_device
        self.choice = ""
        self._dropout_calls = 0
        self._number = ops.register_communicator(self)
        introduce(self)

    # What is where.

    @property
    def num_owned(self) -> int:
        """Rows that this rank computes: vertices that it owns, and replicas."""
        return self._program.num_owned

    @property
    def num_core(self) -> int:
        """The first of them, without replicas: every vertex is a core row of exactly one rank."""
        return self.local.num_core

    @property
    def num_halo(self) -> int:
        """Vertices of other ranks that this rank's edges read."""
        return self._program.num_halo

    @property
    def num_local(self) -> int:
        """``num_owned + num_halo``: the rows that :func:`dgcl.graph_allgather` returns."""
        return self._program.num_local

    @property
    def owned_ids(self) -> Tensor:
        """``(num_owned,)`` int64 global ids, ascending, those of replicas for themselves; a copy."""
        return torch.from_numpy(self._program.owned_ids).clone()

    @property
    def halo_ids(self) -> Tensor:
        """``(num_halo,)`` int64 global ids, in the order of the halo rows; a copy."""
        return torch.from_numpy(self._program.halo_ids).clone()

    # Moving rows.

    def expand(self, rows: Tensor) -> Tensor:
        """Owned rows to owned and halo rows: what :func:`dgcl.graph_allgather` does.

        Args:
            rows: ``(num_owned, *F)``, any dtype, any strides. The call is collective: every rank makes it
                with the same ``F`` and dtype.

        Returns:
            ``(num_local, *F)``, bit for bit the owners' rows. Differentiable for floating point; its gradient
            is :meth:`fold`.

        Raises:
            ValueError, TypeError: Wrong shape, device or dtype.
            CommError: A peer is lost, late, or makes another call.
        """
        self._check(rows, self.num_owned, "num_owned")
        return ops.expand(rows, self._number)

    def fold(self, rows: Tensor) -> Tensor:
        """The adjoint: for each owned vertex the sum of the rows that all ranks hold for it.

        Args:
            rows: ``(num_local, *F)``; floating point, complex or integer (no bool).

        Returns:
            ``(num_owned, *F)``, in a fixed order of summation, so the same input gives the same bits. 16-bit
            floats are added in float32 on each rank and rounded once per hop.

        Raises:
            ValueError, TypeError, CommError: As :meth:`expand`.
        """
        self._check(rows, self.num_local, "num_owned + num_halo")
        return ops.fold(rows, self._number)

    def expand_async(self, rows: Tensor) -> PendingRows:
        """Start to exchange halo rows; what :func:`dgcl.graph_allgather_async` does."""
        self._check(rows, self.num_owned, "num_owned")
        return PendingRows(self, rows)

    def fold_halo(self, halo_rows: Tensor, into: Tensor) -> Tensor:
        """Add rows of other ranks' vertices to those vertices' rows, in place.

        Args:
            halo_rows: ``(num_halo, *F)``, what this rank adds, in the order of ``halo_ids``.
            into: ``(num_owned, *F)``, to which others' rows are added, in a fixed order.

        Returns:
            ``into``. Not differentiable.

        Raises:
            ValueError, TypeError, CommError: As :meth:`fold`.
        """
        self._check(halo_rows, self.num_halo, "num_halo")
        self._check(into, self.num_owned, "num_owned")
        if row_type(into.dtype, 1).sum_code < 0 or into.dtype != halo_rows.dtype:
            raise TypeError(f"into must be of a type that has sums, that of halo_rows (got {into.dtype})")
        return fold_halo(self, halo_rows.detach(), into)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """The sum of a small tensor over the ranks, in rank order: the same bits on every rank."""
        return all_reduce_sum(self.control, tensor)

    def next_dropout_call(self) -> int:
        """Number the calls of :func:`dgcl.nn.dropout`, from 0; ranks with the same program count alike."""
        self._dropout_calls += 1
        return self._dropout_calls - 1

    # Getting rows in and out.

    def dispatch_features(self, features: Tensor | ArrayLike | None, *, halo: bool = False) -> Tensor:
        """This rank's rows of a feature matrix of the whole graph.

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
        ids = self._program.owned_ids
        rows = dispatch_rows(self.control, features, self.num_nodes, ids, "features", "vertices")
        rows = rows.to(self.device)
        return self._expand_now(rows) if halo else rows

    def dispatch_edges(self, values: Tensor | ArrayLike | None) -> Tensor:
        """This rank's rows of per-edge data, one per edge of the local graph.

        Args:
            values: ``(num_edges, *F)`` in the order in which the graph's edges were given; on rank 0 alone or
                on every rank.

        Returns:
            ``(num_local_edges, *F)`` on this rank's device, row ``k`` for edge ``local.edge_ids[k]``.
        """
        ids = self.local.edge_ids
        return dispatch_rows(self.control, values, self.num_edges, ids, "values", "edges").to(self.device)

    def collect(
        self, rows: Tensor, dst: int | None = 0, *, file: str | PathLike[str] | None = None
    ) -> Tensor | None:
        """Owned rows of all ranks back in global order; of a vertex with replicas, its owner's.

        Args:
            rows: ``(num_owned, *F)``.
            dst: The rank that gets them; None for every rank.
            file: Write them there as ``.npy`` (by rank ``dst``) instead of returning them.

        Returns:
            ``(num_nodes, *F)`` on ``dst``; None elsewhere, and when written to a file.

        Raises:
            ValueError, TypeError: Wrong rows on some rank, or a file that cannot be written; raised on every
                rank.
        """
        problem = None
        try:
            self._check(rows, self.num_owned, "num_owned", any_device=True)
            if dst is not None and not 0 <= dst < self.world_size:
                raise ValueError(f"dst must be a rank below {self.world_size} or None (got {dst})")
        except (TypeError, ValueError) as error:
            problem = error
        agree(self.control, problem)
        own = slice(self.num_core)
        return collect_rows(self.control, rows[own], self._program.owned_ids[own], self.num_nodes, dst, file)

    def local_graph(self, kind: str = "csr", **options: Any) -> Any:
        """This rank's graph for a framework: "dgl" (a block), "pyg" (an ``edge_index``) or "csr" (plain
        torch).

        See :func:`dgcl.frameworks.local_graph` and the page on frameworks.
        """
        from dgcl.frameworks import local_graph

        return local_graph(kind, self.local, **options)

    def split_graph(self, edge_weight: Tensor | None = None) -> SplitGraph:
        """This rank's edges in two parts, from owned and from halo rows, so that a layer's sum over owned rows
        runs while halo rows arrive; see :class:`~dgcl.frameworks.split.SplitGraph`."""
        from dgcl.frameworks.split import SplitGraph

        return SplitGraph(self, edge_weight)

    # Looking after it.

    def describe(self) -> str:
        """How rows travel between this rank and each other rank, and why; one line for each."""
        reasons = (self._on_device or self._runtime).reasons
        return describe_channels(self._program, reasons, self.plan, self.local, self.choice)

    @property
    def bytes_sent(self) -> dict[str, Tensor]:
        """Bytes written to each peer so far, ``(world_size,)`` int64 each, for "expand" and "fold"."""
        counts = torch.from_numpy((self._on_device or self._runtime).bytes_sent.copy())
        return {"expand": counts[0], "fold": counts[1]}

    def memory(
        self,
        widths: Sequence[int],
        dtype: torch.dtype = torch.float32,
        *,
        training: bool = True,
        input_grad: bool = False,
        constants: Sequence[int] = (),
    ) -> MemoryReport:
        """Predict what this rank's buffers and tables take for a model.

            >>> comm.memory([602, 256, 256]).total              # three layers that exchange their inputs

        Args:
            widths: Elements of a row in each allgather of a forward pass, in their order.
            dtype: Of the rows.
            training: Every result is kept until its layer's backward, as by layers that multiply it with
                parameters; else each is given up before the next.
            input_grad: The first allgather's input needs a gradient, which is given up before the next step.
            constants: Elements of a row in each input that was dispatched with ``halo=True``.

        Returns:
            What a steady state holds. Models that keep results longer hold more.
        """
        staged = (0, 0) if self._on_device is None else self._on_device.staged_rows
        kinds = {"training": training, "input_grad": input_grad}
        return predict_memory(self._program, widths, dtype, constants=constants, staged_rows=staged, **kinds)

    def use_exchange(self, exchange: Exchange | None) -> None:
        """Let something else than the plan move the rows from now on; None: the plan. Call it on every rank.

        This is how baselines train models (:mod:`dgcl.bench`).
        """
        self._exchange = self._on_device if exchange is None else exchange

    def synchronize(self) -> None:
        """Wait until the current stream's work is done, and raise what went wrong between ranks in it.

        On a device calls return before they are carried out; a CommError is raised by the next one, or here. On
        the CPU there is nothing to wait for."""
        if self._on_device is not None:
            self._on_device.synchronize()

    def record_stream(self, rows: Tensor, stream: torch.cuda.Stream) -> None:
        """Tell that a result is read, and may die, on another stream than that of the calls: as torch's own does."""
        if self._on_device is not None:
            self._on_device.use_on(rows, stream.cuda_stream)

    def close(self) -> None:
        """Give the communicator up. Idempotent, not collective; results of earlier calls stay valid."""
        for side in (self._exchange, self._on_device, self._runtime):
            if side is not None:
                side.close()

    def fail(self, reason: str) -> None:
        """Tell the peers that this rank will not go on, so that they stop waiting for it at once."""
        for side in (self._on_device, self._runtime):
            if side is not None:
                side.fail(CommError(f"rank {self.rank}: {reason}"))

    def __del__(self) -> None:
        for name in ("_on_device", "_runtime"):
            side = self.__dict__.get(name)
            if side is not None and not sys.is_finalizing():  # a dying interpreter's memory goes anyway
                side.close()

    def __repr__(self) -> str:
        rows = f"{self.num_owned} owned and {self.num_halo} halo rows"
        plan = f"plan {self.plan.method!r} with {self.plan.num_stages} stage(s)"
        return f"<dgcl.Communicator rank {self.rank} of {self.world_size}: {rows}, {plan}>"

    # Called by the operators.

    def _expand_now(self, rows: Tensor) -> Tensor:
        return self._expand_planned(rows) if self._exchange is None else self._exchange.expand(rows)

    def _expand_planned(self, rows: Tensor) -> Tensor:
        with profiled(self._program, "expand", rows):
            return self._expand_rows(rows)

    def _expand_rows(self, rows: Tensor) -> Tensor:
        if self._on_device is not None:
            return self._on_device.expand(rows)
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        block = self._runtime.expand_buffer(kind)
        result = self._as_tensor(block, (self.num_local, *rows.shape[1:]), rows.dtype)
        own = rows.data_ptr()
        if not rows.is_contiguous():
            result[: self.num_owned].copy_(rows)
            own = 0
        self._runtime.expand(block, kind, own)
        return result

    def _fold_now(self, rows: Tensor) -> Tensor:
        if row_type(rows.dtype.to_real(), 1).sum_code < 0:
            raise TypeError(f"rows: {rows.dtype} rows cannot be summed; convert them to a wider type first")
        if rows.dtype.is_complex:
            return torch.view_as_complex(self._fold_now(torch.view_as_real(rows)))
        return self._fold_planned(rows) if self._exchange is None else self._exchange.fold(rows)

    def _fold_planned(self, rows: Tensor) -> Tensor:
        with profiled(self._program, "fold", rows):
            return self._fold_rows(rows)

    def _fold_rows(self, rows: Tensor) -> Tensor:
        if self._on_device is not None:
            return self._on_device.fold(rows)
        rows, kind = rows.contiguous(), row_type(rows.dtype, math.prod(rows.shape[1:]))
        block = self._runtime.fold(rows.data_ptr(), kind)
        return self._as_tensor(block, (self.num_owned, *rows.shape[1:]), rows.dtype)

    def _as_tensor(self, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return as_tensor(self._runtime.pool, block, shape, dtype)

    def _check(self, rows: Tensor, expected: int, words: str, any_device: bool = False) -> None:
        check_rows(rows, expected, words, self.rank, self.device, any_device=any_device)
