"""Boxes of PCIe cards, with and without bridges between pairs.

Several of them are joined by one network card for each box. What card that is, is assumed: of 100 Gb/s, at the first
socket; or where the DGCL paper's figures are used, the paper's.
"""

from dataclasses import replace

from dgcl.topology.combine import Nic, cluster
from dgcl.topology.host_memory import stage_in_host_memory
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection
from dgcl.topology.presets.nvidia import A100_PORT, IB, PCIE, QPI
from dgcl.topology.presets.wires import bridged, called, gpus, pcie_tree, wire
from dgcl.topology.rates import nvlink_rate, pcie_rate

# PCIe 4.0 x16 as p2pBandwidthLatencyTest measures it between RTX 6000 Ada, within a socket and across two
# (luigifcruz/stelline, hardware/asus-esc8000a-e12.md).
PCIE4 = 26.32
# Four links of 14.0625 GB/s are 56.25 GB/s each way (NVIDIA, "Ampere GA102 GPU Architecture"); NCCL reckons
# with 12 GB/s for each (NVIDIA/nccl, src/graph/topo.h, SM86_NVLINK_BW).
GA102_BRIDGE = 4 * nvlink_rate(86)
# A card of 100 Gb/s.
CARD = 12.5


def pcie8(num_machines: int = 1) -> Topology:
    """Eight GPUs without NVLink: two sockets joined by QPI, on each two PCIe switches with two GPUs.

    Sources: ``nvidia-smi topo -m`` of machines of this kind (PIX within a pair, PHB within a socket, SYS
    across; quoted in NVIDIA/nccl); the speeds are those of the DGCL paper's Table 1, so that this is
    ``dgx1`` without its NVLinks, network card included.
    """
    return _box("pcie8", 8, wire("cpu0", "cpu1", "QPI", QPI), num_machines)


def pcie8_1080ti(num_machines: int = 1) -> Topology:
    """Eight GTX 1080 Ti: ``pcie8``, the box without NVLink of the DGCL paper's evaluation (section 7)."""
    return called("pcie8_1080ti", pcie8(num_machines), num_machines)


def pcie4_1080ti(num_machines: int = 1) -> Topology:
    """Four GTX 1080 Ti on one socket, two behind each of two PCIe 3.0 switches; speeds as ``pcie8``."""
    return _box("pcie4_1080ti", 4, None, num_machines)


def pcie4_l40s(num_machines: int = 1) -> Topology:
    """Four L40S, two on each of two sockets, on root ports of their own: no switch, no NVLink.

    Wiring and speed are those of a measured box of the same generation, four RTX 6000 Ada on two EPYC, where
    26.3 GB/s also cross the sockets (luigifcruz/stelline, hardware/asus-esc8000a-e12.md); L40S: PCIe 4.0 x16,
    no NVLink (NVIDIA L40S datasheet). Between the sockets: what one sender was seen to get across; they carry
    more together, but how much was not measured.
    """
    return _with_card(_root_ports("pcie4_l40s", 4), num_machines)


def pcie8_l40s(num_machines: int = 1) -> Topology:
    """Eight L40S, four on each of two sockets, on root ports of their own; speeds as ``pcie4_l40s``."""
    return _with_card(_root_ports("pcie8_l40s", 8), num_machines)


def pcie4_a40(num_machines: int = 1) -> Topology:
    """Four A40 on two sockets, NVLink bridges between the two of each socket.

    ``pcie4_l40s`` with bridges of four links, 48 GB/s each way of a peak of 56.25 (NVIDIA A40 datasheet:
    112.5 GB/s in both directions).
    """
    return _with_card(_with_bridges("pcie4_a40", 4), num_machines)


def pcie8_a40(num_machines: int = 1) -> Topology:
    """Eight A40 on two sockets, NVLink bridges between neighbours; speeds as ``pcie4_a40``."""
    return _with_card(_with_bridges("pcie8_a40", 8), num_machines)


def pcie4_4090(num_machines: int = 1) -> Topology:
    """Four RTX 4090 on one socket, without peer access: rows go through host memory.

    22.5 GB/s of PCIe 4.0 x16 is what p2pBandwidthLatencyTest gets from one card to another with peer access off,
    as it is with NVIDIA's driver (Puget Systems, two RTX 4090 on a Threadripper Pro). Memory: the peak of an
    EPYC 7003, eight channels of DDR4-3200.
    """
    return without_peer_access("pcie4_4090", 4, 22.5, 204.8, None, num_machines)


def pcie8_4090(num_machines: int = 1) -> Topology:
    """Eight RTX 4090, four on each of two sockets; speeds as ``pcie4_4090``.

    Between the sockets: NCCL's figure for AMD Zen 3 (NVIDIA/nccl, src/graph/topo.h).
    """
    return without_peer_access("pcie8_4090", 8, 22.5, 204.8, 24.0, num_machines)


