"""What the modules of performance.py have in common: what is measured, and how figures become tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dgcl.bench.records import Line, Timing

WIDTH = 128
GRAPHS = {"web_google_scc": "web-Google core", "ogbn_arxiv": "ogbn-arxiv"}
COMPARED, OTHERS = ("halo", "gloo-halo", "gloo-halo-plain", "auto", "gloo", "gloo-kept"), ("swap", "padded")
SIZES = (1, 4, 16, 64)  # MB that a rank receives
FRACTIONS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
VERBS = ("forward", "backward")
REPORTED = "reported"  # no goal


def pick(lines: list[Line], method: str, name: str | None = None) -> Line:
    """The line of a method (of one problem)."""
    return next(line for line in lines if line.method == method and name in (None, line.name))


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times as long, median over samples that took turns."""
    return statistics.median(a / b for a, b in zip(slow.samples, fast.samples, strict=True))


def share(timing: Timing) -> float:
    """Of the bandwidth of plain copies in the same turns, median over samples."""
    return statistics.median(c / t for c, t in zip(timing.copy_samples, timing.samples, strict=True))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        f"| {' | '.join(header)} |",
        f"|{' --- |' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
