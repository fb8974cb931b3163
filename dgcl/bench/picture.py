"""Draws bus bandwidth over size for each method, under the roof of plain copies.

Needs matplotlib (the extra ``viz``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dgcl.bench.records import Line
from dgcl.bench.report import VERBS, short_size
from dgcl.topology.plot import new_figure, save_figure


def plot_bandwidths(lines: Sequence[Line], path: str | os.PathLike[str], title: str) -> None:
    """Write a picture with a panel for each verb; the suffix of ``path`` decides the format.

    The grey line is the bus bandwidth of an exchange that takes as long as plain copies of all that the method
    writes, measured in the same rounds; of several methods the highest.

    Args:
        lines: What was measured; those without a bandwidth are left out.
        path: Where to.
        title: Over both panels.

    Raises:
        ValueError: Another suffix.
        ImportError: matplotlib is not installed; says how to install it.
    """
    figure = new_figure(path, (10.0, 4.2))
    figure.suptitle(title)
    for axes, verb in zip(figure.subplots(1, 2, sharey=True), VERBS, strict=True):
        roof: dict[float, float] = {}
        for method in dict.fromkeys(line.method for line in lines):
            points = []
            for line in lines:
                timing = getattr(line, verb)
                if line.method == method and timing.wrong == 0:
                    points.append((line.size, line.busbw(timing)))
                    roof[line.size] = max(roof.get(line.size, 0.0), line.roof)
            if points:
                axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3.5, label=method)
        if roof:
            axes.plot(
                *zip(*sorted(roof.items()), strict=True), color="0.6", dashes=(5, 3), label="plain copies"
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda size, _: short_size(size))
        axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
        axes.set_xlabel("size: bytes that a rank receives")
        axes.set_title(verb)
        axes.grid(True, which="major", color="0.92")
        if axes.lines:
            axes.legend(frameon=False)
    figure.axes[0].set_ylabel("bus bandwidth (GB/s)")
    save_figure(figure, path)
