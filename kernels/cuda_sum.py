"""Add rows in a fixed order: the whole arithmetic of a fold, on the GPU.

The CUDA twin of :func:`dgcl.kernels.rows.sum_rows`, equal to it to the bit. A launch has one task per peer
(or one for the rows that this rank keeps), dealt to thread blocks as in :mod:`dgcl.kernels.cuda_gather`.
One thread computes one unit of one sum: it walks along the row's arrivals in their order and keeps the sum
in registers, so there are no atomics, nothing is rounded on the way, and every input is read once and every
output written once. Arrivals are loaded two at a time, both before the first is added.

Rows for which nothing arrived are copied as they are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int64

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
    """The kernel for an element type of :data:`dgcl.kernels.cuda_numbers.ITEM_BYTES` and a unit that holds
    one.

    Its parameters, all int64: the addresses of the state, addresses, tasks and blocks tables, of
    ``pointers`` (:func:`dgcl.kernels.cuda_tables.arrival_pointers`) and ``slots`` (int32: where among the
    arrivals each lies), and the bytes of a row, a multiple of ``unit``, as all row addresses are.
    """
    load, store = load_unit(unit, hint), store_unit(unit, hint)
    widen, add, narrow = arithmetic(element, unit)

    def sum_rows(
        state: int, addresses: int, tasks: int, blocks: int, pointers: int, slots: int, row_bytes: int
    ) -> None:
        if load_word(state + SKIP) != 0:
            return
        block = blocks + BLOCK_BYTES * int64(cuda.blockIdx.x)
        task = tasks + TASK_BYTES * load_index(block)
        count = load_word(task + TASK_COUNT)
        first_row = load_word(task + TASK_FIRST)
        source = load_word(task + TASK_SOURCE)
        has_own = source >= 0
        own = load_word(addresses + 8 * source) if has_own else int64(0)
        own += first_row * row_bytes
        arrivals = load_word(addresses + 8 * load_word(task + TASK_SECOND))
        target = load_word(addresses + 8 * load_word(task + TASK_TARGET))
        target += load_word(task + TASK_TO) * row_bytes
        pointers += 4 * first_row

        columns = row_bytes // unit
        stride = load_index(block + BLOCK_PARTS) * int64(cuda.blockDim.x)
        place = load_index(block + BLOCK_PART) * int64(cuda.blockDim.x) + int64(cuda.threadIdx.x)
        row_stride, column_stride = stride // columns, stride % columns
        row, column = place // columns, place % columns
        while row < count:
            at = column * unit
            p = load_index(pointers + 4 * row)
            end = load_index(pointers + 4 * row + 4)
            if has_own:
                words = load(own + row * row_bytes + at)
            else:
                words = load(arrivals + load_index(slots + 4 * p) * row_bytes + at)
                p += 1
            if p < end:
                total = widen(words)
                while p + 1 < end:
                    one = load(arrivals + load_index(slots + 4 * p) * row_bytes + at)
                    other = load(arrivals + load_index(slots + 4 * p + 4) * row_bytes + at)
                    total = add(add(total, one), other)
                    p += 2
                if p < end:
                    total = add(total, load(arrivals + load_index(slots + 4 * p) * row_bytes + at))
                words = narrow(total)
            store(target + row * row_bytes + at, words)
            row += row_stride
            column += column_stride
            if column >= columns:
                column -= columns
                row += 1

    return sum_rows
