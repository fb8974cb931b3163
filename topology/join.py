"""Joins different machines of one job into one topology, by their network ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dgcl.topology.combine import PORT, prefixed
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link


def join_machines(
    machines: Sequence[Topology],
    order: Sequence[tuple[int, int]],
    *,
    name: str,
    shared: Sequence[Mapping[str, str]] | None = None,
) -> Topology:
    """One topology of several machines.

    Args:
        machines: Each machine by itself; wires that end at ``NAME.port`` lead to the network.
        order: For each rank its machine and the position of its device there.
        name: What to call the whole.
        shared: For each machine the switches that it shares with others, by name there, and what to call
            them here: NVSwitches of a domain that spans machines.

    All ports of a kind are joined by one switch that never blocks (``ib``, ``eth``): the network's structure cannot be
    seen from a machine. Links within a machine stay as they are; between machines they take the widest route.

    Raises:
        ValueError: ``order`` names a device twice, or one that does not exist.
    """
    if len(set(order)) < len(order):
        raise ValueError("order must name each device once (got one twice)")
    devices: list[Device] = []
    connections: list[Connection] = []
    links: list[Link] = []
    names: dict[tuple[int, int], str] = {}
    for number, machine in enumerate(machines):
        prefix = f"m{number}."
        common = shared[number] if shared is not None else {}
        inside: dict[str, str] = {}
        for connection in machine.connections:
            wire = _joined(connection, prefix, common)
            inside[connection.name] = wire.name
            connections.append(wire)
        for position, device in enumerate(machine.devices):
            names[number, position] = prefix + device.name
            devices.append(replace(device, name=prefix + device.name, machine=number))
        links += [
            Link(prefix + link.src, prefix + link.dst, tuple(inside[step] for step in link.route))
            for link in machine.links
        ]
    by_name = {device.name: device for device in devices}
    try:
        ranks = tuple(by_name[names[place]] for place in order)
    except KeyError as error:
        raise ValueError(f"order names {error.args[0]}, and there is no such machine or device") from None
    present = {device.name for device in ranks}
    gone = {device.name for device in devices} - present
    kept = tuple(c for c in connections if c.a not in gone and c.b not in gone)
    whole = Topology(name, ranks, kept)
    at = {device.name: device.machine for device in ranks}
    between = [link for link in whole.links if at[link.src] != at[link.dst]]
    inside_links = [link for link in links if link.src in present and link.dst in present]
    rank = {device.name: number for number, device in enumerate(ranks)}
    every = sorted([*inside_links, *between], key=lambda link: (rank[link.src], rank[link.dst]))
    return replace(whole, links=tuple(every))


def _joined(connection: Connection, prefix: str, shared: Mapping[str, str]) -> Connection:
    wire = prefixed(connection, prefix)
    if connection.b.endswith(PORT):
        fabric = connection.kind.lower()
        return replace(wire, name=f"{wire.b.removesuffix(PORT)}-{fabric}", b=fabric)
    return replace(wire, a=shared.get(connection.a, wire.a), b=shared.get(connection.b, wire.b))
