"""One line of a table of speeds, as Markdown and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dgcl.gpu_check.gpu import Target


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
        what, element, width, order: What was done: gather or sum, to which rows. kernel, blocks, threads:
        How. speed, copy, torch: GB/s, rows read plus rows written: of the kernel, of the device's own copy
        in the same
            run, and of torch's way to the same result (None where there is none or it was not asked).
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
