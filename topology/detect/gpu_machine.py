"""Describes the GPUs of a job, and the PCIe tree and network cards around them, as a machine.

What GPUs are comes from NVML, where they hang from the kernel; PCI addresses match the two, since containers change
numbers, but not addresses. A link is modelled where GPUs may use it, not where a wire is up: NVML's peer status
decides.
Called by `topology/detect/__init__` and `dgcl/ranks/machines`. Free to change while links that are up but denied are
left out, and pairs without peer access and unknown NUMA nodes are notes (`tests/topology/detect/test_gpus.py`).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from dgcl.topology.detect.nvml import (
    PEER_NVLINK,
    PEER_READ,
    PEER_WRITE,
    REMOTE_CPU,
    REMOTE_GPU,
    Nvml,
    NvmlGpu,
)
from dgcl.topology.detect.sysfs import Sysfs
from dgcl.topology.gpu_models import find_model
from dgcl.topology.machine import CPU, GPU, NVSWITCH, Cpu, Gpu, GpuLink, Machine, Net, Pci
from dgcl.topology.rates import PCIE_SPEEDS, pcie_rate


def gpu_machine(source: Nvml, sysfs: Sysfs, gpus: Sequence[NvmlGpu]) -> Machine:
    """Describe the machine around some GPUs.

    Args:
        source: The driver.
        sysfs: The kernel.
        gpus: The GPUs of the job; ``Gpu.rank`` is their place here.
    """
    notes: list[str] = []
    usable = {
        (a.index, b.index)
        for a in gpus
        for b in gpus
        if a is not b and source.allows(a.index, b.index, PEER_NVLINK)
    }
    links = _links(gpus, usable, notes)
    fabric = _fabrics(gpus, usable, links, notes)
    _note_peers(source, gpus, links, notes)
    facts = sysfs.host()
    devices = [
        Pci(
            gpu.address,
            _pcie(gpu, sysfs),
            Gpu(
                gpu.index, rank, gpu.sm or None, "", links[gpu.index], fabric[gpu.index], find_model(gpu.name)
            ),
        )
        for rank, gpu in enumerate(gpus)
    ]
    for address, nets in sysfs.network_ports().items():
        devices.append(Pci(address, sysfs.pcie_of(address), None, True, nets))
    numas = [sysfs.numa_of(device.address) for device in devices]
    only = facts.numa_nodes[0] if len(facts.numa_nodes) == 1 else None
    if None in numas and only is None:
        notes.append(
            f"{numas.count(None)} devices do not tell their NUMA node: they have one of their own here"
        )
    nodes: dict[int | None, list[tuple[list[str], Pci]]] = {}
    for device, numa in zip(devices, numas, strict=True):
        # Above a device: the root port, then for each switch its upstream and a downstream port.
        above = (sysfs.bridges_above(device.address) or [])[1::2]
        nodes.setdefault(only if numa is None else numa, []).append((above, device))
    cpus = [
        Cpu(numa, "", facts.bus.kind, facts.bus.bandwidth, _below(nodes[numa], sysfs))
        for numa in sorted(nodes, key=lambda numa: (numa is None, numa))
    ]
    return Machine(tuple(cpus), tuple(notes))


def _below(devices: list[tuple[list[str], Pci]], sysfs: Sysfs) -> tuple[Pci, ...]:
    """Devices gathered below the switches that they share; each comes with those above it, the uppermost first."""
    groups: dict[str, list[tuple[list[str], Pci]]] = {}
    for above, device in devices:
        if above:
            groups.setdefault(above[0], []).append((above[1:], device))
    return (
        *(device for above, device in devices if not above),
        *(Pci(at, sysfs.pcie_of(at), below=_below(inside, sysfs)) for at, inside in groups.items()),
    )


def _pcie(gpu: NvmlGpu, sysfs: Sysfs) -> float | None:
    generation, width = gpu.pcie_generation, gpu.pcie_width
    if generation is not None and width is not None and 1 <= generation <= len(PCIE_SPEEDS):
        return pcie_rate(PCIE_SPEEDS[generation - 1], width)
    return sysfs.pcie_of(gpu.address)


def _links(
    gpus: Sequence[NvmlGpu], usable: set[tuple[int, int]], notes: list[str]
) -> dict[int, tuple[GpuLink, ...]]:
    """NVLinks of each GPU, by its index, as far as they may be used."""
    index_at = {gpu.address: gpu.index for gpu in gpus}
    links_of: dict[int, list[GpuLink]] = {gpu.index: [] for gpu in gpus}
    unusable = Counter[str]()
    for gpu in gpus:
        for (remote, address), count in Counter((link.remote, link.address) for link in gpu.links).items():
            if remote == REMOTE_CPU:
                links_of[gpu.index].append(GpuLink("NV", CPU, "", count))
            elif address in index_at or remote == REMOTE_GPU:
                other = index_at.get(address)
                if other is not None and not {(gpu.index, other), (other, gpu.index)} <= usable:
                    unusable[f"to GPU {other}"] += count
                else:
                    links_of[gpu.index].append(GpuLink("NV", GPU, address, count))
            elif any((gpu.index, other.index) in usable for other in gpus) or gpu.fabric or len(gpus) == 1:
                # An NVSwitch; in virtual machines its address, or even its type, may be unknown.
                links_of[gpu.index].append(GpuLink("NV", NVSWITCH, address, count))
            else:
                unusable["to NVSwitches"] += count
    for where, count in unusable.items():
        notes.append(
            f"{count} NVLinks {where} are up, but the driver denies peer access over them: left out (is the "
            f"fabric manager running?)"
        )
    return {index: tuple(links) for index, links in links_of.items()}


def _fabrics(
    gpus: Sequence[NvmlGpu],
    usable: set[tuple[int, int]],
    links: dict[int, tuple[GpuLink, ...]],
    notes: list[str],
) -> dict[int, str]:
    """Which NVSwitches each GPU is on, by its index.

    A machine may be parted into islands that do not see each other. One where some pairs do and some do not
    cannot be drawn as a switch: its links are left out.
    """
    fabric = {gpu.index: gpu.fabric for gpu in gpus}
    switched = [gpu.index for gpu in gpus if any(link.end == NVSWITCH for link in links[gpu.index])]
    islands = {tuple(b for b in switched if b == a or {(a, b), (b, a)} <= usable) for a in switched}
    if len(islands) < 2:
        return fabric
    if sum(map(len, islands)) > len(switched):
        notes.append("NVSwitches join some pairs of GPUs and deny others: their links are left out")
        for index in switched:
            links[index] = tuple(link for link in links[index] if link.end != NVSWITCH)
        return fabric
    for number, island in enumerate(sorted(islands)):
        fabric |= {index: f"{fabric[index]}island {number}" for index in island}
    return fabric


def _note_peers(
    source: Nvml, gpus: Sequence[NvmlGpu], links: dict[int, tuple[GpuLink, ...]], notes: list[str]
) -> None:
    """Note how many pairs have no peer access over PCIe, and are staged in host memory."""
    denied = 0
    index_at = {gpu.address: gpu.index for gpu in gpus}
    for a, b in combinations(gpus, 2):
        direct = any(index_at.get(link.target) == b.index for link in links[a.index])
        switched = all(any(link.end == NVSWITCH for link in links[gpu.index]) for gpu in (a, b))
        if direct or switched:
            continue
        denied += not all(source.allows(a.index, b.index, way) for way in (PEER_READ, PEER_WRITE))
    if denied:
        notes.append(
            f"{denied} pairs of GPUs have no peer access over PCIe: rows between them are staged in host memory, on"
            f" the same wires"
        )


def fastest_port(sysfs: Sysfs) -> Net | None:
    """The fastest network port of this machine; None if no speed is known."""
    nets = [net for ports in sysfs.network_ports().values() for net in ports if net.bandwidth]
    return max(nets, key=lambda net: net.bandwidth or 0.0, default=None)