def pcie4_5090(num_machines: int = 1) -> Topology:
    """Four RTX 5090 on one socket, without peer access: rows go through host memory.

    38.2 GB/s of PCIe 5.0 x16 is what p2pBandwidthLatencyTest gets from one card to another without peer access
    (two RTX 5090 on an EPYC 9004, NVIDIA/nccl-tests, issue 287). Memory: the peak of an EPYC 9004, twelve channels of
    DDR5-4800.
    """
    return without_peer_access("pcie4_5090", 4, 38.2, 460.8, None, num_machines)


def pcie8_5090(num_machines: int = 1) -> Topology:
    """Eight RTX 5090, four on each of two sockets; speeds as ``pcie4_5090``.

    Between the sockets: NCCL's figure for AMD Zen 5 (NVIDIA/nccl, src/graph/topo.h).
    """
    return without_peer_access("pcie8_5090", 8, 38.2, 460.8, 32.0, num_machines)


def rtx3090_pair(num_machines: int = 1) -> Topology:
    """Two RTX 3090 (or RTX A6000) and an NVLink bridge.

    The bridge has four links: 48 GB/s each way, of a peak of 56.25.
    """
    return _with_card(bridged("rtx3090_pair", 2, "NV4", GA102_BRIDGE), num_machines, PCIE4)


def a100_pair(num_machines: int = 1) -> Topology:
    """Two A100 PCIe and three NVLink bridges: twelve links, as fast as an A100's port into NVSwitches.

    Source: NVIDIA A100 datasheet (PCIe with bridges for two GPUs: 600 GB/s in both directions).
    """
    return _with_card(bridged("a100_pair", 2, "NV12", A100_PORT), num_machines, PCIE4)


def h100_nvl_pair(num_machines: int = 1) -> Topology:
    """Two H100 NVL and their NVLink bridges: twelve links, 600 GB/s in both directions.

    251 GB/s each way: twelve of the links of which eighteen measure 376 GB/s on HGX H100. Source of the
    wiring: NVIDIA H100 datasheet (NVL). PCIe 5.0: NCCL's figure.
    """
    node = bridged("h100_nvl_pair", 2, "NV12", round(12 * nvlink_rate(90)))
    return _with_card(node, num_machines, pcie_rate(32.0))


def without_peer_access(
    name: str,
    count: int,
    pcie: float,
    memory: float,
    bus: float | None,
    num_machines: int,
    network: str = "IB",
) -> Topology:
    """GPUs on root ports of their own, whose rows are staged in host memory, also towards the network.

    Args:
        name: Of one machine.
        count: How many GPUs, half of them on each socket.
        pcie: GB/s each way of a GPU's PCIe.
        memory: GB/s of a socket's memory, loads and stores together.
        bus: GB/s each way between two sockets; None: there is one.
        num_machines: How many such machines, each with a card of 12.5 GB/s at its first socket.
        network: What its wire is.
    """
    node = _root_ports(name, count, pcie, bus)
    joined = cluster(node, num_machines, nics=[Nic("cpu0", CARD, kind=network)])
    return stage_in_host_memory(joined, memory)


def _box(name: str, count: int, bus: Connection | None, num_machines: int) -> Topology:
    """GPUs in pairs behind PCIe 3.0 switches."""
    per_socket = count if bus is None else count // 2
    node = Topology(name, gpus(count, per_socket), tuple(pcie_tree(count, PCIE, bus)))
    return cluster(node, num_machines, nics=[Nic("plx0", IB, PCIE)])


def _root_ports(name: str, count: int, pcie: float = PCIE4, bus: float | None = PCIE4) -> Topology:
    per_socket = count if bus is None else count // 2
    ports = [wire(f"gpu{g}", f"cpu{g // per_socket}", "PCIe", pcie) for g in range(count)]
    buses = [] if bus is None else [wire("cpu0", "cpu1", "IF", bus)]
    return Topology(name, gpus(count, per_socket), (*ports, *buses))


def _with_bridges(name: str, count: int) -> Topology:
    box = _root_ports(name, count)
    bridges = [wire(f"gpu{g}", f"gpu{g + 1}", "NV4", GA102_BRIDGE) for g in range(0, count, 2)]
    return Topology(name, box.devices, (*bridges, *box.connections))


def _with_card(node: Topology, num_machines: int, pcie: float | None = None) -> Topology:
    """Boxes joined by a card at the first socket of each.

    ``pcie``: GB/s each way of the GPUs' wires to it, where the box alone needs none.
    """
    if num_machines == 1:
        return node
    ports = [] if pcie is None else [wire(device.name, "cpu0", "PCIe", pcie) for device in node.devices]
    whole = replace(node, connections=(*node.connections, *ports))
    return cluster(whole, num_machines, nics=[Nic("cpu0", CARD)])
