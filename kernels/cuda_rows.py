"""Gather rows, and add rows in a fixed order, on the GPU: the loops over rows of an expand and of a fold.

The CUDA versions of :func:`dgcl.kernels.rows.gather_rows` and, equal to it to the bit,
:func:`dgcl.kernels.rows.sum_rows`. Addresses are raw: they lie in this GPU's memory, a peer's, or page-locked host
memory, so the same kernel *pushes* rows into a peer's memory and *pulls* them out of it, depending on which of the two
addresses is mapped.

Called by users. Free to change while results are bit for bit those of plain Python (`tests/kernels/`).
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int32, int64, uint32

from dgcl.kernels.cuda_memory import (
    inlined,
    load_index,
    load_unit,
    load_word,
    num_words,
    store_unit,
)
from dgcl.kernels.cuda_numbers import arithmetic
from dgcl.kernels.cuda_tables import (
    BLOCK_BYTES,
    BLOCK_PART,
    BLOCK_PARTS,
    SKIP,
    TASK_BYTES,
    TASK_COUNT,
    TASK_FIRST,
    TASK_NEAR_ROWS,
    TASK_SECOND,
    TASK_SOURCE,
    TASK_TARGET,
    TASK_TO,
)

# A launch has one task per peer (or one for the rows that this rank keeps). Its thread blocks are assigned to the
# tasks, interleaved (:func:`dgcl.kernels.cuda_shapes.deal_blocks`), and all of them fit on the GPU at once:
# blocks that wait for a slow peer delay no other peer.
#
# Target rows are contiguous, so a task's units (:mod:`dgcl.kernels.cuda_memory`) are numbered consecutively. A
# thread takes every ``parts * blockDim``-th of them: the warps of a task write one contiguous window, in full
# lines whatever the row's width. Row and column are updated by addition instead of division.
#
# *Gather*: loads of ``unroll`` units are under way before the first is stored; at the end of a task, loads beyond
# it repeat the last row instead of branching.
#
# *Sum*: one thread computes one unit of one sum; it reads the row's arrivals in their order and keeps the sum in
# registers. So there are no atomics, nothing is rounded on the way, and every input is read once and every output
# written once. Arrivals are loaded two at a time, both before the first is added. Rows for which nothing arrived
# are copied as they are, bit for bit.


@inlined
def _steps(blocks: int, columns: int) -> tuple[int, int, int, int, int, int]:
    """A thread's first unit in its task, its row and column, and how far it goes on: in units, rows, and columns."""
    block = blocks + BLOCK_BYTES * int64(cuda.blockIdx.x)
    stride = uint32(uint32(load_index(block + BLOCK_PARTS)) * uint32(cuda.blockDim.x))
    start = uint32(
        uint32(load_index(block + BLOCK_PART)) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x)
    )
    row, row_stride = uint32(start // columns), uint32(stride // columns)
    column = uint32(start - uint32(row * columns))
    return start, row, column, stride, row_stride, uint32(stride - uint32(row_stride * columns))


@inlined
def _next(row: int, column: int, row_stride: int, column_stride: int, columns: int) -> tuple[int, int]:
    """Row and column of a thread's next unit."""
    row, column = uint32(row + row_stride), uint32(column + column_stride)
    if column >= columns:
        row, column = uint32(row + uint32(1)), uint32(column - columns)
    return row, column


def gather_kernel(unit: int, unroll: int = 4) -> Callable[..., None]:
    """The kernel for units of 16, 8, 4, 2 or 1 bytes.

    Its parameters, all int64: the addresses of the state, addresses, tasks and blocks tables
    (:mod:`dgcl.kernels.cuda_tables`) and of the row table (int32), and the bytes of a row, a multiple of
    ``unit``, as all row addresses are.
    """
    load, store = load_unit(unit), store_unit(unit)
    words = num_words(unit)
    held_words = words * unroll

    def gather(state: int, addresses: int, tasks: int, blocks: int, rows: int, row_bytes: int) -> None:
        # Everything that can be read at once is, before the first of it is looked at.
        skip = load_word(state + SKIP)
        # Rows and columns are 32 bits wide, every product with a row's size is 64 bits wide.
        width, columns = int32(row_bytes), uint32(uint32(row_bytes) // uint32(unit))
        start, row, column, stride, row_stride, column_stride = _steps(blocks, columns)
        task = tasks + TASK_BYTES * load_index(blocks + BLOCK_BYTES * int64(cuda.blockIdx.x))
        source, second = load_word(task + TASK_SOURCE), load_word(task + TASK_SECOND)
        into, to = load_word(task + TASK_TARGET), load_word(task + TASK_TO)
        first_index, count_word = load_word(task + TASK_FIRST), load_word(task + TASK_COUNT)
        near_rows = int32(load_word(task + TASK_NEAR_ROWS))
        near, far = load_word(addresses + 8 * source), load_word(addresses + 8 * second)
        target = load_word(addresses + 8 * into)
        if skip != 0:
            return

        far -= int64(near_rows) * int64(width)
        table = rows + 4 * first_index
        count = uint32(count_word)
        target += to * int64(width) + int64(start) * unit
        target_stride = int64(stride) * unit

        numbers = cuda.local.array(unroll, uint32)
        sources = cuda.local.array(unroll, int64)
        held = cuda.local.array(held_words, uint32)
        while row < count:
            for j in range(unroll):
                numbers[j] = row
                index = load_index(table + 4 * int64(row if row < count else uint32(count - uint32(1))))
                base = near if index < near_rows else far
                sources[j] = base + int64(index) * int64(width) + int64(column) * unit
                row, column = _next(row, column, row_stride, column_stride, columns)
            for j in range(unroll):
                loaded = load(sources[j])
                for w in range(words):
                    held[j * words + w] = loaded[w]
            for j in range(unroll):
                if numbers[j] < count:
                    if words == 4:
                        store(target, (held[4 * j], held[4 * j + 1], held[4 * j + 2], held[4 * j + 3]))
                    elif words == 2:
                        store(target, (held[2 * j], held[2 * j + 1]))
                    else:
                        store(target, (held[j],))
                target += target_stride

    return gather


def sum_kernel(element: str, unit: int) -> Callable[..., None]:
    """The sum for an element type of :data:`dgcl.kernels.cuda_numbers.ITEM_BYTES` and a unit of at least one element.

    Its parameters, all int64: the addresses of the state, addresses, tasks and blocks tables, of
    ``pointers`` (:func:`dgcl.kernels.cuda_tables.arrival_pointers`) and ``slots`` (int32: where among the
    arrivals each lies), and the bytes of a row, a multiple of ``unit``, as all row addresses are.
    """
    load, store = load_unit(unit), store_unit(unit)
    widen, add, narrow = arithmetic(element, unit)

    def sum_rows(
        state: int, addresses: int, tasks: int, blocks: int, pointers: int, slots: int, row_bytes: int
    ) -> None:
        skip = load_word(state + SKIP)
        width, columns = int32(row_bytes), uint32(uint32(row_bytes) // uint32(unit))
        _, row, column, _, row_stride, column_stride = _steps(blocks, columns)
        task = tasks + TASK_BYTES * load_index(blocks + BLOCK_BYTES * int64(cuda.blockIdx.x))
        source, second = load_word(task + TASK_SOURCE), load_word(task + TASK_SECOND)
        into, to = load_word(task + TASK_TARGET), load_word(task + TASK_TO)
        first_row, count_word = load_word(task + TASK_FIRST), load_word(task + TASK_COUNT)
        has_own = source >= 0
        own = load_word(addresses + 8 * (source if has_own else second))
        arrivals = load_word(addresses + 8 * second)
        target = load_word(addresses + 8 * into)
        if skip != 0:
            return

        own += first_row * int64(width)
        target += to * int64(width)
        pointers += 4 * first_row
        count = uint32(count_word)
        while row < count:
            inside = int64(column) * unit
            in_row = int64(row) * int64(width) + inside
            p = load_index(pointers + 4 * int64(row))
            end = load_index(pointers + 4 * int64(row) + 4)
            if has_own:
                words = load(own + in_row)
            else:
                words = load(arrivals + int64(load_index(slots + 4 * int64(p))) * int64(width) + inside)
                p = int32(p + int32(1))
            if p < end:
                total = widen(words)
                while p + 1 < end:
                    slot = slots + 4 * int64(p)
                    one = load(arrivals + int64(load_index(slot)) * int64(width) + inside)
                    other = load(arrivals + int64(load_index(slot + 4)) * int64(width) + inside)
                    total = add(add(total, one), other)
                    p = int32(p + int32(2))
                if p < end:
                    last = load_index(slots + 4 * int64(p))
                    total = add(total, load(arrivals + int64(last) * int64(width) + inside))
                words = narrow(total)
            store(target + in_row, words)
            row, column = _next(row, column, row_stride, column_stride, columns)

    return sum_rows
