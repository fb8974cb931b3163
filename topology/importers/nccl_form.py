"""Checks the form of NCCL's topology files: which elements, attributes and values may be where.

A wrong value is refused with its line. Unknown attributes are accepted, since a newer NCCL may write more; a known name
with a letter wrong is refused as damage.
Called by `nccl_xml`. Free to change while each wrong element, attribute and value is refused with its line, and unknown
attributes become a note (`tests/topology/importers/test_nccl_xml.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dgcl.topology.checks import nearest, shown
from dgcl.topology.importers.xml_tree import Element
from dgcl.topology.machine import CPU, GPU, NVSWITCH, bus_id
from dgcl.topology.rates import PCIE_SPEEDS, PCIE_WIDTHS


@dataclass(frozen=True)
class Rule:
    """What an element may hold. ``inside`` None: anything, it is not looked at."""

    inside: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_NET = tuple(str.split("name dev speed port latency guid maxconn gdr coll keep net rail plane"))
RULES: Mapping[str, Rule] = {
    "system": Rule(("cpu",), ("version",), ("name",)),
    "cpu": Rule(
        ("pci", "nic"),
        ("numaid",),
        ("affinity", "affinity_offset", "arch", "vendor", "familyid", "modelid", "host_hash"),
    ),
    "pci": Rule(("pci", "gpu", "nic", "pcilink"), ("busid",), ("class", *_IDS, "link_speed", "link_width")),
    "gpu": Rule(("nvlink", "xgmi", "c2c"), ("dev",), ("sm", "rank", "gdr", "gcn", "arch", "mlopart")),
    "nvlink": Rule((), ("target", "count", "tclass")),
    "xgmi": Rule((), ("target", "count", "tclass")),
    "c2c": Rule((), ("bw", "count")),
    "pcilink": Rule((), ("target",)),
    "nic": Rule(("net", "gin", "rma"), (), ("keep",)),
    "net": Rule((), ("name",), _NET),
    "gin": Rule((), (), _NET),
    "rma": Rule((), (), _NET),
}
_SPEED = re.compile(r"([0-9.]+) GT/s(?: PCIe(?:/s)?)?")
#: What NCCL writes for the end of a link that it does not see, as of NVSwitches in a virtual machine.
UNSEEN = re.compile(r"[fF]{4,8}:[fF]{2,4}:[fF]{2}(\.[fF0-7])?")
_WIDTH_UNKNOWN = (0, 63, 255)  # what drivers write where the width is unknown


def check_form(root: Element) -> None:
    """Every element where it belongs, with the attributes that it needs.

    Raises:
        ValueError: Some are not; names the line.
    """
    if root.tag != "system":
        hint = (
            "; this is what NCCL_GRAPH_DUMP_FILE writes, use NCCL_TOPO_DUMP_FILE"
            if "graph" in root.tag
            else ""
        )
        raise ValueError(
            f"line {root.line}: an NCCL topology starts with <system> (got <{root.tag[:30]}>){hint}"
        )
    for element in root.walk():
        rule, have = RULES[element.tag], element.attributes
        known = {*rule.needed, *rule.known}
        for name in have.keys() - known:
            if hint := nearest(name, known - have.keys(), 0.8):
                raise ValueError(
                    f"line {element.line}: <{element.tag}> has an unknown attribute {shown(name)}{hint}"
                )
        for name in rule.needed:
            if name not in have:
                raise ValueError(f"line {element.line}: <{element.tag}> has no {name!r}")
        for child in element.children:
            if child.tag not in rule.inside:
                allowed = ", ".join(f"<{tag}>" for tag in rule.inside) or "nothing"
                raise ValueError(
                    f"line {child.line}: <{child.tag[:30]}> in <{element.tag}>, where {allowed} belongs"
                    f"{nearest(child.tag, rule.inside)}"
                )


def unknown_attributes(root: Element) -> list[str]:
    """Attributes that no known version writes, as ``element.attribute``."""
    known = {f"{tag}.{name}" for tag, rule in RULES.items() for name in (*rule.needed, *rule.known)}
    return sorted({f"{e.tag}.{name}" for e in root.walk() for name in e.attributes} - known)


def integer(element: Element, attribute: str, least: int, most: int = 2**31 - 1) -> int:
    """The value of an attribute that is a number in a range."""
    text = element.attributes[attribute]
    value = int(text) if re.fullmatch(r"-?[0-9]{1,10}", text) else least - 1
    if not least <= value <= most:
        raise ValueError(
            f"line {element.line}: {attribute} must be an integer of {least} to {most} (got {shown(text)})"
        )
    return value


def class_of(element: Element, attribute: str) -> str:
    """What a PCI class code means here; "other" for what plays no part."""
    text = element.attributes[attribute].lower()
    if not re.fullmatch(r"0x[0-9a-f]{6}", text):
        raise ValueError(
            f"line {element.line}: {attribute} must be a PCI class such as 0x030200 (got {shown(text)})"
        )
    if text in ("0x068000", "0x068001"):
        return NVSWITCH if text == "0x068000" else CPU
    kinds = {"0x0604": "switch", "0x0801": "switch"}  # 0801: ConnectX-8's data direct function
    return kinds.get(text[:6]) or {"0x03": GPU, "0x12": GPU, "0x02": "NIC"}.get(text[:4], "other")


def link_speed(element: Element) -> float | None:
    """GT/s of a PCIe link; None where the file does not say."""
    text = element.attributes.get("link_speed", "")
    if not text or text.lower().startswith("unknown"):
        return None
    match = _SPEED.fullmatch(text)
    speed = float(match[1]) if match and re.fullmatch(r"[0-9]+(\.[0-9]+)?", match[1]) else 0.0
    if speed not in PCIE_SPEEDS:
        raise ValueError(
            f"line {element.line}: link_speed must be one of {', '.join(f'{s:g}' for s in PCIE_SPEEDS)} GT/s "
            f"(got {shown(text)})"
        )
    return speed


def link_width(element: Element) -> int | None:
    """Lanes of a PCIe link; None where the file does not say."""
    if not element.attributes.get("link_width"):
        return None
    width = integer(element, "link_width", 0, 255)
    if width in _WIDTH_UNKNOWN:
        return None
    if width not in PCIE_WIDTHS:
        raise ValueError(
            f"line {element.line}: link_width must be one of {', '.join(map(str, PCIE_WIDTHS))} (got {width})"
        )
    return width


def address_of(element: Element, attribute: str) -> str:
    """A PCI address, in its one spelling."""
    address = bus_id(element.attributes[attribute])
    if address is None:
        raise ValueError(
            f"line {element.line}: {attribute} must be a PCI address such as 0000:0f:00.0 "
            f"(got {shown(element.attributes[attribute])})"
        )
    return address
