"""Machines by name, each with the source of its wiring and of its numbers.

Bandwidths are in GB/s per direction and, where a source gives them, what copies between devices reach, not
the peak of the data sheet. Latencies are 0: no source gives them for all kinds of connection, and a file
can add them.
"""

from __future__ import annotations

import itertools

from dgcl.topology.checks import check_index, check_number
from dgcl.topology.model import Connection, Device, Topology

# Speeds measured by Cai et al., "DGCL: an efficient communication library for distributed GNN training"
# (EuroSys 2021), Table 1.
NV1 = 24.22
NV2 = 48.35
PCIE = 11.13
QPI = 9.56
IB = 6.37

# Pairs of GPUs of a DGX-1 V100 with one and with two NVLinks; other pairs have none. Each GPU has six.
_CUBE_MESH = {
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
}


def dgx1(num_machines: int = 1) -> Topology:
    """NVIDIA DGX-1 with eight V100: NVLink hybrid cube mesh, and a PCIe tree over two sockets.

    Each of the two sockets has two PCIe switches with two GPUs each; QPI joins the sockets. Several
    machines are joined by one InfiniBand NIC each, behind the first PCIe switch, over a switch that never
    blocks.

    Sources: the wiring is what ``nvidia-smi topo -m`` prints on the machine (quoted in
    microsoft/msccl-tools, tests/test_topologies.py) and what NVIDIA's white paper draws (DGX-1 System
    Architecture, WP-08437-001, section 3.1); the speeds are those of the DGCL paper's Table 1.
    """
    devices: list[Device] = []
    connections: list[Connection] = []
    for machine in range(_count(num_machines, "num_machines")):
        prefix = _prefix(machine, num_machines)
        devices += _eight_gpus(prefix, machine)
        for bricks, bandwidth in ((1, NV1), (2, NV2)):
            connections += [
                _wire(f"{prefix}gpu{a}", f"{prefix}gpu{b}", f"NV{bricks}", bandwidth)
                for a, b in _CUBE_MESH[bricks]
            ]
        connections += _pcie_tree(prefix)
        if num_machines > 1:
            connections += [
                _wire(f"{prefix}nic0", f"{prefix}plx0", "PCIe", PCIE),
                _wire(f"{prefix}nic0", "ib", "IB", IB),
            ]
    return Topology(_name("dgx1", num_machines), tuple(devices), tuple(connections))


def pcie8() -> Topology:
    """Eight GPUs without NVLink: two sockets joined by QPI, on each two PCIe switches with two GPUs.

    Sources: ``nvidia-smi topo -m`` of machines of this kind (PIX within a pair, PHB within a socket, SYS
    across; quoted in NVIDIA/nccl); the speeds are those of the DGCL paper's Table 1, so that this is
    ``dgx1`` without its NVLinks.
    """
    return Topology("pcie8", tuple(_eight_gpus("", 0)), tuple(_pcie_tree("")))


def dgx_a100() -> Topology:
    """NVIDIA DGX A100: eight A100, each with twelve third-generation NVLinks into six NVSwitches.

    The NVSwitches never block, so they are one switch here, and the twelve links of a GPU one port. Its
    peak is 300 GB/s each way (NVIDIA, "NVLink": twelve links, 600 GB/s in both directions); 274 is what
    p2pBandwidthLatencyTest measures for one-way writes between any two GPUs (stas00/ml-engineering,
    network/README.md). PCIe and NICs are left out: no route between these GPUs would use them.
    """
    return _nvswitch_machine("dgx_a100", kind="NV12", bandwidth=274.0)


def hgx_h100() -> Topology:
    """NVIDIA HGX H100 and DGX H100: eight H100, eighteen fourth-generation NVLinks each, four NVSwitches.

    Modelled as ``dgx_a100``. The peak of a port is 450 GB/s each way (NVIDIA, "Upgrading Multi-GPU
    Interconnectivity with the Third-Generation NVIDIA NVSwitch"); 376 is what p2pBandwidthLatencyTest
    measures (stas00/ml-engineering, network/README.md).
    """
    return _nvswitch_machine("hgx_h100", kind="NV18", bandwidth=376.0)


