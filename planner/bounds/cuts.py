"""Lists the cuts of a topology that bounds try, each with a name, and numbers its machines.

A cut is a label per rank: a link from u to v crosses it if v's label is >= 0 and u's label is another. One group with
label 0 and the others -1 is the cut *into* a set; labels 0 and 1 are the cut between two sets, both ways; labels 0..m-1
are the cut between all of m groups. Bounds are shown with the cut's name.
Called by `best`, `stages` and `planner/methods/hierarchical`. Free to change while no cut is listed twice, many ranks
have few cuts, and each cut keeps its name (`tests/planner/bounds/test_best.py`); machines on one switch must count as
one (`tests/planner/bounds/test_stages.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import Int32Array, Int64Array

if TYPE_CHECKING:
    from dgcl.topology import Topology

ALL_SUBSETS_UP_TO = 10  # ranks: 1022 sets there
BY_CONNECTION_UP_TO = 128  # ranks: beyond, sets come from devices, sockets and machines only


@dataclass(frozen=True)
class Cut:
    """One cut: disjoint groups of ranks; what enters a group from outside it is counted.

    Attributes:
        groups: the groups; ranks in none of them are outside.
        name: what the text calls it, e.g. "machine 0".
        way: "in", "out" or "in and out".
    """

    groups: tuple[frozenset[int], ...]
    name: str
    way: str


def labels(cuts: list[Cut], world_size: int) -> Int32Array:
    """Return the cuts as (num_cuts, world_size) int32 labels."""
    label = np.full((len(cuts), world_size), -1, np.int32)
    for n, cut in enumerate(cuts):
        for g, group in enumerate(cut.groups):
            label[n, list(group)] = g
    return label


def candidate_cuts(topology: Topology) -> list[Cut]:
    """Return the cuts to try, the most natural first, none twice.

    These are: into and out of each device, socket and machine; up to `BY_CONNECTION_UP_TO` ranks between all
    devices, all sockets, all machines, and into and out of whatever lies behind each connection (the receivers,
    or the senders, of the links that use it: a switch, a NIC, a riser); and, up to `ALL_SUBSETS_UP_TO` ranks,
    every set of ranks.
    Where some connection is half duplex also both ways at once.
    """
    world = topology.num_devices
    if world == 1:
        return []
    everyone = frozenset(range(world))
    both_ways = any(connection.duplex == "half" for connection in topology.connections)
    named = list(_named_groups(topology))
    cuts: dict[tuple[frozenset[int], ...], Cut] = {}

    def add(cut: Cut) -> None:
        cuts.setdefault(cut.groups, cut)

    for group, name in [*named, *_unnamed_groups(topology)]:
        rest = everyone - group
        if not group or not rest:
            continue
        add(Cut((group,), name, "in"))
        add(Cut((rest,), name, "out"))
        if both_ways:
            pair = (group, rest) if min(group) < min(rest) else (rest, group)
            add(Cut(pair, name, "in and out"))
    for kind in ("device", "socket", "machine") if world <= BY_CONNECTION_UP_TO else ():
        groups = tuple(group for group, name in named if name.split()[0] == kind)
        if len(groups) > 1 and frozenset().union(*groups) == everyone:
            add(Cut(groups, f"all {kind}s", "in and out"))
    return list(cuts.values())


def _named_groups(topology: Topology) -> Iterator[tuple[frozenset[int], str]]:
    """Yield devices, machines and sockets with their names."""
    for rank, device in enumerate(topology.devices):
        yield frozenset([rank]), f"device {device.name}"
    sockets: dict[tuple[int, int], set[int]] = {}
    for rank, device in enumerate(topology.devices):
        sockets.setdefault((device.machine, device.socket), set()).add(rank)
    machines = machines_of(topology)
    for number in range(machines.max() + 1):
        group = np.flatnonzero(machines == number).tolist()
        ends = {topology.devices[rank].machine: None for rank in (group[0], group[-1])}
        yield frozenset(group), f"machine {' to '.join(map(str, ends))}"
    for (machine, socket), ranks in sorted(sockets.items()):
        yield frozenset(ranks), f"socket {socket} of machine {machine}"


def _unnamed_groups(topology: Topology) -> Iterator[tuple[frozenset[int], str]]:
    """Yield the ranks behind each connection, and for few ranks every set of ranks."""
    world = topology.num_devices
    names = [device.name for device in topology.devices]
    if world <= BY_CONNECTION_UP_TO:
        arrays = topology.arrays()
        for ends in (arrays.link_dst, arrays.link_src):
            touches = np.zeros((arrays.bandwidth.shape[0], world), np.bool_)
            touches[arrays.link_directions, ends[arrays.link_of_hop]] = True
            for row in touches:
                group = frozenset(np.flatnonzero(row).tolist())
                yield group, _listed(group, names)
    if world <= ALL_SUBSETS_UP_TO:
        for mask in range(1, (1 << world) - 1):
            group = frozenset(rank for rank in range(world) if mask >> rank & 1)
            yield group, _listed(group, names)


def _listed(group: Iterable[int], names: list[str]) -> str:
    """Return a name that lists up to eight ranks of the group."""
    ranks = sorted(group)
    shown = ", ".join(names[r] for r in ranks[:8])
    return f"the group {{{shown}{', ...' if len(ranks) > 8 else ''}}}"


def machines_of(topology: Topology) -> Int64Array:
    """Return the machine of each device, (P,) int64, numbered 0, 1, ... in the order of `Device.machine`.

    Machines are one where links between them share all their wires with links inside machines (racks on one
    NVSwitch), unless all are.
    """
    _, machine = np.unique([device.machine for device in topology.devices], return_inverse=True)
    arrays = topology.arrays()
    src, dst = machine[arrays.link_src], machine[arrays.link_dst]
    inside = np.bincount(arrays.link_directions, (src == dst)[arrays.link_of_hop], arrays.num_directions) > 0
    near = np.bincount(arrays.link_of_hop, ~inside[arrays.link_directions], arrays.num_links) == 0
    first = np.arange(machine.max() + 1)
    for _ in range(len(first)):  # along rows of machines that share wires
        np.minimum.at(first, dst[near], first[src[near]])
        np.minimum.at(first, src[near], first[dst[near]])
    if first.any():
        _, machine = np.unique(first[machine], return_inverse=True)
    return machine.astype(np.int64)
