"""Gather rows and store them in this GPU's memory, a peer's, or page-locked host memory.

The CUDA version of :func:`dgcl.kernels.rows.gather_rows`. Addresses are raw, so the same kernel *pushes* rows into a
peer's memory and *pulls* them out of it, depending on which of the two addresses is mapped.

A launch has one task per peer. Its thread blocks are assigned to the tasks, interleaved
(:func:`dgcl.kernels.cuda_shapes.deal_blocks`), and all of them fit on the GPU at once: blocks that wait for a slow peer
delay no other peer.

Target rows are contiguous, so a task's units (:mod:`dgcl.kernels.cuda_memory`) are numbered consecutively. A thread
takes every ``parts * blockDim``-th of them: the warps of a task write one contiguous window, in full lines whatever the
row's width. Row and column are updated by addition instead of division. Loads of ``unroll`` units are under way before
the first is stored; at the end of a task, loads beyond it repeat the last row instead of branching.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int32, int64, uint32

from dgcl.kernels.cuda_memory import load_index, load_unit, load_word, num_words, store_unit
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


def gather_kernel(unit: int, unroll: int = 4, hint: str = "plain") -> Callable[..., None]:
    """The kernel for units of 16, 8, 4, 2 or 1 bytes.

    Its parameters, all int64: the addresses of the state, addresses, tasks and blocks tables
    (:mod:`dgcl.kernels.cuda_tables`) and of the row table (int32), and the bytes of a row, a multiple of
    ``unit``, as all row addresses are.
    """
    load, store = load_unit(unit, hint), store_unit(unit, hint)
    words = num_words(unit)
    held_words = words * unroll

    def gather(state: int, addresses: int, tasks: int, blocks: int, rows: int, row_bytes: int) -> None:
        # Everything that can be read at once is, before the first of it is looked at.
        skip = load_word(state + SKIP)
        block = blocks + BLOCK_BYTES * int64(cuda.blockIdx.x)
        place, parts = load_index(block), load_index(block + BLOCK_PARTS)
        part = load_index(block + BLOCK_PART)
        task = tasks + TASK_BYTES * place
        source, second = load_word(task + TASK_SOURCE), load_word(task + TASK_SECOND)
        into, to = load_word(task + TASK_TARGET), load_word(task + TASK_TO)
        first_index, count_word = load_word(task + TASK_FIRST), load_word(task + TASK_COUNT)
        near_rows = int32(load_word(task + TASK_NEAR_ROWS))
        near, far = load_word(addresses + 8 * source), load_word(addresses + 8 * second)
        target = load_word(addresses + 8 * into)
        if skip != 0:
            return

        # Rows and columns are 32 bits wide, every product with a row's size is 64 bits wide.
        width = int32(row_bytes)
        far -= int64(near_rows) * int64(width)
        table = rows + 4 * first_index
        count, columns = uint32(count_word), uint32(uint32(width) // uint32(unit))
        stride = uint32(uint32(parts) * uint32(cuda.blockDim.x))
        start = uint32(uint32(part) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x))
        row_stride, row = uint32(stride // columns), uint32(start // columns)
        column_stride = uint32(stride - uint32(row_stride * columns))
        column = uint32(start - uint32(row * columns))
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
                row = uint32(row + row_stride)
                column = uint32(column + column_stride)
                if column >= columns:
                    column = uint32(column - columns)
                    row = uint32(row + uint32(1))
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
