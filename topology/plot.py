"""Draws a topology into a PNG, SVG or PDF file, for ``dgcl topo plot`` and reports of plans.

The width of a line is its bandwidth, the colour its kind; with a load, the colour is the time that each connection is
busy. `layout` places everything. Needs matplotlib (the extra ``viz``), which is loaded here and nowhere else in this
package.
Called by `dgcl/cli/topo_plot`, `planner/reading/plan_plot`, `planner/reading/page` and others. Free to change while
every device and switch is named, the legend tells kinds and rates, and equal topologies give equal files
(`tests/topology/test_plot.py`).
"""

import os
import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dgcl.topology.layout import layout_topology
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

FORMATS = (".png", ".svg", ".pdf")
_FAMILIES = (  # pattern of a kind, name, colour
    (r"NV\d*|C2C", "NVLink", "#4c9f38"),
    (r"XGMI\d*", "xGMI", "#d1495b"),
    (r"PCIe.*|bus", "PCIe", "#3465a4"),
    (r"QPI|UPI|X-bus|IF|SYS|SMP", "between processors", "#8f5902"),
    (r"IB|EFA|net|Eth.*|RoCE|Slingshot", "network", "#75507b"),
    (r"memory|DRAM|core", "memory", "#e08214"),
    (r".*", "other", "#555753"),
)
_DARK, _PALE = "#888a85", "#d3d7cf"


def plot_topology(
    topology: Topology,
    path: str | os.PathLike[str],
    *,
    seconds: ArrayLike | None = None,
) -> None:
    """Write a picture; the suffix of ``path`` decides the format (.png, .svg, .pdf).

    Args:
        topology: What to draw.
        path: Where to.
        seconds: ``(num_directions,)``: how long each connection-direction of ``topology.arrays()`` is busy.

    Raises:
        ValueError: Another suffix, or ``seconds`` of another shape.
        ImportError: matplotlib is not installed; the message says how to install it.
        OSError: The file cannot be written.
    """
    figure = new_figure(path, picture_size(topology))
    axes = figure.subplots()
    draw_topology(axes, topology, seconds=seconds)
    axes.set_title(f"{topology.name}: {topology.num_devices} devices", loc="left", fontsize=10)
    save_figure(figure, path)


def picture_size(topology: Topology) -> tuple[float, float]:
    """Width and height, in inches, of a drawing of a topology with its legend."""
    width, height = layout_topology(topology).size
    return max(width, 3.0), height + 0.9


def draw_topology(axes: Any, topology: Topology, *, seconds: ArrayLike | None) -> None:
    """Draw a topology on matplotlib axes, whose figure should have some :func:`picture_size` for them.

    Args:
        axes: Where to.
        topology: What to draw.
        seconds: As in :func:`plot_topology`; a wire that stands for several shows the busiest of them.
    """
    from matplotlib.lines import Line2D

    layout = layout_topology(topology)
    busy = None if seconds is None else per_connection(topology, seconds)
    loads = None if busy is None else {wire: busy[group].max() for wire, group in layout.wires.items()}
    colour = {wire: family_of(wire.kind)[1] for wire in layout.wires} if loads is None else _heat(axes, loads)
    width, height = layout.size
    points = {
        wire: 1 + 3 * (wire.bandwidth / max(w.bandwidth for w in layout.wires)) ** 0.5
        for wire in layout.wires
    }
    legend: dict[str, list[Connection]] = {}
    lines = dict(zip(layout.wires, layout.lines(), strict=True))
    for wire in sorted(lines, key=lambda wire: -wire.bandwidth):
        legend.setdefault(wire.kind + " (both ways)" * (wire.duplex == "half"), []).append(wire)
        start, end, bend = lines[wire]
        axes.annotate(
            "",
            start,
            end,
            zorder=1,
            arrowprops={
                "arrowstyle": "-",
                "connectionstyle": f"arc3,rad={bend}",
                "color": colour[wire],
                "linewidth": points[wire],
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
    for name, place in layout.places.items():
        face, edge = ("#d8e8d2", "#3b6b2e") if name in layout.ranks else ("white", _DARK)
        box = {"boxstyle": "round,pad=0.3", "facecolor": face, "edgecolor": edge}
        axes.text(*place, layout.labels[name], fontsize=8, ha="center", va="center", zorder=2, bbox=box)
    handles = []
    for kind, wires in legend.items():
        rates = " to ".join(dict.fromkeys(f"{wire.bandwidth:.4g}" for wire in (wires[-1], wires[0])))
        shade = colour[wires[0]] if loads is None else _DARK
        handles.append(Line2D([], [], color=shade, linewidth=points[wires[0]], label=f"{kind}  {rates}"))
    if handles:
        axes.legend(
            handles=handles, title="GB/s each way", loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=2, fontsize=8,
            title_fontsize=8, frameon=False, alignment="left",
        )  # fmt: skip
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")


def family_of(kind: str) -> tuple[str, str]:
    """The name and the colour of the family that a connection's kind belongs to."""
    return next((name, colour) for pattern, name, colour in _FAMILIES if re.fullmatch(pattern, kind))


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit of an axis that goes so far, and how many of it a second has."""
    return ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)


def new_figure(path: str | os.PathLike[str], size: tuple[float, float]) -> Any:
    """A matplotlib figure that will be saved as ``path``; without pyplot, so a caller's figures stay as they are.

    Raises:
        ValueError: Another suffix than those of ``FORMATS``.
        ImportError: matplotlib is not installed; the message says how to install it.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)} (got {os.fspath(path)!r})")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'dgcl[viz]'") from None
    return Figure(figsize=size, layout="constrained")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure, without a date: the same data give the same picture."""
    from matplotlib import rc_context

    svg = os.fspath(path).lower().endswith(".svg")
    with rc_context({"svg.hashsalt": "dgcl", "svg.fonttype": "none"}):  # ids not drawn; text is text
        figure.savefig(path, dpi=130, bbox_inches="tight", metadata={"Date": None} if svg else None)


def per_connection(topology: Topology, seconds: ArrayLike) -> np.ndarray:
    """The busier direction of each connection; ``seconds`` as in :func:`plot_topology`."""
    arrays = topology.arrays()
    values = np.asarray(seconds, dtype=np.float64)
    if values.shape != (arrays.num_directions,):
        raise ValueError(
            f"seconds must have one entry for each of the {arrays.num_directions} connection-directions of "
            f"{topology.name!r} (got shape {values.shape})"
        )
    busy = np.zeros(len(topology.connections))
    np.maximum.at(busy, arrays.direction_connection, values)
    return busy


def _heat(axes: Any, loads: dict[Connection, float]) -> dict[Connection, Any]:
    """The colours of loads; adds their scale to the picture."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    most = max(loads.values(), default=0.0) or 1e-6
    unit, scale = time_unit(most)
    colours = ScalarMappable(Normalize(0, most * scale), "YlOrRd")
    bar = axes.figure.colorbar(colours, ax=axes, shrink=0.6, pad=0.01, location="left")
    bar.set_label(f"{unit} in use, in the busier direction", fontsize=8)
    return {w: colours.to_rgba(load * scale) if load else _PALE for w, load in loads.items()}  # type: ignore[arg-type]
