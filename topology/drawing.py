"""Boxes, wires and legend of a picture of a topology, on matplotlib axes (:mod:`dgcl.topology.plot`)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dgcl.topology.layout import HEIGHT, Box, Layout, Wire, layout_topology
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

INCH = 0.82  # per unit of the layout
_FAMILIES = (  # pattern of a kind, name, colour
    (r"NV\d*|C2C", "NVLink", "#4c9f38"),
    (r"XGMI\d*", "xGMI", "#d1495b"),
    (r"PCIe.*|bus", "PCIe", "#3465a4"),
    (r"QPI|UPI|X-bus|IF|SYS|SMP|root", "between processors", "#8f5902"),
    (r"IB|EFA|net|Eth.*|RoCE|Slingshot", "network", "#75507b"),
    (r"memory|DRAM|core", "memory", "#e08214"),
    (r".*", "other", "#555753"),
)
_DARK, _PALE = "#888a85", "#d3d7cf"


def draw_on(axes: Any, topology: Topology, ranks: dict[str, int], busy: np.ndarray | None) -> None:
    """Draw a whole topology.

    Args:
        axes: Where to.
        topology: What to draw.
        ranks: The rank of each device.
        busy: Seconds that each connection is in use, its colour then; None: its kind is.
    """
    layout, wires = layout_topology(topology), topology.connections
    for machine, frame in layout.frames.items():
        _draw_frame(axes, machine, *frame)
    width = _widths(wires, layout)
    colour = {wire: _shade(wire, wires) for wire in wires} if busy is None else _loads(axes, wires, busy)
    for wire in wires:
        if wire.name in layout.wires:
            _draw_wire(axes, layout.wires[wire.name], colour[wire], width[wire])
    # Ranks go through all machines, names begin anew in each: where they differ, both are written.
    differ = any(re.sub(r".*?(\d*)$", r"\1", layout.boxes[name].label) != str(r) for name, r in ranks.items())
    for name, box in layout.boxes.items():
        _draw_box(axes, box, ranks.get(name) if differ else None)
    if wires:
        _draw_legend(axes, wires, dict.fromkeys(wires, _DARK) if busy is not None else colour, width)
    axes.set_xlim(layout.left - 0.5, layout.right + 0.5)
    axes.set_ylim(layout.bottom - 0.7, layout.top + 0.8)
    axes.set_aspect("equal")
    axes.axis("off")


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit of an axis that goes so far, and how many of it a second has."""
    return ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)


def family_of(kind: str) -> tuple[str, str]:
    """The name and the colour of the family that a connection's kind belongs to."""
    plain = kind.removesuffix(" (both ways)")
    return next((name, colour) for pattern, name, colour in _FAMILIES if re.fullmatch(pattern, plain))


def _widths(wires: tuple[Connection, ...], layout: Layout) -> dict[Connection, float]:
    """Points. Arcs that leave a device side by side must not run together; all lines keep their proportions."""
    widest = max((wire.bandwidth for wire in wires), default=1.0)
    points = {wire: 0.9 + 5.6 * (wire.bandwidth / widest) ** 0.5 for wire in wires}
    arcs = [points[wire] for wire in wires if wire.name in layout.wires and layout.wires[wire.name].depth > 0]
    scale = min(1.0, 0.62 * layout.arc_gap * INCH * 72 / max(arcs, default=1.0))
    return {wire: scale * value for wire, value in points.items()}


def _shade(wire: Connection, wires: tuple[Connection, ...]) -> Any:
    """The colour of a kind's family; slower members of a family are lighter."""
    from matplotlib.colors import to_rgb

    family = family_of(wire.kind)
    rates = sorted({other.bandwidth for other in wires if family_of(other.kind) == family})
    light = 0.5 * (1 - (rates.index(wire.bandwidth) + 1e-9) / (len(rates) - 1 + 1e-9))
    return tuple(part + (1 - part) * light for part in to_rgb(family[1]))


