"""NVIDIA's own machines (DGX, HGX, Grace Hopper and Blackwell): GPUs joined directly by NVLinks or through NVSwitches.

Each function makes one machine, and its docstring has the source of each number.
Called by `topology/presets/__init__`, `cloud` and `pcie`. Free to change while wiring is that of public dumps, and
ports are as fast as measured (`tests/topology/test_presets.py`), and each number has its source.
"""

from dataclasses import replace

from dgcl.topology.combine import Nic
from dgcl.topology.model import Topology
from dgcl.topology.parts import Device
from dgcl.topology.presets.wires import (
    Box,
    bridged,
    gpus,
    nic_per_gpu,
    nvswitch_node,
    pcie_tree,
    wire,
)
from dgcl.topology.rates import nvlink_rate

# Speeds measured by Cai et al., "DGCL: an efficient communication library for distributed GNN training"
# (EuroSys 2021), Table 1.
NV1 = 24.22
NV2 = 48.35
PCIE = 11.13
QPI = 9.56
IB = 6.37

# What p2pBandwidthLatencyTest measures for one-way writes between any two GPUs (stas00/ml-engineering,
# network/README.md), by machine.
A100_PORT = 274.0
H100_PORT = 376.0
GB200_PORT = 747.0

# Six links between every two of four GPUs, as fast by the link as the ports above.
H100_SIX, GB200_SIX = round(6 * nvlink_rate(90), 1), 6 * nvlink_rate(100)

# Pairs of GPUs of a DGX-1 V100 with one and with two NVLinks; other pairs have none. Each GPU has six.
_CUBE_MESH = {
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
}


def dgx1() -> Box:
    """NVIDIA DGX-1 with eight V100: NVLink hybrid cube mesh, and a PCIe tree over two sockets.

    Each of the two sockets has two PCIe switches with two GPUs each; QPI joins the sockets. Several
    machines are joined by one InfiniBand NIC each, behind the first PCIe switch, over a switch that never
    blocks.

    Sources: the wiring is what ``nvidia-smi topo -m`` prints on the machine (quoted in
    microsoft/msccl-tools, tests/test_topologies.py) and what NVIDIA's white paper draws (DGX-1 System
    Architecture, WP-08437-001, section 3.1); the speeds are those of the DGCL paper's Table 1.
    """
    nvlinks = [
        wire(f"gpu{a}", f"gpu{b}", f"NV{bricks}", bandwidth)
        for bricks, bandwidth in ((1, NV1), (2, NV2))
        for a, b in _CUBE_MESH[bricks]
    ]
    tree = pcie_tree(8, PCIE, wire("cpu0", "cpu1", "QPI", QPI))
    node = Topology("node", gpus(8, 4), (*nvlinks, *tree))
    return Box(node, [Nic("plx0", IB, PCIE)])


def dgx1_edr() -> Box:
    """``dgx1`` as NVIDIA ships it: behind each of the four PCIe switches an EDR InfiniBand card of 100 Gb/s.

    The cluster of the DGCL paper had one card in use, which ``dgx1`` has. Source: NVIDIA, WP-08437-001,
    section 3.3 (four EDR ports); a card's 12.5 GB/s (peak) are more than its PCIe 3.0 x16 lets through.
    """
    nics = [Nic(f"plx{p}", 12.5, PCIE) for p in range(4)]
    return Box(dgx1().node, nics)


def dgx2() -> Box:
    """NVIDIA DGX-2: sixteen V100, each with six NVLinks into twelve NVSwitches; eight 100 Gb/s NICs.

    The peak of a port is 150 GB/s each way (NVIDIA DGX-2 datasheet: 300 GB/s in both); 143.7 is what
    p2pBandwidthLatencyTest gets out of the six NVLinks of a V100 (Dell, "Deep learning on V100",
    configuration K: 47.88 + 47.9 + 47.93). Two GPUs share a PCIe 3.0 switch with a NIC of 12.5 GB/s.
    """
    node = nvswitch_node("NV6", 143.7, 16, 8)
    tree = [wire(gpu.name, f"plx{rank // 2}", "PCIe", PCIE) for rank, gpu in enumerate(node.devices)]
    return Box(node, [Nic(f"plx{p}", 12.5, PCIE) for p in range(8)], tree)


def dgx_a100() -> Box:
    """NVIDIA DGX A100: eight A100, each with twelve third-generation NVLinks into six NVSwitches.

    The NVSwitches never block, so they are one switch here, and the twelve links of a GPU one port. Its
    peak is 300 GB/s each way (NVIDIA, "NVLink": twelve links, 600 GB/s in both directions); 274 is what
    p2pBandwidthLatencyTest measures for one-way writes between any two GPUs (stas00/ml-engineering,
    network/README.md). PCIe is left out: no route between these GPUs would use it. Several machines have
    one HDR InfiniBand NIC of 25 GB/s for each GPU (NVIDIA DGX A100 datasheet: 8x 200 Gb/s).
    """
    return nic_per_gpu(nvswitch_node("NV12", A100_PORT), 25.0)


