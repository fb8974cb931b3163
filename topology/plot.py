"""Draws a topology, for ``dgcl topo plot``.

Devices are in a row, hosts and networks above, connections among GPUs below. The width of a line is its bandwidth, the
colour its kind; with a load, the colour is the time that each connection is busy.

Needs matplotlib (the extra ``viz``), which is loaded here and nowhere else in this package.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dgcl.topology.drawing import INCH, draw_on
from dgcl.topology.layout import layout_topology, machines_of
from dgcl.topology.model import Topology

FORMATS = (".png", ".svg", ".pdf")
_MOST_DEVICES = 32  # of a picture


def plot_topology(
    topology: Topology,
    path: str | os.PathLike[str],
    *,
    seconds: ArrayLike | None = None,
    title: str | None = None,
) -> None:
    """Write a picture; the suffix of ``path`` decides the format (.png, .svg, .pdf).

    Of many machines, as many are drawn as stay readable, and the title says so.

    Args:
        topology: What to draw.
        path: Where to.
        seconds: ``(num_directions,)``: how long each connection-direction of ``topology.arrays()`` is busy.
        title: Default: the topology's name and how many devices it has.

    Raises:
        ValueError: Another suffix, or ``seconds`` of another shape.
        ImportError: matplotlib is not installed; the message says how to install it.
        OSError: The file cannot be written.
    """
    figure = new_figure(path, picture_size(topology))
    axes = figure.subplots()
    shown = draw_topology(axes, topology, seconds=seconds)
    title = title or f"{topology.name}: {topology.num_devices} devices"
    if shown < topology.num_devices:
        title += f" (the first {shown} are shown)"
    axes.set_title(title, loc="left", fontsize=12)
    save_figure(figure, path)


def picture_size(topology: Topology) -> tuple[float, float]:
    """Width and height, in inches, of a drawing of a topology with its legend."""
    layout = layout_topology(_excerpt(topology)[0])
    width = max(layout.right - layout.left + 1.0, 5.0) * INCH + 2.4
    return width, (layout.top - layout.bottom + 1.6) * INCH + 0.5


def draw_topology(axes: Any, topology: Topology, *, seconds: ArrayLike | None = None) -> int:
    """Draw a topology on matplotlib axes; of many machines as many as stay readable.

    Args:
        axes: Where to; their figure should have some :func:`picture_size` for them.
        topology: What to draw.
        seconds: As in :func:`plot_topology`.

    Returns:
        How many devices were drawn.
    """
    busy = None if seconds is None else _per_connection(topology, seconds)
    part, kept = _excerpt(topology)
    ranks = {device.name: rank for rank, device in enumerate(part.devices)}
    draw_on(axes, part, ranks, None if busy is None else busy[kept])
    return part.num_devices


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
    with rc_context({"svg.hashsalt": "dgcl"}):  # else the ids of an SVG are random
        figure.savefig(path, dpi=130, bbox_inches="tight", metadata={"Date": None} if svg else None)


def _per_connection(topology: Topology, seconds: ArrayLike) -> np.ndarray:
    """The busier direction of each connection."""
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


def _excerpt(topology: Topology) -> tuple[Topology, list[int]]:
    """As many of the first machines as stay readable, and the positions of their connections."""
    devices, place = topology.devices, machines_of(topology)
    count = len(devices)
    if count > _MOST_DEVICES:
        ends = [i for i in range(1, _MOST_DEVICES + 1) if devices[i].machine != devices[i - 1].machine]
        count = ends[-1] if ends else _MOST_DEVICES
    machines = {None, *(device.machine for device in devices[:count])}
    gone = {device.name for device in devices[count:]} | {
        end for end, m in place.items() if m not in machines
    }
    kept = [i for i, wire in enumerate(topology.connections) if not {wire.a, wire.b} & gone]
    # Links are not drawn.
    wires = tuple(topology.connections[i] for i in kept)
    return Topology(topology.name, devices[:count], wires, ()), kept
