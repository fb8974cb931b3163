"""Machines of GPUs on PCIe cards, with and without NVLink bridges between pairs.

Several of them are joined by one network card for each machine. What card that is, is assumed: of 100 Gb/s, at the
first socket; or where the DGCL paper's figures are used, the paper's.
Called by `topology/presets/__init__` and `cloud`. Free to change while routes match ``nvidia-smi``, and all rows pass
host memory where GPUs have no peer access (`tests/topology/test_presets.py`), and each number has its source.
"""

from dgcl.topology.combine import Nic
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection
from dgcl.topology.presets.nvidia import A100_PORT, IB, PCIE, QPI
from dgcl.topology.presets.wires import Box, bridged, gpus, pcie_tree, wire
from dgcl.topology.rates import nvlink_rate, pcie_rate

# PCIe 4.0 x16 as p2pBandwidthLatencyTest measures it between RTX 6000 Ada, within a socket and across two
# (luigifcruz/stelline, hardware/asus-esc8000a-e12.md).
PCIE4 = 26.32
# Four links of 14.0625 GB/s are 56.25 GB/s each way (NVIDIA, "Ampere GA102 GPU Architecture"); NCCL reckons
# with 12 GB/s for each (NVIDIA/nccl, src/graph/topo.h, SM86_NVLINK_BW).
GA102_BRIDGE = 4 * nvlink_rate(86)
# A card of 100 Gb/s.
CARD = 12.5


def pcie8() -> Box:
    """Eight GPUs without NVLink: two sockets joined by QPI, on each two PCIe switches with two GPUs.

    Sources: ``nvidia-smi topo -m`` of machines of this kind (PIX within a pair, PHB within a socket, SYS
    across; quoted in NVIDIA/nccl); the speeds are those of the DGCL paper's Table 1, so that this is
    ``dgx1`` without its NVLinks, network card included.
    """
    return _box(8, wire("cpu0", "cpu1", "QPI", QPI))


def pcie8_1080ti() -> Box:
    """Eight GTX 1080 Ti: ``pcie8``, the box without NVLink of the DGCL paper's evaluation (section 7)."""
    return pcie8()


def pcie4_1080ti() -> Box:
    """Four GTX 1080 Ti on one socket, two behind each of two PCIe 3.0 switches; speeds as ``pcie8``."""
    return _box(4, None)


def pcie4_l40s() -> Box:
    """Four L40S, two on each of two sockets, on root ports of their own: no switch, no NVLink.

    Wiring and speed are those of a measured box of the same generation, four RTX 6000 Ada on two EPYC, where
    26.3 GB/s also cross the sockets (luigifcruz/stelline, hardware/asus-esc8000a-e12.md); L40S: PCIe 4.0 x16,
    no NVLink (NVIDIA L40S datasheet). Between the sockets: what one sender was seen to get across; they carry
    more together, but how much was not measured.
    """
    return _with_card(_root_ports(4))


def pcie8_l40s() -> Box:
    """Eight L40S, four on each of two sockets, on root ports of their own; speeds as ``pcie4_l40s``."""
    return _with_card(_root_ports(8))


def pcie4_a40() -> Box:
    """Four A40 on two sockets, NVLink bridges between the two of each socket.

    ``pcie4_l40s`` with bridges of four links, 48 GB/s each way of a peak of 56.25 (NVIDIA A40 datasheet:
    112.5 GB/s in both directions).
    """
    return _with_card(_with_bridges(4))


def pcie8_a40() -> Box:
    """Eight A40 on two sockets, NVLink bridges between neighbours; speeds as ``pcie4_a40``."""
    return _with_card(_with_bridges(8))


def pcie4_4090() -> Box:
    """Four RTX 4090 on one socket, without peer access: rows go through host memory.

    22.5 GB/s of PCIe 4.0 x16 is what p2pBandwidthLatencyTest gets from one card to another with peer access off,
    as it is with NVIDIA's driver (Puget Systems, two RTX 4090 on a Threadripper Pro). Memory: the peak of an
    EPYC 7003, eight channels of DDR4-3200.
    """
    return without_peer_access(4, 22.5, 204.8, None)


