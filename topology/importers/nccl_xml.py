"""Reads topology files of NCCL and RCCL (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``): XML to a machine.

    <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
      <pci busid="0000:06:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1"> <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>

Meanings are those of NCCL's own reader (NVIDIA/nccl, src/graph/xml.cc, topo.cc; ROCm/rccl for ``xgmi``, ``gcn``). Cloud
providers' files leave GPUs' links to detection. Called by `files`. Free to change while this refuses, or notes as
missing, what NCCL's reader would guess (`tests/topology/importers/test_nccl_xml.py`).
"""

import re
from collections import Counter
from textwrap import shorten

from dgcl.topology.checks import shown
from dgcl.topology.gpu_models import model_of_pci
from dgcl.topology.importers.nccl_form import (
    UNSEEN,
    address_of,
    check_form,
    class_of,
    integer,
    link_speed,
    link_width,
    unknown_attributes,
)
from dgcl.topology.importers.xml_tree import Element, parse_xml
from dgcl.topology.machine import CPU, GPU, NVSWITCH, Cpu, Gpu, GpuLink, Machine, Net, Pci
from dgcl.topology.rates import cpu_bus, most_nvlinks, pcie_rate

_VERSIONS = ("1", "2")  # NCCL's and RCCL's
# Interfaces of containers, virtual machines and tunnels, which no cable leaves (br- is what Docker and Open vSwitch
# call bridges, azv and eni with a hash what clouds call the ends of pods). A bridge like br0 may stand for the card
# below it, and a bond for several: these stay. A VLAN (eth0.100) is its card a second time.
_VIRTUAL = re.compile(
    r"lo|docker_gwbridge|ovs-system|(azv|eni)[0-9a-f]{8,32}|"
    r"(br-|veth|cali|cni|flannel|cilium|lxc|kube-|nodelocal|weave|ovn-|genev|tailscale|zt|tap|qbr|qv[bo])\S{0,32}|"
    r"(docker|nerdctl|podman|lxdbr|cbr|virbr|vmnet|vnet|fwbr|fwpr|fwln|tun|tunl|gre|gretap|erspan|sit|ip6tnl|ip_vti|"
    r"wg|ppp|vxlan|macvlan|macvtap|ipvlan|ifb|dummy)\d*(?:[.ip@_-]\S{0,16})?"
)
_LONGEST_NAME, _LONGEST_NOTE = 60, 1000  # letters of a port; of names in a note
_MOST_NODES = 4096  # NUMA nodes of a file, of all its machines


def parse_nccl_xml(data: bytes) -> Machine:
    """Read a topology file.

    Raises:
        ValueError: Not such a file, damaged, contradicting itself, or without any GPU; names the line.
    """
    root = parse_xml(data)
    check_form(root)
    version = root.attributes["version"]
    if version not in _VERSIONS:
        raise ValueError(
            f"line {root.line}: version must be one of {', '.join(_VERSIONS)} (got {shown(version)})"
        )
    if len(root.children) > _MOST_NODES:
        raise ValueError(f"line {root.children[_MOST_NODES].line}: more than {_MOST_NODES} <cpu>")
    reader = _Reader(root)
    cpus = tuple(reader.cpu(element) for element in root.children)
    reader.check()
    return Machine(cpus, tuple(reader.notes))


