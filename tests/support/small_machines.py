"""Small machines that several tests use."""

from collections.abc import Sequence
from dataclasses import replace

from dgcl.topology import Connection, Device, Topology


def known_answer_topology() -> Topology:
    """Devices 0, 1, 2: bandwidth 4 on 0-1 and on 1-2, 1 on 0-2, full duplex."""
    return small_topology(3, [(0, 1, 4.0), (1, 2, 4.0), (0, 2, 1.0)])


def small_topology(
    num_devices: int, wires: Sequence[tuple[int, int, float]], duplex: str = "full"
) -> Topology:
    """Devices joined directly by (a, b, bandwidth) wires."""
    return Topology(
        "small",
        tuple(Device(f"d{r}") for r in range(num_devices)),
        tuple(
            Connection(f"w{i}", "wire", f"d{a}", f"d{b}", bandwidth, duplex=duplex)
            for i, (a, b, bandwidth) in enumerate(wires)
        ),
    )


def line(num_devices: int, two_way: bool = True) -> Topology:
    """Devices in a row; only neighbours have links."""
    wires = tuple(Connection(f"w{r}", "w", f"d{r}", f"d{r + 1}", 1.0) for r in range(num_devices - 1))
    devices = tuple(Device(f"d{r}") for r in range(num_devices))
    topology = Topology("line", devices, wires)
    if two_way:
        return topology
    return Topology("line", devices, wires, tuple(x for x in topology.links if x.src < x.dst))


def switched(num_devices: int, bandwidth: float = 10.0) -> Topology:
    """Every device has one port on one switch."""
    return Topology(
        "switched",
        tuple(Device(f"d{r}") for r in range(num_devices)),
        tuple(Connection(f"p{r}", "port", f"d{r}", "switch", bandwidth) for r in range(num_devices)),
    )


def with_latency(topology: Topology, *seconds: float) -> Topology:
    """The topology with these latencies on its connections, in turn."""
    connections = tuple(
        replace(c, latency=seconds[i % len(seconds)]) for i, c in enumerate(topology.connections)
    )
    return replace(topology, connections=connections)
