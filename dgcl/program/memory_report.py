"""What a communicator's buffers and tables take, predicted from the plan and the widths of a model's layers.

The pool that hands out buffers is deterministic, so the prediction is a rehearsal: a pool over memory that
does not exist is taken through the calls of a few training steps, and what it would hold at the end is what
the real one holds.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

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
    program: Program,
    widths: Sequence[int],
    dtype: torch.dtype,
    *,
    training: bool = True,
    input_grad: bool = False,
    constants: Sequence[int] = (),
    staged_rows: Sequence[int] = (0, 0),
) -> MemoryReport:
    """Rehearse training steps; see :meth:`dgcl.Communicator.memory`. ``staged_rows`` are gathered in an expand, and
    summed in a fold, in memory of their sender."""
    for name, values in (("widths", widths), ("constants", constants)):
        if any(not isinstance(width, (int, np.integer)) or width < 0 for width in values):
            raise ValueError(f"{name} must be numbers of elements, one per allgather (got {list(values)})")
    local, owned, relay, arriving = (
        [rows * width * dtype.itemsize for width in widths]
        for rows in (program.num_local, program.num_owned, program.num_relay, program.num_arrivals)
    )
    leaving, returning = ([rows * width * dtype.itemsize for width in widths] for rows in staged_rows)
    control_page = _pages(control_page_bytes(program.world_size))
    pool = BufferPool(cast(SegmentFile, _NoMemory(control_page)))
    constant = [program.num_local * width * dtype.itemsize for width in constants]
    for size in constant:
        pool.allocate(size)
        if program.num_relay:
            pool.release(pool.allocate(program.num_relay * (size // max(program.num_local, 1))))
    for _ in range(_STEPS):
        kept: list[Block] = []
        for result, passing, going in zip(local, relay, leaving, strict=True):
            kept.append(pool.allocate(result))
            sizes = [passing] * bool(program.num_relay) + [going] * bool(going)
            for scratch in [pool.allocate(size) for size in sizes]:
                pool.release(scratch)
            if not training:
                pool.release(kept.pop())
        for layer in reversed(range(len(kept))):
            pool.release(kept[layer])  # the layer that saved it has computed its gradients
            if layer > 0 or input_grad:
                arrivals, total = pool.allocate(arriving[layer]), pool.allocate(owned[layer])
                staging = [pool.allocate(returning[layer])] if returning[layer] else []
                for block in (arrivals, *staging, total):
                    pool.release(block)
    backward = [a + o for a, o in zip(arriving, owned, strict=True)][0 if input_grad else 1 :]
    return MemoryReport(
        tables=program.table_bytes,
        control_page=control_page,
        results=sum(local),
        relay=max(relay, default=0),
        gradients=max(backward, default=0) if training else 0,
        staging=max([*leaving, *returning][: None if training else len(leaving)], default=0),
        constants=sum(constant),
        pool=pool.bytes_allocated,
    )


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
