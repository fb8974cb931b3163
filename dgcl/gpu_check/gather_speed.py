"""How fast rows are gathered and stored."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from dgcl.gpu_check.gpu import Tables, Target
from dgcl.gpu_check.measurement import Line, Size, bits, median_seconds, random_rows
from dgcl.kernels.cuda_catalogue import Kernel, gather
from dgcl.kernels.cuda_shapes import THREADS, deal_blocks, unit_of
from dgcl.kernels.cuda_tables import TASK, records


def row_table(order: str, num_rows: int) -> np.ndarray:
    """Which rows are gathered: all in "random" order, or every second in ascending order, twice ("sorted").

    A program sends each peer a part of the rows in ascending order.
    """
    generator = np.random.default_rng(1)
    if order == "random":
        return generator.permutation(num_rows).astype(np.int32)
    picked = np.sort(generator.choice(num_rows, num_rows // 2, replace=False)).astype(np.int32)
    return np.concatenate([picked, picked])


def measure_gather(
    target: Target,
    size: Size,
    element: str,
    width: int,
    copy: float,
    *,
    order: str = "random",
    kernel: Kernel | None = None,
    threads: int = THREADS,
    blocks_share: float = 1.0,
    share: float | None = None,
    compare: bool = True,
) -> Line:
    """Gather rows for several peers in one launch.

    Args:
        target, size, element, width, copy: Where, how much, which rows, and the copy's speed. order: See
        :func:`row_table`. kernel, threads, blocks_share: Other than the usual ones: a variant, threads of a
        block, the part of the
            blocks that the device holds at once.
        share: The share of the copy's speed that is asked for.
        compare: Whether torch's ``index_select`` is measured, too.
    """
    dtype = getattr(torch, element)
    row_bytes = width * dtype.itemsize
    num_rows = size.num_rows(row_bytes)
    num_bytes = 2 * num_rows * row_bytes
    rows = random_rows(num_rows, width, dtype, target)
    out = torch.full_like(rows, 77)
    table = row_table(order, num_rows)
    unit = unit_of(row_bytes, rows.data_ptr(), out.data_ptr())
    kernel = kernel or gather(unit)

    cuts = np.linspace(0, num_rows, size.num_peers + 1).astype(np.int64)
    tasks = [
        {"target": 1, "first": begin, "to": begin, "count": end - begin, "near_rows": num_rows}
        for begin, end in pairwise(cuts)
    ]
    most = max(int(target.blocks_at_once(kernel, threads) * blocks_share), 1)
    blocks = deal_blocks((np.diff(cuts) * (row_bytes // unit)).tolist(), most, 4 * threads)
    tables = Tables(target.device)
    run = target.prepare(
        kernel,
        len(blocks),
        threads,
        tables.state(),
        tables.addresses(rows, out),
        tables.put(records(TASK, tasks)),
        tables.put(blocks),
        tables.put(table),
        row_bytes,
    )
    seconds = median_seconds(target, run, size.repeats)
    index = torch.from_numpy(table).to(target.device)
    right = not bool((bits(out) != bits(rows.index_select(0, index))).any())
    theirs = None
    if compare:
        select = median_seconds(target, lambda: torch.index_select(rows, 0, index, out=out), size.repeats)
        theirs = 1e-9 * num_bytes / select
    return Line(
        what="gather",
        element=element,
        width=width,
        order=order,
        kernel=kernel.name,
        blocks=len(blocks),
        threads=threads,
        speed=1e-9 * num_bytes / seconds,
        copy=copy,
        torch=theirs,
        right=right,
        target=share,
    )
