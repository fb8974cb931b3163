"""Pictures of a plan: the machine with the load on each connection, and where the time of each stage goes.

Needs matplotlib (the extra ``viz``). It does not use pyplot, so a caller's figures and settings stay as they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.planner.arrays import FloatArray
from dgcl.planner.cost import GIGA, stage_loads
from dgcl.planner.plan import Plan

if TYPE_CHECKING:
    from dgcl.topology import Topology

LANES = 24  # connection-directions in the timeline
FORMATS = (".png", ".svg", ".pdf")


def plot_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a picture of a plan; the suffix of ``path`` decides the format (.png, .svg, .pdf).

    Raises:
        ValueError: Another suffix.
        ImportError: matplotlib is not installed; says how to install it.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)} (got {os.fspath(path)!r})")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'dgcl[viz]'") from None
    arrays = plan.topology.arrays()
    busy = stage_loads(plan.trees, arrays, plan.row_bytes) / (arrays.bandwidth * GIGA)
    figure = Figure(figsize=(14, 7), layout="constrained")
    machine, timeline = figure.subplots(1, 2, width_ratios=[1, 1.1])
    _draw_machine(machine, plan, busy)
    _draw_timeline(timeline, plan, busy)
    figure.suptitle(
        f"{plan.method} on {plan.topology.name}: {plan.predicted_seconds * 1e3:.4g} ms,"
        f" {plan.gap:.2%} above the bound"
    )
    # No date in the file: the same plan gives the same picture.
    figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == ".svg" else None)


def _draw_machine(axes: Any, plan: Plan, busy: FloatArray) -> None:
    """Draw devices, switches and connections, coloured by the share of the plan's time in use."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    topology = plan.topology
    at = layout(topology)
    use = np.zeros(len(topology.connections))
    if plan.predicted_seconds > 0:
        np.maximum.at(use, topology.arrays().direction_connection, busy.sum(axis=0) / plan.predicted_seconds)
    colours = ScalarMappable(Normalize(0, 1), "viridis_r")
    widest = max((c.bandwidth for c in topology.connections), default=1.0)
    drawn: dict[frozenset[str], int] = {}
    for share, connection in zip(use, topology.connections, strict=True):
        ends = frozenset((connection.a, connection.b))
        bend = 0.12 * drawn.get(ends, 0)  # parallel connections side by side
        drawn[ends] = drawn.get(ends, 0) + 1
        axes.annotate(
            "",
            at[connection.a],
            at[connection.b],
            arrowprops={
                "arrowstyle": "-",
                "connectionstyle": f"arc3,rad={bend}",
                "color": colours.to_rgba(np.array(share)),
                "linewidth": 1 + 4 * (connection.bandwidth / widest) ** 0.5,
            },
        )
    devices = [device.name for device in topology.devices]
    for names, marker, colour in ((devices, "o", "white"), (list(topology.switches), "s", "lightgrey")):
        places = np.array([at[name] for name in names]).reshape(-1, 2)
        axes.scatter(*places.T, s=260, marker=marker, c=colour, edgecolors="black", zorder=3)
        for name, place in zip(names, places, strict=True):
            axes.annotate(name, place, ha="center", va="center", fontsize=7, zorder=4)
    axes.figure.colorbar(colours, ax=axes, label="share of the plan's time in use", shrink=0.7)
    axes.set_axis_off()
    axes.margins(0.1)
    axes.set_title("connections (wider: faster)")


def layout(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return a place for every device and switch: unconnected parts side by side, neighbours close together."""
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(device.name for device in topology.devices)
    for connection in topology.connections:
        graph.add_edge(connection.a, connection.b)
    places: dict[str, tuple[float, float]] = {}
    right = 0.0
    for part in sorted(nx.connected_components(graph), key=lambda names: min(names)):
        found = nx.kamada_kawai_layout(graph.subgraph(sorted(part)))
        left = min(float(x) for x, _ in found.values())
        for name, (x, y) in found.items():
            places[name] = (right + float(x) - left, float(y))
        right = max(x for x, _ in places.values()) + 0.5
    return places


def _draw_timeline(axes: Any, plan: Plan, busy: FloatArray) -> None:
    """Draw, for the busiest connection-directions, how long each is in use within each stage."""
    arrays, topology = plan.topology.arrays(), plan.topology
    starts = np.concatenate([[0.0], np.cumsum(plan.stage_seconds)]) * 1e3
    order = np.argsort(-busy.sum(axis=0), kind="stable")[:LANES]
    order = order[busy[:, order].sum(axis=0) > 0] if plan.num_stages else order[:0]
    kinds = sorted({topology.connections[arrays.direction_connection[c]].kind for c in order})
    colour = {kind: f"C{i}" for i, kind in enumerate(kinds)}
    shown: set[str] = set()
    for lane, c in enumerate(order.tolist()):
        kind = topology.connections[arrays.direction_connection[c]].kind
        axes.barh(
            np.full(plan.num_stages, lane),
            busy[:, c] * 1e3,
            left=starts[:-1],
            color=colour[kind],
            label=None if kind in shown else kind,
        )
        shown.add(kind)
    for k, start in enumerate(starts[:-1]):
        axes.axvline(start, color="black", linewidth=0.8)
        share = plan.stage_seconds[k] / plan.predicted_seconds
        name = f"stage {k}" if share > 0.1 else str(k) if share > 0.03 else ""  # as much as there is room for
        axes.annotate(name, (start, 1), xycoords=("data", "axes fraction"), fontsize=8, va="bottom")
    axes.set_yticks(range(len(order)), [arrays.direction_name(int(c)) for c in order], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title("busiest connections, stage by stage", pad=18)
    if shown:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.07), ncols=len(shown), fontsize=8)
        axes.set_xlim(0, plan.predicted_seconds * 1e3)
