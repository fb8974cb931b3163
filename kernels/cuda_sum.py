"""Add rows in a fixed order on the GPU, as a fold does.

The CUDA version of :func:`dgcl.kernels.rows.sum_rows`, equal to it to the bit. A launch has one task per peer (or one
for the rows that this rank keeps), with thread blocks as in :mod:`dgcl.kernels.cuda_gather`. One thread computes one
unit of one sum: it reads the row's arrivals in their order and keeps the sum in registers. So there are no atomics,
nothing is rounded on the way, and every input is read once and every output written once. Arrivals are loaded two at a
time, both before the first is added.

Rows for which nothing arrived are copied as they are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int32, int64, uint32

from dgcl.kernels.cuda_memory import load_index, load_unit, load_word, store_unit
from dgcl.kernels.cuda_numbers import arithmetic
from dgcl.kernels.cuda_tables import (
    BLOCK_BYTES,
    BLOCK_PART,
    BLOCK_PARTS,
    SKIP,
    TASK_BYTES,
    TASK_COUNT,
    TASK_FIRST,
    TASK_SECOND,
    TASK_SOURCE,
    TASK_TARGET,
    TASK_TO,
)


def sum_kernel(element: str, unit: int, hint: str = "plain") -> Callable[..., None]:
    """The sum for an element type of :data:`dgcl.kernels.cuda_numbers.ITEM_BYTES` and a unit of at least one element.

    Its parameters, all int64: the addresses of the state, addresses, tasks and blocks tables, of
    ``pointers`` (:func:`dgcl.kernels.cuda_tables.arrival_pointers`) and ``slots`` (int32: where among the
    arrivals each lies), and the bytes of a row, a multiple of ``unit``, as all row addresses are.
    """
    load, store = load_unit(unit, hint), store_unit(unit, hint)
    widen, add, narrow = arithmetic(element, unit)

    def sum_rows(
        state: int, addresses: int, tasks: int, blocks: int, pointers: int, slots: int, row_bytes: int
    ) -> None:
        skip = load_word(state + SKIP)
        block = blocks + BLOCK_BYTES * int64(cuda.blockIdx.x)
        place, parts = load_index(block), load_index(block + BLOCK_PARTS)
        part = load_index(block + BLOCK_PART)
        task = tasks + TASK_BYTES * place
        source, second = load_word(task + TASK_SOURCE), load_word(task + TASK_SECOND)
        into, to = load_word(task + TASK_TARGET), load_word(task + TASK_TO)
        first_row, count_word = load_word(task + TASK_FIRST), load_word(task + TASK_COUNT)
        has_own = source >= 0
        own = load_word(addresses + 8 * (source if has_own else second))
        arrivals = load_word(addresses + 8 * second)
        target = load_word(addresses + 8 * into)
        if skip != 0:
            return

        # Rows and columns are 32 bits wide, every product with a row's size is 64 bits wide.
        width = int32(row_bytes)
        own += first_row * int64(width)
        target += to * int64(width)
        pointers += 4 * first_row
        count, columns = uint32(count_word), uint32(uint32(width) // uint32(unit))
        stride = uint32(uint32(parts) * uint32(cuda.blockDim.x))
        start = uint32(uint32(part) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x))
        row_stride, row = uint32(stride // columns), uint32(start // columns)
        column_stride = uint32(stride - uint32(row_stride * columns))
        column = uint32(start - uint32(row * columns))
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
            row = uint32(row + row_stride)
            column = uint32(column + column_stride)
            if column >= columns:
                column = uint32(column - columns)
                row = uint32(row + uint32(1))

    return sum_rows
