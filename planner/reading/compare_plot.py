"""A picture of what methods take on machines, with the bound of each machine. Needs matplotlib (the extra ``viz``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dgcl.planner.reading.render import seconds

_MOST_BESIDE = 3  # machines in a row


def plot_compared(compared: Sequence[dict[str, Any]], path: str | os.PathLike[str], *, title: str) -> None:
    """Write bars of the predicted seconds of methods, one drawing for each machine.

    Args:
        compared: For each machine "topology", "ranks", "bound_seconds" and "methods", which are those of
            :func:`dgcl.planner.reading.report.method_facts`.
        path: Where to; the suffix decides the format (.png, .svg, .pdf).
        title: What was planned.

    Raises:
        ValueError: Another suffix.
        ImportError: matplotlib is not installed; says how to install it.
    """
    from dgcl.topology.plot import new_figure, save_figure

    columns = min(len(compared), _MOST_BESIDE)
    rows = -(-len(compared) // columns)
    tallest = max(len(machine["methods"]) for machine in compared)
    figure = new_figure(path, (max(4.2 * columns, 6.0), (0.36 * tallest + 1.2) * rows + 0.6))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for each, machine in zip(axes, compared, strict=False):
        _draw_machine(each, machine)
    for each in axes[len(compared) :]:
        each.axis("off")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    save_figure(figure, path)


def _draw_machine(axes: Any, machine: dict[str, Any]) -> None:
    from dgcl.topology.drawing import time_unit

    methods, bound = machine["methods"], machine["bound_seconds"]
    takes = [method.get("predicted_seconds", 0.0) for method in methods]
    longest = max([*takes, bound]) or 1e-6
    unit, scale = time_unit(longest)
    best = min((value for value, m in zip(takes, methods, strict=True) if "impossible" not in m), default=0.0)
    for place, (method, value) in enumerate(zip(methods, takes, strict=True)):
        impossible = "impossible" in method
        colour = "#3465a4" if value == best else "#a8bcd6"
        axes.barh(place, value * scale, color=colour, height=0.7)
        told = "impossible here" if impossible else f"{seconds(value)}  ({method['to_bound']:.2f})"
        inside = value > 0.6 * longest
        axes.annotate(
            told,
            (value * scale, place),
            (-4 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            fontsize=8,
            color="white" if inside and value == best else "black",
        )
    if bound > 0:
        axes.axvline(bound * scale, color="black", linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(methods)), [method["method"] for method in methods], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02 * longest * scale)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"{unit}; dotted: the bound, {seconds(bound)}", fontsize=9)
    axes.set_title(f"{machine['topology']}, {machine['ranks']} ranks", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
