"""Gives assumed bandwidths of connections by their kind: NVLink, xGMI, PCIe, buses between processors.

In GB/s per direction, as copies reach them. NVLink of V100, A100, H100 and GB200: measured per link (below). All else,
NVLink of P100 and of 8.6 among it: the figures of NCCL's and RCCL's own models (NVIDIA/nccl and ROCm/rccl,
src/graph/topo.h). Measured rates can replace them (`importers/p2p_refine.py`).
Called by `gpu_wires`, `machine_topology`, `topology/detect/sysfs`, `topology/importers/nccl_xml`,
`topology/presets/nvidia` and others. Free to change while figures keep a source, processors have the bus that ``cpuid``
tells (`tests/topology/detect/test_sysfs.py`), and imports have these rates
(`tests/topology/importers/test_topo_matrix_model.py`, `tests/topology/importers/test_nccl_xml.py`).
"""

from dataclasses import dataclass

from dgcl.topology.gpu_models import GPU_MODELS as GPU_MODELS

# GB/s of one NVLink by compute capability. P100: NCCL. V100: 48.35 for two (DGCL, Table 1). A100: 274 for 12,
# H100: 376 for 18, GB200: 747 for 18 (p2pBandwidthLatencyTest, stas00/ml-engineering, network/README.md).
# 8.6 (A40, A6000, RTX 3090): NCCL, links of half the width.
_NVLINK = ((100, 41.5), (90, 20.9), (86, 12.0), (80, 22.8), (70, 24.2), (60, 18.0))
NVLINK_UNKNOWN = 22.5  # V100 to H200: 20.9 to 24.2

# GB/s of one xGMI link by AMD architecture: RCCL.
_XGMI = (("gfx94", 48.0), ("gfx95", 48.0), ("gfx90a", 36.0))
_XGMI_OTHER = 24.0
_GCN_NUMBERS = {"910": "gfx90a", "908": "gfx908", "906": "gfx906"}

_PCIE_GEN3_X16 = 12.0  # NCCL's PCI_BW
PCIE_SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)  # GT/s of generations 1 to 6
PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)


@dataclass(frozen=True)
class CpuBus:
    """The bus between the NUMA nodes of a machine: its name, and GB/s each way."""

    kind: str
    bandwidth: float


UNKNOWN_BUS = CpuBus("SYS", 10.0)  # NCCL's figure for Skylake, in the middle of them all


def nvlink_rate(sm: int | None) -> float:
    """GB/s each way of one NVLink of a GPU of compute capability ``sm`` (90 for 9.0); None: unknown."""
    if sm is None:
        return NVLINK_UNKNOWN
    return next((rate for least, rate in _NVLINK if sm >= least), NVLINK_UNKNOWN)


def most_nvlinks(sm: int) -> int:
    """The most NVLinks that a GPU of compute capability ``sm``, or of the next lower one that is known, has."""
    return max((model.sm, model.nvlinks) for model in GPU_MODELS.values() if 0 < model.sm <= max(sm, 60))[1]


def xgmi_rate(architecture: str | None) -> float:
    """GB/s each way of one xGMI link of an AMD GPU, by ``gfx90a`` or NCCL's old number for it, ``910``."""
    name = _GCN_NUMBERS.get(architecture or "", architecture or "")
    return next((rate for stem, rate in _XGMI if name.startswith(stem)), _XGMI_OTHER)


def pcie_rate(transfers: float = 8.0, width: int = 16) -> float:
    """GB/s each way of PCIe of so many GT/s and lanes: 12 for generation 3 x16, and in proportion."""
    return _PCIE_GEN3_X16 * transfers / 8 * width / 16


def cpu_bus(arch: str, vendor: str = "", family: int = 0, model: int = 0) -> CpuBus:
    """What joins the processors of a machine, by what ``cpuid`` says of them, as NCCL's topo.cc does.

    NCCL's old dumps give AMD's base family with the extended one in the upper digit (143 for Zen 2).
    """
    if arch.startswith("ppc64"):
        return CpuBus("X-bus", 32.0)
    if arch in ("arm64", "aarch64"):
        return CpuBus("SYS", 6.0)
    if vendor == "GenuineIntel":
        if family == 6 and (model >= 0xCF or model in (0xAD, 0xAE, 0xAF)):
            return CpuBus("UPI", 40.0)
        if family == 6 and model >= 0x8F:
            return CpuBus("UPI", 22.0)
        return CpuBus("UPI", 10.0) if family == 6 and model >= 0x55 else CpuBus("QPI", 6.0)
    if vendor == "AuthenticAMD":
        zen5, zen34 = family in (0xBF, 26), family in (0xAF, 25)
        return CpuBus("IF", 32.0 if zen5 else 24.0 if zen34 else 16.0)
    return UNKNOWN_BUS
