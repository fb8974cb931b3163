"""Predicts the memory of a communicator's buffers and tables, from the programs and the widths of a model's layers.

The pool that allocates buffers is deterministic. So the prediction simulates it: a pool over memory that does not
exist goes through the calls of a few training steps, and ends with the size that the real pool would have.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from dgcl.program.rank_program import Program
from dgcl.topology.checks import check_flag, shown
from dgcl.transport.common.control_page import control_page_bytes
from dgcl.transport.common.pool import Block, BufferPool
from dgcl.transport.common.segments import Segment, SegmentFile

if TYPE_CHECKING:
    import torch

_STEPS = 3  # later steps allocate nothing new


@dataclass(frozen=True)
class MemoryReport:
    """Bytes on one rank.

    Attributes:
        tables: The program: which rows go where, with vertex ids.
        control_page: The page with the flags.
        results: The results of all allgathers of one forward pass together.
        relay: The largest number of bytes of relay rows in one call.
        gradients: The largest number of bytes of one backward call: arriving rows and sums.
        staging: The largest number of bytes of one call's rows for ranks that a device does not reach.
        constants: Inputs dispatched with ``halo=True``.
        pool: Shared memory that the pool holds for all buffers together. Less than the sum where memory is reused,
            more where free pieces are too small.
        offload: Of each :class:`dgcl.Offload` that is open, its
            :class:`~dgcl.offload.description.OffloadMemory`: not in the total.
    """

    tables: int
    control_page: int
    results: int
    relay: int
    gradients: int
    staging: int
    constants: int
    pool: int
    offload: tuple[Any, ...] = ()

    @property
    def total(self) -> int:
        """Tables, control page and pool."""
        return self.tables + self.control_page + self.pool


class _NoMemory:
    """A :class:`~dgcl.transport.common.segments.SegmentFile` without memory, which only grows in size."""

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
    wire: torch.dtype | None = None,
) -> MemoryReport:
    """Predict memory by simulating training steps; see :meth:`dgcl.Communicator.memory`.

    Args:
        programs: Of the communicator's exchanges, by number.
        widths: For each allgather the elements of a row, or (elements, number of the exchange).
        dtype, training, input_grad, constants: As there.
        staged_rows: For each exchange the rows that an expand gathers, and that a fold sums, in memory of their
            sender; empty: none.
        wire: The wire type (:mod:`dgcl.transport.rounding`); None: rows travel as they are.

    Raises:
        ValueError: A width is negative or no integer, or there is no such exchange.
    """
    calls = [width if isinstance(width, tuple) else (width, 0) for width in widths]
    for name, values in (("widths", [width for width, _ in calls]), ("constants", constants)):
        if any(not isinstance(width, (int, np.integer)) or width < 0 for width in values):
            raise ValueError(f"{name} must be numbers of elements, one per allgather (got {list(values)})")
    staging = [*staged_rows, *[(0, 0)] * (len(programs) - len(staged_rows))]
    narrow = 0 if wire is None or wire.itemsize >= dtype.itemsize else wire.itemsize
    sizes = [
        _CallBytes.of(programs[i], staging[i], width * dtype.itemsize, width * narrow) for width, i in calls
    ]
    control_page = _pages(control_page_bytes(programs[0].world_size))
    pool = BufferPool(cast(SegmentFile, _NoMemory(control_page)))
    constant = [
        _CallBytes.of(programs[0], (0, 0), width * dtype.itemsize, width * narrow) for width in constants
    ]
    for call in constant:
        pool.allocate(call.local)
        _use(pool, call.halo, call.relay)
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


def pool_bytes(calls: Iterable[Iterable[int]]) -> int:
    """Bytes of a pool after calls that take buffers of so many bytes each, and give them back."""
    pool = BufferPool(cast(SegmentFile, _NoMemory(0)))
    for sizes in calls:
        _use(pool, *sizes)
    return pool.bytes_allocated


def check_model_of_rows(widths: Any, dtype: Any, training: Any, input_grad: Any, constants: Any) -> None:
    """Refuse arguments of :meth:`dgcl.Communicator.memory` that are of another type."""
    import torch

    check_flag(training, "training")
    check_flag(input_grad, "input_grad")
    for name, some in (("widths", widths), ("constants", constants)):
        if not isinstance(some, Iterable) or isinstance(some, (str, bytes, Mapping)):
            raise TypeError(f"{name} must be a list of numbers of elements (got {shown(some)})")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype (got {shown(dtype)})")


class _CallBytes(NamedTuple):
    """Bytes that an expand and its fold take: of local and owned rows; of halo rows in a wire type of their own; of
    relayed and arriving rows, and staged ones either way."""

    local: int
    owned: int
    halo: int
    relay: int
    arriving: int
    leaving: int
    returning: int

    @classmethod
    def of(cls, program: Program, staged: Sequence[int], row_bytes: int, wire_bytes: int) -> _CallBytes:
        travelling = (program.num_relay, program.num_arrivals, *staged)
        return cls(
            program.num_local * row_bytes,
            program.num_owned * row_bytes,
            program.num_halo * wire_bytes,
            *(count * (wire_bytes or row_bytes) for count in travelling),
        )


def _use(pool: BufferPool, *sizes: int) -> None:
    """Allocate memory of one call, then release it."""
    for block in [pool.allocate(size) for size in sizes if size]:
        pool.release(block)


def _rehearse_step(pool: BufferPool, calls: Sequence[_CallBytes], training: bool, input_grad: bool) -> None:
    """Allocate and release what the calls of one training step do, in their order."""
    kept: list[Block] = []
    for call in calls:
        kept.append(pool.allocate(call.local))
        _use(pool, call.halo, call.relay, call.leaving)
        if not training:
            pool.release(kept.pop())
    for layer in reversed(range(len(kept))):
        call = calls[layer]
        pool.release(kept[layer])  # the layer that saved it has computed its gradients
        if layer > 0 or input_grad:
            total = pool.allocate(call.owned)
            _use(pool, call.arriving, call.returning)
            pool.release(total)


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