def summit(num_machines: int = 1) -> Topology:
    """A node of Summit (IBM AC922): two POWER9, each with three V100; NVLink joins every two of these four.

    Each such pair has two NVLink 2.0 bricks, 50 GB/s each way. The X-bus between the processors carries 64
    GB/s each way (4 bytes at 16 GT/s). Several nodes are joined by dual-rail EDR InfiniBand, 23 GB/s a
    node, half of it at each socket behind a PCIe 4.0 x8 (16 GB/s), over a fat tree that does not block.
    These are peak rates.

    Sources: OLCF, Summit User Guide ("Summit Nodes", "NVIDIA NVLink", "System Interconnect"); WikiChip,
    "Summit" (X-bus, PCIe).
    """
    devices: list[Device] = []
    connections: list[Connection] = []
    for machine in range(_count(num_machines, "num_machines")):
        prefix = _prefix(machine, num_machines)
        devices += [Device(f"{prefix}gpu{g}", machine, socket=g // 3) for g in range(6)]
        for socket in range(2):
            ends = [*(f"{prefix}gpu{g}" for g in range(3 * socket, 3 * socket + 3)), f"{prefix}cpu{socket}"]
            connections += [_wire(a, b, "NV2", 50.0) for a, b in itertools.combinations(ends, 2)]
        connections.append(_wire(f"{prefix}cpu0", f"{prefix}cpu1", "X-bus", 64.0))
        if num_machines > 1:
            for socket in range(2):
                connections += [
                    _wire(f"{prefix}nic{socket}", f"{prefix}cpu{socket}", "PCIe", 16.0),
                    _wire(f"{prefix}nic{socket}", "ib", "IB", 11.5),
                ]
    return Topology(_name("summit", num_machines), tuple(devices), tuple(connections))


def uniform(num_devices: int, *, bandwidth: float = 10.0, latency: float = 0.0) -> Topology:
    """No machine in particular: each device has one port, all of one speed, on a switch that never blocks.

    This is the model of most papers on collective communication: all pairs are alike, and a device is
    bounded by what its port takes in and gives out. ``bandwidth`` is in GB/s per direction of a port,
    ``latency`` in seconds per port.
    """
    check_number(bandwidth, "bandwidth", positive=True)
    check_number(latency, "latency", positive=False)
    names = [f"device{rank}" for rank in range(_count(num_devices, "num_devices"))]
    return Topology(
        name=f"uniform{num_devices}",
        devices=tuple(Device(name) for name in names),
        connections=tuple(_wire(name, "switch", "port", bandwidth, latency) for name in names),
    )


def _eight_gpus(prefix: str, machine: int) -> list[Device]:
    return [Device(f"{prefix}gpu{g}", machine, socket=g // 4) for g in range(8)]


def _pcie_tree(prefix: str) -> list[Connection]:
    """Eight GPUs behind four PCIe switches (PLX) of two sockets."""
    return [
        *(_wire(f"{prefix}gpu{g}", f"{prefix}plx{g // 2}", "PCIe", PCIE) for g in range(8)),
        *(_wire(f"{prefix}plx{p}", f"{prefix}cpu{p // 2}", "PCIe", PCIE) for p in range(4)),
        _wire(f"{prefix}cpu0", f"{prefix}cpu1", "QPI", QPI),
    ]


def _nvswitch_machine(name: str, *, kind: str, bandwidth: float) -> Topology:
    devices = tuple(_eight_gpus("", 0))
    ports = tuple(_wire(device.name, "nvswitch", kind, bandwidth) for device in devices)
    return Topology(name, devices, ports)


def _wire(a: str, b: str, kind: str, bandwidth: float, latency: float = 0.0) -> Connection:
    return Connection(f"{a}-{b}", kind, a, b, bandwidth, latency)


def _prefix(machine: int, num_machines: int) -> str:
    return f"m{machine}." if num_machines > 1 else ""


def _name(machine: str, num_machines: int) -> str:
    return f"{machine}x{num_machines}" if num_machines > 1 else machine


def _count(value: int, field: str) -> int:
    if check_index(value, field) < 1:
        raise ValueError(f"{field} must be at least 1 (got {value})")
    return value
