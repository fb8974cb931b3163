"""Gather rows and store them where they belong: in this GPU's memory, a peer's, or page-locked host memory.

The CUDA twin of :func:`dgcl.kernels.rows.gather_rows`. Addresses are raw, so the same kernel *pushes* rows
into a peer's memory and *pulls* them out of it; what differs is which of the two addresses is mapped.

A launch has one task per peer. Its thread blocks are dealt to the tasks, interleaved
(:func:`dgcl.kernels.cuda_shapes.deal_blocks`), and all of them fit on the GPU at once: blocks that are held
up by a slow peer hold up no other peer.

Target rows lie one behind the other, so a task's units (:mod:`dgcl.kernels.cuda_memory`) are numbered
through. A thread takes every ``parts * blockDim``-th of them: the warps of a task write one contiguous
window that moves on, in full lines whatever the row's width. Row and column are carried along instead of
being divided out. Loads of ``unroll`` units are under way before the first is stored; towards the end of a
task, loads beyond it repeat the last row instead of being branched around.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int64, uint32

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
        if load_word(state + SKIP) != 0:
            return
        block = blocks + BLOCK_BYTES * int64(cuda.blockIdx.x)
        task = tasks + TASK_BYTES * load_index(block)
        count = load_word(task + TASK_COUNT)
        near_rows = load_word(task + TASK_NEAR_ROWS)
        near = load_word(addresses + 8 * load_word(task + TASK_SOURCE))
        far = load_word(addresses + 8 * load_word(task + TASK_SECOND)) - near_rows * row_bytes
        target = load_word(addresses + 8 * load_word(task + TASK_TARGET))
        table = rows + 4 * load_word(task + TASK_FIRST)

        columns = row_bytes // unit
        stride = load_index(block + BLOCK_PARTS) * int64(cuda.blockDim.x)
        first = load_index(block + BLOCK_PART) * int64(cuda.blockDim.x) + int64(cuda.threadIdx.x)
        row_stride, column_stride = stride // columns, stride % columns
        row, column = first // columns, first % columns
        left = count * columns - first
        target += load_word(task + TASK_TO) * row_bytes + first * unit

        sources = cuda.local.array(unroll, int64)
        held = cuda.local.array(held_words, uint32)
        while left > 0:
            for j in range(unroll):
                index = load_index(table + 4 * (row if row < count else count - 1))
                sources[j] = (near if index < near_rows else far) + index * row_bytes + column * unit
                row += row_stride
                column += column_stride
                if column >= columns:
                    column -= columns
                    row += 1
            for j in range(unroll):
                loaded = load(sources[j])
                for w in range(words):
                    held[j * words + w] = loaded[w]
            for j in range(unroll):
                if left > j * stride:
                    if words == 4:
                        store(target, (held[4 * j], held[4 * j + 1], held[4 * j + 2], held[4 * j + 3]))
                    elif words == 2:
                        store(target, (held[2 * j], held[2 * j + 1]))
                    else:
                        store(target, (held[j],))
                target += stride * unit
            left -= unroll * stride

    return gather
