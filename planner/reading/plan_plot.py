"""Draws a plan: the load on each connection of the machine, and the time of each stage.

Needs matplotlib (the extra ``viz``). The machine is drawn as ``dgcl topo plot`` draws it.
Called by `page` and `dgcl/cli/plans`. Free to change while every plan has a picture in each format, which names the
busiest connections and has the report's times (`tests/planner/reading/test_plot.py`).
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np

from dgcl.planner.array_types import FloatArray
from dgcl.planner.cost import stage_use
from dgcl.planner.plan import Plan
from dgcl.planner.reading.plan_report import way
from dgcl.planner.reading.render import seconds
from dgcl.topology.table import plural

LANES = 16  # connection-directions in the timeline


def plot_plan(plan: Plan, path: str | os.PathLike[str], *, graph: str | None = None) -> None:
    """Write a picture of a plan; the suffix of ``path`` decides the format (.png, .svg, .pdf).

    Above, the machine: each connection's colour is the time that it is in use in one exchange. Below, a line for each
    of the busiest connections, and how long it is in use in each stage.

    Args:
        plan: The plan.
        path: Where to.
        graph: What was planned for, for the title.

    Raises:
        ValueError: Another suffix.
        ImportError: matplotlib is not installed; says how to install it.
    """
    from dgcl.topology.plot import draw_topology, new_figure, picture_size, save_figure

    topology, busy = plan.topology, stage_use(plan)
    lanes = busiest(busy)
    width, height = picture_size(topology)
    heights = height, 0.24 * len(lanes) + 1.4
    figure = new_figure(path, (max(width, 6.0), sum(heights) + 0.7))
    machine, timeline = figure.subplots(2, 1, height_ratios=heights)
    draw_topology(machine, topology, seconds=busy.sum(axis=0))
    _draw_timeline(timeline, plan, busy, lanes)
    figure.suptitle("\n".join(headline(plan, graph)), x=0.01, ha="left", fontsize=12)
    save_figure(figure, path)


def headline(plan: Plan, graph: str | None) -> tuple[str, str]:
    """What was planned for, and the outcome, in the units of the report."""
    what = f"{graph} on {plan.topology.name}" if graph else plan.topology.name
    return (
        f"{what}: {plan.method} plan for {plan.world_size} ranks, rows of {plan.row_bytes} bytes",
        f"{seconds(plan.predicted_seconds)} in {plural(plan.num_stages, 'stage')}; no plan takes less than"
        f" {seconds(plan.lower_bound_seconds)}",
    )


def busiest(busy: FloatArray) -> list[int]:
    """The connection-directions that are in use longest, at most :data:`LANES`, the longest first."""
    total = busy.sum(axis=0)
    return [int(d) for d in np.argsort(-total, kind="stable")[:LANES] if total[d] > 0]


def _draw_timeline(axes: Any, plan: Plan, busy: FloatArray, lanes: list[int]) -> None:
    """For the busiest connection-directions, how long each is in use within each stage."""
    from dgcl.topology.plot import family_of, time_unit

    topology, total = plan.topology, plan.predicted_seconds
    if not lanes:
        axes.text(0.5, 0.5, "nothing is sent", ha="center", va="center")
        axes.axis("off")
        return
    unit, scale = time_unit(total)
    starts = np.concatenate([[0.0], np.cumsum(plan.stage_seconds)]) * scale
    wires = [topology.connections[topology.arrays().direction_connection[d]] for d in lanes]
    shown: set[str] = set()
    for lane, (direction, wire) in enumerate(zip(lanes, wires, strict=True)):
        family, colour = family_of(wire.kind)
        label = None if family in shown else family
        shown.add(family)
        used = busy[:, direction] > 0
        begin, latency = starts[:-1][used], wire.latency * scale
        axes.barh(lane, latency, 0.7, begin, color="white", edgecolor=colour, hatch="////")
        axes.barh(lane, busy[used, direction] * scale, 0.7, begin + latency, color=colour, label=label)
    for k, (start, end) in enumerate(pairwise(starts.tolist())):
        axes.axvspan(start, end, color="#f4f4f1" if k % 2 else "white", zorder=0)
        share = plan.stage_seconds[k] / total
        name = (
            f"stage {k}: {seconds(plan.stage_seconds[k])}" if share > 0.15 else str(k) if share > 0.02 else ""
        )
        axes.annotate(
            name,
            (start, 1),
            (2, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
        )
    if 0 < plan.lower_bound_seconds <= total:
        axes.axvline(
            plan.lower_bound_seconds * scale, color="black", linestyle=":", linewidth=1.2, label="bound"
        )
    axes.set_yticks(range(len(lanes)), [way(topology, lane) for lane in lanes], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, total * scale)
    axes.set_xlabel(
        f"{unit}; hatched: latency; empty: latency of other parts of a route, or waiting", fontsize=9
    )
    axes.set_title("the busiest connections, stage by stage", loc="left", fontsize=10, pad=16)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=3, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
