"""Adds the links that GPUs have besides PCIe (NVLink, xGMI, C2C) to a topology.

They lead to other GPUs, to NVSwitches or to processors. All links of a GPU to NVSwitches are one wire, since its
traffic uses all of them. Where the two GPUs of a pair tell different counts, the smaller is taken, with a note.
Called by `machine_topology`. Free to change while each link of a machine's description is in the wire of its two ends,
or in a note on why it was left out (`tests/topology/importers/test_nccl_xml.py`, `tests/topology/detect/test_gpus.py`).
"""

from dataclasses import dataclass

from dgcl.topology.draft import Draft
from dgcl.topology.machine import CPU, NVSWITCH, Gpu, GpuLink, Pci
from dgcl.topology.rates import nvlink_rate, xgmi_rate


@dataclass(frozen=True)
class GpuPlace:
    """A GPU and where it sits: the numbers of its machine and of its NUMA node, and its PCIe device."""

    host: int
    cpu: int
    pci: Pci
    gpu: Gpu


def join_gpus(
    draft: Draft, gpus: list[tuple[str, GpuPlace]], cpu_names: list[str], prefixes: list[str]
) -> None:
    """Add the links of all GPUs to a draft.

    Args:
        draft: Where to.
        gpus: The GPUs with the names of their devices.
        cpu_names: Endpoints of the NUMA nodes.
        prefixes: What names on each machine start with.
    """
    by_address = {(place.host, place.pci.address): name for name, place in gpus}
    pairs: dict[frozenset[str], list[tuple[str, GpuLink]]] = {}
    ports: dict[str, list[GpuLink]] = {}
    hosts: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for me, place in gpus:
        for link in place.gpu.links:
            other = by_address.get((place.host, link.target))
            if link.end == NVSWITCH:
                ports.setdefault(me, []).append(link)
            elif link.end == CPU:
                end = (me, cpu_names[place.cpu], link.kind)
                hosts.setdefault(end, []).append((link.count, _rate(link, place.gpu)))
            elif other in (None, me):
                draft.note(
                    f"{link.count} {_words(link.kind)} of {me} lead to {link.target}, which is no other GPU here: "
                    f"left out"
                )
            else:
                pairs.setdefault(frozenset((me, other)), []).append((me, link))
    for (me, cpu, kind), wires in hosts.items():
        count, rate = sum(count for count, _ in wires), sum(rate for _, rate in wires)
        draft.wire(me, cpu, _kind(kind, count), rate)
    gpu_of = {name: place.gpu for name, place in gpus}
    for pair, links in pairs.items():
        _join_pair(draft, sorted(pair, key=list(gpu_of).index), links, gpu_of)
    domains = sorted({place.gpu.fabric for _, place in gpus if place.gpu.fabric})
    for me, place in gpus:
        if me in ports:
            _join_switch(draft, me, place, ports[me], domains, prefixes[place.host])


def _join_pair(
    draft: Draft, ends: list[str], links: list[tuple[str, GpuLink]], gpu_of: dict[str, Gpu]
) -> None:
    """Direct links, listed by both ends; where the ends disagree, the smaller number."""
    me, them = ends
    counts = [sum(link.count for end, link in links if end == side) for side in ends]
    if counts[0] != counts[1]:
        draft.note(
            f"{me} tells of {counts[0]} links to {them}, which tells of {counts[1]}: {min(counts)} were taken"
        )
    if count := min(counts):
        one = min(_rate(link, gpu_of[end]) / link.count for end, link in links)
        draft.wire(me, them, _kind(links[0][1].kind, count), one * count)


def _join_switch(
    draft: Draft, me: str, place: GpuPlace, links: list[GpuLink], domains: list[str], prefix: str
) -> None:
    switch = f"{prefix}nvswitch"
    if place.gpu.fabric:
        switch = "nvswitch" if len(domains) == 1 else f"nvswitch{domains.index(place.gpu.fabric)}"
    # To several NVSwitches: all links together, each as fast as the first.
    count = sum(link.count for link in links)
    rate = _rate(links[0], place.gpu) / links[0].count * count
    draft.wire(me, switch, _kind(links[0].kind, count), rate)


def _rate(link: GpuLink, gpu: Gpu) -> float:
    if link.bandwidth is not None:
        return link.bandwidth
    one = xgmi_rate(gpu.architecture) if link.kind == "XGMI" else nvlink_rate(gpu.sm)
    return link.count * one


def _kind(kind: str, count: int) -> str:
    return kind if kind == "C2C" else f"{kind}{count}"


def _words(kind: str) -> str:
    return {"NV": "NVLinks", "XGMI": "xGMI links"}.get(kind, f"{kind} links")
