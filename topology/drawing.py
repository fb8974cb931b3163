"""Boxes, wires and legend of a picture of a topology, on matplotlib axes (:mod:`dgcl.topology.plot`)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dgcl.topology.combine import PORT
from dgcl.topology.layout import CURVE, HEIGHT, Box, layout_topology
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
)
_OTHER = "#555753"
_MOST_ENTRIES = 12  # of the legend


class Drawing:
    """One picture on one pair of axes."""

    def __init__(self, axes: Any, topology: Topology, ranks: dict[str, int], busy: np.ndarray | None) -> None:
        self._axes, self._topology, self._busy = axes, topology, busy
        self._layout = layout = layout_topology(topology)
        # Ranks go through all machines, names begin anew in each: where they differ, both are written.
        labels = {name: layout.boxes[name].label for name in ranks if name in layout.boxes}
        differ = any(re.sub(r".*?(\d*)$", r"\1", label) != str(ranks[name]) for name, label in labels.items())
        self._ranks = {name: ranks[name] for name in labels} if differ else {}
        self._widest = max((c.bandwidth for c in topology.connections), default=1.0)
        self._wires: dict[frozenset[str], int] = {}
        # Arcs that leave a device side by side must not run together; all lines keep their proportions.
        arcs = [c.bandwidth for c in topology.connections if c.name in layout.arcs]
        widest_arc = self._points(max(arcs, default=self._widest))
        self._scale = min(1.0, 0.62 * layout.arc_gap * INCH * 72 / widest_arc)

    def draw(self) -> None:
        """Draw everything."""
        self._frames()
        colours = self._colours()
        for connection, colour in zip(self._topology.connections, colours, strict=True):
            self._wire(connection, colour)
        for name, box in self._layout.boxes.items():
            self._box(box, self._ranks.get(name))
        if self._busy is None:
            self._legend()
        else:
            self._widths_legend()
        lay = self._layout
        self._axes.set_xlim(lay.left - 0.5, lay.right + 0.5 + 0.7 * self._has_side_wires())
        self._axes.set_ylim(lay.bottom - 0.7, lay.top + 0.8)
        self._axes.set_aspect("equal")
        self._axes.axis("off")

    def _colours(self) -> list[Any]:
        if self._busy is None:
            return [self._shade(c.kind, c.bandwidth) for c in self._topology.connections]
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        most = float(self._busy.max(initial=0.0)) or 1e-6
        unit, scale = time_unit(most)
        visible = ListedColormap(colormaps["YlOrRd"](np.linspace(0.2, 1, 256)))  # the first is almost white
        colours = ScalarMappable(Normalize(0, most * scale), visible)
        bar = self._axes.figure.colorbar(colours, ax=self._axes, shrink=0.6, pad=0.01)
        bar.set_label(f"{unit} in use, in the busier direction", fontsize=9)
        idle = "#d3d7cf"
        return [idle if value == 0 else colours.to_rgba(value * scale) for value in self._busy]

    def _shade(self, kind: str, bandwidth: float) -> Any:
        """The colour of a kind's family; slower members of a family are lighter."""
        from matplotlib.colors import to_rgb

        name, colour = family_of(kind)
        rates = sorted({c.bandwidth for c in self._topology.connections if family_of(c.kind)[0] == name})
        light = 0.0 if len(rates) < 2 else 0.5 * (1 - rates.index(bandwidth) / (len(rates) - 1))
        return tuple(part + (1 - part) * light for part in to_rgb(colour))

    def _frames(self) -> None:
        from matplotlib.patches import Rectangle

        for machine, (left, right, bottom, top) in self._layout.frames.items():
            self._axes.add_patch(
                Rectangle(
                    (left, bottom),
                    right - left,
                    top - bottom,
                    facecolor="#f4f4f1",
                    edgecolor="#d3d7cf",
                    zorder=0,
                )
            )
            # Along the side: wires to the network leave at the top, those to shared NVSwitches below.
            self._axes.text(
                left - 0.08,
                (top + bottom) / 2,
                f"machine {machine}",
                fontsize=8,
                color="#888a85",
                rotation="vertical",
                ha="right",
                va="center",
            )

    def _box(self, box: Box, rank: int | None) -> None:
        from matplotlib.patches import FancyBboxPatch

        face, edge = ("#d8e8d2", "#3b6b2e") if box.is_device else ("white", "#888a85")
        self._axes.add_patch(
            FancyBboxPatch(
                (box.left, box.y - HEIGHT / 2),
                box.width,
                HEIGHT,
                boxstyle=f"round,pad=0,rounding_size={0.06 if box.is_device else 0.2}",
                facecolor=face,
                edgecolor=edge,
                linewidth=1.2,
                zorder=5,
            )
        )
        up = 0.0 if rank is None else 0.09
        style = {"ha": "center", "va": "center", "zorder": 6}
        self._axes.text(box.x, box.y + up, box.label, fontsize=8, **style)
        if rank is not None:
            self._axes.text(box.x, box.y - up, f"rank {rank}", fontsize=6.5, color="#3b6b2e", **style)

    def _wire(self, connection: Connection, colour: Any) -> None:
        boxes = self._layout.boxes
        style = {
            "color": colour,
            "linewidth": self._line(connection.bandwidth),
            "solid_capstyle": "round",
            "zorder": 3,
        }
        if connection.b.endswith(PORT) or connection.a.endswith(PORT):
            self._stub(boxes[connection.a if connection.b.endswith(PORT) else connection.b], style)
            return
        a, b = sorted((boxes[connection.a], boxes[connection.b]), key=lambda box: (box.y, box.x))
        number = self._wires.get(frozenset((connection.a, connection.b)), 0)
        self._wires[frozenset((connection.a, connection.b))] = number + 1
        shift = 0.16 * ((number + 1) // 2) * (-1) ** number
        if connection.name in self._layout.arcs:
            arc = self._layout.arcs[connection.name]
            self._curve((arc.start, -HEIGHT / 2), (arc.end, -HEIGHT / 2), -arc.depth, style)
        elif a.y == b.y:
            self._beside(a, b, style, shift)
        elif a.y < 0 < b.y:
            self._around(a, b, style)
        else:
            self._straight(a, b, style, shift)

    def _line(self, bandwidth: float) -> float:
        return self._scale * self._points(bandwidth)

    def _points(self, bandwidth: float) -> float:
        return 0.9 + 5.6 * (bandwidth / self._widest) ** 0.5

    def _stub(self, box: Box, style: dict[str, Any]) -> None:
        top = box.y + HEIGHT / 2
        self._axes.plot([box.x, box.x], [top, top + 0.3], **style)

    def _straight(self, a: Box, b: Box, style: dict[str, Any], shift: float) -> None:
        xa, xb = a.x + shift, b.x + shift
        # A bar is met straight above (or below) the narrower of the two.
        if b.width > a.width:
            xb = min(max(xa, b.left + 0.1), b.right - 0.1) if b.width > 1.5 * a.width else xb
        elif a.width > 1.5 * b.width:
            xa = min(max(xb, a.left + 0.1), a.right - 0.1)
        self._axes.plot([xa, xb], [a.y + HEIGHT / 2, b.y - HEIGHT / 2], **style)

    def _beside(self, a: Box, b: Box, style: dict[str, Any], shift: float) -> None:
        between = [box for box in self._layout.boxes.values() if box.y == a.y and a.right < box.x < b.left]
        if not between:
            self._axes.plot([a.right, b.left], [a.y + shift / 2, b.y + shift / 2], **style)
            return
        self._curve((a.x, a.y + HEIGHT / 2), (b.x, b.y + HEIGHT / 2), CURVE + shift, style)

    def _around(self, a: Box, b: Box, style: dict[str, Any]) -> None:
        """Between a bar below the devices and something above: round their right end."""
        x = self._layout.right + 0.35
        self._axes.plot([a.right, x, x, b.right], [a.y, a.y, b.y, b.y], solid_joinstyle="round", **style)

    def _has_side_wires(self) -> bool:
        boxes = self._layout.boxes
        return any(
            c.a in boxes
            and c.b in boxes
            and min(boxes[c.a].y, boxes[c.b].y) < 0 < max(boxes[c.a].y, boxes[c.b].y)
            for c in self._topology.connections
        )

    def _curve(
        self, start: tuple[float, float], end: tuple[float, float], height: float, style: dict[str, Any]
    ) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        (xa, ya), (xb, yb) = start, end
        lift = height * 4 / 3  # a cubic reaches 3/4 of the height of its handles
        handles = [(xa + (xb - xa) * 0.12, ya + lift), (xb - (xb - xa) * 0.12, yb + lift)]
        path = Path([start, *handles, end], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        self._axes.add_patch(
            PathPatch(
                path,
                facecolor="none",
                edgecolor=style["color"],
                linewidth=style["linewidth"],
                capstyle="round",
                zorder=style["zorder"],
            )
        )

    def _legend(self) -> None:
        from matplotlib.lines import Line2D

        self._put_legend(
            [
                Line2D([], [], color=self._shade(kind, high), linewidth=self._line(high), label=label)
                for kind, high, label in self._entries()
            ]
        )

    def _widths_legend(self) -> None:
        from matplotlib.lines import Line2D

        self._put_legend(
            [
                Line2D([], [], color="#888a85", linewidth=self._line(high), label=label)
                for _, high, label in self._entries()
            ]
        )

    def _put_legend(self, lines: list[Any]) -> None:
        if lines:
            self._axes.legend(
                handles=lines,
                loc="upper left",
                bbox_to_anchor=(1.0, 1.0),
                fontsize=8,
                frameon=False,
                title="GB/s each way",
                title_fontsize=8,
                alignment="left",
            )

    def _entries(self) -> list[tuple[str, float, str]]:
        """Kind, bandwidth and label of each line of the legend, the widest first."""
        rates: dict[str, set[float]] = {}
        for connection in self._topology.connections:
            kind = connection.kind + (" (both ways)" if connection.duplex == "half" else "")
            rates.setdefault(kind, set()).add(connection.bandwidth)
        entries = [(kind, rate, f"{kind}  {rate:.4g}") for kind in rates for rate in rates[kind]]
        if len(entries) > _MOST_ENTRIES:
            entries = [
                (
                    kind,
                    max(found),
                    f"{kind}  {min(found):.4g} to {max(found):.4g}"
                    if len(found) > 1
                    else f"{kind}  {max(found):.4g}",
                )
                for kind, found in rates.items()
            ]
        return sorted(entries, key=lambda entry: -entry[1])


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit of an axis that goes so far, and how many of it a second has."""
    return ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)


def family_of(kind: str) -> tuple[str, str]:
    """The name and the colour of the family that a connection's kind belongs to."""
    plain = kind.removesuffix(" (both ways)")
    for pattern, name, colour in _FAMILIES:
        if re.fullmatch(pattern, plain):
            return name, colour
    return "other", _OTHER
