"""Computes a layer chunk by chunk over rows in host memory, forward and backward.

The forward computes every chunk without autograd's graph. The backward takes the batches in descending order, and
computes each chunk again with gradients, or from its kept aggregate (sums over neighbours). An error names the chunk.
Called by `layer_function` and `offload`. Free to change while training steps give losses, gradients and parameters of
one device (`tests/dgcl/offload/test_equality.py`), and exactly the rows move that the schedule says
(`tests/dgcl/offload/test_layer.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.nn.vertex_dropout import rows_of_call
from dgcl.offload.account import Account
from dgcl.offload.allocations import Allocations
from dgcl.offload.batch_tables import Batch, HostRows, RankTables, Swap
from dgcl.offload.chunk_graphs import ChunkGraphs, ChunkRows, Sums
from dgcl.offload.chunked_rows import RowOrder
from dgcl.offload.host_store import HostStore
from dgcl.offload.placing import add_rows, bytes_of_row, move_rows
from dgcl.offload.recompute import RandomNumbers, in_place_of, without_hooks
from dgcl.offload.residency import Ids
from dgcl.transport.base import Transport


@dataclass(frozen=True, eq=False)
class Machinery:
    """What all layers of an :class:`~dgcl.offload.offload.Offload` share, and how its rows move.

    Attributes:
        comm: The communicator.
        tables: What it does in each batch.
        order: In which host memory has its rows.
        graphs: Its chunks.
        store: Host memory.
        transport: Between ranks; None where no rank ever sends a row.
        account: Counts what moves.
        allocations: Counts all that layers take; None: widths are not known.
        ranks_are_threads: Of one process, whose generator they share.
        fail: Tells the other ranks why this one will not go on.
    """

    comm: Communicator
    tables: RankTables
    order: RowOrder
    graphs: ChunkGraphs
    store: HostStore
    transport: Transport | None
    account: Account
    allocations: Allocations | None
    ranks_are_threads: bool
    fail: Callable[[str], None]

    def new_slots(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Zeros, so that nothing that is read before it is written is NaN; and a buffer for what travels at a time."""
        if self.transport is not None:
            for x in inputs:  # pieces of smaller batches would be too small
                self.transport.empty((self.tables.travelling * bytes_of_row(x) + 512,), torch.uint8)
        return [
            torch.zeros((self.tables.num_slots, *x.shape[1:]), dtype=x.dtype, device=self.comm.device)
            for x in inputs
        ]

    def load_ahead(self, inputs: Sequence[Tensor], load: HostRows) -> None:
        """Let the kernel read from files what :meth:`bring` is to bring next, while this batch is computed."""
        for x in inputs:
            self.store.will_need(x, _index(load.rows))

    def bring(
        self,
        inputs: Sequence[Tensor],
        slots: Sequence[Tensor],
        load: HostRows,
        swap: Swap | None,
        again: bool,
    ) -> None:
        """Load rows of this rank into slots, then get those of others. Collective where ``swap`` is."""
        suffix = "_again" if again else ""
        for x, held in zip(inputs, slots, strict=True):
            self.store.load(x, _index(load.rows), held, _index(load.slots))
            self.account.add(f"loaded{suffix}", len(load.rows), bytes_of_row(x))
        if swap is None:
            return
        assert self.transport is not None
        for held in slots:
            came = self.transport.begin_expand(
                held.index_select(0, _index(swap.send).to(held.device)), swap.number, wait=True
            ).wait()
            move_rows(held, _index(swap.receive), came)
            self.account.add(f"exchanged{suffix}", len(swap.receive), bytes_of_row(held))

    def give_back(
        self,
        gradients: Sequence[Tensor | None],
        slots: Sequence[Tensor | None],
        load: HostRows,
        swap: Swap | None,
    ) -> None:
        """Return gradients to the owners of rows, then this rank's to host memory. Collective where ``swap`` is."""
        for held in slots:
            if swap is None or held is None:
                continue
            assert self.transport is not None
            mine = held.index_select(0, _index(swap.receive).to(held.device))
            sums = held.new_zeros((len(swap.send), *held.shape[1:]))
            self.transport.begin_fold(mine, swap.number, wait=True).wait(sums)
            add_rows(held, _index(swap.send), sums)
            self.account.add("exchanged_again", len(swap.receive), bytes_of_row(held))
        first, again = np.flatnonzero(~load.again), np.flatnonzero(load.again)
        for grad, held in zip(gradients, slots, strict=True):
            if grad is None or held is None:
                continue
            self.store.unload(grad, _index(load.rows[first]), held, _index(load.slots[first]))
            self.store.add(grad, _index(load.rows[again]), held, _index(load.slots[again]))
            self.account.add("gradients_out", len(load.rows), bytes_of_row(held))