def hgx_h100() -> Box:
    """NVIDIA HGX H100 and DGX H100: eight H100, eighteen fourth-generation NVLinks each, four NVSwitches.

    Modelled as ``dgx_a100``. The peak of a port is 450 GB/s each way (NVIDIA, "Upgrading Multi-GPU
    Interconnectivity with the Third-Generation NVIDIA NVSwitch"); 376 is what p2pBandwidthLatencyTest
    measures (stas00/ml-engineering, network/README.md). Several machines have an NDR NIC of 50 GB/s for each
    GPU (NVIDIA DGX H100 datasheet: 8x 400 Gb/s).
    """
    return nic_per_gpu(nvswitch_node("NV18", H100_PORT), 50.0)


def hgx_h200() -> Box:
    """NVIDIA HGX H200: the H100's NVLinks and NVSwitches, with more memory behind them.

    Modelled as ``hgx_h100``, with its measured port (NVIDIA, "H200": 900 GB/s in both directions, as H100).
    """
    return hgx_h100()


def hgx_b200() -> Box:
    """NVIDIA HGX B200 and DGX B200: eight B200, eighteen fifth-generation NVLinks each.

    The peak of a port is 900 GB/s each way (NVIDIA, "HGX": 1.8 TB/s in both); 747 is what
    p2pBandwidthLatencyTest measures on the same links of GB200 (stas00/ml-engineering, network/README.md).
    Several machines have a NIC of 50 GB/s for each GPU (NVIDIA DGX B200 datasheet: 8x 400 Gb/s).
    """
    return nic_per_gpu(nvswitch_node("NV18", GB200_PORT), 50.0)


def hgx_b300() -> Box:
    """NVIDIA HGX B300 and DGX B300: eight B300 on the NVLinks and NVSwitches of B200, with faster NICs.

    Modelled as ``hgx_b200``, with its measured port (NVIDIA DGX B300 datasheet: 14.4 TB/s for eight GPUs, as
    B200). Several machines have a ConnectX-8 of 100 GB/s for each GPU (DGX B300 User Guide: 8x 800 Gb/s).
    """
    return nic_per_gpu(nvswitch_node("NV18", GB200_PORT), 100.0)


def gh200() -> Box:
    """One GH200 superchip, a GPU and its Grace processor: a node has one device, and no wire inside.

    Several are joined by a NIC of 50 GB/s each, as in TACC's Vista (Cornell Virtual Workshop,
    "Vista: System Components": NDR InfiniBand, 400 Gb/s by its standard).
    NVLink-C2C to the processor is left out: no row between GPUs takes it.
    """
    return nic_per_gpu(Topology("node", gpus(1, 1), ()), 50.0)


def gh200_quad() -> Box:
    """Four GH200 superchips, six NVLinks between every two of them, as in Alps and JUPITER.

    The peak of a pair is 150 GB/s each way (Fusco et al., "Understanding Data Movement in Tightly Coupled
    Heterogeneous Systems", 2024, arXiv:2408.11556); 125.4 are six of the links of which eighteen measure
    376 GB/s on HGX H100. Each superchip has a processor, and a NIC of 25 GB/s (the same: Slingshot, 200 Gb/s).
    """
    node = replace(bridged(4, "NV6", H100_SIX), devices=gpus(4, 1))
    return nic_per_gpu(node, 25.0, "Slingshot")


def gb200_nvl4() -> Box:
    """GB200 NVL4: four GPUs and two Grace processors on one board, six NVLinks between every two GPUs.

    No NVSwitch is on it (NVIDIA, "GB200 NVL4": a four-GPU NVLink domain, 1.8 TB/s in both directions for each
    GPU, so 300 GB/s each way for a pair). 249 are six of the links of which eighteen measure 747 GB/s on a tray
    of NVL72, ``gb200_tray``. A NIC of 50 GB/s for each GPU is assumed.
    """
    node = replace(bridged(4, "NV6", GB200_SIX), devices=gpus(4, 2))
    return nic_per_gpu(node, 50.0)


def gb200_tray() -> Box:
    """A tray of GB200 NVL72: four GPUs and two Grace processors, on the rack's NVSwitches.

    747 GB/s each way is what p2pBandwidthLatencyTest measures on such a node (stas00/ml-engineering,
    network/README.md). Several trays are of different racks, joined by 50 GB/s of InfiniBand for each GPU
    (Azure ND GB200 v6: 4x 400 Gb/s); those of one rack share its NVSwitches, which is ``gb200_nvl72``.
    """
    return nic_per_gpu(nvswitch_node("NV18", GB200_PORT, 4, 2), 50.0)


def gb200_nvl72() -> Box:
    """GB200 NVL72: eighteen nodes of four GPUs, all 72 on one domain of NVSwitches.

    Every port is as fast as within a node (NVIDIA, "GB200 NVL72": 130 TB/s for 72 GPUs, 1.8 TB/s each in
    both directions); 747 GB/s as for ``gb200_tray``. Several racks are joined by 50 GB/s of InfiniBand a GPU.
    """
    devices = tuple(Device(f"gpu{g}", machine=g // 4, socket=g % 4 // 2) for g in range(72))
    ports = tuple(wire(device.name, "nvswitch", "NV18", GB200_PORT) for device in devices)
    return nic_per_gpu(Topology("node", devices, ports), 50.0)
