"""Nodes of IBM (Summit) and AMD (MI250X, MI300X), and `uniform`, an abstract machine of any number of equal devices.

Each function makes one machine, and its docstring has the source of each number.
Called by `topology/presets/__init__` and `cloud`. Free to change while wiring is that of the sources, the abstract
machine has one port for each device (`tests/topology/test_presets.py`), and each number has its source.
"""

import itertools
from dataclasses import replace

from dgcl.topology.checks import check_index, check_num_devices
from dgcl.topology.combine import Nic
from dgcl.topology.gpu_models import CPU_CORE
from dgcl.topology.model import Topology
from dgcl.topology.parts import Device
from dgcl.topology.presets.wires import Box, bridged, gpus, nic_per_gpu, wire
from dgcl.topology.rates import xgmi_rate

# Pairs of dies of a node of four MI250X by the Infinity Fabric links between them.
_MI250X = {
    4: ((0, 1), (2, 3), (4, 5), (6, 7)),
    2: ((0, 6), (2, 4)),
    1: ((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)),
}


def summit() -> Box:
    """A node of Summit (IBM AC922): two POWER9, each with three V100; NVLink joins every two of these four.

    Each such pair has two NVLink 2.0 bricks, 50 GB/s each way. The X-bus between the processors carries 64
    GB/s each way (4 bytes at 16 GT/s). Several nodes are joined by dual-rail EDR InfiniBand, 23 GB/s a
    node, half of it at each socket behind a PCIe 4.0 x8 (16 GB/s), over a fat tree that does not block.
    These are peak rates.

    Sources: OLCF, Summit User Guide ("Summit Nodes", "NVIDIA NVLink", "System Interconnect"); WikiChip,
    "Summit" (X-bus, PCIe).
    """
    bricks = []
    for socket in range(2):
        ends = [*(f"gpu{g}" for g in range(3 * socket, 3 * socket + 3)), f"cpu{socket}"]
        bricks += [wire(a, b, "NV2", 50.0) for a, b in itertools.combinations(ends, 2)]
    node = Topology("node", gpus(6, 3), (*bricks, wire("cpu0", "cpu1", "X-bus", 64.0)))
    nics = [Nic(f"cpu{socket}", 11.5, 16.0) for socket in range(2)]
    return Box(node, nics)


def mi250x() -> Box:
    """A node of four AMD MI250X, as in Frontier and LUMI: eight dies (GCDs), each a device of its own.

    Between the two dies of a package four Infinity Fabric links, between packages one or two, 50 GB/s each
    way for a link; 36 GB/s each way between a die and the processor. Several nodes are joined by a Slingshot NIC
    of 25 GB/s at each package, which its two dies share: one is wired to it (PCIe, 50 GB/s), the other reaches it
    over the links in the package. These are peak rates; that the NIC hangs on the second die is assumed, and what
    its traffic takes of the links in the package is left out.

    Sources: OLCF, Frontier User Guide ("Frontier Compute Nodes": 200 GB/s in a package, 50 to 100 between
    packages, 36 to the processor; PCIe Gen4 ESM 50 and Ethernet 25 to the NICs); the pairs are those of RCCL
    (ROCm/rccl, src/graph/rome_models.cc, model 71).
    """
    fabric = [
        wire(f"gpu{a}", f"gpu{b}", f"XGMI{links}", 50.0 * links)
        for links, pairs in _MI250X.items()
        for a, b in pairs
    ]
    hosts = [wire(f"gpu{g}", "cpu0", "IF", 36.0) for g in range(8)]
    node = Topology("node", gpus(8, 2), (*fabric, *hosts))
    ports = [
        wire(f"gpu{2 * p + die}", f"package{p}", *way)
        for p in range(4)
        for die, way in enumerate((("XGMI4", 200.0), ("PCIe", 50.0)))
    ]
    nics = [Nic(f"package{p}", 25.0, 50.0, "Slingshot") for p in range(4)]
    return Box(node, nics, ports)


def mi300x() -> Box:
    """Eight AMD MI300X, an Infinity Fabric link between every two of them.

    48 GB/s each way is what reaches the other end, of a peak of 64 (AMD ROCm blogs, "Understanding RCCL
    Bandwidth and xGMI Performance on AMD Instinct MI300X"; RCCL reckons with the same, src/graph/topo.h). Several
    machines have a NIC of 50 GB/s for each GPU, as AMD's cluster designs do (400 Gb/s Ethernet).
    """
    node = bridged(8, "XGMI1", xgmi_rate("gfx942"))
    return nic_per_gpu(replace(node, devices=gpus(8, 4)), 50.0, "RoCE")


def uniform(num_devices: int, *, bandwidth: float = 10.0, latency: float = 0.0) -> Topology:
    """An abstract machine: each device has one port, all of one speed, on a switch that never blocks.

    This is the model of most papers on collective communication: all pairs are equal, and a device is bounded by what
    its port receives and sends. ``bandwidth`` is in GB/s per direction of a port,
    ``latency`` in seconds per port.
    """
    check_num_devices(check_index(num_devices, "num_devices", 1), f"'uniform:{num_devices}'")
    names = [f"device{rank}" for rank in range(num_devices)]
    return Topology(
        name=f"uniform{num_devices}",
        devices=tuple(Device(name, model=CPU_CORE) for name in names),
        connections=tuple(wire(name, "switch", "port", bandwidth, latency) for name in names),
    )
