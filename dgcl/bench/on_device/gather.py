"""Exchange by ``index_select`` into shared device memory and copies out of it, with torch alone.

The two halves are timed apart, with a barrier of the hosts between them that is not: a program would need one, or
events between processes, so what is measured here is what such a program cannot beat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dgcl.bench.flags import Flags
from dgcl.bench.on_device.clock import Clock
from dgcl.bench.on_device.lanes import Rows
from dgcl.bench.on_device.peers import Needs
from dgcl.bench.rounds import Sample
from dgcl.errors import CommError
from dgcl.transport.cuda.directory import Directory, PeerMemory
from dgcl.transport.cuda.gpu import CudaError
from dgcl.transport.shared_memory.segments import Segment
from dgcl.transport.steps import EXPAND

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.transport.cuda.gpu import Device

_GRANULE = 2 << 20


class Shared:
    """Device memory of every rank that every rank sees. Construction is collective.

    Raises:
        ValueError: Memory cannot be had, exported or opened on some rank; on every rank.
    """

    def __init__(self, device: Device, comm: Communicator, num_bytes: int) -> None:
        self._device, self._control = device, comm.control
        size = -(-max(num_bytes, 1) // _GRANULE) * _GRANULE
        self._address, problem = 0, ""
        self._peers: list[PeerMemory] = []
        self._memory: list[Tensor] = []
        with device.current():
            self._directory = Directory(device)
            try:
                self._address = device.driver.allocate(size)
                self._directory.add(Segment(0, size, np.zeros(0, np.uint8), self._address))
            except CudaError as error:
                problem = str(error)
            descriptors = self._control.exchange((self._directory.descriptor(problem), size))
            problem = next(
                (descriptor.unreachable for descriptor, _ in descriptors if descriptor.unreachable), ""
            )
            try:
                for rank, (descriptor, theirs) in enumerate([] if problem else descriptors):
                    address = self._address
                    if rank != comm.rank:
                        peer = PeerMemory(device, descriptor)
                        self._peers.append(peer)
                        found = peer.open_new()
                        if peer.broken:
                            raise CommError(peer.broken)
                        address = int(found["address"][0])
                    self._memory.append(device.tensors.over(self, address, theirs))
            except (CudaError, CommError, OSError) as error:
                problem = str(error)
            problems = [each for each in self._control.exchange(problem) if each]
        if problems:
            self.close()
            raise ValueError(f"memory cannot be shared: {problems[0]}")

    def rows(self, rank: int, first: int, count: int, width: int, dtype: torch.dtype) -> Tensor:
        """Rows of a rank's memory."""
        row_bytes = width * dtype.itemsize
        found = self._memory[rank][first * row_bytes : (first + count) * row_bytes]
        return found.view(dtype).view(count, width)

    def close(self) -> None:
        """Free the memory. Collective: no rank may read it any more."""
        self._memory.clear()
        with self._device.current():
            for peer in self._peers:
                peer.close()
            self._control.barrier()
            self._directory.close()
            if self._address:
                self._device.driver.free(self._address)


class GatherLane:
    """Expands and folds by ``index_select``, copies and ``index_add_``."""

    def __init__(
        self, comm: Communicator, device: Device, needs: Needs, rows: Rows, clock: Clock, flags: Flags
    ) -> None:
        self._comm, self._device, self._needs, self._rows = comm, device, needs, rows
        self._clock, self._flags = clock, flags
        everyones = comm.control.exchange((needs.sends, needs.receives))
        # Where in each other rank's packed rows those for this rank begin, and how many they are.
        self._packed_at = [sum(sends[: comm.rank]) for sends, _ in everyones]
        self._halo_at = [sum(receives[: comm.rank]) for _, receives in everyones]
        self._most = max(len(needs.index), comm.num_halo)
        self._shared: Shared | None = None
        self._shape: tuple[int, torch.dtype] = (0, torch.float32)
        self._inputs: tuple[list[Tensor], list[Tensor]] = ([], [])

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Inputs for both verbs, and memory for what is packed."""
        self.close()
        self._shape = width, dtype
        self._most = max(self._comm.control.exchange(self._most))
        self._shared = Shared(self._device, self._comm, self._most * width * dtype.itemsize * calls)
        self._inputs = self._rows.make(width, dtype, calls)

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Fill the inputs, pack, synchronise the ranks, copy, and check."""
        comm, inputs, results = self._comm, self._inputs[verb], list[Tensor]()
        for k in range(calls):
            self._rows.fill(verb, inputs[k], first + k)
        num_packed = len(self._needs.index) if verb == EXPAND else comm.num_halo
        packed = [self._slot(comm.rank, k, 0, num_packed) for k in range(calls)]

        def pack() -> None:
            for k in range(calls):
                if verb == EXPAND:
                    torch.index_select(inputs[k], 0, self._needs.index, out=packed[k])
                else:
                    packed[k].copy_(inputs[k][comm.num_owned :])

        def move() -> None:
            for k in range(calls):
                results.append(self._expanded(inputs[k], k) if verb == EXPAND else self._folded(inputs[k], k))

        self._flags.barrier()
        seconds = self._clock.seconds(pack)
        self._flags.barrier()
        seconds += self._clock.seconds(move)
        self._flags.barrier()  # nobody packs anew before all have copied
        wrong = sum(self._rows.wrong(verb, found, first + k) for k, found in enumerate(results))
        return Sample(0, round(1e9 * seconds), wrong)

    def _slot(self, rank: int, call: int, first: int, count: int) -> Tensor:
        assert self._shared is not None
        return self._shared.rows(rank, call * self._most + first, count, *self._shape)

    def _expanded(self, rows: Tensor, call: int) -> Tensor:
        comm = self._comm
        result = rows.new_empty((comm.num_local, *rows.shape[1:]))
        result[: comm.num_owned].copy_(rows)
        at = comm.num_owned
        for rank, count in enumerate(self._needs.receives):
            if count:
                result[at : at + count].copy_(self._slot(rank, call, self._packed_at[rank], count))
            at += count
        return result

    def _folded(self, rows: Tensor, call: int) -> Tensor:
        result = rows[: self._comm.num_owned].clone()
        for rank, index in enumerate(self._needs.pieces):
            if len(index):
                result.index_add_(0, index, self._slot(rank, call, self._halo_at[rank], len(index)))
        return result

    def close(self) -> None:
        """Free the memory. Collective."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None
