"""Describes a machine as data: NUMA nodes, the PCIe tree below them, GPUs with their own links, network cards.

NCCL's files and detection on the running machine both end in it; `machine_topology` makes a topology of it. Devices are
told apart by PCI addresses, in one normal form (`bus_id`): NVML writes eight digits of domain, the kernel and NCCL
four.
Called by `machine_topology`, `gpu_wires`, `topology/importers/nccl_xml`, `topology/detect/gpu_machine`,
`dgcl/ranks/machines` and others. Free to change while each address has one form (`tests/topology/detect/test_nvml.py`),
and a machine holds what a file of NCCL's tells of it (`tests/topology/importers/test_nccl_xml.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

#: Where the far end of a GPU's link is.
GPU, NVSWITCH, CPU = "GPU", "NVSwitch", "CPU"


def bus_id(text: str) -> str | None:
    """A PCI address in its normal form; None if it is none.

    Lower case, and four digits of domain where four are enough.

    NVML writes eight digits of domain (``00000000:0F:00.0``), the kernel and NCCL four.
    """
    match = _BUS_ID.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


@dataclass(frozen=True)
class GpuLink:
    """``count`` bonded links from a GPU to one other end.

    Attributes:
        kind: ``"NV"``, ``"XGMI"`` or ``"C2C"``.
        end: ``GPU``, ``NVSWITCH`` or ``CPU``.
        target: The other end's PCI address; ``""`` where it is not known (a CPU, an unnamed NVSwitch).
        count: How many links are bonded.
        bandwidth: GB/s each way of all of them; None: by the GPU's kind.
    """

    kind: str
    end: str
    target: str
    count: int
    bandwidth: float | None = None


@dataclass(frozen=True)
class Gpu:
    """What a GPU is and how it is wired besides PCIe.

    Attributes:
        dev: Its number on the machine; None: unknown.
        rank: Its rank in the job that wrote the file; None: unknown.
        sm: Compute capability (90 for 9.0); None for AMD or unknown.
        architecture: AMD's, ``gfx90a`` or NCCL's number for it; ``""`` for NVIDIA.
        links: Its NVLink, xGMI and C2C links.
        fabric: GPUs of any machine with the same text are joined by NVSwitches; ``""``: of this machine only.
        model: As :attr:`dgcl.topology.parts.Device.model`.
    """

    dev: int | None = None
    rank: int | None = None
    sm: int | None = None
    architecture: str = ""
    links: tuple[GpuLink, ...] = ()
    fabric: str = ""
    model: str = ""


@dataclass(frozen=True)
class Net:
    """A network port: its name, and GB/s each way of the wire (None: unknown)."""

    name: str
    bandwidth: float | None
    kind: str = "net"


@dataclass(frozen=True)
class Pci:
    """A PCIe device or switch and what is below it.

    Attributes:
        address: Its PCI address; unique in the machine.
        bandwidth: GB/s each way towards its parent; None: unknown.
        gpu: Set where it is a GPU that computes for the job.
        nic: Whether it is a network card; ``nets`` are its ports, as far as they are known.
        below: Devices behind it, if it is a switch.
        peers: Addresses of other switches that are joined to this one besides the tree.
    """

    address: str
    bandwidth: float | None = None
    gpu: Gpu | None = None
    nic: bool = False
    nets: tuple[Net, ...] = ()
    below: tuple[Pci, ...] = ()
    peers: tuple[str, ...] = ()

    def walk(self) -> Iterator[Pci]:
        """This device and all below it, parents first."""
        pending = [self]
        while pending:
            device = pending.pop()
            yield device
            pending += reversed(device.below)


@dataclass(frozen=True)
class Cpu:
    """A NUMA node: what hangs on it, and what kind of processor it belongs to.

    Attributes:
        numa: The node's number; None: unknown.
        host: Distinguishes machines in files of several.
        bus_kind, bus_bandwidth: What joins it to the other nodes of its machine, GB/s each way.
        below: PCIe devices and switches at its root ports.
        nets: Network ports whose PCIe device is unknown.
    """

    numa: int | None
    host: str = ""
    bus_kind: str = "SYS"
    bus_bandwidth: float = 10.0
    below: tuple[Pci, ...] = ()
    nets: tuple[Net, ...] = ()

    def walk(self) -> Iterator[Pci]:
        """All PCIe devices below, parents first."""
        for child in self.below:
            yield from child.walk()


@dataclass(frozen=True)
class Machine:
    """NUMA nodes of one machine (or of several, distinguished by ``Cpu.host``), and notes about the source."""

    cpus: tuple[Cpu, ...]
    notes: tuple[str, ...] = ()
