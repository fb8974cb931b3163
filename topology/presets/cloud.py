"""Machines that clouds rent (AWS, Azure): NVIDIA's and AMD's boards with the clouds' own network cards and PCIe trees.

Each function makes one machine, and its docstring has the source of each number.
Called by `topology/presets/__init__`. Free to change while sockets and network cards of aws_p4d, azure_ndv4 and
azure_ndv5 are those of the providers' NCCL files (`tests/topology/test_presets.py`, which needs these files). No test
compares those of the other machines: their docstrings keep the source of each number.
"""

from dataclasses import replace

from dgcl.topology.combine import Nic
from dgcl.topology.presets.nvidia import A100_PORT, H100_PORT, hgx_h100
from dgcl.topology.presets.other import mi300x
from dgcl.topology.presets.pcie import without_peer_access
from dgcl.topology.presets.wires import Box, nic_per_gpu, nvswitch_node, wire
from dgcl.topology.rates import pcie_rate


def aws_p4d() -> Box:
    """AWS p4d.24xlarge: eight A100 on NVSwitches; a NIC of 100 Gb/s for every two, behind their PCIe switch.

    Sources: the tree and its PCIe 3.0 are those of the provider's own NCCL file (aws/aws-ofi-nccl,
    topology/p4d-24xl-topo.xml); 400 Gb/s of EFA over four cards (AWS, "EC2 P4 instances"); ports as
    ``dgx_a100``.
    """
    node = nvswitch_node("NV12", A100_PORT)
    tree = [wire(f"gpu{g}", f"plx{g // 2}", "PCIe", pcie_rate(8.0)) for g in range(8)]
    nics = [Nic(f"plx{p}", 12.5, pcie_rate(8.0), "EFA") for p in range(4)]
    return Box(node, nics, tree)


def aws_p5() -> Box:
    """AWS p5.48xlarge: eight H100 on NVSwitches; four EFA cards of 100 Gb/s behind the PCIe switch of each.

    A GPU's traffic is striped over its four cards, so they are one here, of 50 GB/s. Sources: the provider's
    own NCCL file (aws/aws-ofi-nccl, topology/p5.48xl-topo.xml, as of commit 67125bf) for the tree; 3200 Gb/s
    over 32 cards (AWS, "Maximize network bandwidth on EC2 instances with multiple network cards"); ports as
    ``hgx_h100``.
    """
    return nic_per_gpu(nvswitch_node("NV18", H100_PORT), 50.0, "EFA")


def aws_p5en() -> Box:
    """AWS p5en.48xlarge: eight H200 on NVSwitches; two EFA cards of 200 Gb/s for each, one here of 50 GB/s.

    Sources: 3200 Gb/s over 16 cards (AWS, "Maximize network bandwidth on EC2 instances with multiple network
    cards"); ports as ``hgx_h200``. That the cards hang beside their GPUs as in ``aws_p5`` is assumed.
    """
    return aws_p5()


def aws_g6() -> Box:
    """AWS g6.48xlarge: eight L4 on two sockets, without peer access: rows go through host memory.

    19.87 GB/s of PCIe 4.0 is what cudaMemcpyPeer reaches between two L4 (NVIDIA/cuda-samples, issue 284); that G6
    has no peer access: llm-d-incubation/llm-d-infra, pull request 181. Memory: the peak of an EPYC 7003, eight
    channels of DDR4-3200. Between sockets: NCCL's figure (src/graph/topo.h, AMD Zen 3). One EFA of 100 Gb/s
    (AWS, "EC2 G6 instances"), at the first socket, which is assumed.
    """
    return without_peer_access(8, 19.87, 204.8, 24.0, "EFA")


def azure_ndv4() -> Box:
    """Azure ND A100 v4: eight A100 on NVSwitches; an HDR InfiniBand NIC of 200 Gb/s for each.

    Sources: Microsoft, "ND A100 v4-series" (a dedicated 200 Gb/s connection per GPU); the provider's NCCL
    file (Azure/azhpc-images, topology/ndv4-topo.xml: four NUMA nodes, two GPUs and two NICs on each); ports
    as ``dgx_a100``.
    """
    node = nvswitch_node("NV12", A100_PORT, 8, 2)
    # The file has GPUs 2, 3 on node 0, then 0, 1; 6, 7; 4, 5.
    sockets = (1, 1, 0, 0, 3, 3, 2, 2)
    devices = tuple(replace(d, socket=s) for d, s in zip(node.devices, sockets, strict=True))
    return nic_per_gpu(replace(node, devices=devices), 25.0)


def azure_ndv5() -> Box:
    """Azure ND H100 v5: eight H100 on NVSwitches; an NDR InfiniBand NIC of 400 Gb/s for each.

    Sources: Microsoft, "ND H100 v5-series" (a dedicated 400 Gb/s connection per GPU); the provider's NCCL
    file (Azure/azhpc-images, topology/ndv5-topo.xml: two NUMA nodes); ports as ``hgx_h100``.
    """
    return hgx_h100()


def azure_nd_mi300x() -> Box:
    """Azure ND MI300X v5: ``mi300x``, and an NDR InfiniBand NIC of 400 Gb/s for each GPU.

    Source: Microsoft, "ND MI300X v5-series" (a dedicated 400 Gb/s connection per GPU, 128 GB/s in both directions
    of Infinity Fabric between any two GPUs).
    """
    return nic_per_gpu(mi300x().node, 50.0)
