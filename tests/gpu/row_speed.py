"""How fast rows are gathered and summed, as a share of what the device's own copy moves in the same run.

Bytes are those of rows, read plus written; tables of indices are not counted. Much more is moved than fits into any
cache. Every measurement compares every bit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from dgcl.kernels.cuda_catalogue import Kernel, catalogue, gather, sum_name
from dgcl.kernels.cuda_shapes import THREADS, deal_blocks, unit_of
from dgcl.kernels.cuda_tables import TASK, arrival_pointers, records
from tests.gpu.device import Tables, Target

#: The share of the copy's speed that these widths must reach.
SHARE: Final = 0.85
WITH_TARGET: Final = (
    *(("float32", width) for width in (64, 128, 256, 512, 1024)),
    *(("bfloat16", width) for width in (128, 256, 512, 1024)),
)
#: Others: narrow, odd, and wide elements.
WITHOUT_TARGET: Final = (
    ("float32", 602),
    ("float32", 16),
    ("float32", 1),
    ("bfloat16", 129),
    ("float16", 256),
    ("float64", 128),
)

_MOST_ARRIVALS = 4
_SLICE = 1 << 20  # rows that are checked at a time


@dataclass(frozen=True)
class Size:
    """How much is moved: bytes of the rows that are gathered, peers that they are for, timed repeats."""

    num_bytes: int = 1 << 31
    num_peers: int = 7
    repeats: int = 15

    def num_rows(self, row_bytes: int) -> int:
        """An even number of rows; no more of narrow ones than a host shuffles in a second."""
        return min(max(self.num_bytes // row_bytes // 2 * 2, 2), 1 << 24)


@dataclass(frozen=True)
class Line:
    """One measurement.

    Attributes:
        what, element, width, order: What was done: gather or sum, to which rows.
        kernel, blocks, threads: By which kernel, and its launch.
        speed, copy, torch: GB/s, rows read plus rows written: of the kernel, of the device's own copy in the same run,
            and of torch's way to the same result (None where there is none or it was not asked).
        right: Whether every bit is what torch computes.
        target: The share of the copy's speed that is asked for; None for none.
    """

    what: str
    element: str
    width: int
    order: str
    kernel: str
    blocks: int
    threads: int
    speed: float
    copy: float
    torch: float | None
    right: bool
    target: float | None

    @property
    def share(self) -> float:
        """Speed over that of the copy."""
        return self.speed / self.copy

    @property
    def good(self) -> bool:
        """Whether it is right, and as fast as asked for."""
        return self.right and (self.target is None or self.share >= self.target)

    def to_json(self) -> dict[str, Any]:
        """Itself and its share, as one JSON object."""
        return {**asdict(self), "share": self.share}

    def __str__(self) -> str:
        theirs = "" if self.torch is None else f"{self.torch:.0f}"
        wanted = "" if self.target is None else f"{self.target:.2f} " + ("yes" if self.good else "MISSED")
        cells = [
            self.what,
            self.element,
            str(self.width),
            self.order,
            self.kernel,
            f"{self.blocks} x {self.threads}",
            f"{self.speed:.0f}",
            f"{self.share:.2f}",
            theirs,
            "yes" if self.right else "NO",
            wanted,
        ]
        return "| " + " | ".join(cells) + " |"


#: The head of a table of lines.
HEAD = (
    "| what | element | width | order | kernel | blocks | GB/s | of copy | torch | right | target |\n"
    "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- | --- |"
)


def copy_speed(target: Target, size: Size) -> float:
    """GB/s, read plus written, of a device-to-device copy."""
    source = torch.ones(size.num_bytes, dtype=torch.uint8, device=target.device)
    other = torch.empty_like(source)
    return 2e-9 * size.num_bytes / median_seconds(target, lambda: other.copy_(source), size.repeats)


def median_seconds(target: Target, run: Callable[[], object], repeats: int) -> float:
    """The median, which one disturbed run does not move."""
    return statistics.median(target.seconds(run, repeats))


def bits(rows: torch.Tensor) -> torch.Tensor:
    """The same rows as integers, which compare bit by bit."""
    return rows.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.dtype.itemsize])


def random_rows(num_rows: int, width: int, dtype: torch.dtype, target: Target) -> torch.Tensor:
    """Rows of random numbers; constant rows would hide a row in the wrong place."""
    return torch.randn(num_rows, width, device=target.device).to(dtype)


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
        target, size, element, width, copy: Where, how much, which rows, and the copy's speed.
        order: See :func:`row_table`.
        kernel, threads, blocks_share: Other than the usual ones: a variant, threads of a block, the share of the blocks
            that the device holds at once.
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
