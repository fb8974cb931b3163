"""Computes the places of boxes and wires in a picture of a topology.

Devices are in one row, in the order of their ranks, with gaps between sockets and machines. Endpoints of the host (PCIe
switches, processors, NICs, networks) are above, in rows by distance from the nearest device. Connections among GPUs are
below: NVSwitches as bars, direct wires as arcs. A switch with many neighbours is a bar as wide as they are, so that
their wires run straight up instead of into one point. Each machine is placed by itself, then as many are moved apart
as would overlap; what several share is above them all.

Units are those of the picture: devices are 1 apart, rows :data:`ROW` apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from dgcl.topology.combine import PORT
from dgcl.topology.model import Topology

ROW = 1.25
HEIGHT = 0.44  # of a box
CURVE = 0.45  # of a wire over other boxes, above these
_SOCKET_GAP, _MACHINE_GAP = 0.45, 1.1
_FRAME = 0.2  # between a machine's boxes and its frame
_FRAME_GAP = 0.35  # between frames: room for a name
_MARGIN = 0.16  # between boxes of a row
_BAR = 5  # neighbours that make a switch a bar
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


@dataclass(frozen=True)
class Arc:
    """A direct wire below the devices: from x to x, and how deep."""

    start: float
    end: float
    depth: float


@dataclass(frozen=True)
class Layout:
    """The places of everything in a picture.

    Attributes:
        boxes: By endpoint; the far ends of NICs have none, only their wire is drawn.
        frames: For each machine of several: left, right, bottom, top. None where ranks alternate between machines.
        arcs: For each direct wire, by connection name, where its arc starts and ends and how deep it goes.
        arc_gap: How far apart arcs leave a device, where they are closest.
        size: Width and height of everything.
    """

    boxes: dict[str, Box]
    frames: dict[int, tuple[float, float, float, float]]
    arcs: dict[str, Arc]
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
    neighbours: dict[str, list[str]] = {device.name: [] for device in topology.devices}
    for connection in topology.connections:
        neighbours.setdefault(connection.a, []).append(connection.b)
        neighbours.setdefault(connection.b, []).append(connection.a)
    near: dict[str, set[int]] = {device.name: {device.machine} for device in topology.devices}
    frontier = list(near)
    while frontier:
        reached: dict[str, set[int]] = {}
        for name in frontier:
            for other in neighbours[name]:
                if other not in near:
                    reached.setdefault(other, set()).update(near[name])
        near |= reached
        frontier = list(reached)
    return {name: next(iter(found)) if len(found) == 1 else None for name, found in near.items()}


class _Placing:
    """The state of one placement: boxes are added row by row."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._devices = [device.name for device in topology.devices]
        self._neighbours: dict[str, list[str]] = {name: [] for name in self._devices}
        for connection in topology.connections:
            for a, b in ((connection.a, connection.b), (connection.b, connection.a)):
                if not b.endswith(PORT):
                    self._neighbours.setdefault(a, []).append(b)
        devices = set(self._devices)
        self._num_arcs = Counter(
            end for c in topology.connections if {c.a, c.b} <= devices for end in (c.a, c.b)
        )
        self._machine = machines_of(topology)
        runs = [number for number, _ in groupby(device.machine for device in topology.devices)]
        self._framed = runs if len(set(runs)) == len(runs) > 1 else []
        self._boxes: dict[str, Box] = {}
        self._wide: set[str] = set()  # bars, however few their neighbours

    def place(self) -> Layout:
        x = 0.0
        previous = None
        for device in self._topology.devices:
            if previous is not None:
                x += 1 + _SOCKET_GAP * (
                    device.socket != previous.socket and device.machine == previous.machine
                )
                x += _MACHINE_GAP * (device.machine != previous.machine)
            self._boxes[device.name] = Box(x, 0.0, self._width(device.name), self._label(device.name), True)
            previous = device
        self._spread_devices()
        levels = self._levels()
        below = [name for name, level in levels.items() if level < 0]
        above = {name: level for name, level in levels.items() if level > 0}
        top = self._place_above(
            {n: level for n, level in above.items() if self._machine.get(n) is not None}, 0.0
        )
        self._part_machines()
        top = self._place_above({n: level for n, level in above.items() if self._machine.get(n) is None}, top)
        arcs, depth = self._arcs()
        bottom = self._place_below(below, depth)
        boxes = self._boxes.values()
        left, right = min(b.left for b in boxes), max(b.right for b in boxes)
        gaps = (self._boxes[name].width / (number + 1) for name, number in self._num_arcs.items())
        return Layout(self._boxes, self._frames(arcs), arcs, min(gaps, default=1.0), left, right, bottom, top)

    def _label(self, name: str) -> str:
        machine = self._machine.get(name)
        if self._framed and machine is not None:
            name = name.removeprefix(f"m{machine}.")
        return name.removeprefix("pci-")

    def _width(self, name: str) -> float:
        return max(0.62, 0.095 * len(self._label(name)) + 0.2, min(0.11 * self._num_arcs[name], 0.84))

    def _spread_devices(self) -> None:
        wanted = [self._boxes[name].x for name in self._devices]
        widths = [self._boxes[name].width for name in self._devices]
        for name, x in zip(self._devices, spread(wanted, widths), strict=True):
            self._move(name, x, 0.0)

    def _move(self, name: str, x: float, y: float) -> None:
        box = self._boxes[name]
        self._boxes[name] = Box(x, y, box.width, box.label, box.is_device)

    def _levels(self) -> dict[str, int]:
        """Rows of the switches, from 1 upwards; -1 for what joins GPUs among themselves."""
        devices = set(self._devices)
        kinds: dict[str, set[bool]] = {}
        for connection in self._topology.connections:
            for end in (connection.a, connection.b):
                kinds.setdefault(end, set()).add(_GPU_WIRE.fullmatch(connection.kind) is not None)
        levels: dict[str, int] = {}
        frontier, distance = list(self._devices), 0
        while frontier:
            distance += 1
            frontier = list(
                dict.fromkeys(
                    other
                    for name in frontier
                    for other in self._neighbours[name]
                    if other not in devices and other not in levels
                )
            )
            levels |= dict.fromkeys(frontier, distance)
        for name in levels:
            if kinds[name] == {True} and set(self._neighbours[name]) <= devices:
                levels[name] = -1
        self._second_sides(levels, devices)
        return levels

    def _second_sides(self, levels: dict[str, int], devices: set[str]) -> None:
        """Of two bars over the same devices the second goes below them (a host's loads and stores)."""
        first: dict[frozenset[str], str] = {}
        for name in [name for name, level in levels.items() if level == 1]:
            mine = frozenset(other for other in self._neighbours[name] if other in devices)
            if len(mine) >= 2 and mine in first:
                levels[name] = -1
                self._wide.add(first[mine])
            first.setdefault(mine, name)

    def _part_machines(self) -> None:
        """Move machines right until their frames do not overlap."""
        shift, edge = 0.0, -math.inf
        for machine in self._framed:
            mine = [name for name in self._boxes if self._machine.get(name) == machine]
            left = min(self._boxes[name].left for name in mine)
            shift = max(shift, edge + 2 * _FRAME + _FRAME_GAP - left)
            for name in mine:
                self._move(name, self._boxes[name].x + shift, self._boxes[name].y)
            edge = max(self._boxes[name].right for name in mine)

    def _place_above(self, levels: dict[str, int], y: float) -> float:
        for level in sorted(set(levels.values())):
            names = [name for name in levels if levels[name] == level]
            y += ROW
            bars = [name for name in names if name in self._wide or len(set(self._under(name))) >= _BAR]
            points = [name for name in names if name not in bars]
            for machine in dict.fromkeys(self._machine.get(name) for name in points):
                self._place_row([name for name in points if self._machine.get(name) == machine], y)
            above: Counter[int | None] = (
                Counter()
            )  # bars over one another, those of each machine from the same row on
            first = y + ROW * bool(points)
            for name in bars:
                machine = self._machine.get(name)
                self._place_bar(name, first + ROW * above[machine])
                above[machine] += 1
            y = max(y, first + ROW * (max(above.values(), default=0) - 1))
        return y

    def _under(self, name: str) -> list[str]:
        return [other for other in self._neighbours[name] if other in self._boxes]

    def _place_row(self, names: list[str], y: float) -> None:
        middle = {name: _mean(self._boxes[other].x for other in self._under(name)) for name in names}
        # Beside each other where they want the same place: in the order in which the topology names them.
        order = sorted(names, key=lambda name: middle[name])
        widths = [self._width(name) for name in order]
        places = spread([middle[name] for name in order], widths)
        for name, x, width in zip(order, places, widths, strict=True):
            self._boxes[name] = Box(x, y, width, self._label(name), False)

    def _place_bar(self, name: str, y: float) -> None:
        under = [self._boxes[other] for other in self._under(name)]
        left, right = min(box.left for box in under), max(box.right for box in under)
        self._boxes[name] = Box((left + right) / 2, y, right - left, self._label(name), False)

    def _place_below(self, names: list[str], depth: float) -> float:
        y = -depth
        for name in names:
            under = self._under(name)
            others = [n for n in names if n != name and set(self._under(n)) & set(under)]
            apart = not any(
                self._boxes[n].left < self._span(under)[1] and self._boxes[n].right > self._span(under)[0]
                for n in names
                if n in self._boxes
            )
            if not apart or (others and others[0] in self._boxes) or y == -depth:
                y -= ROW
            self._place_bar(name, y)
        return y if names else -depth

    def _span(self, names: list[str]) -> tuple[float, float]:
        boxes = [self._boxes[name] for name in names]
        return min(box.left for box in boxes), max(box.right for box in boxes)

    def _arcs(self) -> tuple[dict[str, Arc], float]:
        """Arcs below the devices, deeper the farther apart their ends are.

        On the lower edge of a device those that lead left come first, near before far, then those that lead
        right, far before near: so arcs of one device nest instead of crossing.
        """
        place = {name: index for index, name in enumerate(self._devices)}
        ends: dict[str, list[tuple[float, str]]] = {name: [] for name in self._devices}
        depths: dict[str, float] = {}
        pairs: dict[frozenset[str], int] = {}
        wires = [c for c in self._topology.connections if c.a in place and c.b in place]
        for wire in wires:
            both = frozenset((wire.a, wire.b))
            apart = place[wire.b] - place[wire.a]
            depths[wire.name] = 0.35 + 0.3 * abs(apart) ** 0.85 + 0.3 * pairs.get(both, 0)
            pairs[both] = pairs.get(both, 0) + 1
            # 1/apart sorts -near, -far, far, near.
            ends[wire.a].append((1 / apart, wire.name))
            ends[wire.b].append((-1 / apart, wire.name))
        at: dict[tuple[str, str], float] = {}
        for name, leaving in ends.items():
            box = self._boxes[name]
            for number, (_, wire_name) in enumerate(sorted(leaving)):
                at[name, wire_name] = box.left + box.width * (number + 1) / (len(leaving) + 1)
        arcs = {w.name: Arc(at[w.a, w.name], at[w.b, w.name], depths[w.name]) for w in wires}
        return arcs, max(depths.values(), default=0.0)

    def _frames(self, arcs: dict[str, Arc]) -> dict[int, tuple[float, float, float, float]]:
        if not self._framed:
            return {}
        at = {device.name: device.machine for device in self._topology.devices}
        depth: dict[int, float] = {}
        for connection in self._topology.connections:
            if connection.name in arcs and at[connection.a] == at[connection.b]:
                machine = at[connection.a]
                depth[machine] = max(depth.get(machine, 0.0), arcs[connection.name].depth)
        frames = {}
        for machine in sorted(set(at.values())):
            mine = [box for name, box in self._boxes.items() if self._machine.get(name) == machine]
            frames[machine] = (
                min(box.left for box in mine) - _FRAME,
                max(box.right for box in mine) + _FRAME,
                min(min(box.y for box in mine) - HEIGHT, -HEIGHT / 2 - depth.get(machine, 0.0) - 0.1),
                max(max(box.y for box in mine) + HEIGHT, self._highest_curve(machine)),
            )
        return frames

    def _highest_curve(self, machine: int) -> float:
        """Of the wires that pass over other boxes of their row."""
        highest = 0.0
        for connection in self._topology.connections:
            ends = [self._boxes.get(end) for end in (connection.a, connection.b)]
            if self._machine.get(connection.a) != machine or None in ends:
                continue
            a, b = sorted((box for box in ends if box is not None), key=lambda box: box.x)
            if a.y == b.y > 0 and any(
                box.y == a.y and a.right < box.x < b.left for box in self._boxes.values()
            ):
                highest = max(highest, a.y + HEIGHT / 2 + CURVE + 0.1)
        return highest


def spread(wanted: list[float], widths: list[float]) -> list[float]:
    """Places in the given order, as near to the wanted ones as boxes of these widths can be.

    Least squares under minimal distances. With the distances subtracted, this is isotonic regression, which the pool
    adjacent violators algorithm solves.
    """
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + _MARGIN)
    pools: list[tuple[float, int]] = []  # (mean, size)
    for x, offset in zip(wanted, offsets, strict=True):
        mean, size = x - offset, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        pools.append((mean, size))
    places = [mean for mean, size in pools for _ in range(size)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
