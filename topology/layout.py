"""Places of boxes and wires in a picture of a topology.

Devices are in one row, in the order of their ranks, with gaps between sockets and machines. Endpoints of the host (PCIe
switches, processors, NICs, networks) are above, in rows by distance from the nearest device. Connections among GPUs are
below: NVSwitches as bars, direct wires as arcs. A switch with many neighbours is a bar as wide as they are, so that
their wires run straight up instead of into one point. Each machine is placed by itself, then as many are moved apart
as would overlap; what several share is outside of them all.

Units are those of the picture: devices are 1 apart, rows :data:`ROW` apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import networkx as nx

from dgcl.topology.combine import PORT
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

ROW = 1.25
HEIGHT = 0.44  # of a box
_SOCKET_GAP, _MACHINE_GAP = 0.45, 1.1
_FRAME = 0.2  # between a machine's boxes and its frame
_FRAME_GAP = 0.35  # between frames: room for a name
_MARGIN = 0.16  # between boxes of a row, and between wires side by side
_BAR = 5  # neighbours that make a switch a bar
_CURVE = 0.45  # of a wire over other boxes, above these
_GPU_WIRE = re.compile(r"(NV|XGMI)\d*")


@dataclass(frozen=True)
class Box:
    """A device or switch: the middle of its box, and how wide that is."""

    x: float
    y: float
    width: float
    label: str
    is_device: bool

    @property
    def left(self) -> float:
        """The left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y + HEIGHT / 2


@dataclass(frozen=True)
class Wire:
    """A wire from point to point; ``depth``: how far its middle is below the straight line between them."""

    start: tuple[float, float]
    end: tuple[float, float]
    depth: float = 0.0


@dataclass(frozen=True)
class Layout:
    """The places of everything in a picture.

    Attributes:
        boxes: By endpoint; the far ends of NICs have none, only their wire is drawn.
        frames: For each machine of several: left, right, bottom, top. None where ranks alternate between machines.
        wires: By connection.
        arc_gap: How far apart arcs leave a device, where they are closest.
        left, right, bottom, top: Edges of everything.
    """

    boxes: dict[str, Box]
    frames: dict[int, tuple[float, float, float, float]]
    wires: dict[str, Wire]
    arc_gap: float
    left: float
    right: float
    bottom: float
    top: float


def layout_topology(topology: Topology) -> Layout:
    """Return a place for everything; no two boxes overlap."""
    return _Placing(topology).place()


def machines_of(topology: Topology) -> dict[str, int | None]:
    """The machine of each endpoint: that of its nearest devices, None where these are of several."""
    graph, near = _graph(topology), {device.name: {device.machine} for device in topology.devices}
    for layer in nx.bfs_layers(graph, list(near)):
        near |= {
            end: set[int]().union(*(near[other] for other in graph[end] if other in near))
            for end in layer
            if end not in near
        }
    return {end: machines.pop() if len(machines) == 1 else None for end, machines in near.items()}