class _Reader:
    """Elements to a machine; remembers lines for what can only be checked at the end."""

    def __init__(self, root: Element) -> None:
        self.notes: list[str] = []
        elements = list(root.walk())
        self._has_gpus = any(element.tag == "gpu" for element in elements)
        self._hosts = len({e.attributes.get("host_hash", "") for e in root.children})
        self._host = ""
        self._claims: dict[tuple[str, str], Element] = {}  # (host, "busid 0000:06:00.0") -> whose that is
        self._links: dict[
            tuple[str, str, str, str], tuple[int, int]
        ] = {}  # (host, from, to, kind) -> how many, line
        self._gpus: list[tuple[str, str]] = []
        self._unclassed: list[str] = []
        self._plain_nets = {
            (cpu.attributes.get("host_hash", ""), net.attributes["name"].strip())
            for cpu in root.children
            for net in cpu.walk()
            if net.tag == "net" and net.attributes.get("net") != "0" and net.attributes.get("coll") != "1"
        }
        self._virtual: set[str] = set()
        extra = unknown_attributes(root)
        if extra:
            self.notes.append(
                f"attributes that are not known were not looked at: {shorten(', '.join(extra), _LONGEST_NOTE)}"
            )

    def _claim(self, element: Element, what: str, host: str) -> None:
        first = self._claims.setdefault((host, what), element)
        if first is not element:
            raise ValueError(f"line {element.line}: {what} is already that of line {first.line}")

    def cpu(self, element: Element) -> Cpu:
        have = element.attributes
        self._host = have.get("host_hash", "")
        numa = integer(element, "numaid", -1)
        self._claim(element, f"numaid {numa}", self._host)
        family, model = (integer(element, name, 0) if name in have else 0 for name in ("familyid", "modelid"))
        bus = cpu_bus(have.get("arch", ""), have.get("vendor", ""), family, model)
        below, nets = [], []
        for child in element.children:
            if child.tag == "pci":
                below.append(self._pci(child))
            else:
                nets += self._nets(child, on_pci=False)
        return Cpu(None if numa < 0 else numa, self._host, bus.kind, bus.bandwidth, tuple(below), tuple(nets))

    def _pci(self, element: Element) -> Pci:
        address = address_of(element, "busid")
        self._claim(element, f"busid {address}", self._host)
        kind = class_of(element, "class") if "class" in element.attributes else ""
        inside = Counter(child.tag for child in element.children)
        self._check_inside(element, kind, inside)
        speed, width = link_speed(element), link_width(element)
        bandwidth = None if speed is None else pcie_rate(speed, width or 16)
        gpu, nets, below, peers = None, [], [], []
        for child in element.children:
            if child.tag == "pci":
                below.append(self._pci(child))
            elif child.tag == "gpu":
                gpu = self._gpu(child, address, element.attributes.get("device", ""))
            elif child.tag == "nic":
                nets += self._nets(child, on_pci=True)
            else:
                peers.append(address_of(child, "target"))
        if kind == GPU and gpu is None and not self._has_gpus:
            gpu = Gpu(model=model_of_pci(element.attributes.get("device", ""), None))
            self._gpus.append((self._host, address))
        elif not kind and not element.children:
            self._unclassed.append(address)
        nic = bool(inside["nic"]) or kind == "NIC"
        return Pci(address, bandwidth, gpu, nic, tuple(nets), tuple(below), tuple(peers))

    def _check_inside(self, element: Element, kind: str, inside: Counter[str]) -> None:
        if inside["gpu"] > 1:
            raise ValueError(
                f"line {element.line}: {inside['gpu']} <gpu> in one <pci>: several ranks on a GPU, or parts "
                f"of one, cannot be modelled"
            )
        leaf = "GPU" if inside["gpu"] or kind == GPU else "NIC" if inside["nic"] or kind == "NIC" else ""
        if leaf and inside["pci"]:
            raise ValueError(f"line {element.line}: a {leaf} has <pci> below it")
        if inside["gpu"] and (inside["nic"] or kind in ("NIC", "switch")):
            raise ValueError(f"line {element.line}: a <gpu> in a <pci> of another class ({kind or 'NIC'})")
        if inside["nic"] and kind == GPU:
            raise ValueError(f"line {element.line}: a <nic> in a <pci> of class GPU")

    def _gpu(self, element: Element, address: str, product: str) -> Gpu:
        have = element.attributes
        self._gpus.append((self._host, address))
        dev = integer(element, "dev", 0)
        rank = integer(element, "rank", -1) if "rank" in have else -1
        if rank >= 0:
            self._claim(element, f"rank {rank}", "")
        sm = integer(element, "sm", 1) if "sm" in have and "gcn" not in have else None
        links = tuple(self._link(child, address) for child in element.children)
        total = sum(link.count for link in links if link.kind == "NV")
        if sm is not None and total > (most := most_nvlinks(sm)):
            raise ValueError(
                f"line {element.line}: {total} NVLinks on a GPU of compute capability {sm}, which has {most}"
            )
        if total and sm is None:
            self.notes.append(
                "GPUs do not tell their compute capability (sm): NVLinks of V100 to H200 assumed"
            )
        fabric = "domain" if self._hosts > 1 else ""
        model = model_of_pci(product, sm)
        return Gpu(dev, None if rank < 0 else rank, sm, have.get("gcn", ""), links, fabric, model)

    def _link(self, element: Element, address: str) -> GpuLink:
        count = integer(element, "count", 1, 1000)
        if element.tag == "c2c":
            return GpuLink("C2C", CPU, "", count, count * integer(element, "bw", 1) / 1000)
        end = class_of(element, "tclass")
        unseen = end in (NVSWITCH, CPU) and UNSEEN.fullmatch(element.attributes["target"])
        target = "" if unseen else address_of(element, "target")
        if end not in (GPU, NVSWITCH, CPU):
            raise ValueError(
                f"line {element.line}: tclass must be that of a GPU (0x03...), an NVSwitch (0x068000) or a "
                f"processor (0x068001) (got {shown(element.attributes['tclass'])})"
            )
        kind = "NV" if element.tag == "nvlink" else "XGMI"
        if end == GPU:
            key = (self._host, address, target, kind)
            if key in self._links:
                raise ValueError(f"line {element.line}: a second <{element.tag}> to {target}")
            self._links[key] = count, element.line
        return GpuLink(kind, end, target, count)

    def _nets(self, element: Element, *, on_pci: bool) -> list[Net]:
        """The ports in a ``<nic>``; ``on_pci``: of a PCI device, which a virtual interface is not."""
        nets: dict[str, Net] = {}
        for child in element.children:
            have = child.attributes
            if child.tag != "net" or have.get("net") == "0":
                continue
            name = have["name"].strip()
            if have.get("coll") == "1" and (self._host, name) in self._plain_nets:
                continue  # a second view of a port that is listed as a plain <net>, too
            below, _, vlan = name.rpartition(".")
            again = vlan.isdigit() and (self._host, below) in self._plain_nets
            if not on_pci and (again or _VIRTUAL.fullmatch(name)):
                self._virtual.add(name)
                continue
            if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
                raise ValueError(
                    f"line {child.line}: name must be printable text of at most {_LONGEST_NAME} characters "
                    f"(got {shown(have['name'])})"
                )
            speed = integer(child, "speed", -1, 10**8) if "speed" in have else -1
            net = Net(name, speed / 8000 if speed > 0 else None)
            if nets.setdefault(name, net) != net:
                raise ValueError(f"line {child.line}: a second <net> {shown(name)}, of another speed")
        return list(nets.values())

    def check(self) -> None:
        """What needs the whole file: some GPU, and links that both ends list."""
        if not self._gpus:
            unclassed = len(self._unclassed)
            what = (
                f": {unclassed} PCI devices have no class, so which are GPUs is not told" if unclassed else ""
            )
            raise ValueError(
                f"the file has no GPU{what}; it completes what NCCL detects on the machine. Import what "
                f"NCCL_TOPO_DUMP_FILE writes there"
            )
        for (host, here, there, kind), (count, line) in self._links.items():
            element = self._claims.get((host, f"busid {there}"))
            if here == there or element is None:
                continue
            if (host, there) not in self._gpus:
                raise ValueError(f"line {line}: target {there} is no GPU by line {element.line}")
            back, _ = self._links.get((host, there, here, kind), (0, 0))
            if back != count:
                raise ValueError(
                    f"line {line}: {count} links from {here} to {there}, which tells of {back} back"
                )
        if not self._has_gpus:
            self.notes.append(
                f"the file has no <gpu>: the {len(self._gpus)} PCI devices of class GPU were taken for them, "
                f"in the order of their addresses, and NVLinks, which such files leave to detection, are "
                f"missing; import what NCCL_TOPO_DUMP_FILE writes to have them"
            )
        if self._hosts > 1:
            self.notes.append(f"the file describes {self._hosts} machines, by the host_hash of its <cpu>")
        if self._virtual:
            names = shorten(", ".join(sorted(self._virtual)), _LONGEST_NOTE)
            self.notes.append(f"virtual network interfaces join no machines: {names} left out")
        if self._unclassed:
            self.notes.append(f"{len(self._unclassed)} PCI devices have no class: left out")