def _loads(axes: Any, wires: tuple[Connection, ...], busy: np.ndarray) -> dict[Connection, Any]:
    """The colours of loads; adds their scale to the picture."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    most = float(busy.max(initial=0.0)) or 1e-6
    unit, scale = time_unit(most)
    visible = ListedColormap(colormaps["YlOrRd"](np.linspace(0.2, 1, 256)))  # the first is almost white
    colours = ScalarMappable(Normalize(0, most * scale), visible)
    bar = axes.figure.colorbar(colours, ax=axes, shrink=0.6, pad=0.01)
    bar.set_label(f"{unit} in use, in the busier direction", fontsize=9)
    return {w: colours.to_rgba(t * scale) if t else _PALE for w, t in zip(wires, busy, strict=True)}


def _draw_frame(axes: Any, machine: int, left: float, right: float, bottom: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    size = (right - left, top - bottom)
    axes.add_patch(Rectangle((left, bottom), *size, facecolor="#f4f4f1", edgecolor=_PALE, zorder=0))
    # Along the side: wires to the network leave at the top, those to shared NVSwitches below.
    place = {"rotation": "vertical", "ha": "right", "va": "center"}
    axes.text(left - 0.08, (top + bottom) / 2, f"machine {machine}", fontsize=8, color=_DARK, **place)


def _draw_box(axes: Any, box: Box, rank: int | None) -> None:
    from matplotlib.patches import FancyBboxPatch

    face, edge, round_by = ("#d8e8d2", "#3b6b2e", 0.06) if box.is_device else ("white", _DARK, 0.2)
    style = f"round,pad=0,rounding_size={round_by}"
    place = ((box.left, box.y - HEIGHT / 2), box.width, HEIGHT)
    axes.add_patch(
        FancyBboxPatch(*place, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1.2, zorder=5)
    )
    up = 0.0 if rank is None else 0.09
    middle = {"ha": "center", "va": "center", "zorder": 6}
    axes.text(box.x, box.y + up, box.label, fontsize=8, **middle)
    if rank is not None:
        axes.text(box.x, box.y - up, f"rank {rank}", fontsize=6.5, color=edge, **middle)


def _draw_wire(axes: Any, wire: Wire, colour: Any, width: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (xa, ya), (xb, yb) = wire.start, wire.end
    lower, aside = wire.depth * 4 / 3, (xb - xa) * 0.12  # a cubic reaches 3/4 of the depth of its handles
    handles = [(xa + aside, ya - lower), (xb - aside, yb - lower)] if wire.depth else []
    codes = [Path.MOVETO, *[Path.CURVE4] * 3] if wire.depth else None
    path = Path([wire.start, *handles, wire.end], codes)
    line = {"edgecolor": colour, "linewidth": width, "capstyle": "round"}
    axes.add_patch(PathPatch(path, facecolor="none", zorder=3, **line))


def _draw_legend(
    axes: Any, wires: tuple[Connection, ...], colour: dict[Connection, Any], width: dict[Connection, float]
) -> None:
    """A line for each kind, the widest first."""
    from matplotlib.lines import Line2D

    kinds: dict[str, list[Connection]] = {}
    for wire in sorted(wires, key=lambda wire: -wire.bandwidth):
        kinds.setdefault(wire.kind + " (both ways)" * (wire.duplex == "half"), []).append(wire)
    lines = []
    for kind, (fastest, *_, slowest) in ((kind, [*group, group[-1]]) for kind, group in kinds.items()):
        rates = dict.fromkeys(f"{wire.bandwidth:.4g}" for wire in (slowest, fastest))
        label = f"{kind}  {' to '.join(rates)}"
        lines.append(Line2D([], [], color=colour[fastest], linewidth=width[fastest], label=label))
    axes.legend(
        handles=lines,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
        title="GB/s each way",
        title_fontsize=8,
        alignment="left",
    )