@dataclass(eq=False)
class LayerCall:
    """One call of a layer, with what its forward keeps for its backward.

    Attributes:
        machinery: The rank's.
        number: Of the layer's call, for messages.
        module: Called with (graph, rows of sources, own rows), or with (aggregate) or (aggregate, own rows).
        is_single: Its rows are one tensor, not a tuple.
        sums: The aggregation that is made here; None: the module aggregates.
        own_rows: With an aggregation, whether the module gets own rows, too.
        aggregate: ``(num_owned, *F)`` one that was kept before; after a forward the one that it kept.
        keep: Keep the aggregate for the backward; else it is made again there.
        keeps: Keep the aggregate whether there will be a backward or not.
        dropout_calls: The numbers of its calls of vertex dropout.
        autocast: (enabled, type) of mixed precision.
        gives_tuple: Whether the module gave a tuple.
        drawn: The random numbers that chunks drew.
    """

    machinery: Machinery
    number: int
    module: Callable[..., Any]
    is_single: bool
    sums: Sums | None
    own_rows: bool
    aggregate: Tensor | None
    autocast: tuple[bool, torch.dtype]
    keep: bool = True
    keeps: bool = False
    dropout_calls: list[int] = field(default_factory=list)
    gives_tuple: bool = False
    drawn: RandomNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.drawn = RandomNumbers(self.machinery.ranks_are_threads, self.machinery.comm.device)

    @property
    def is_module(self) -> bool:
        """Whether others can be put in the place of its parameters; those of a function are read where they are."""
        return isinstance(self.module, torch.nn.Module)

    # Forward

    def forward(self, inputs: Sequence[Tensor], keep: bool) -> list[Tensor]:
        """Compute all chunks; the results' rows. Collective.

        Here and in :meth:`backward` rows are memory, in the order of chunks.

        Args:
            inputs: ``(num_owned, *F)`` each.
            keep: There will be a backward, which wants the aggregate.
        """
        work, is_made = self.machinery, self.aggregate is not None
        slots = [] if is_made else work.new_slots(inputs)
        outs: list[Tensor] = []
        kept: Tensor | None = None
        for number, batch in enumerate(work.tables.batches):
            if not is_made:
                work.bring(inputs, slots, batch.load, batch.begin, again=False)
                if number + 1 < len(work.tables.batches):
                    work.load_ahead(inputs, work.tables.batches[number + 1].load)
            if not self._is_computed(number):
                continue
            with self._told(number), torch.no_grad():
                if self.aggregate is not None:
                    rows = self._kept_rows(self.aggregate, batch, inputs)
                else:
                    rows = self._rows(number, batch, slots)
                    if keep and self.sums is not None:
                        kept = self._stored(kept, batch, rows[0], "kept")
                with self.drawn.first(number):
                    results = self._compute(number, rows, ())
            outs = outs or [None] * len(results)  # type: ignore[list-item]
            outs = [self._stored(out, batch, got, "stored") for out, got in zip(outs, results, strict=True)]
        self.aggregate = self.aggregate if is_made else kept
        return outs

    def _rows(self, number: int, batch: Batch, slots: Sequence[Tensor]) -> list[Tensor]:
        """What a chunk reads; or its aggregate, and its own rows where the module wants them."""
        work = self.machinery
        if self.sums is None:
            return [held.index_select(0, _ids(batch).to(held.device)) for held in slots]
        result = [self.sums.forward(work.graphs.edges(number), slots[0])]
        own = _ids(batch)[: _count(batch)].to(work.comm.device)
        return [*result, slots[0].index_select(0, own)] if self.own_rows else result

    def _kept_rows(self, aggregate: Tensor, batch: Batch, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same from host memory."""
        work = self.machinery
        sources = [(aggregate, "kept_again"), (inputs[0], "loaded_again")][: 1 + self.own_rows]
        for rows, kind in sources:
            work.account.add(kind, _count(batch), bytes_of_row(rows))
        return [work.store.read(rows, batch.rows).to(work.comm.device) for rows, _ in sources]

    def _stored(self, out: Tensor | None, batch: Batch, rows: Tensor, kind: str) -> Tensor:
        """Write a chunk's rows to host memory, which is made when the first ones come."""
        work = self.machinery
        if out is None:
            total = work.tables.batches[-1].rows.stop
            holds = "aggregates" if kind == "kept" else "results"
            with torch.inference_mode(False):  # an aggregate that is kept may be saved for a backward later
                out = work.store.empty((total, *rows.shape[1:]), rows.dtype, holds)
        elif rows.shape[1:] != out.shape[1:] or rows.dtype != out.dtype:
            raise ValueError(
                f"{self} gives rows of shape {tuple(rows.shape[1:])} and {rows.dtype}, and gave {tuple(out.shape[1:])}"
                f" and {out.dtype} in another chunk; rows must be the same whatever the chunk"
            )
        work.store.write(out, batch.rows, rows)
        work.account.add(kind, len(rows), bytes_of_row(out))
        return out

    # Backward

    def backward(
        self,
        inputs: Sequence[Tensor],
        parameters: Sequence[tuple[Tensor, Tensor]],
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
        aggregate: Tensor | None = None,
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Gradients of inputs and of parameters. Collective.

        Args:
            inputs: As in the forward.
            parameters: With their values there, which hooks of saved tensors may have made anew.
            grads: Of its results.
            needed: Which inputs need one.
            aggregate: The kept one; None: it is made again.
        """
        work, again = self.machinery, aggregate is None
        slots = work.new_slots(inputs) if again else []
        opened = [
            work.new_slots([x])[0] if needs_grad else None
            for x, needs_grad in zip(inputs, needed, strict=True)
        ]
        input_grads = [
            work.store.empty(tuple(x.shape), x.dtype, "gradients") if needs_grad else None
            for x, needs_grad in zip(inputs, needed, strict=True)
        ]
        totals: list[Tensor | None] = [None] * len(parameters)
        order = range(len(work.tables.batches) - 1, -1, -1)  # so that a residency is returned where it began
        for number, following in zip(order, [*order[1:], None], strict=True):
            batch = work.tables.batches[number]
            if again:
                work.bring(inputs, slots, batch.reload, batch.end, again=True)
                if following is not None:
                    work.load_ahead(inputs, work.tables.batches[following].reload)
            for held in opened:
                if held is not None:
                    held.index_fill_(0, _index(batch.opened).to(work.comm.device), 0)
            if self._is_computed(number):
                with self._told(number):
                    if aggregate is not None:
                        rows = self._kept_rows(aggregate, batch, inputs)
                    else:
                        rows = self._rows(number, batch, slots)
                    new_grads = self._differentiate(number, batch, rows, parameters, grads, opened)
                totals = [_sum(total, new) for total, new in zip(totals, new_grads, strict=True)]
            if any(needed):
                work.give_back(input_grads, opened, batch.load, batch.begin)
        return input_grads, totals

    def _differentiate(
        self,
        number: int,
        batch: Batch,
        rows: Sequence[Tensor],
        parameters: Sequence[tuple[Tensor, Tensor]],
        grads: Sequence[Tensor | None],
        opened: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Add the gradients of a chunk's sources to those in slots; return those of the parameters."""
        work = self.machinery
        kept = self.sums is not None
        needed = [held is not None for held in opened] if not kept else [opened[0] is not None] * len(rows)
        for each, needs_grad in zip(rows, needed, strict=True):
            each.requires_grad_(needs_grad)
        stand_ins = [x.detach().requires_grad_() if self.is_module else p for p, x in parameters]
        replaced = [(p, other) for (p, _), other in zip(parameters, stand_ins, strict=True)]
        with torch.enable_grad(), self.drawn.again(number):
            results = self._compute(number, rows, replaced)
        pairs = [
            (got, work.store.look_at(grad, batch.rows).to(work.comm.device))
            for got, grad in zip(results, grads, strict=True)
            if grad is not None and got.requires_grad
        ]
        for _, grad in pairs:
            work.account.add("gradients_in", len(grad), bytes_of_row(grad))
        leaves = [each for each, needs_grad in zip(rows, needed, strict=True) if needs_grad]
        if not pairs or not (leaves or stand_ins):
            return [None] * len(parameters)
        with without_hooks(stand_ins):
            new_grads = torch.autograd.grad(
                [got for got, _ in pairs],
                [*leaves, *stand_ins],
                [grad for _, grad in pairs],
                allow_unused=True,
            )
        self._add(number, batch, list(new_grads[: len(leaves)]), opened)
        return list(new_grads[len(leaves) :])

    def _add(
        self, number: int, batch: Batch, new_grads: list[Tensor | None], opened: Sequence[Tensor | None]
    ) -> None:
        """Add gradients of what the module was given to those of slots; a slot is a source once."""
        work, places = self.machinery, _ids(batch)
        if self.sums is None:
            for held in opened:
                if held is not None and (new := new_grads.pop(0)) is not None:
                    add_rows(held, places, new)
        elif opened[0] is not None:
            if new_grads[0] is not None:
                self.sums.adjoint(work.graphs.edges(number), new_grads[0], opened[0])
            if self.own_rows and new_grads[1] is not None:
                add_rows(opened[0], places[: _count(batch)], new_grads[1])

    # One chunk

    def _compute(
        self, number: int, rows: Sequence[Tensor], parameters: Sequence[tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """Call the module on a chunk, and check what it gives."""
        work = self.machinery
        count = _count(work.tables.batches[number])
        arguments: tuple[Any, ...] = tuple(rows)
        if self.sums is None:
            own = [each[:count] for each in rows]
            arguments = (
                work.graphs.graph(number),
                *((rows[0], own[0]) if self.is_single else (tuple(rows), tuple(own))),
            )
        chunk = ChunkRows(
            work.comm.rank, work.graphs.chunk(number).local, self.dropout_calls, work.comm.next_dropout_call
        )
        enabled, dtype = self.autocast
        precision = torch.autocast(work.comm.device.type, dtype, enabled, cache_enabled=False)
        with rows_of_call(chunk), precision, in_place_of(self.module, parameters):
            results = self.module(*arguments)
        self.gives_tuple = isinstance(results, tuple)
        outputs = list(results) if isinstance(results, tuple) else [results]
        for each in outputs:
            if not isinstance(each, Tensor) or each.dim() == 0 or len(each) != count:
                got = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
                raise ValueError(
                    f"{self} must give one row for each of the {count} vertices of a chunk (got {got}): a chunk has all"
                    f" in-edges of these vertices and of no others, so give the rows of its last argument's vertices"
                )
        return outputs

    def _is_computed(self, number: int) -> bool:
        """Whether the chunk is: it has vertices, or it is the first one of a rank that has none."""
        batches = self.machinery.tables.batches
        return _count(batches[number]) > 0 or (number == 0 and batches[-1].rows.stop == 0)

    @contextmanager
    def _told(self, number: int) -> Iterator[None]:
        """Say in errors where they happened."""
        try:
            yield
        except Exception as error:
            total = len(self.machinery.tables.batches)
            error.add_note(f"in chunk {number} of {total} of {self} on rank {self.machinery.comm.rank}")
            if isinstance(error, (AttributeError, TypeError)):  # as of what is done to a tuple
                error.add_note("if the layer takes no pair of rows: self.conv(src, g.edge_index)[: len(dst)]")
            raise

    def __str__(self) -> str:
        return f"layer {self.number} ({type(self.module).__name__})"


def _ids(batch: Batch) -> Tensor:
    return _index(batch.sources)


def _index(ids: Ids) -> Tensor:
    return torch.from_numpy(ids)


def _count(batch: Batch) -> int:
    return batch.rows.stop - batch.rows.start


def _sum(total: Tensor | None, new: Tensor | None) -> Tensor | None:
    if total is None or new is None:
        return new if total is None else total
    return total + new
