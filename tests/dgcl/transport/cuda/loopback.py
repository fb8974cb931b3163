"""Ranks that share one device and one process: a whole exchange by the CUDA kernels, without any other
machinery.

Every rank has buffers, flags and tables of its own and, on a GPU, a stream of its own; its peers' addresses
it simply knows. What is left is what :mod:`dgcl.transport.cuda.program` lays out, so this is where that is proved
and timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgcl.kernels.cuda_catalogue import sum_name
from dgcl.kernels.cuda_shapes import unit_of
from dgcl.kernels.cuda_tables import ABORT, CALL, SKIP, STATE_BYTES
from dgcl.program import Program
from dgcl.transport.cuda.program import (
    EXPAND,
    FOLD,
    CallLayout,
    Launch,
    RankAddresses,
    fuse,
    num_slots,
)
from tests.support.gpu_device import Tables

_LINE_WORDS = 16
_ALIGN = 256


class Rank:
    """One rank's memory.

    Attributes:
        program: What it does.
        local, relay, arrivals, result: Rows; ``(num_local, width)`` and so on.
        state: The words of its state.
        abort: The word that stops it.
        ready, done: ``(P, 16)`` a line per peer, for what the peers say to this rank.
        ring: ``(2, num_slots)`` the addresses of calls with even, and with odd numbers.
    """

    def __init__(self, program: Program, width: int, dtype: torch.dtype, device: torch.device):
        self.program = program
        rows = (program.num_local, program.num_relay, program.num_arrivals, program.num_owned)
        self.local, self.relay, self.arrivals, self.result = (
            _rows(count, width, dtype, device) for count in rows
        )
        self.state = _words(device, STATE_BYTES // 8)
        self.abort = _words(device, 1)
        self.state[ABORT // 8] = self.abort.data_ptr()
        self.ready = _words(device, program.world_size, _LINE_WORDS)
        self.done = _words(device, program.world_size, _LINE_WORDS)
        self.addresses = _words(device, num_slots(program.world_size))
        self.ring = _words(device, 2, num_slots(program.world_size))

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What peers write to: rows and relay rows in an expand, arrivals in a fold."""
        return self.local, self.relay, self.arrivals


def _words(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def _rows(count: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows at a multiple of 256 bytes, as a pool gives them out; never empty, so that they have an
    address."""
    row_bytes = width * dtype.itemsize
    memory = torch.zeros(max(count, 1) * row_bytes + _ALIGN, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % _ALIGN
    return memory[start : start + count * row_bytes].view(dtype).view(count, width)


@dataclass(frozen=True)
class Loopback:
    """All ranks, and their launches by verb: ``launches[verb][rank]``."""

    ranks: list[Rank]
    launches: dict[int, list[list[Launch]]]
    tables: Tables

    def enter(self, verb: int):
        """Give every rank the addresses of its next call, as hosts do."""
        for rank in self.ranks:
            second = rank.relay if verb == EXPAND else rank.arrivals
            slots = [rank.local.data_ptr(), second.data_ptr(), rank.result.data_ptr()]
            for peer in self.ranks:
                written = peer.buffers[:2] if verb == EXPAND else (peer.arrivals, peer.arrivals)
                slots += [buffer.data_ptr() for buffer in written]
            rank.ring[:] = torch.tensor(slots)

    def check(self, calls: int):
        """After some calls: everyone has made them, and nothing went wrong.

        Raises:
            RuntimeError: Otherwise.
        """
        for rank in self.ranks:
            state = rank.state.tolist()
            if state[CALL // 8] != calls or state[SKIP // 8] != 0:
                raise RuntimeError(f"rank {rank.program.rank} after {calls} calls: state {state}")


def connect(
    programs: Sequence[Program],
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    max_blocks: Callable[[str], int],
    threads: int,
) -> Loopback:
    """Give ranks memory, and lay out their expands and folds.

    Args:
        programs: What each rank does.
        width, dtype: Of a row.
        device: Where they all are.
        max_blocks: How many blocks of a kernel the device holds at once.
        threads: Of a block of the row kernels.
    """
    tables = Tables(device)
    ranks = [Rank(program, width, dtype, device) for program in programs]
    row_bytes = width * dtype.itemsize
    rows = [buffer.data_ptr() for rank in ranks for buffer in (*rank.buffers, rank.result) if len(buffer)]
    unit = unit_of(row_bytes, *rows, item_bytes=dtype.itemsize)
    kernels = {EXPAND: f"gather_{unit}", FOLD: sum_name(str(dtype).removeprefix("torch."), unit)}
    launches: dict[int, list[list[Launch]]] = {EXPAND: [], FOLD: []}
    for rank in ranks:
        addresses = _addresses(rank, ranks)
        for verb, kernel in kernels.items():
            most = max_blocks(kernel)
            layout = CallLayout(
                rank.program, verb, addresses, kernel, unit, row_bytes, most, tables.put, threads
            )
            launches[verb].append(fuse(list(layout.launches())))
    return Loopback(ranks, launches, tables)


def _addresses(rank: Rank, ranks: Sequence[Rank]) -> RankAddresses:
    me = rank.program.rank
    return RankAddresses(
        state=rank.state.data_ptr(),
        address_table=rank.addresses.data_ptr(),
        ring=rank.ring.data_ptr(),
        ring_length=2,
        lines=_lines([peer.ready for peer in ranks], me),
        ready=_own_lines(rank.ready),
        done=_own_lines(rank.done),
        raised=_lines([peer.done for peer in ranks], me),
    )


def _lines(boards: Sequence[torch.Tensor], me: int) -> np.ndarray:
    """Addresses of this rank's line on each peer's board."""
    return np.array([board[me].data_ptr() for board in boards], np.int64)


def _own_lines(board: torch.Tensor) -> np.ndarray:
    return np.array([line.data_ptr() for line in board], np.int64)
