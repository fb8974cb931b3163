"""Helpers to build preset machines: named wires, PCIe trees, NVSwitch nodes, and `Box`, which joins several machines.

Wires that a machine needs only on the way to its network cards (`Box.tree`) are in it only where several are joined.
Called by `__init__`, `cloud`, `nvidia`, `other` and `pcie`. Free to change while every pair of devices has a link,
every connection is used, and machines meet at their network cards (`tests/topology/test_presets.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dgcl.topology.combine import Nic, cluster
from dgcl.topology.host_memory import stage_in_host_memory
from dgcl.topology.model import Topology, with_model
from dgcl.topology.parts import Connection, Device


@dataclass(frozen=True)
class Box:
    """A machine, and how several of it are joined.

    Attributes:
        node: It alone.
        nics: Its network cards.
        tree: Wires that it needs only on its way to them.
        memory: GB/s of a socket's memory, where rows are staged there; 0: nowhere.
    """

    node: Topology
    nics: Sequence[Nic]
    tree: Sequence[Connection] = ()
    memory: float = 0.0

    def joined(self, name: str, model: str, num_machines: int = 1) -> Topology:
        """So many of it, whose devices are of this model."""
        node = replace(with_model(self.node, model), name=name)
        if num_machines > 1:
            node = replace(node, connections=(*node.connections, *self.tree))
            node = cluster(node, num_machines, nics=self.nics)
        return stage_in_host_memory(node, self.memory) if self.memory else node


def wire(a: str, b: str, kind: str, bandwidth: float, latency: float = 0.0) -> Connection:
    """A full-duplex connection named after its ends."""
    return Connection(f"{a}-{b}", kind, a, b, bandwidth, latency)


def gpus(count: int, per_socket: int) -> tuple[Device, ...]:
    """``gpu0`` ... of one machine, so many on each socket."""
    return tuple(Device(f"gpu{g}", 0, socket=g // per_socket) for g in range(count))


def pcie_tree(count: int, bandwidth: float, bus: Connection | None) -> list[Connection]:
    """Pairs of GPUs behind PCIe switches (``plx0`` ...), half of the switches on each of two sockets.

    ``bus`` joins ``cpu0`` and ``cpu1``; None: there is one socket.
    """
    switches = count // 2
    per_socket = switches if bus is None else switches // 2
    return [
        *(wire(f"gpu{g}", f"plx{g // 2}", "PCIe", bandwidth) for g in range(count)),
        *(wire(f"plx{p}", f"cpu{p // per_socket}", "PCIe", bandwidth) for p in range(switches)),
        *([] if bus is None else [bus]),
    ]


def nvswitch_node(kind: str, bandwidth: float, count: int = 8, per_socket: int = 4) -> Topology:
    """GPUs with one port each into NVSwitches, which never block and are one switch here."""
    devices = gpus(count, per_socket)
    ports = tuple(wire(device.name, "nvswitch", kind, bandwidth) for device in devices)
    return Topology("node", devices, ports)


def bridged(count: int, kind: str, bandwidth: float) -> Topology:
    """GPUs of one socket, every two of them joined directly, and by nothing else."""
    pairs = combinations(range(count), 2)
    return Topology(
        "node", gpus(count, count), tuple(wire(f"gpu{a}", f"gpu{b}", kind, bandwidth) for a, b in pairs)
    )


def nic_per_gpu(node: Topology, bandwidth: float, kind: str = "IB") -> Box:
    """Nodes joined by NICs, one for each GPU, over a network that never blocks."""
    return Box(node, [Nic(device.name, bandwidth, kind=kind) for device in node.devices])
