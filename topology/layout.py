"""Computes places, in inches, for the devices, switches and wires in a picture of a topology; `plot` draws them.

networkx puts ends the farther apart the more wires are between them (Kamada and Kawai). Of more than :data:`MOST`
devices equal ones are folded: one machine, or in a single machine one device, stands for all that have the same wires.
Called by `plot` and `planner/reading/page`. Free to change while everything is there, no two boxes overlap, and only
equal machines or devices are folded (`tests/topology/test_layout.py`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import networkx as nx

from dgcl.topology.combine import PORT
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

MOST = 8  # devices that are all drawn
SHARED = -1  # instead of a machine: of what several share
_HIGH, _LETTER = 0.6, 0.075  # of boxes, and of what is in them


@dataclass(frozen=True)
class Layout:
    """The places of everything in a picture.

    Attributes:
        places: By end: the middle of its box.
        labels: By end.
        ranks: By device that is drawn.
        wires: By connection that is drawn: the positions of all for which it stands.
        size: Width and height; the lower left corner is (0, 0).
    """

    places: dict[str, tuple[float, float]]
    labels: dict[str, str]
    ranks: dict[str, int]
    wires: dict[Connection, list[int]]
    size: tuple[float, float]

    def lines(self) -> Iterator[tuple[tuple[float, float], tuple[float, float], float]]:
        """Each wire: its ends from left to right, and how far it is bent."""
        before: Counter[frozenset[str]] = Counter()  # wires between the same ends
        for wire in self.wires:
            start, end = sorted((self.places[wire.a], self.places[wire.b]))
            yield start, end, -0.1 * before[frozenset((wire.a, wire.b))]
            before[frozenset((wire.a, wire.b))] += 1


def layout_topology(topology: Topology) -> Layout:
    """Return a place for everything that is drawn; no two boxes overlap."""
    machine = {device.name: device.machine for device in topology.devices}
    graph: nx.Graph[str] = nx.Graph((wire.a, wire.b) for wire in topology.connections)
    graph.add_nodes_from(machine)
    several = len(set(machine.values())) > 1
    # Of which machines, or which devices of one, the devices nearest to each end are.
    near = {name: {machine[name] if several else rank} for rank, name in enumerate(machine)}
    order = [*machine]
    far = dict.fromkeys(machine, 0)
    for end in order:  # grows while it is read
        for other in graph[end]:
            if other not in far:
                far[other], near[other] = far[end] + 1, set()
                order.append(other)
            if far[other] > far[end]:
                near[other] |= near[end]
    unit = {end: min(units) if len(units) == 1 else SHARED for end, units in near.items()}
    folded, wires = _fold(topology.connections, unit, len(machine) > MOST)
    drawn = [end for end in order if unit[end] in folded]
    ranks = {name: rank for rank, name in enumerate(machine) if name in drawn}
    labels = {}
    for end in drawn:
        label = "net" if end.endswith(PORT) else re.sub(r"^(m\d+\.)?(pci-)?(0000:)?", r"\1", end)
        many = len(folded[unit[end]])
        # Ranks go through all machines, names begin anew in each: where they differ, both are written.
        rank = (
            f"\nrank {ranks[end]}" if end in ranks and re.findall(r"\d+$", end) != [f"{ranks[end]}"] else ""
        )
        labels[end] = f"{many} x {label}" * (many > 1) or label + rank
    places, size = _places(drawn, wires, labels)
    return Layout(places, labels, ranks, wires, size)


def _places(
    ends: list[str], wires: Mapping[Connection, list[int]], labels: Mapping[str, str]
) -> tuple[dict[str, tuple[float, float]], tuple[float, float]]:
    """Where networkx puts the ends, as near to each other as their labels allow; and the size of all."""
    graph: nx.Graph[str] = nx.Graph((wire.a, wire.b) for wire in wires)
    graph.add_nodes_from(ends)
    graph.add_edges_from(pairwise([min(part, key=ends.index) for part in nx.connected_components(graph)]))
    wide = {end: 0.3 + _LETTER * max(map(len, labels[end].split("\n"))) for end in ends}
    rough = nx.kamada_kawai_layout(graph.subgraph(ends) if len(ends) > 1 else graph)
    scale = 1.0
    for a, b in combinations(ends, 2):
        across, up = abs(rough[a] - rough[b]).tolist()
        scale = max(scale, min((wide[a] + wide[b]) / 2 / (across or 1e-9), _HIGH / (up or 1e-9)))
    left = min(rough[end][0] * scale - wide[end] / 2 for end in ends)
    low = min(rough[end][1] for end in ends) * scale - _HIGH
    places = {end: (float(rough[end][0] * scale - left), float(rough[end][1] * scale - low)) for end in ends}
    right = max(x + wide[end] / 2 for end, (x, _) in places.items())
    return places, (right, max(y for _, y in places.values()) + _HIGH)


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
