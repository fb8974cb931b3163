"""Alternative ways to sum gradients, to compare the fold with (the paper's section 6.2 and Table 9).

The fold of a plan lets rows arrive in a buffer and adds them in one pass, in a fixed order. Here peers add
straight into the owner's rows:

- ``atomic``: all at once, with atomic additions; the order, and with it the last bits, is left to chance;
- ``substages``: one peer after the other for each owner, with plain additions, as DGCL does. In sub-stage s
  rank r adds to the rows of rank r + s; it waits until rank r + 1, which did so before, is done.

Both send every row in one hop, whatever the plan of the expand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dgcl.bench.flags import Flags
from dgcl.bench.patterns import POISON
from dgcl.bench.transports import Baseline, Scratch, calls_of
from dgcl.transport.shared_memory.engine import announce, read_word
from dgcl.transport.shared_memory.pool import BufferPool

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

#: The folds by name, and what they are.
FOLDS = {
    "sum": "arrivals in a buffer, added in one pass in a fixed order",
    "atomic": "peers add straight into the owner's rows, atomically",
    "substages": "peers add straight into the owner's rows, one after the other (the paper's)",
}


class DirectFold(Baseline):
    """A transport that expands "halo" as another one does, and folds by adding into the owners' memory."""

    def __init__(self, comm: Communicator, how: str) -> None:
        super().__init__(comm)
        self._comm, self._expander, self._atomic = comm, calls_of(comm), how == "atomic"
        self._flags = Flags(comm.control, comm.timeout)
        self._pool, self._scratch = BufferPool(self._flags.file), Scratch()
        self._places, self._rows = self._find_places()
        self._ready = np.array(
            [self._flags.control_page.ready_address(peer) for peer in range(comm.world_size)], np.int64
        )
        self._call = 0

    def _find_places(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return for each owner the indices of this rank's halo rows among its rows, and their indices here."""
        comm = self._comm
        halo = comm.halo_ids.numpy()
        places, rows = [], []
        for owned in comm.control.exchange(comm.owned_ids.numpy()):
            mine = np.flatnonzero(np.isin(halo, owned, assume_unique=True))
            places.append(np.searchsorted(owned, halo[mine]))
            rows.append(comm.num_owned + mine)
        return places, rows

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """As the other transport does."""
        return self._expander.expand(rows, exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Add this rank's halo rows to their owners' rows, and wait for the others to do so here."""
        from dgcl.bench.fold_kernels import add_rows

        assert exchange == 0, "the owners' places are those of the first exchange"

        if rows.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"rows: folds 'atomic' and 'substages' add float32 and float64 (got {rows.dtype})"
            )
        comm, flags = self._comm, self._flags
        rank, world_size = comm.rank, comm.world_size
        rows = rows.contiguous()
        width = rows[:1].numel() if len(rows) else 0
        num_bytes = comm.num_owned * width * rows.dtype.itemsize
        block = self._pool.allocate(num_bytes)
        memory = torch.from_numpy(self._pool.array(block, num_bytes))
        result = memory.view(rows.dtype).view(comm.num_owned, *rows.shape[1:])
        result.copy_(rows[: comm.num_owned])
        self._call += 1
        words = [width, block.segment.base, block.segment.size, block.offset, 0, 0, 0]
        announced = np.array(words, np.int64)
        announce(self._ready, flags.wake_words, flags.control_page.call_address, self._call, announced)
        for step in range(1, world_size):
            owner = (rank + step) % world_size
            target = self._address(owner)
            if not self._atomic and step > 1:
                before = (rank + 1) % world_size
                flags.wait_posted(before, owner, self._call, f"it has not added to the rows of rank {owner}")
            places, mine = self._places[owner], self._rows[owner]
            if len(places) and width:
                double = rows.dtype == torch.float64
                packed = self._contiguous(rows, mine)
                add_rows(double, self._atomic, target, places, packed.data_ptr(), width)
            flags.post(owner, self._call)
        for peer in range(world_size):
            if peer != rank:
                flags.wait_posted(peer, rank, self._call, "it has not added its gradients")
        return result

    def _address(self, owner: int) -> int:
        """Return the address at which the owner's rows of this call are mapped here."""
        flags = self._flags
        line = flags.peers.control_pages[owner].ready_address(self._comm.rank)
        flags.wait(line, self._call, owner, "it is not ready to be added to")
        base, offset = int(read_word(line + 16)), int(read_word(line + 32))
        for _ in range(2):
            known = flags.peers.maps[0][owner]
            place = np.flatnonzero((known == base) & (flags.peers.maps[2][owner] != 0))
            if len(place):
                return int(flags.peers.maps[2][owner][place[0]]) + offset
            flags.peers.map_segment(owner, flags.peers.buffer_line(owner, False))
        raise AssertionError("a segment that was mapped is in the table")

    def _contiguous(self, rows: Tensor, mine: np.ndarray) -> Tensor:
        """Return the rows ``mine`` contiguously; a view if they are contiguous already."""
        if mine[-1] - mine[0] + 1 == len(mine):
            return rows[mine[0] : mine[-1] + 1]
        packed = self._scratch.rows(len(mine), rows)
        return torch.index_select(rows, 0, torch.from_numpy(mine), out=packed)

    def poison(self) -> None:
        """Its own pool, and what expands."""
        self._pool.fill_free(POISON)
        self._scratch.poison()
        self._expander.poison()

    def close(self) -> None:
        """The flags, and what expands."""
        self._flags.close()
        self._expander.close()
