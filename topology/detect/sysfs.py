"""Reads processors, memory, the PCIe tree and network ports from ``/sys`` and ``/proc``.

Anything may be missing (containers, virtual machines, other kernels): what cannot be read is None, or not in the list,
and nothing raises.
Called by `gpu_machine`, `dgcl/cli/info`, `dgcl/cli/topo_detect` and `dgcl/ranks/machines` (the last two through
`__init__`). Free to change while a machine with nothing to read gives empty answers, and buses, bridges and port speeds
are those of the kernel's files (`tests/topology/detect/test_sysfs.py`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from dgcl.topology.machine import Net, bus_id
from dgcl.topology.rates import PCIE_SPEEDS, PCIE_WIDTHS, UNKNOWN_BUS, CpuBus, cpu_bus, pcie_rate
from dgcl.topology.table import plural


@dataclass(frozen=True)
class HostFacts:
    """The processors and the memory of a machine.

    Attributes:
        model: The processor's name; ``""`` if unknown.
        sockets: Physical packages.
        numa_nodes: Numbers of the NUMA nodes that have processors or memory.
        cpus: Logical processors that are online.
        memory_bytes: Memory of the machine; 0 if unknown.
        bus: What joins the NUMA nodes.
    """

    model: str
    sockets: int
    numa_nodes: tuple[int, ...]
    cpus: int
    memory_bytes: int
    bus: CpuBus = UNKNOWN_BUS

    def __str__(self) -> str:
        parts = [plural(self.sockets, "socket"), plural(self.cpus, "processor")]
        if len(self.numa_nodes) != self.sockets:
            parts.append(plural(len(self.numa_nodes), "NUMA node"))
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes / 1e9:.0f} GB of memory")
        return ", ".join(parts) + (f" ({self.model})" if self.model else "")


class Sysfs:
    """The two file systems below a root, which is ``/`` but in tests."""

    def __init__(self, root: Path | str = "/") -> None:
        self._root = Path(root)

    def read(self, path: str) -> str | None:
        """The stripped text of a file; None if it cannot be read."""
        try:
            return (self._root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def host(self) -> HostFacts:
        """Processors and memory."""
        info = self.read("proc/cpuinfo") or ""
        nodes = [int(path.name[4:]) for path in self._list("sys/devices/system/node", r"node\d+")]
        cpus = self._list("sys/devices/system/cpu", r"cpu\d+")
        packages = {
            text
            for path in cpus
            if (text := self.read(f"sys/devices/system/cpu/{path.name}/topology/physical_package_id"))
        }
        memory = re.search(r"MemTotal:\s*(\d+) kB", self.read("proc/meminfo") or "")
        return HostFacts(
            model=_field(info, "model name") or _field(info, "cpu"),
            sockets=max(len(packages), 1),
            numa_nodes=tuple(nodes) or (0,),
            cpus=max(len(cpus), 1),
            memory_bytes=int(memory[1]) * 1024 if memory else 0,
            bus=self._bus(info),
        )

    def _bus(self, info: str) -> CpuBus:
        vendor, family, model = (_field(info, name) for name in ("vendor_id", "cpu family", "model"))
        if "POWER" in _field(info, "cpu"):
            return cpu_bus("ppc64")
        if _field(info, "CPU implementer"):
            return cpu_bus("arm64")
        if family.isdigit() and model.isdigit():
            return cpu_bus("x86_64", vendor, int(family), int(model))
        return UNKNOWN_BUS

    def machine_id(self) -> str:
        """Distinguishes running machines; ``""`` if the kernel has none."""
        return self.read("proc/sys/kernel/random/boot_id") or ""

    def bridges_above(self, address: str) -> list[str] | None:
        """PCI addresses of the bridges above a device, the root port first; None: there is no such device."""
        try:
            path = (self._root / "sys/bus/pci/devices" / address).resolve(strict=True)
        except OSError:
            return None
        return [bridge for part in path.parts[:-1] if (bridge := bus_id(part)) is not None]

    def numa_of(self, address: str) -> int | None:
        """The NUMA node of a PCI device; None where the firmware does not say."""
        text = self.read(f"sys/bus/pci/devices/{address}/numa_node")
        return int(text) if text is not None and text.isdigit() else None

    def pcie_of(self, address: str) -> float | None:
        """GB/s each way of a device's PCIe link at its best, for an idle GPU lets its link go slow."""
        speed = re.match(
            r"(\d+(?:\.\d+)?) GT/s", self.read(f"sys/bus/pci/devices/{address}/max_link_speed") or ""
        )
        width = self.read(f"sys/bus/pci/devices/{address}/max_link_width") or ""
        if speed is None or not width.isdigit():
            return None
        if float(speed[1]) not in PCIE_SPEEDS or int(width) not in PCIE_WIDTHS:
            return None
        return pcie_rate(float(speed[1]), int(width))

    def network_ports(self) -> dict[str, tuple[Net, ...]]:
        """Network ports that are up, by the PCI address of their card."""
        ports: dict[str, list[Net]] = {}
        for device in self._list("sys/class/infiniband", r".+"):
            address = self._pci_of(f"sys/class/infiniband/{device.name}")
            for port in self._list(f"sys/class/infiniband/{device.name}/ports", r"\d+"):
                net = self._infiniband_port(device.name, port.name)
                if address is not None and net is not None:
                    ports.setdefault(address, []).append(net)
        for device in self._list("sys/class/net", r".+"):
            address = self._pci_of(f"sys/class/net/{device.name}")
            if address is not None and address not in ports:
                net = self.interface(device.name)
                if net is not None:
                    ports[address] = [net]
        return {address: tuple(nets) for address, nets in ports.items()}

    def _infiniband_port(self, device: str, port: str) -> Net | None:
        folder = f"sys/class/infiniband/{device}/ports/{port}"
        if "ACTIVE" not in (self.read(f"{folder}/state") or ""):
            return None
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", self.read(f"{folder}/rate") or "")
        ethernet = self.read(f"{folder}/link_layer") == "Ethernet"
        name = device if port == "1" else f"{device}:{port}"
        return Net(name, float(rate[1]) / 8 if rate else None, "Eth" if ethernet else "IB")

    def interface(self, device: str) -> Net | None:
        """A network interface by its name, virtual or not; None where there is none of this name that is up."""
        if self.read(f"sys/class/net/{device}/operstate") != "up":
            return None
        text = self.read(f"sys/class/net/{device}/speed") or ""
        # Mb/s; virtual cards have -1 or nothing.
        return Net(device, int(text) / 8000 if text.isdigit() and int(text) > 0 else None, "Eth")

    def _pci_of(self, path: str) -> str | None:
        """The PCI device behind a class device; virtio ports hang one level deeper."""
        try:
            target = (self._root / path / "device").resolve(strict=True)
        except OSError:
            return None
        return next((address for part in reversed(target.parts) if (address := bus_id(part))), None)

    def _list(self, folder: str, pattern: str) -> list[Path]:
        """Entries whose names match, those with numbers in the order of these."""
        try:
            names = [path for path in (self._root / folder).iterdir() if re.fullmatch(pattern, path.name)]
        except OSError:
            return []
        return sorted(
            names, key=lambda path: [int(d) if d.isdigit() else d for d in re.split(r"(\d+)", path.name)]
        )


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""
