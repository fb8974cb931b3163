"""Boxes of PCIe cards, with and without bridges between pairs."""

from __future__ import annotations

from dataclasses import replace

from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection
from dgcl.topology.presets.nvidia import A100_PORT, PCIE, QPI
from dgcl.topology.presets.wires import bridged, gpus, pcie_tree, wire
from dgcl.topology.rates import nvlink_rate

# PCIe 4.0 x16 as p2pBandwidthLatencyTest measures it between RTX 6000 Ada, within a socket and across two
# (luigifcruz/stelline, hardware/asus-esc8000a-e12.md).
PCIE4 = 26.32
# Four links of 14.0625 GB/s are 56.25 GB/s each way (NVIDIA, "Ampere GA102 GPU Architecture"); NCCL reckons
# with 12 GB/s for each (NVIDIA/nccl, src/graph/topo.h, SM86_NVLINK_BW).
GA102_BRIDGE = 4 * nvlink_rate(86)


def pcie8() -> Topology:
    """Eight GPUs without NVLink: two sockets joined by QPI, on each two PCIe switches with two GPUs.

    Sources: ``nvidia-smi topo -m`` of machines of this kind (PIX within a pair, PHB within a socket, SYS
    across; quoted in NVIDIA/nccl); the speeds are those of the DGCL paper's Table 1, so that this is
    ``dgx1`` without its NVLinks.
    """
    return _box("pcie8", 8, 2, PCIE, wire("cpu0", "cpu1", "QPI", QPI))


def pcie8_1080ti() -> Topology:
    """Eight GTX 1080 Ti: ``pcie8``, the box without NVLink of the DGCL paper's evaluation (section 7)."""
    return replace(pcie8(), name="pcie8_1080ti")


def pcie4_1080ti() -> Topology:
    """Four GTX 1080 Ti on one socket, two behind each of two PCIe 3.0 switches; speeds as ``pcie8``."""
    return _box("pcie4_1080ti", 4, 2, PCIE, None)


def pcie4_l40s() -> Topology:
    """Four L40S, two on each of two sockets, on root ports of their own: no switch, no NVLink.

    Wiring and speed are those of a measured box of the same generation, four RTX 6000 Ada on two EPYC, where
    26.3 GB/s also cross the sockets (luigifcruz/stelline, hardware/asus-esc8000a-e12.md); L40S: PCIe 4.0 x16,
    no NVLink (NVIDIA L40S datasheet). Between the sockets: what one sender was seen to get across; they carry
    more together, but how much was not measured.
    """
    return _root_ports("pcie4_l40s", 4)


def pcie8_l40s() -> Topology:
    """Eight L40S, four on each of two sockets, on root ports of their own; speeds as ``pcie4_l40s``."""
    return _root_ports("pcie8_l40s", 8)


def pcie4_a40() -> Topology:
    """Four A40 on two sockets, NVLink bridges between the two of each socket.

    ``pcie4_l40s`` with bridges of four links, 48 GB/s each way of a peak of 56.25 (NVIDIA A40 datasheet:
    112.5 GB/s in both directions).
    """
    return _with_bridges("pcie4_a40", 4)


def pcie8_a40() -> Topology:
    """Eight A40 on two sockets, NVLink bridges between neighbours; speeds as ``pcie4_a40``."""
    return _with_bridges("pcie8_a40", 8)


def rtx3090_pair() -> Topology:
    """Two RTX 3090 (or RTX A6000) and an NVLink bridge: four links, 48 GB/s each way of a peak of 56.25."""
    return bridged("rtx3090_pair", [(0, 1)], "NV4", GA102_BRIDGE)


def a100_pair() -> Topology:
    """Two A100 PCIe and three NVLink bridges: twelve links, as fast as an A100's port into NVSwitches.

    Source: NVIDIA A100 datasheet (PCIe with bridges for two GPUs: 600 GB/s in both directions).
    """
    return bridged("a100_pair", [(0, 1)], "NV12", A100_PORT)


def h100_nvl_pair() -> Topology:
    """Two H100 NVL and their NVLink bridges: twelve links, 600 GB/s in both directions.

    251 GB/s each way: twelve of the links of which eighteen measure 376 GB/s on HGX H100. Source of the
    wiring: NVIDIA H100 datasheet (NVL).
    """
    return bridged("h100_nvl_pair", [(0, 1)], "NV12", round(12 * nvlink_rate(90)))


def _box(name: str, count: int, per_switch: int, pcie: float, bus: Connection | None) -> Topology:
    per_socket = count if bus is None else count // 2
    return Topology(name, gpus(count, per_socket), tuple(pcie_tree(count, per_switch, pcie, bus)))


def _root_ports(name: str, count: int) -> Topology:
    half = count // 2
    ports = [wire(f"gpu{g}", f"cpu{g // half}", "PCIe", PCIE4) for g in range(count)]
    return Topology(name, gpus(count, half), (*ports, wire("cpu0", "cpu1", "IF", PCIE4)))


def _with_bridges(name: str, count: int) -> Topology:
    box = _root_ports(name, count)
    bridges = [wire(f"gpu{g}", f"gpu{g + 1}", "NV4", GA102_BRIDGE) for g in range(0, count, 2)]
    return Topology(name, box.devices, (*bridges, *box.connections))
