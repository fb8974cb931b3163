"""Chooses how a CUDA row kernel is launched: bytes per access of a thread, and thread blocks per task.

A task is the rows of one peer. A unit, what a thread moves at once, is the largest of 16, 8, 4, 2 and 1 bytes that
addresses and row size are multiples of.
Called by `dgcl/transport/cuda/device_exchange`, `dgcl/transport/cuda/gpu` and `dgcl/transport/cuda/program`. Free to
change while each unit is aligned and holds a whole element, and each task with work has a block
(`tests/kernels/test_cuda_shapes.py`).
"""

from __future__ import annotations

import math

import numpy as np

from dgcl.kernels.cuda_tables import BLOCK

#: The largest access of a thread, in bytes.
MAX_UNIT = 16

#: Threads of a block of the row kernels.
THREADS = 256


def unit_of(row_bytes: int, *addresses: int, item_bytes: int = 1) -> int:
    """The largest unit, 16, 8, 4, 2 or 1 bytes, in which rows of ``row_bytes`` at ``addresses`` can be moved.

    Rows lie one behind the other, so they are all aligned when the first is and a row's size is a multiple.

    Raises:
        ValueError: The unit would be smaller than ``item_bytes``.
    """
    unit = math.gcd(MAX_UNIT, row_bytes, *addresses)
    if unit < item_bytes:
        places = ", ".join(hex(address) for address in addresses)
        raise ValueError(
            f"addresses: expected multiples of the element size, {item_bytes} bytes, got {places} (rows of "
            f"{row_bytes} bytes); copy the tensor to memory of its own first"
        )
    return unit


def deal_blocks(num_units: list[int], max_blocks: int, units_per_block: int) -> np.ndarray:
    """Assign thread blocks to tasks: a ``(num_blocks,)`` table of BLOCK records.

    Args:
        num_units: Units of each task, one task per peer.
        max_blocks: How many blocks the GPU holds at once. They are not exceeded, unless there are more tasks.
        units_per_block: What is worth a block of its own.

    Tasks get blocks in proportion to their units, at least one (none if there is nothing to do). The blocks
    of different tasks alternate, so that every multiprocessor works for several peers, and the first blocks
    to run are not all for the same.
    """
    if max_blocks < 1 or units_per_block < 1:
        raise ValueError(
            f"max_blocks, units_per_block: expected at least 1, got {max_blocks} and {units_per_block}"
        )
    units = np.asarray(num_units, np.int64)
    desired = -(-units // units_per_block)
    parts = desired
    if desired.sum() > max_blocks:
        # One for each first; the rest by what is still missing, rounded down.
        parts = np.minimum(desired, 1)
        spare = max(max_blocks - int(parts.sum()), 0)
        missing = desired - parts
        parts = parts + missing * spare // max(int(missing.sum()), 1)
    task = np.repeat(np.arange(len(units)), parts)
    part = np.arange(len(task)) - np.repeat(np.cumsum(parts) - parts, parts)
    middle = (2 * part + 1) / (2 * parts[task]) if len(task) else part  # of a block's share of its task
    order = np.lexsort((task, middle))
    table = np.zeros(len(task), BLOCK)
    table["task"], table["part"], table["parts"] = task[order], part[order], parts[task[order]]
    return table
