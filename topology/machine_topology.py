"""Turns a machine's PCIe tree and GPU links, as read from NCCL's XML or detected, into a topology.

Devices are GPUs, by rank, else number, else PCI address (CUDA's order, too, for GPUs of one kind). Switches: ``cpu1``
is NUMA node 1, ``pci-0f:02.0`` a PCIe switch; a NIC has the name of its first port, and its wire ends at ``NAME.port``,
where `dgcl.topology.combine.cluster` joins machines.
Called by `topology/importers/files`, `topology/detect/__init__` and `dgcl/ranks/machines`. Free to change while names
and the order of devices stay, which files and ranks use (`tests/topology/importers/test_nccl_xml.py`,
`tests/topology/detect/test_gpus.py`).
"""

from collections import Counter

from dgcl.topology.combine import PORT
from dgcl.topology.draft import Draft, Imported
from dgcl.topology.gpu_wires import GpuPlace, join_gpus
from dgcl.topology.machine import Cpu, Machine, Net, Pci
from dgcl.topology.rates import pcie_rate

# NVSwitches never block, so all NVSwitches that a GPU's links reach are one switch here, and its links one port:
# the traffic of a GPU uses all of them.


def machine_topology(machine: Machine, name: str) -> Imported:
    """Model a machine.

    Raises:
        ValueError: It has no GPU, or two things of one name.
    """
    return _Model(machine).build(name)


