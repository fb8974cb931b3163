"""How fast rows are summed."""

from __future__ import annotations

import numpy as np
import torch

from dgcl.gpu_check.gpu import Tables, Target
from dgcl.gpu_check.measurement import Line, Size, bits, median_seconds, random_rows
from dgcl.kernels.cuda_catalogue import catalogue, sum_name
from dgcl.kernels.cuda_shapes import THREADS, deal_blocks, unit_of
from dgcl.kernels.cuda_tables import TASK, arrival_pointers, records

_MOST_ARRIVALS = 4
_SLICE = 1 << 20  # rows that are checked at a time


def measure_sum(
    target: Target, size: Size, element: str, width: int, copy: float, *, share: float | None = None
) -> Line:
    """Add to each row what arrived for it: none to four rows, two on average.

    Args:
        target, size, element, width, copy: Where, how much, which rows, and the copy's speed.
        share: The share of the copy's speed that is asked for.

    torch's way is ``index_add_`` after a copy, which does not keep an order.
    """
    generator = np.random.default_rng(2)
    dtype = getattr(torch, element)
    row_bytes = width * dtype.itemsize
    num_rows = size.num_rows(2 * row_bytes)
    counts = generator.integers(0, _MOST_ARRIVALS + 1, num_rows)
    counts[0] = _MOST_ARRIVALS
    arrival_rows = np.repeat(np.arange(num_rows), counts).astype(np.int32)
    slots = generator.permutation(len(arrival_rows)).astype(np.int32)
    num_bytes = (2 * num_rows + len(slots)) * row_bytes
    own = random_rows(num_rows, width, dtype, target)
    arrivals = random_rows(len(slots), width, dtype, target)
    out = torch.full_like(own, 77)
    unit = unit_of(row_bytes, own.data_ptr(), arrivals.data_ptr(), out.data_ptr(), item_bytes=dtype.itemsize)
    kernel = catalogue()[sum_name(element, unit)]

    task = {"source": 0, "second": 1, "target": 2, "count": num_rows}
    blocks = deal_blocks([num_rows * (row_bytes // unit)], target.blocks_at_once(kernel, THREADS), THREADS)
    tables = Tables(target.device)
    run = target.prepare(
        kernel,
        len(blocks),
        THREADS,
        tables.state(),
        tables.addresses(own, arrivals, out),
        tables.put(records(TASK, [task])),
        tables.put(blocks),
        tables.put(arrival_pointers(arrival_rows, num_rows)),
        tables.put(slots),
        row_bytes,
    )
    seconds = median_seconds(target, run, size.repeats)
    right = _is_right(out, own, arrivals, counts, slots)
    into, order = (torch.from_numpy(table).to(target.device) for table in (arrival_rows, slots))
    add = median_seconds(
        target,
        lambda: out.copy_(own).index_add_(0, into, arrivals.index_select(0, order)),
        min(size.repeats, 5),
    )
    return Line(
        what="sum",
        element=element,
        width=width,
        order="random",
        kernel=kernel.name,
        blocks=len(blocks),
        threads=THREADS,
        speed=1e-9 * num_bytes / seconds,
        copy=copy,
        torch=1e-9 * num_bytes / add,
        right=right,
        target=share,
    )


def _is_right(
    out: torch.Tensor, own: torch.Tensor, arrivals: torch.Tensor, counts: np.ndarray, slots: np.ndarray
) -> bool:
    """Whether every bit is that of adding one arrival after the other, in float32 for 16-bit types."""
    wide = torch.float32 if own.dtype.itemsize == 2 else own.dtype
    first = np.cumsum(counts) - counts
    for begin in range(0, len(counts), _SLICE):
        end = min(begin + _SLICE, len(counts))
        total = own[begin:end].to(wide)
        for k in range(_MOST_ARRIVALS):
            rows = np.flatnonzero(counts[begin:end] > k)
            kth = torch.from_numpy(slots[first[begin:end][rows] + k]).to(own.device)
            total[torch.from_numpy(rows).to(own.device)] += arrivals[kth].to(wide)
        if bool((bits(total.to(own.dtype)) != bits(out[begin:end])).any()):
            return False
    return True
