"""Joins machines by their network cards (NICs) into one topology: equal machines, or different ones.

>>> from dgcl.topology import preset
>>> from dgcl.topology.combine import Nic, cluster
>>> nics = [Nic(f"gpu{g}", 25.0) for g in range(8)]  # one per GPU; rails: the k-th NICs of all machines share a switch
>>> cluster(preset("dgx_a100"), 4, nics=nics, rails=True).num_devices
32

Called by `topology/presets/wires`, `topology/importers/several` and `dgcl/ranks/machines`. Free to change while links
within a machine keep their routes, and those between machines take the widest one (`tests/topology/test_combine.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dgcl.topology.checks import check_index, check_num_devices, check_number
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link

PORT = ".port"  # where the wire of a NIC ends that is not joined to a network


@dataclass(frozen=True)
class Nic:
    """A network card of a node.

    Attributes:
        at: Its endpoint in the node: a PCIe switch whose devices share it, a processor, or the one device that uses it.
        bandwidth: GB/s each way of its network wire.
        host_bandwidth: GB/s each way between it and ``at``; None: as fast as the wire.
        kind: What the wire is.
    """

    at: str
    bandwidth: float
    host_bandwidth: float | None = None
    kind: str = "IB"

    def __post_init__(self) -> None:
        check_number(self.bandwidth, "bandwidth", positive=True)
        if self.host_bandwidth is not None:
            check_number(self.host_bandwidth, "host_bandwidth", positive=True)


def cluster(
    node: Topology,
    num_machines: int,
    *,
    nics: Sequence[Nic] | None = None,
    rails: bool = False,
    spine: float | None = None,
    name: str | None = None,
) -> Topology:
    """Equal nodes joined by a network whose switches never block.

    Args:
        node: One machine, or several that belong together (an NVLink domain).
        num_machines: How many nodes.
        nics: The cards of a node. None: those that it already has, as in an imported topology, whose wires
            end at ``NAME.port``.
        rails: The k-th NICs of all nodes are on a switch of their own, ``rail<k>``, instead of all on one.
        spine: GB/s each way between a rail's switch and the spine that joins the rails; None: rails meet only
            inside the nodes.
        name: What to call it; default: ``<node>x<num_machines>``.

    Within a node links stay as they are; between nodes they take the widest route.

    Raises:
        ValueError: No NICs, one at an unknown endpoint, or a count below 1.
    """
    check_num_devices(
        check_index(num_machines, "num_machines", 1) * node.num_devices,
        f"num_machines: {num_machines} times {node.name!r}",
    )
    if spine is not None:
        check_number(spine, "spine", positive=True)
    if num_machines == 1:
        return node if name is None else replace(node, name=name)
    inside = node.connections
    if nics is not None:
        inside = (*(c for c in inside if not c.b.endswith(PORT)), *_cards(node, nics))
    ports = [connection for connection in inside if connection.b.endswith(PORT)]
    if not ports:
        raise ValueError(
            f"nics must be given, because {node.name!r} has no network ports of its own; one NIC per "
            f"device at 25 GB/s is nics=[Nic(d.name, 25.0) for d in node.devices]"
        )
    spines: list[Connection] = []
    if rails and spine is not None:
        spines = [
            Connection(f"rail{number}-spine", port.kind, f"rail{number}", "spine", spine)
            for number, port in enumerate(ports)
        ]
    order = [(machine, device) for machine in range(num_machines) for device in range(node.num_devices)]
    whole = replace(node, connections=inside)
    name = name or f"{node.name}x{num_machines}"
    return join_machines([whole] * num_machines, order, name=name, rails=rails, spines=spines)


def join_machines(
    machines: Sequence[Topology],
    order: Sequence[tuple[int, int]],
    *,
    name: str,
    shared: Sequence[Mapping[str, str]] | None = None,
    rails: bool = False,
    spines: Sequence[Connection] = (),
) -> Topology:
    """One topology of several machines.

    Args:
        machines: Each machine by itself; wires that end at ``NAME.port`` lead to the network.
        order: For each rank its machine and the position of its device there.
        name: What to call the whole.
        shared: For each machine the switches that it shares with others, by name there, and what to call
            them here: NVSwitches of a domain that spans machines.
        rails: The k-th ports of all machines meet at a switch of their own, ``rail<k>``. Otherwise all ports of a kind
            meet at one switch that never blocks (``ib``, ``eth``): the network's structure cannot be seen from a
            machine.
        spines: Connections between the switches of the network.

    Links within a machine stay as they are; between machines they take the widest route.

    Raises:
        ValueError: ``order`` names a device twice, or one that does not exist.
    """
    if len(set(order)) < len(order):
        raise ValueError("order must name each device once (got one twice)")
    places: dict[tuple[int, int], Device] = {}
    connections: list[Connection] = []
    links: list[Link] = []
    number_of: dict[str, int] = {}
    before = 0
    for number, machine in enumerate(machines):
        prefix = f"m{number}."
        names: dict[str, str] = {}
        ports = 0
        for connection in machine.connections:
            wire = _prefixed(connection, prefix)
            if connection.b.endswith(PORT):
                fabric = f"rail{ports}" if rails else wire.kind.lower()
                wire = replace(wire, name=f"{wire.b.removesuffix(PORT)}-{fabric}", b=fabric)
                ports += 1
            elif shared is not None:
                common = shared[number]
                wire = replace(wire, a=common.get(connection.a, wire.a), b=common.get(connection.b, wire.b))
            names[connection.name] = wire.name
            connections.append(wire)
        for position, device in enumerate(machine.devices):
            here = replace(device, name=prefix + device.name, machine=before + device.machine)
            places[number, position] = here
            number_of[here.name] = number
        before += max(device.machine for device in machine.devices) + 1
        links += [
            Link(prefix + link.src, prefix + link.dst, tuple(names[step] for step in link.route))
            for link in machine.links
        ]
    try:
        devices = tuple(places[place] for place in order)
    except KeyError as error:
        raise ValueError(f"order names {error.args[0]}, and there is no such machine or device") from None
    rank = {device.name: number for number, device in enumerate(devices)}
    gone = number_of.keys() - rank.keys()
    kept = tuple(c for c in connections if c.a not in gone and c.b not in gone)
    whole = Topology(name, devices, (*kept, *spines))
    every = [link for link in whole.links if number_of[link.src] != number_of[link.dst]]
    every += [link for link in links if link.src in rank and link.dst in rank]
    return replace(whole, links=tuple(sorted(every, key=lambda link: (rank[link.src], rank[link.dst]))))


def _cards(node: Topology, nics: Sequence[Nic]) -> list[Connection]:
    """The wires of these cards, to their hosts and to the network."""
    ends = {device.name for device in node.devices} | {end for c in node.connections for end in (c.a, c.b)}
    if not nics:
        raise ValueError("nics must name at least one card (got none)")
    wires = []
    for number, nic in enumerate(nics):
        if nic.at not in ends:
            raise ValueError(
                f"nics[{number}].at must be a device or switch of {node.name!r} (got {nic.at!r})"
            )
        card = f"nic{number}"
        if card in ends:
            raise ValueError(f"nics must not be given: {node.name!r} has an endpoint {card!r} already")
        wires += [
            Connection(f"{card}-{nic.at}", "PCIe", card, nic.at, nic.host_bandwidth or nic.bandwidth),
            Connection(f"{card}-{card}{PORT}", nic.kind, card, card + PORT, nic.bandwidth),
        ]
    return wires


def _prefixed(connection: Connection, prefix: str) -> Connection:
    """``gpu0-plx0`` becomes ``m0.gpu0-m0.plx0``; names of other forms get the prefix in front."""
    a, b = prefix + connection.a, prefix + connection.b
    plain = connection.name == f"{connection.a}-{connection.b}"
    return replace(connection, name=f"{a}-{b}" if plain else prefix + connection.name, a=a, b=b)