class _Model:
    """The state of one conversion; endpoints get their names in the order of the walk."""

    def __init__(self, machine: Machine) -> None:
        self._draft = Draft()
        self._cpus = machine.cpus
        hosts = list(dict.fromkeys(cpu.host for cpu in machine.cpus))
        self._host_of = [hosts.index(cpu.host) for cpu in machine.cpus]
        self._prefix = [f"m{host}." if len(hosts) > 1 else "" for host in range(len(hosts))]
        self._places = _in_order(
            [
                GpuPlace(self._host_of[index], index, pci, pci.gpu)
                for index, cpu in enumerate(machine.cpus)
                for pci in cpu.walk()
                if pci.gpu is not None
            ]
        )
        self._endpoint = self._name_gpus()  # (host, PCI address) -> endpoint; switches follow
        self._taken: Counter[str] = Counter(self._endpoint.values())
        self._cpu_names = [
            self._unique(f"{self._prefix[host]}cpu{'' if cpu.numa is None else cpu.numa}")
            for cpu, host in zip(self._cpus, self._host_of, strict=True)
        ]
        self._guessed_pcie = 0
        for note in machine.notes:
            self._draft.note(note)

    def build(self, name: str) -> Imported:
        if not self._places:
            raise ValueError("there is no GPU in it")
        draft = self._draft
        gpus = [(self._endpoint[place.host, place.pci.address], place) for place in self._places]
        for gpu, place in gpus:
            draft.device(gpu, place.host, self._cpus[place.cpu].numa or 0, place.gpu.model)
        for index, cpu in enumerate(self._cpus):
            for child in cpu.below:
                self._attach(child, self._cpu_names[index], self._host_of[index])
            for net in cpu.nets:
                self._card(net.name, (net,), self._cpu_names[index], None, self._host_of[index])
        self._join_switches()
        self._join_cpus()
        join_gpus(draft, gpus, self._cpu_names, self._prefix)
        if self._guessed_pcie:
            draft.note(
                f"{self._guessed_pcie} PCIe devices do not tell their speed: generation 3 x16, "
                f"{pcie_rate():g} GB/s, was assumed"
            )
        return draft.finish(name)

    def _name_gpus(self) -> dict[tuple[int, str], str]:
        keys = [(place.host, place.gpu.dev) for place in self._places]
        numbered = all(dev is not None for _, dev in keys) and len(set(keys)) == len(keys)
        names = {}
        count = Counter[int]()
        for place in self._places:
            number = place.gpu.dev if numbered else count[place.host]
            count[place.host] += 1
            names[place.host, place.pci.address] = f"{self._prefix[place.host]}gpu{number}"
        return names

    def _unique(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else self._unique(f"{name}.{self._taken[name] - 1}")

    def _attach(self, pci: Pci, parent: str, host: int) -> None:
        """Join a device or switch, and what is below it, to its parent; skip branches without GPUs and NICs."""
        if not any(node.gpu is not None or node.nic for node in pci.walk()):
            return
        if pci.nic:
            name = pci.nets[0].name if pci.nets else "nic"
            self._card(name, pci.nets, parent, self._pcie(pci), host)
            return
        if pci.gpu is None:
            name = self._unique(f"{self._prefix[host]}pci-{pci.address.removeprefix('0000:')}")
            self._endpoint[host, pci.address] = name
        name = self._endpoint[host, pci.address]
        if pci.bandwidth and pci.bandwidth <= pcie_rate(2.5, 1) and pci.below:
            self._draft.note(
                f"{name} has one lane of 2.5 GT/s, above faster devices: if it is a virtual port, not that slow, "
                f"take its link_speed and link_width out of the file"
            )
        self._draft.wire(name, parent, "PCIe", self._pcie(pci))
        for child in pci.below:
            self._attach(child, name, host)

    def _pcie(self, pci: Pci) -> float:
        if pci.bandwidth is None:
            self._guessed_pcie += 1
            return pcie_rate()
        return pci.bandwidth

    def _card(
        self, name: str, nets: tuple[Net, ...], parent: str, bandwidth: float | None, host: int
    ) -> None:
        """A network card and the wires of its ports; ``bandwidth`` None: as fast as its ports."""
        speeds = [net.bandwidth for net in nets if net.bandwidth is not None]
        if bandwidth is None and not speeds:
            self._draft.note(f"network port {name} tells neither its PCIe device nor its speed: left out")
            return
        card = self._unique(f"{self._prefix[host]}{name}")
        self._draft.wire(card, parent, "PCIe" if bandwidth else "bus", bandwidth or sum(speeds))
        for net in nets:
            if net.bandwidth is None:
                self._draft.note(f"the speed of network port {net.name} is not told: it has no wire here")
                self._draft.card(card)
            else:
                port = self._unique(f"{self._prefix[host]}{net.name}{PORT}")
                self._draft.wire(card, port, net.kind, net.bandwidth)
        if not nets:
            self._draft.card(card)
            self._draft.note("network cards have no ports in the source: their wires are left out")

    def _join_switches(self) -> None:
        """Wires between PCIe switches besides the tree, once for both ends."""
        done = set()
        for index, cpu in enumerate(self._cpus):
            host = self._host_of[index]
            for pci in cpu.walk():
                for peer in pci.peers:
                    ends = [self._endpoint.get((host, address)) for address in (pci.address, peer)]
                    if None in ends or frozenset(ends) in done or ends[0] == ends[1]:
                        continue
                    done.add(frozenset(ends))
                    self._draft.wire(str(ends[0]), str(ends[1]), "PCIe peer", pci.bandwidth or pcie_rate())

    def _join_cpus(self) -> None:
        for host, prefix in enumerate(self._prefix):
            here = [index for index, cpu in enumerate(self._cpus) if self._host_of[index] == host]
            used = [index for index in here if self._in_use(self._cpus[index])]
            if len(used) > 1:
                slowest = min((self._cpus[index] for index in used), key=lambda cpu: cpu.bus_bandwidth)
                names = [self._cpu_names[index] for index in used]
                self._draft.star(names, f"{prefix}smp", slowest.bus_kind, slowest.bus_bandwidth)
                if slowest.bus_kind == "SYS":
                    self._draft.note(
                        f"what joins the NUMA nodes is not told: {slowest.bus_bandwidth:g} GB/s was assumed"
                    )

    @staticmethod
    def _in_use(cpu: Cpu) -> bool:
        return bool(cpu.nets) or any(pci.gpu is not None or pci.nic for pci in cpu.walk())


def _in_order(places: list[GpuPlace]) -> list[GpuPlace]:
    ranks = [place.gpu.rank for place in places]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return sorted(places, key=lambda place: place.gpu.rank or 0)
    if all(place.gpu.dev is not None for place in places):
        return sorted(places, key=lambda place: (place.host, place.gpu.dev))
    return sorted(places, key=lambda place: (place.host, place.pci.address))
