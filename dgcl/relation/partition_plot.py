"""A picture of a partition: what each part has, and how many rows go between parts. Needs matplotlib (``viz``)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.relation.partition_report import PartitionReport

_MOST_NAMED = 16  # parts that each get a tick


def plot_partition(
    report: PartitionReport, rows: NDArray[np.int64], path: str | os.PathLike[str], *, title: str
) -> None:
    """Write a picture; the suffix of ``path`` decides the format (.png, .svg, .pdf).

    Args:
        report: Sizes, edges, boundary and halo of each part.
        rows: ``(P, P)``, rows that part i sends to part j in one exchange.
        path: Where to.
        title: What was divided.

    Raises:
        ValueError: Another suffix.
        ImportError: matplotlib is not installed; says how to install it.
    """
    from dgcl.topology.plot import new_figure, save_figure

    figure = new_figure(path, (13.0, 4.4))
    work, exchange, pairs = figure.subplots(1, 3)
    parts = np.arange(report.num_parts)
    for values, name, colour, side in (
        (report.sizes, "vertices", "#4c9f38", -0.2),
        (report.edges, "in-edges", "#3465a4", 0.2),
    ):
        relative = values / max(float(values.mean()), 1e-12)
        work.bar(parts + side, relative, 0.4, color=colour, label=f"{name} (at most {relative.max():.3f})")
    work.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    _finish(work, "work of each part, relative to the mean", parts)
    exchange.bar(parts - 0.2, report.boundary_sizes, 0.4, color="#e08214", label="boundary: others read them")
    exchange.bar(parts + 0.2, report.halo_sizes, 0.4, color="#75507b", label="halo: it reads of others")
    _finish(exchange, f"vertices at the cut; {report.deliveries:,} rows an exchange", parts)
    image = pairs.imshow(np.ma.masked_equal(rows, 0), cmap="YlOrRd", vmin=0)
    pairs.figure.colorbar(image, ax=pairs, shrink=0.8)
    pairs.set_title("rows from part (down) to part (across)", loc="left", fontsize=10)
    _ticks(pairs, parts, both=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    save_figure(figure, path)


def _finish(axes: Any, title: str, parts: NDArray[np.int64]) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.25 * high)  # room for the legend
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.set_xlabel("part", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    _ticks(axes, parts)


def _ticks(axes: Any, parts: NDArray[np.int64], both: bool = False) -> None:
    named = parts[:: -(-len(parts) // _MOST_NAMED)]
    axes.set_xticks(named, [str(part) for part in named])
    if both:
        axes.set_yticks(named, [str(part) for part in named])
    axes.tick_params(labelsize=8)