def _graph(topology: Topology) -> nx.Graph[str]:
    """Everything that has a box."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(device.name for device in topology.devices)
    graph.add_edges_from((c.a, c.b) for c in topology.connections)
    graph.remove_nodes_from([end for end in graph if end.endswith(PORT)])
    return graph


class _Placing:
    """The state of one placement: boxes are added row by row."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self._graph, self._machine = topology, _graph(topology), machines_of(topology)
        self._devices = {device.name: rank for rank, device in enumerate(topology.devices)}
        self._arcs = [c for c in topology.connections if c.a in self._devices and c.b in self._devices]
        self._num_arcs = Counter(end for c in self._arcs for end in (c.a, c.b))
        runs = [number for number, _ in groupby(device.machine for device in topology.devices)]
        self._framed = runs if len(set(runs)) == len(runs) > 1 else []
        self._boxes: dict[str, Box] = {}

    def place(self) -> Layout:
        places = [0.0]
        for before, device in pairwise(self._topology.devices):
            same = device.machine == before.machine
            gap = _SOCKET_GAP * (device.socket != before.socket) if same else _MACHINE_GAP
            places.append(places[-1] + 1 + gap)
        self._place_row(dict(zip(self._devices, places, strict=True)), 0.0)
        depths = self._depths()
        depth, top = max(depths.values(), default=0.0), 0.0
        _, *layers = nx.bfs_layers(self._graph, list(self._devices))
        below = [name for layer in layers for name in layer if self._joins_gpus(name)]
        for shared in (False, True):
            for layer in layers:
                names = [n for n in layer if n not in below and (self._machine[n] is None) == shared]
                top = self._place_layer(names, top + ROW) if names else top
            for name in below:
                if (self._machine[name] is None) == shared:
                    self._place_bar(name, -depth - ROW, -ROW)
            if not shared:
                self._part_machines()
        boxes = self._boxes.values()
        return Layout(
            boxes=self._boxes,
            frames={machine: self._frame(machine, depth) for machine in self._framed},
            wires=self._draw_arcs(depths) | self._draw_wires(),
            arc_gap=min((self._boxes[end].width / (n + 1) for end, n in self._num_arcs.items()), default=1.0),
            left=min(box.left for box in boxes),
            right=max(box.right for box in boxes),
            bottom=min(-depth, *(box.y for box in boxes)),
            top=top,
        )

    def _joins_gpus(self, name: str) -> bool:
        kinds = {wire.kind for wire in self._topology.connections if name in (wire.a, wire.b)}
        return all(map(_GPU_WIRE.fullmatch, kinds)) and set(self._graph[name]) <= set(self._devices)

    def _label(self, name: str) -> str:
        machine = self._machine[name]
        if self._framed and machine is not None:
            name = name.removeprefix(f"m{machine}.")
        return name.removeprefix("pci-")

    def _width(self, name: str) -> float:
        return max(0.62, 0.095 * len(self._label(name)) + 0.2, min(0.11 * self._num_arcs[name], 0.84))

    def _under(self, name: str) -> list[Box]:
        return [self._boxes[other] for other in self._graph[name] if other in self._boxes]

    def _place_row(self, desired: dict[str, float], y: float) -> None:
        """Boxes in this order, as near as can be to these places."""
        widths = [self._width(name) for name in desired]
        for name, x, width in zip(desired, spread([*desired.values()], widths), widths, strict=True):
            self._boxes[name] = Box(x, y, width, self._label(name), name in self._devices)

    def _place_layer(self, names: list[str], y: float) -> float:
        """Switches as far from the devices as each other, from ``y`` upwards; returns how far up they go."""
        middle: dict[int | None, dict[str, float]] = {}
        bars = [name for name in names if len(self._under(name)) >= _BAR]
        for name in names:
            if name not in bars:
                under = [box.x for box in self._under(name)]
                middle.setdefault(self._machine[name], {})[name] = sum(under) / len(under)
        for desired in middle.values():
            self._place_row(dict(sorted(desired.items(), key=lambda item: item[1])), y)
        for name in bars:
            self._place_bar(name, y, ROW)
        return max(self._boxes[name].y for name in names)

    def _place_bar(self, name: str, y: float, step: float) -> None:
        """A box as wide as its neighbours, in the first row with room for it."""
        under, machine = self._under(name), self._machine[name]
        left, right = min(box.left for box in under), max(box.right for box in under)
        others = [box for end, box in self._boxes.items() if machine in (None, self._machine[end])]
        bar = Box((left + right) / 2, y, max(right - left, self._width(name)), self._label(name), False)
        while any(o.left < bar.right and bar.left < o.right and abs(o.y - bar.y) < HEIGHT for o in others):
            bar = replace(bar, y=bar.y + step)
        self._boxes[name] = bar

    def _part_machines(self) -> None:
        """Move machines right until their frames do not overlap."""
        shift, edge = 0.0, -math.inf
        for machine in self._framed:
            mine = {name: box for name, box in self._boxes.items() if self._machine[name] == machine}
            shift = max(shift, edge + 2 * _FRAME + _FRAME_GAP - min(box.left for box in mine.values()))
            self._boxes |= {name: replace(box, x=box.x + shift) for name, box in mine.items()}
            edge = max(self._boxes[name].right for name in mine)

    def _frame(self, machine: int, depth: float) -> tuple[float, float, float, float]:
        mine = [box for name, box in self._boxes.items() if self._machine[name] == machine]
        return (
            min(box.left for box in mine) - _FRAME,
            max(box.right for box in mine) + _FRAME,
            min(min(box.y for box in mine) - HEIGHT, -HEIGHT / 2 - depth - 0.1),
            max(box.top for box in mine) + _CURVE + 0.05,
        )

    def _depths(self) -> dict[str, float]:
        """How deep each arc goes: the deeper, the farther apart its ends are."""
        pairs: Counter[frozenset[str]] = Counter()
        depths = {}
        for wire in self._arcs:
            both = frozenset((wire.a, wire.b))
            apart = abs(self._devices[wire.b] - self._devices[wire.a])
            depths[wire.name] = 0.35 + 0.3 * apart**0.85 + 0.3 * pairs[both]
            pairs[both] += 1
        return depths

    def _draw_arcs(self, depths: dict[str, float]) -> dict[str, Wire]:
        """Direct wires, below the devices.

        On the lower edge of a device those that lead left come first, near before far, then those that lead
        right, far before near: so arcs of one device nest instead of crossing.
        """
        leaving: dict[str, list[tuple[float, str]]] = {}
        for wire in self._arcs:
            for here, there in ((wire.a, wire.b), (wire.b, wire.a)):
                # 1/apart sorts -near, -far, far, near.
                apart = self._devices[there] - self._devices[here]
                leaving.setdefault(here, []).append((1 / apart, wire.name))
        ends: dict[str, list[tuple[float, float]]] = {}
        for name, wires in leaving.items():
            box = self._boxes[name]
            for number, (_, wire_name) in enumerate(sorted(wires), 1):
                x = box.left + box.width * number / (len(wires) + 1)
                ends.setdefault(wire_name, []).append((x, -HEIGHT / 2))
        return {name: Wire(min(pair), max(pair), depths[name]) for name, pair in ends.items()}

    def _draw_wires(self) -> dict[str, Wire]:
        """All others; those that leave a device, or join the same two switches, are side by side."""
        beside: dict[tuple[str, ...], list[tuple[Connection, list[Box]]]] = {}
        for wire in self._topology.connections:
            ends = [end for end in (wire.a, wire.b) if end in self._boxes]
            ends.sort(key=lambda end: (self._boxes[end].y, self._boxes[end].x))
            if (ends and not set(ends) <= set(self._devices)) or len(ends) == 1:
                first = self._boxes[ends[0]]
                key = tuple(ends[:1] if first.is_device else ends)
                beside.setdefault(key, []).append((wire, [self._boxes[end] for end in ends]))
        return {
            wire.name: self._wire(ends, _MARGIN * (number - (len(group) - 1) / 2))
            for group in beside.values()
            for number, (wire, ends) in enumerate(group)
        }

    def _wire(self, ends: list[Box], shift: float) -> Wire:
        a, b = ends[0], ends[-1]
        xa, xb = a.x + shift, b.x + shift
        if len(ends) == 1:  # to the network
            return Wire((xa, a.top), (xa, a.top + 0.3))
        if a.y == b.y:
            if any(box.y == a.y and a.right < box.x < b.left for box in self._boxes.values()):
                return Wire((xa, a.top), (xb, b.top), -_CURVE - shift)
            return Wire((a.right, a.y + shift), (b.left, b.y + shift))
        if b.width > 1.5 * a.width:  # a bar is met straight above or below the narrower of the two
            xb = min(max(xa, b.left + 0.1), b.right - 0.1)
        elif a.width > 1.5 * b.width:
            xa = min(max(xb, a.left + 0.1), a.right - 0.1)
        return Wire((xa, a.top), (xb, b.y - HEIGHT / 2))


def spread(desired: list[float], widths: list[float]) -> list[float]:
    """Places in the given order, as near to the desired ones as boxes of these widths can be.

    Least squares under minimal distances. With the distances subtracted, this is isotonic regression, which the pool
    adjacent violators algorithm solves.
    """
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + _MARGIN)
    pools: list[tuple[float, int]] = []  # (mean, size)
    for x, offset in zip(desired, offsets, strict=True):
        mean, size = x - offset, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        pools.append((mean, size))
    places = [mean for mean, size in pools for _ in range(size)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]