def pcie8_4090() -> Box:
    """Eight RTX 4090, four on each of two sockets; speeds as ``pcie4_4090``.

    Between the sockets: NCCL's figure for AMD Zen 3 (NVIDIA/nccl, src/graph/topo.h).
    """
    return without_peer_access(8, 22.5, 204.8, 24.0)


def pcie4_5090() -> Box:
    """Four RTX 5090 on one socket, without peer access: rows go through host memory.

    38.2 GB/s of PCIe 5.0 x16 is what p2pBandwidthLatencyTest gets from one card to another without peer access
    (two RTX 5090 on an EPYC 9004, NVIDIA/nccl-tests, issue 287). Memory: the peak of an EPYC 9004, twelve channels of
    DDR5-4800.
    """
    return without_peer_access(4, 38.2, 460.8, None)


def pcie8_5090() -> Box:
    """Eight RTX 5090, four on each of two sockets; speeds as ``pcie4_5090``.

    Between the sockets: NCCL's figure for AMD Zen 5 (NVIDIA/nccl, src/graph/topo.h).
    """
    return without_peer_access(8, 38.2, 460.8, 32.0)


def rtx3090_pair() -> Box:
    """Two RTX 3090 (or RTX A6000) and an NVLink bridge.

    The bridge has four links: 48 GB/s each way, of a peak of 56.25.
    """
    return _with_card(bridged(2, "NV4", GA102_BRIDGE), PCIE4)


def a100_pair() -> Box:
    """Two A100 PCIe and three NVLink bridges: twelve links, as fast as an A100's port into NVSwitches.

    Source: NVIDIA A100 datasheet (PCIe with bridges for two GPUs: 600 GB/s in both directions).
    """
    return _with_card(bridged(2, "NV12", A100_PORT), PCIE4)


def h100_nvl_pair() -> Box:
    """Two H100 NVL and their NVLink bridges: twelve links, 600 GB/s in both directions.

    251 GB/s each way: twelve of the links of which eighteen measure 376 GB/s on HGX H100. Source of the
    wiring: NVIDIA H100 datasheet (NVL). PCIe 5.0: NCCL's figure.
    """
    node = bridged(2, "NV12", round(12 * nvlink_rate(90)))
    return _with_card(node, pcie_rate(32.0))


def without_peer_access(
    count: int, pcie: float, memory: float, bus: float | None, network: str = "IB"
) -> Box:
    """GPUs on root ports of their own, whose rows are staged in host memory, also towards the network.

    Args:
        count: How many GPUs, half of them on each socket.
        pcie: GB/s each way of a GPU's PCIe.
        memory: GB/s of a socket's memory, loads and stores together.
        bus: GB/s each way between two sockets; None: there is one.
        network: What the wire of a machine's card is, of 12.5 GB/s at its first socket.
    """
    return Box(_root_ports(count, pcie, bus), [Nic("cpu0", CARD, kind=network)], memory=memory)


def _box(count: int, bus: Connection | None) -> Box:
    """GPUs in pairs behind PCIe 3.0 switches."""
    per_socket = count if bus is None else count // 2
    node = Topology("box", gpus(count, per_socket), tuple(pcie_tree(count, PCIE, bus)))
    return Box(node, [Nic("plx0", IB, PCIE)])


def _root_ports(count: int, pcie: float = PCIE4, bus: float | None = PCIE4) -> Topology:
    per_socket = count if bus is None else count // 2
    ports = [wire(f"gpu{g}", f"cpu{g // per_socket}", "PCIe", pcie) for g in range(count)]
    buses = [] if bus is None else [wire("cpu0", "cpu1", "IF", bus)]
    return Topology("box", gpus(count, per_socket), (*ports, *buses))


def _with_bridges(count: int) -> Topology:
    box = _root_ports(count)
    bridges = [wire(f"gpu{g}", f"gpu{g + 1}", "NV4", GA102_BRIDGE) for g in range(0, count, 2)]
    return Topology("box", box.devices, (*bridges, *box.connections))


def _with_card(node: Topology, pcie: float | None = None) -> Box:
    """Boxes joined by a card at the first socket of each.

    ``pcie``: GB/s each way of the GPUs' wires to it, where the box alone needs none.
    """
    tree = [] if pcie is None else [wire(device.name, "cpu0", "PCIe", pcie) for device in node.devices]
    return Box(node, [Nic("cpu0", CARD)], tree)
