"""Predicts what a communicator's buffers and tables take, from the programs and the widths of a model's layers.

The pool that hands out buffers is deterministic, so the prediction is a rehearsal: a pool over memory that does not
exist is taken through the calls of a few training steps, and holds at the end what the real one would hold.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from dgcl.program.model import Program
from dgcl.transport.shared_memory.control_page import control_page_bytes
from dgcl.transport.shared_memory.pool import Block, BufferPool
from dgcl.transport.shared_memory.segments import Segment, SegmentFile

if TYPE_CHECKING:
    import torch

_STEPS = 3  # after which nothing new is allocated any more


@dataclass(frozen=True)
class MemoryReport:
    """Bytes on one rank.

    Attributes:
        tables: Which rows go where: the program, ids included.
        control_page: The page with the flags.
        results: What the allgathers of one forward pass return, together.
        relay: The most that rows which only pass through take, in one call.
        gradients: The most that one backward call takes: what arrives, and the sums.
        staging: The most that rows take in one call on their way to ranks that a device does not reach.
        constants: Inputs dispatched with ``halo=True``.
        pool: Shared memory that the pool holds for all buffers together. Less than the sum where the same
            memory serves twice, more where free pieces are too small.
    """

    tables: int
    control_page: int
    results: int
    relay: int
    gradients: int
    staging: int
    constants: int
    pool: int

    @property
    def total(self) -> int:
        """Tables, control page and pool."""
        return self.tables + self.control_page + self.pool

    def __getattr__(self, name: str) -> int:
        if name == "board":  # the name of the version before
            warnings.warn("MemoryReport.board is now control_page", DeprecationWarning, stacklevel=2)
            return self.control_page
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class _NoMemory:
    """Grows as a :class:`~dgcl.transport.shared_memory.segments.SegmentFile` does, and holds nothing."""

    def __init__(self, size: int) -> None:
        self._size = size

    def grow(self, num_bytes: int) -> Segment:
        size = max(-(-num_bytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        segment = Segment(self._size, size, np.empty(0, np.uint8), 0)
        self._size += size
        return segment


def predict_memory(
    programs: Sequence[Program],
    widths: Sequence[int | tuple[int, int]],
    dtype: torch.dtype,
    *,
    training: bool = True,
    input_grad: bool = False,
    constants: Sequence[int] = (),
    staged_rows: Sequence[Sequence[int]] = (),
) -> MemoryReport:
    """Rehearse training steps; see :meth:`dgcl.Communicator.memory`.

    Args:
        programs: Of the communicator's exchanges, by number.
        widths: Of each allgather the elements of a row, or (elements, number of the exchange).
        dtype, training, input_grad, constants: As there.
        staged_rows: Of each exchange the rows that are gathered in an expand, and summed in a fold, in memory of
            their sender; empty: none.

    Raises:
        ValueError: A width is negative or no integer, or there is no such exchange.
    """
    calls = [width if isinstance(width, tuple) else (width, 0) for width in widths]
    for name, values in (("widths", [width for width, _ in calls]), ("constants", constants)):
        if any(not isinstance(width, (int, np.integer)) or width < 0 for width in values):
            raise ValueError(f"{name} must be numbers of elements, one per allgather (got {list(values)})")
    staging = [*staged_rows, *[(0, 0)] * (len(programs) - len(staged_rows))]
    sizes = [_CallBytes.of(programs[i], staging[i], width * dtype.itemsize) for width, i in calls]
    control_page = _pages(control_page_bytes(programs[0].world_size))
    pool = BufferPool(cast(SegmentFile, _NoMemory(control_page)))
    constant = [_CallBytes.of(programs[0], (0, 0), width * dtype.itemsize) for width in constants]
    for call in constant:
        pool.allocate(call.local)
        if programs[0].num_relay:
            pool.release(pool.allocate(call.relay))
    for _ in range(_STEPS):
        _rehearse_step(pool, sizes, training, input_grad)
    backward = [call.arriving + call.owned for call in sizes][0 if input_grad else 1 :]
    returning = [call.returning for call in sizes] if training else []
    return MemoryReport(
        tables=sum(program.table_bytes for program in programs),
        control_page=control_page,
        results=sum(call.local for call in sizes),
        relay=max((call.relay for call in sizes), default=0),
        gradients=max(backward, default=0) if training else 0,
        staging=max([*(call.leaving for call in sizes), *returning], default=0),
        constants=sum(call.local for call in constant),
        pool=pool.bytes_allocated,
    )


class _CallBytes(NamedTuple):
    """Bytes that an expand and its fold take: of local, owned, relayed, arriving rows, and staged ones either way."""

    local: int
    owned: int
    relay: int
    arriving: int
    leaving: int
    returning: int

    @classmethod
    def of(cls, program: Program, staged: Sequence[int], row_bytes: int) -> _CallBytes:
        rows = (program.num_local, program.num_owned, program.num_relay, program.num_arrivals, *staged)
        return cls(*(count * row_bytes for count in rows))


def _rehearse_step(pool: BufferPool, calls: Sequence[_CallBytes], training: bool, input_grad: bool) -> None:
    """Take and give back what the calls of one training step do, in their order."""
    kept: list[Block] = []
    for call in calls:
        kept.append(pool.allocate(call.local))
        for scratch in [pool.allocate(size) for size in (call.relay, call.leaving) if size]:
            pool.release(scratch)
        if not training:
            pool.release(kept.pop())
    for layer in reversed(range(len(kept))):
        call = calls[layer]
        pool.release(kept[layer])  # the layer that saved it has computed its gradients
        if layer > 0 or input_grad:
            arrivals, total = pool.allocate(call.arriving), pool.allocate(call.owned)
            staging = [pool.allocate(call.returning)] if call.returning else []
            for block in (arrivals, *staging, total):
                pool.release(block)


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
