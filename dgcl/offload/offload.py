"""Implements ``dgcl.Offload``: training with rows in host memory or files, layers computed chunk by chunk.

A rank's device holds only rows that the chunk at hand, chunks of other ranks at that time, or later chunks read. This
class checks arguments (:mod:`dgcl.offload.refusals`), has chunks arranged (:mod:`dgcl.offload.arranging`) and calls
layers (:mod:`dgcl.offload.layer_function`). Terms are defined in :mod:`dgcl.offload.schedule`.
Run by users as ``dgcl.Offload``. Free to change while training equals that on one device
(`tests/dgcl/offload/test_equality.py`), and rows come back in the graph's order, ``memory_limit`` is kept and wrong
arguments are refused (`tests/dgcl/offload/test_offload.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.errors import CommError
from dgcl.offload.account import Account
from dgcl.offload.allocations import Allocations
from dgcl.offload.arranging import Request, arrange
from dgcl.offload.chunk_graphs import ChunkGraphs, Sums
from dgcl.offload.chunked_losses import chunked_accuracy, chunked_cross_entropy
from dgcl.offload.chunked_rows import ChunkedRows, RowOrder
from dgcl.offload.description import OffloadMemory
from dgcl.offload.host_store import HostStore
from dgcl.offload.keeping import ConstantAggregates, Keeping
from dgcl.offload.layer import LayerCall, Machinery
from dgcl.offload.layer_function import run_layer
from dgcl.offload.norms import chunked_batch_norm
from dgcl.offload.offload_prediction import GRAPH_BYTES, host_bytes
from dgcl.offload.refusals import (
    agree_on_layer,
    check_aggregate,
    check_module,
    check_offload,
    check_rows_of_layer,
    learned_by,
    no_room,
)
from dgcl.offload.rehearsal import measured
from dgcl.planner.planning_options import PlanOptions
from dgcl.ranks.freed_memory import return_freed_memory
from dgcl.ranks.handle import Handle
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree, dispatch_rows
from dgcl.topology.free_memory import available_memory
from dgcl.topology.sizes import as_bytes
from dgcl.transport.connect import connect_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_log = logging.getLogger("dgcl")

Rows = Tensor | tuple[Tensor, ...]


class Offload(Handle):
    """Layers over rows in host memory, chunk by chunk, with the results of the whole graph at once.

        >>> off = dgcl.Offload(comm, chunks=16, store="/scratch")
        >>> x = off.dispatch_features(features)
        >>> h = off.layer(first, x)                          # first(g, src, dst) -> rows of dst
        >>> h = off.layer(second, h, aggregate="mean")       # second(aggregate) -> rows; no neighbour is loaded again
        >>> loss = off.cross_entropy(h, labels, mask); loss.backward()

    Rows are CPU tensors ``(num_owned, *F)`` in the order of ``comm.owned_ids``. Those that this object gives are stored
    chunk by chunk (:mod:`dgcl.offload.chunked_rows`), which no operation of torch or of this library sees; any others
    are as good, and are copied when they come in. All methods but the attributes are collective.

    Over time: a layer's forward loads each row once for all chunks of a batch that read it, and computes each chunk
    without a graph. Its backward computes the chunks again, in descending order.

    Args:
        comm: The communicator, with ``strategy="halo"``.
        chunks: Chunks of each rank, 1024 at most. Else ``memory_limit``: as few as are predicted to fit.
        memory_limit: Bytes of device memory of a rank, or "8GB"; with ``widths``. A layer that takes more raises.
        widths: Elements of a row of the input and of each layer's result; for ``memory_limit`` and for what
            :meth:`describe` predicts.
        layers: With ``widths``: the modules that :meth:`layer` will be given. Each is run on a chunk of zeros,
            so that what it makes inside itself counts; None in place of one that takes an aggregate.
        dtype: Of the rows, for the same.
        store: None: rows are in the process's memory; or a folder, in which each tensor is an unlinked file.
        store_cached: False: pages of files are given up once they were read or written.
        slots: Rows a rank can hold; default: what its fullest batch needs.
        keep_graphs: Keep what was made of each chunk's edges for the next time; False: one chunk's at a time. Default:
            on CPUs, unless ``memory_limit`` is given, or they take more than a quarter of the memory that is free.
        chunk_by: "metis", or "range" (of ascending ids).
        kind: Of the graph that modules get: "csr", "pyg" or "dgl", as in ``comm.local_graph``.
        method, plan: For the plans of the exchanges between ranks.

    Attributes:
        comm: The communicator.
        num_chunks: Chunks of each rank.
        store: Host memory (:class:`~dgcl.offload.host_store.HostStore`).
        account: Rows and bytes that moved so far, by kind (:class:`~dgcl.offload.account.Account`).

    Raises:
        ValueError: Bad arguments, ranks that ask for different things, or a limit that nothing fits; on every rank.
    """

    @set_up_call
    def __init__(
        self,
        comm: Communicator,
        *,
        chunks: int | None = None,
        memory_limit: int | str | None = None,
        widths: Sequence[int] | None = None,
        layers: Sequence[Callable[..., Any] | None] | None = None,
        dtype: torch.dtype = torch.float32,
        store: str | os.PathLike[str] | None = None,
        store_cached: bool = True,
        slots: int | None = None,
        keep_graphs: bool | None = None,
        chunk_by: str = "metis",
        kind: Literal["csr", "pyg", "dgl"] = "csr",
        method: str = "auto",
        plan: PlanOptions | None = None,
    ) -> None:
        if not isinstance(comm, Communicator):
            raise TypeError(f"comm must be a dgcl.Communicator (got {type(comm).__name__})")
        problem: Exception | None = None
        try:
            check_offload(comm, memory_limit, widths, layers, dtype, plan, keep_graphs, store_cached)
            limit = None if memory_limit is None else as_bytes(memory_limit, "memory_limit")
            request = Request(
                chunks, limit, tuple(widths or ()), dtype.itemsize, chunk_by, slots, method, kind
            )
            self.store = HostStore(store, store_cached)
        except (TypeError, ValueError, OSError) as error:
            problem = error
        with comm.collective("Offload"):
            agree(comm.control, problem)
        self.comm = comm
        graphs = GRAPH_BYTES * comm.local.num_edges
        if keep_graphs is None:
            room = available_memory() // (4 * comm.world_size) if comm.device.type == "cpu" else 0
            keep_graphs = memory_limit is None and graphs <= room
        options = plan or PlanOptions(row_bytes=comm.plan.row_bytes)
        memory_counts = memory_limit is not None or not store_cached
        if memory_counts:  # before chunks and a rehearsal make holes that blocks of layers would fill in part
            return_freed_memory()
        threads = comm.world_size > 1 and not comm.control.has_group
        with comm.collective("Offload"):
            arrangement = arrange(
                comm, request, options,
                lambda chunks: measured(comm, layers or (), request.widths, dtype, kind, threads, chunks, limit),
            )  # fmt: skip
        if memory_counts:
            return_freed_memory()
        self.num_chunks = len(arrangement.rows)
        self.account = Account()
        rows = torch.from_numpy(np.concatenate(arrangement.rows))
        self._order = RowOrder(rows, [batch.rows for batch in arrangement.tables.batches], self.store)
        ChunkedRows(rows, self._order).new_empty(0)  # for the first one torch imports modules
        programs = arrangement.tables.programs
        self._transport = (
            connect_rows(programs, comm.control, comm.timeout, comm.device) if programs else None
        )
        allocations = None
        if widths is not None:
            predicted = arrangement.device.bytes(widths, dtype.itemsize, inside=arrangement.inside)
            not_counted = predicted.arrivals + predicted.edges + predicted.small
            allocations = Allocations(None if limit is None else limit - not_counted, comm.device)
        if self._transport is not None:
            comm.side_transports.add(self._transport)
        self._machinery = Machinery(
            comm,
            arrangement.tables,
            self._order,
            ChunkGraphs(comm.local, arrangement.rows, kind, keep_graphs, arrangement.tables, comm.device),
            self.store,
            self._transport,
            self.account,
            allocations,
            threads,
            self.leave,
        )
        self._keeping = Keeping(comm.control, self.store, self.num_owned)
        self._layers, self._constants = 0, ConstantAggregates()
        self._arrangement, self._graphs = arrangement, graphs if keep_graphs else 0
        self._widths, self._itemsize = request.widths, request.itemsize
        comm.offloads.add(self)
        agree(comm.control, no_room(self.memory(), self.store.free_bytes()))
        _log.info("%s", self.describe())

    @property
    def num_owned(self) -> int:
        """Rows of this rank."""
        return len(self._order.rows)

    def dispatch_features(self, features: Tensor | ArrayLike | None) -> Tensor:
        """This rank's rows of a matrix of the whole graph, in host memory; a chunk's rows are in memory at a time.

        Args:
            features: ``(num_nodes, *F)``, torch, numpy or a mapped file, on rank 0 alone (others pass None) or on every
                rank. Vectors, as labels and masks are, are ordinary tensors in the process's memory.

        Raises:
            ValueError: No rank 0 features, or a wrong number of rows; raised on every rank.
            OSError: The store has no room.
        """
        out: Tensor | None = None
        for stretch in self._order.stretches:
            ids = self.comm.local.owned_ids[self._order.rows[stretch].numpy()]
            with self.comm.collective("dispatch_features"):
                piece = dispatch_rows(
                    self.comm.control, features, self.comm.num_nodes, ids, "features", "vertices"
                )
                if out is None:
                    out = self._room(piece)
            self.store.write(out, stretch, piece)
        assert out is not None
        return ChunkedRows(out, self._order) if out.dim() > 1 else out[self._order.places]

    def layer(
        self,
        module: Callable[..., Any],
        x: Rows,
        *,
        aggregate: Literal["sum", "mean"] | None = None,
        own_rows: bool = False,
        edge_weight: Tensor | None = None,
        constant: bool = False,
        keep: bool | Literal["auto"] = "auto",
        parameters: Iterable[Tensor] | None = None,
    ) -> Any:
        """Compute a layer chunk by chunk, differentiably in its rows and its parameters.

        Args:
            module: Called as ``module(g, src, dst)`` for every chunk: its graph, the rows of its sources, and the first
                of them, its own; it gives a row for each row of ``dst``, or a tuple of such tensors. What follows the
                layer (activation, dropout, residual connection) belongs into it. With ``aggregate`` it is called as
                ``module(aggregated)``.
            x: ``(num_owned, *F)`` floating point; or a tuple, then ``src`` and ``dst`` are tuples.
            aggregate: "sum" or "mean" of in-neighbours' rows, made here.
            own_rows: With ``aggregate``: call ``module(aggregated, dst)``.
            edge_weight: With ``aggregate``: constant weights ``(num_local_edges,)`` as ``comm.dispatch_edges`` gives.
            constant: With ``aggregate``: x never changes and needs no gradient; its aggregate is made in the first call
                alone. No neighbour is loaded ever after.
            keep: With ``aggregate``: True keeps it for the backward, where n rows are loaded and no neighbours; False
                makes it again there, which takes no host memory; "auto" keeps it where there is room
                (:mod:`dgcl.offload.keeping`). The results are the same, to the bit.
            parameters: Of a ``module`` that is no ``torch.nn.Module``.

        Returns:
            ``(num_owned, *F')`` in host memory, or a tuple.

        Raises:
            ValueError, TypeError: Bad arguments, a module that cannot be chunked, or ranks that call different layers;
                raised on every rank.
            CommError: A peer is lost, late, or failed in a chunk.
        """
        self._layers += 1
        inputs = tuple(x) if isinstance(x, tuple) else (x,)
        name = f"layer {self._layers} ({type(module).__name__})"
        problem: Exception | None = None
        learned: list[Tensor] = []
        try:
            check_module(module, name, aggregate)
            learned = learned_by(module, parameters)
            check_rows_of_layer(name, inputs, self.num_owned)
            check_aggregate(
                name, inputs, aggregate, own_rows, edge_weight, constant, keep, self.comm.local.num_edges
            )
        except (TypeError, ValueError) as error:
            problem = error
        kept = None if problem or not constant else self._constants.get(inputs[0], aggregate, edge_weight)
        how = (aggregate, own_rows, constant, keep, kept is None, len(learned))
        with self.comm.collective("Offload.layer"):
            agree_on_layer(self.comm.control, name, problem, inputs, how)
        learns = torch.is_grad_enabled() and (bool(learned) or inputs[0].requires_grad)
        if keep == "auto" and aggregate is not None and not constant and learns:
            row_bytes = inputs[0].shape[1:].numel() * inputs[0].element_size()
            with self.comm.collective("Offload.layer"):
                keep = self._keeping.keeps(name, row_bytes)
        kind = self.comm.device.type
        weight = None if edge_weight is None else edge_weight.to(self.comm.device)
        call = LayerCall(
            self._machinery,
            self._layers,
            module,
            not isinstance(x, tuple),
            None if aggregate is None else Sums(aggregate == "mean", weight),
            own_rows,
            kept,
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
            bool(keep),
            keeps=constant,
        )
        out = run_layer(call, [self._order.store(rows) for rows in inputs], learned)
        if constant and kept is None:
            self._constants.put(inputs[0], aggregate, edge_weight, call.aggregate)
        return out

    def infer(self, model: Callable[..., Any], *arguments: Any) -> Any:
        """``model(off, *arguments)`` without gradients, in evaluation: exact inference on the whole graph."""
        if not callable(model):
            raise TypeError(f"model must be a torch.nn.Module or a function (got {type(model).__name__})")
        parts = model.modules() if isinstance(model, torch.nn.Module) else ()
        training = [part for part in parts if part.training]
        try:
            for part in training:
                part.training = False
            with torch.no_grad():
                return model(self, *arguments)
        finally:
            for part in training:
                part.training = True

    def batch_norm(self, norm: torch.nn.BatchNorm1d, x: Tensor) -> Tensor:
        """Normalise rows with the statistics of the whole graph, between layers; x is read three times in training.

        Args:
            norm: ``torch.nn.BatchNorm1d`` or :class:`dgcl.nn.BatchNorm`.
            x: ``(num_owned, C)``.
        """
        return chunked_batch_norm(norm, self._order.store(x), self.comm)

    def cross_entropy(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over all vertices that count, as :func:`dgcl.nn.loss` of it, a chunk at a time.

        Args:
            logits: ``(num_owned, num_classes)``.
            labels: ``(num_owned,)`` int64.
            mask: ``(num_owned,)`` bool, the rows that count; default all.
        """
        return chunked_cross_entropy(self._order.store(logits), labels, mask, self.comm)

    def accuracy(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """The fraction of vertices whose largest logit is that of their label; arguments as :meth:`cross_entropy`'s."""
        return chunked_accuracy(self._order.store(logits), labels, mask, self.comm)

    def describe(self) -> str:
        """Chunks, rows, slots, seconds and bytes by name that were predicted, and those that were counted so far."""
        made, (loaded, exchanged) = self._arrangement, self._arrangement.delivered
        v_ori, v_p2p, v_ru = made.volumes
        memory = self.memory()
        text = (
            f"offload in {self.num_chunks} chunks of each of {self.comm.world_size} ranks, rows in {memory.store}: a"
            f" layer's forward loads {loaded} rows (chunks read {v_ori}, batches {v_p2p}, beyond the batch before"
            f" {v_ru}) and moves {exchanged} between ranks, predicted {made.exchange_seconds:.3g} s of exchange; on"
            f" rank {self.comm.rank} {memory}"
        )
        text += "".join(f"; {about} are {why}" for about, (_, why) in self._keeping.decisions.items())
        return f"{text}; so far: {self.account}" if self.account.rows else text

    def memory(self, *, training: bool = True) -> OffloadMemory:
        """Bytes of this rank's slots and of its rows in host memory, by name: predicted, and counted so far.

        Args:
            training: With a backward.
        """
        device = host = kept = None
        if self._widths:
            sizes, counted = (self._widths, self._itemsize), self._machinery.allocations
            device = self._arrangement.device.bytes(
                *sizes, training=training, inside=self._arrangement.inside
            )
            if counted is not None and counted.peak:
                slots = min(device.slots, counted.peak)
                inside = counted.peak - slots
                device = replace(device, loads=0, slots=slots, sources=0, outputs=0, inside=inside)
            host, kept = (
                host_bytes(self.num_owned, *sizes, kept=each, training=training) for each in (False, True)
            )
        store = self.store
        return OffloadMemory(
            "memory" if store.folder is None else f"files in {store.folder}",
            self._machinery.tables.num_slots,
            self._graphs,
            device,
            host,
            kept,
            store.peak,
            store.held,
        )

    @property
    def host_peak(self) -> int:
        """The most bytes of rows in host memory so far, or in files; ``store.peak`` has them by name."""
        return sum(self.store.peak.values())

    def close(self) -> None:
        """Give it up; rows stay valid. Idempotent, not collective; the communicator stays open."""
        self.comm.offloads.discard(self)
        self.store.close()
        self.leave()

    def __del__(self) -> None:
        if "_machinery" in self.__dict__:
            self.close()

    # Inside

    def leave(self, reason: str = "") -> None:
        """Make no more exchanges, which the peers hear: as this rank gives it up, or has failed for a reason."""
        if self._transport is None:
            return
        if reason:
            self._transport.fail(CommError(f"rank {self.comm.rank}: {reason}"))
        else:
            self._transport.close()

    def _room(self, piece: Tensor) -> Tensor:
        """Host memory for all rows of the kind of these; every rank hears where there is none. Collective."""
        shape, problem, out = (self.num_owned, *piece.shape[1:]), None, piece
        try:
            if piece.dim() > 1:
                out = self.store.empty(shape, piece.dtype, "inputs")
            else:
                out = torch.empty(shape, dtype=piece.dtype, device="cpu")
        except OSError as error:
            problem = error
        agree(self.comm.control, problem)
        return out
