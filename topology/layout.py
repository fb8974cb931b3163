"""Places of ends and wires in a picture of a topology, in inches.

Devices are in one row, in the order of their ranks, machine beside machine. Endpoints of the host (PCIe switches,
processors, NICs, networks) are in rows above, by distance from the nearest device; switches among GPUs alone below.
Where a device is wired to several others, these wires would hide each other beside a row: they are between second boxes
of the same devices, on a ring below.
Of more than :data:`MOST` devices equal ones are folded: one machine, or in a single machine one device, stands for all
that have the same wires.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from dgcl.topology.combine import PORT
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

MOST = 8  # devices that are all drawn
SHARED = -1  # instead of a machine: of what several share
ROW = 0.75  # from row to row
_GAP = 0.25  # between machines
_GPU_WIRE = re.compile(r"(NV|XGMI)\d*")


@dataclass(frozen=True)
class Layout:
    """The places of everything in a picture.

    Attributes:
        places: By end: the middle of its box.
        ring: By device that has a second box, the middle of that.
        labels: By end.
        ranks: By device.
        frames: For each machine of several: title, left, right, bottom and top.
        wires: By connection that is drawn: the positions of all for which it stands.
        size: Width and height; the lower left corner is (0, 0).
    """

    places: dict[str, tuple[float, float]]
    ring: dict[str, tuple[float, float]]
    labels: dict[str, str]
    ranks: dict[str, int]
    frames: list[tuple[str, float, float, float, float]]
    wires: dict[Connection, list[int]]
    size: tuple[float, float]

    def boxes(self) -> Iterator[tuple[str, str, tuple[float, float]]]:
        """Each box: what it is, its text and its middle."""
        # Ranks go through all machines, names begin anew in each: where they differ, both are written.
        differ = any(
            re.findall(r"\d+$", self.labels.get(name, f"{rank}")) != [f"{rank}"]
            for name, rank in self.ranks.items()
        )
        for places in (self.places, self.ring):
            for name, place in places.items():
                rank = f"\nrank {self.ranks[name]}" if differ and name in self.ranks else ""
                yield name, self.labels[name] + rank, place

    def lines(self) -> Iterator[tuple[tuple[float, float], tuple[float, float], float]]:
        """Each wire: its ends from left to right, and how far it is bent."""
        before: Counter[frozenset[str]] = Counter()  # wires between the same ends
        for wire in self.wires:
            places = self.ring if wire.a in self.ring and wire.b in self.ring else self.places
            start, end = sorted((places[wire.a], places[wire.b]))
            bend = 0.1 * before[frozenset((wire.a, wire.b))]
            before[frozenset((wire.a, wire.b))] += 1
            if start[1] == end[1] and places is self.places:
                bend = 0.3 + bend if wire.a in self.ranks else -0.2 - bend
            yield start, end, -bend


def layout_topology(topology: Topology) -> Layout:
    """Return a place for everything that is drawn; no two boxes overlap."""
    machine = {device.name: device.machine for device in topology.devices}
    graph: nx.Graph[str] = nx.Graph((wire.a, wire.b) for wire in topology.connections)
    graph.add_nodes_from(machine)
    others = {
        end for wire in topology.connections if not _GPU_WIRE.fullmatch(wire.kind) for end in (wire.a, wire.b)
    }
    several = len(set(machine.values())) > 1
    # How far ends are from the nearest devices, and of which machines, or which devices of one, these are.
    far = dict.fromkeys(machine, 0)
    near = {name: {machine[name] if several else rank} for rank, name in enumerate(machine)}
    order = [*machine]
    for end in order:  # grows while it is read
        for other in graph[end]:
            if other not in far:
                far[other], near[other] = far[end] + 1, set()
                order.append(other)
            if far[other] > far[end]:
                near[other] |= near[end]
    unit = {end: min(units) if len(units) == 1 else SHARED for end, units in near.items()}
    folded, wires = _fold(topology.connections, unit, len(machine) > MOST)
    column = unit if several else dict.fromkeys(unit, 0)

    labels: dict[str, str] = {}
    rows: dict[int, dict[int, list[str]]] = {}  # by column
    for end in order:
        if unit[end] not in folded:
            continue
        shared = column[end] == SHARED
        below = far[end] and end not in others and machine.keys() >= {*graph[end]}
        row = -1 - shared if below else far[end] + shared * len(order)
        rows.setdefault(row, {}).setdefault(column[end], []).append(end)
        labels[end] = end if shared else re.sub(r"^(m\d+\.)?(pci-)?(0000:)?", "", end)
        if end.endswith(PORT):
            labels[end] = "net"
        if not (several or far[end]) and len(folded[unit[end]]) > 1:
            labels[end] = f"{len(folded[unit[end]])} x {end}"

    def width(ends: list[str]) -> float:
        return len(ends) * (0.2 + 0.075 * max(len(labels.get(end, "")) for end in ends))

    direct = [(wire.a, wire.b) for wire in wires if {wire.a, wire.b} <= machine.keys()]
    mesh = nx.Graph((a, b) for a, b in direct if column[a] == column[b])
    ringed: dict[int, list[str]] = {}
    for end in filter(mesh.has_node, machine):
        if len(nx.node_connected_component(mesh, end)) > 2:
            ringed.setdefault(column[end], []).append(end)

    spans: dict[int, tuple[float, float]] = {}
    right = 0.0
    for group in rows[0]:
        left = right + _GAP
        right = left + max(width(row[group]) for row in rows.values() if group in row)
        spans[group] = left, right
    spans[SHARED] = _GAP, max(right, *(_GAP + width(row.get(SHARED, [""])) for row in rows.values()))
    # Arcs among devices go down by a part of the way between them.
    ring_ends = {end for ends in ringed.values() for end in ends}
    arcs = 0.15 * spans[SHARED][1] * any(not ring_ends.issuperset(pair) for pair in direct)
    reach = {group: 0.2 + 0.13 * len(ends) for group, ends in ringed.items()}
    depth = max(arcs, *(2 * high + ROW for high in reach.values()), 0.0)
    places: dict[str, tuple[float, float]] = {}

    def middle(end: str) -> float:
        nearer = [places[other][0] for other in graph[end] if other in places]
        return sum(nearer) / len(nearer)

    for row in sorted(rows, key=abs):
        y = ROW * (sorted(rows).index(row) + 0.5) + depth * (row >= 0)
        for group, ends in rows[row].items():
            left, right = spans[group]
            for position, end in enumerate(sorted(ends, key=middle) if row else ends):
                places[end] = left + (right - left) * (position + 0.5) / len(ends), y
    ring: dict[str, tuple[float, float]] = {}
    for group, ends in ringed.items():
        high, (left, right) = reach[group], spans[group]
        wide = min(1.5 * high, (right - left) / 2 - 0.4)
        centre = (left + right) / 2, places[ends[0]][1] - ROW - high
        for end, (x, y) in nx.circular_layout(nx.empty_graph(ends)).items():
            ring[end] = centre[0] + wide * float(x), centre[1] + high * float(y)
    frames = []
    for owner, equal in folded.items() if several else ():
        if owner != SHARED:
            here = [*places.items(), *ring.items()]
            heights = [place[1] for end, place in here if unit[end] == owner]
            title = f"{len(equal)} x machine" if len(equal) > 1 else f"machine {owner}"
            frames.append((title, *spans[owner], min(heights) - ROW / 2, max(heights) + ROW / 2))
    size = spans[SHARED][1] + _GAP, ROW * len(rows) + depth
    ranks = {name: rank for rank, name in enumerate(machine)}
    return Layout(places, ring, labels, ranks, frames, wires, size)


def _fold(
    connections: Sequence[Connection], unit: Mapping[str, int], fold: bool
) -> tuple[dict[int, list[int]], dict[Connection, list[int]]]:
    """Equal units by the first of them, and the connections that are drawn, with those for which they stand."""
    wires: dict[int, list[int]] = {owner: [] for owner in [*unit.values(), SHARED]}
    forms: dict[int, list[object]] = {owner: [] for owner in wires}
    numbers: dict[int, dict[str, int]] = {owner: {} for owner in wires}  # of ends, in the order of wires
    for position, wire in enumerate(connections):
        if wire.a not in unit:
            continue  # joined to no device
        owners = {unit[wire.a], unit[wire.b]} - {SHARED}
        owner = owners.pop() if len(owners) == 1 else SHARED
        wires[owner].append(position)
        number = numbers[owner]
        ends = [
            number.setdefault(end, len(number)) if unit[end] == owner else end for end in (wire.a, wire.b)
        ]
        forms[owner].append((wire.kind, wire.bandwidth, wire.duplex, *ends))
        for joined in owners:  # to another unit: equal to none
            forms[joined].append(joined)
    equal: dict[object, list[int]] = {}
    for owner, form in forms.items():
        equal.setdefault(tuple(form) if fold and owner != SHARED else owner, []).append(owner)
    folded = {units[0]: units for units in equal.values()}
    drawn: dict[Connection, list[int]] = {}
    for units in folded.values():
        groups = zip(*(wires[owner] for owner in units), strict=True)
        drawn |= {connections[group[0]]: [*group] for group in groups}
    return folded, drawn
