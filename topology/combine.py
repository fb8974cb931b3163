"""Clusters of equal nodes, joined by their NICs, on rails or on one fabric.

>>> from dgcl.topology import preset
>>> from dgcl.topology.combine import Nic, cluster
>>> node = preset("dgx_a100")
>>> eight_rails = [Nic(f"gpu{g}", 25.0) for g in range(8)]         # one NIC per GPU
>>> cluster(node, 4, nics=eight_rails, rails=True).num_devices
32
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dgcl.topology.checks import check_index, check_num_devices, check_number
from dgcl.topology.garbage import no_garbage_search
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


@no_garbage_search()
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
    if check_index(num_machines, "num_machines") < 1:
        raise ValueError(f"num_machines must be at least 1 (got {num_machines})")
    check_num_devices(num_machines * node.num_devices, f"num_machines: {num_machines} times {node.name!r}")
    if spine is not None:
        check_number(spine, "spine", positive=True)
    if num_machines == 1:
        return node if name is None else replace(node, name=name)
    cards = _cards(node, nics)
    devices: list[Device] = []
    connections: list[Connection] = []
    links: list[Link] = []
    machines_per_node = max(device.machine for device in node.devices) + 1
    for index in range(num_machines):
        prefix = f"m{index}."
        devices += [
            replace(d, name=prefix + d.name, machine=d.machine + index * machines_per_node)
            for d in node.devices
        ]
        inside = {c.name: prefixed(c, prefix) for c in node.connections if not c.b.endswith(PORT)}
        connections += inside.values()
        for number, card in enumerate(cards):
            fabric = f"rail{number}" if rails else card.wire.kind.lower()
            if card.host is not None:
                connections.append(prefixed(card.host, prefix))
            wire = f"{prefix}{card.name}-{fabric}"
            connections.append(replace(card.wire, name=wire, a=prefix + card.wire.a, b=fabric))
        links += [
            Link(prefix + link.src, prefix + link.dst, tuple(inside[step].name for step in link.route))
            for link in node.links
        ]
    if rails and spine is not None:
        connections += [
            Connection(f"rail{number}-spine", card.wire.kind, f"rail{number}", "spine", spine)
            for number, card in enumerate(cards)
        ]
    whole = Topology(name or f"{node.name}x{num_machines}", tuple(devices), tuple(connections))
    return _with_links(whole, links, node.num_devices)


def _with_links(topology: Topology, inside: list[Link], per_node: int) -> Topology:
    """The topology with these links within its nodes, and the derived ones between them."""
    rank = {device.name: index for index, device in enumerate(topology.devices)}
    between = [link for link in topology.links if rank[link.src] // per_node != rank[link.dst] // per_node]
    links = sorted([*inside, *between], key=lambda link: (rank[link.src], rank[link.dst]))
    return replace(topology, links=tuple(links))


@dataclass(frozen=True)
class _Card:
    """A NIC's wire to the network, and the wire to its host unless the node has it."""

    name: str
    wire: Connection
    host: Connection | None


def _cards(node: Topology, nics: Sequence[Nic] | None) -> list[_Card]:
    ends = {device.name for device in node.devices} | {end for c in node.connections for end in (c.a, c.b)}
    if nics is None:
        cards = [_Card(c.b.removesuffix(PORT), c, None) for c in node.connections if c.b.endswith(PORT)]
        if not cards:
            raise ValueError(
                f"nics must be given, because {node.name!r} has no network ports of its own; one NIC per "
                f"device at 25 GB/s is nics=[Nic(d.name, 25.0) for d in node.devices]"
            )
        return cards
    if not nics:
        raise ValueError("nics must name at least one card (got none)")
    cards = []
    for number, nic in enumerate(nics):
        if nic.at not in ends:
            raise ValueError(
                f"nics[{number}].at must be a device or switch of {node.name!r} (got {nic.at!r})"
            )
        card = f"nic{number}"
        if card in ends:
            raise ValueError(f"nics must not be given: {node.name!r} has an endpoint {card!r} already")
        host = Connection(f"{card}-{nic.at}", "PCIe", card, nic.at, nic.host_bandwidth or nic.bandwidth)
        cards.append(_Card(card, Connection(card, nic.kind, card, "network", nic.bandwidth), host))
    return cards


def prefixed(connection: Connection, prefix: str) -> Connection:
    """``gpu0-plx0`` becomes ``m0.gpu0-m0.plx0``; names of other forms get the prefix in front."""
    a, b = prefix + connection.a, prefix + connection.b
    plain = connection.name == f"{connection.a}-{connection.b}"
    return replace(connection, name=f"{a}-{b}" if plain else prefix + connection.name, a=a, b=b)
