"""The candidates of a round: every exchange, plain copies, and replication's extra work.

A lane runs a few calls of one verb, back to back between two readings of the clock, on inputs and into
memory that it has prepared, and checks every element afterwards. Nothing outside the two readings counts: ranks
that are done sleep until all are, for where ranks outnumber cores their checks would run in the others' time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dgcl.bench import patterns
from dgcl.bench.copies import Copies
from dgcl.bench.flags import Barrier
from dgcl.bench.rounds import Sample
from dgcl.bench.transports import Measured, RuntimeCalls
from dgcl.ranks.control import SingleControl
from dgcl.transport.steps import EXPAND, FOLD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class ExchangeLane:
    """Calls of an exchange whose rows encode the vertex, the column and the iteration."""

    def __init__(self, comm: Communicator, exchange: Measured, flags: Barrier) -> None:
        self._comm, self._exchange, self._flags = comm, exchange, flags
        self._owned = comm.owned_ids.numpy()
        self._local = np.concatenate([self._owned, comm.halo_ids.numpy()])
        # What an expand returns: all local rows, or halo rows alone.
        self._returned = self._local[len(self._owned) if getattr(exchange, "halo_only", False) else 0 :]
        self._holders = _holders(comm)
        self._inputs: list[list[Tensor]] = [[], []]

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Inputs for both verbs."""
        sizes = (len(self._owned), len(self._local))
        self._inputs = [[torch.empty(size, width, dtype=dtype) for _ in range(calls)] for size in sizes]

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Fill the inputs, poison the outputs, synchronise the ranks, run, and check."""
        inputs, exchange, rank, world = (
            self._inputs[verb],
            self._exchange,
            self._comm.rank,
            self._comm.world_size,
        )
        for k in range(calls):
            inputs[k].requires_grad_(False)
            if verb == EXPAND:
                patterns.fill_expand(inputs[k], self._owned, first + k)
            else:
                patterns.fill_fold(inputs[k], self._local, first + k, rank, world)
        exchange.poison()
        call = exchange.expand if verb == EXPAND else exchange.fold
        results: list[Any] = []
        marks: list[int] = []
        self._flags.barrier()
        if not self._flags.shared_clock:
            call(inputs[0].clone())  # brings the ranks into step, which a barrier over a network does not
        begin = time.perf_counter_ns()
        for k in range(calls):
            results.append(call(inputs[k]))
            marks.append(time.perf_counter_ns())
        self._flags.barrier()
        wrong = 0
        for k, result in enumerate(results):
            found = exchange.finish(result) if isinstance(exchange, RuntimeCalls) else result
            if verb == EXPAND:
                wrong += patterns.wrong_expand(found, self._returned, first + k)
            else:
                wrong += patterns.wrong_fold(found, self._owned, self._holders, first + k, world)
        return _sample(begin, marks, wrong, self._flags)


def _sample(begin: int, marks: list[int], wrong: int, flags: Barrier) -> Sample:
    """By the clock of all ranks, or by the rank's own from its own start."""
    start = begin if flags.shared_clock else 0
    shifted = tuple(mark - begin + start for mark in marks)
    return Sample(start, shifted[-1], wrong, shifted)


def _holders(comm: Communicator) -> np.ndarray:
    """The ranks that hold each owned row, as bits; of a replicated vertex, those of this machine. Collective."""
    owned = comm.owned_ids.numpy()
    order = np.argsort(owned)
    holders = np.full(len(owned), np.uint64(1) << np.uint64(comm.rank))
    for rank, halo in enumerate(comm.control.exchange(comm.halo_ids.numpy())):
        if not comm.layout.holds[rank]:
            continue
        mine = halo[np.isin(halo, owned, assume_unique=True)]
        holders[order[np.searchsorted(owned, mine, sorter=order)]] |= np.uint64(1) << np.uint64(rank)
    return holders


class CopyLane:
    """Plain copies of as many bytes as an exchange writes on a rank, on average: ``rows`` rows."""

    def __init__(self, comm: Communicator, rows: float, flags: Barrier) -> None:
        self._control, self._flags, self._timeout = comm.control, flags, comm.timeout
        self._rows = rows
        self._copies: Copies | None = None

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Allocate the memory and touch all of it."""
        self.close()
        num_bytes = round(self._rows * width * dtype.itemsize)
        control = self._control if self._flags.shared_clock else SingleControl()  # copies of its own memory
        self._copies = Copies(control, num_bytes, calls, self._timeout)

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Run a copy; both verbs write the same number of bytes."""
        del verb, first
        copies = self._copies
        assert copies is not None
        copies.poison()
        self._flags.barrier()
        marks: list[int] = []
        begin = time.perf_counter_ns()
        for k in range(calls):
            copies.run(k)
            marks.append(time.perf_counter_ns())
        self._flags.barrier()
        return _sample(begin, marks, copies.wrong(), self._flags)

    def close(self) -> None:
        """Give the memory back."""
        if self._copies is not None:
            self._copies.close()
            self._copies = None


class ReplicationLane:
    """Replication's work in place of communication: sums over the edges of all replicas.

    A sample's time is that of the replicated graph's sums minus that of the rank's own graph's, never below 0.
    """

    def __init__(self, replicated: Communicator, plain: Communicator, flags: Barrier) -> None:
        self._graphs = tuple(comm.local_graph("csr") for comm in (replicated, plain))
        self._ids = tuple(
            np.concatenate([comm.owned_ids.numpy(), comm.halo_ids.numpy()]) for comm in (replicated, plain)
        )
        self._owned, self._flags = plain.num_owned, flags
        self._shape: tuple[int, torch.dtype] = (1, torch.float32)

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Nothing to prepare."""
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"method 'replication' computes in float32 and float64 (got {dtype})")
        self._shape = (width, dtype)

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Sum over both graphs; the sums of own vertices must be the same."""
        width, dtype = self._shape
        wrong, spent = 0, [0, 0]
        for k in range(calls):
            sums = []
            for which, (graph, ids) in enumerate(zip(self._graphs, self._ids, strict=True)):
                x = torch.empty(len(ids), width, dtype=dtype)
                patterns.fill_fold(x, ids, first + k, 0, 1 << 12)
                x.requires_grad_(verb == FOLD)
                self._flags.barrier()
                if verb == EXPAND:
                    begin = time.perf_counter_ns()
                    found = graph.sum(x)
                    spent[which] += time.perf_counter_ns() - begin
                else:
                    found = graph.sum(x)
                    begin = time.perf_counter_ns()
                    found.backward(torch.ones_like(found))
                    spent[which] += time.perf_counter_ns() - begin
                sums.append(found.detach()[: self._owned])
            wrong += int((sums[0] != sums[1]).sum())
        return Sample(0, max(spent[0] - spent[1], 0), wrong)
