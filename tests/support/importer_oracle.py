"""What a text says of GPUs and their links, read as naively as can be: the judge of the importers."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

from dgcl.topology import Topology

Pair = frozenset[str]


def links_of(topology: Topology, stem: str) -> dict[Pair, int]:
    """Links of a kind (``NV``, ``XGMI``) between two devices of a topology, over a switch or directly."""
    devices = {device.name for device in topology.devices}
    ports: dict[str, tuple[str, int]] = {}
    found: dict[Pair, int] = {}
    for wire in topology.connections:
        match = re.fullmatch(rf"{stem}(\d+)", wire.kind)
        if match and {wire.a, wire.b} <= devices:
            found[frozenset((wire.a, wire.b))] = int(match[1])
        elif match and "nvswitch" in wire.b:
            ports[wire.a] = (wire.b, int(match[1]))
    for a, (switch, count) in ports.items():
        for b, (other, theirs) in ports.items():
            if a < b and switch == other:
                found[frozenset((a, b))] = min(count, theirs)
    return found


def matrix_links(text: str) -> dict[Pair, int]:
    """NVLinks between GPUs by the rows of a matrix: of each row the words below the header's GPU names."""
    lines = _words(text)
    header = next(line for line in lines if re.search(r"GPU\d", " ".join(line)) and "X" not in line)
    found: dict[Pair, int] = {}
    for line in lines[lines.index(header) + 1 :]:
        if line and re.fullmatch(r"GPU\d+", line[0]):
            for name, word in zip(header, line[1:], strict=False):
                if re.fullmatch(r"NV\d+", word):
                    found[frozenset((line[0].lower(), name.lower()))] = int(word[2:])
    return found


def matrix_gpus(text: str) -> set[str]:
    """Names of the GPUs that have a row."""
    # A header that starts at the left edge counts like a row of its first GPU.
    return {row[0].lower() for row in _words(text) if row and re.fullmatch(r"GPU\d+", row[0])}


def _words(text: str) -> list[list[str]]:
    """Words of each line; one ends where a known one begins, also where the blank between them is lost."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return [
        re.sub(r"(?<=[A-Z0-9])(?=GPU|NIC|mlx|CPU|NV|SYS|SOC|NODE|PHB|P[IX][XB])", " ", line).split()
        for line in lines
    ]


def xml_root(data: bytes) -> ElementTree.Element:
    """The root of a document whose comments may hold what XML forbids in comments: they end at the first -->."""
    head, *comments = data.split(b"<!--")
    rest, inside = [head], False
    for part in comments:
        _, end, after = part.partition(b"-->")
        inside = not end  # a "<!--" inside a comment is part of it
        rest.append(after)
    assert not inside, "a comment is not closed"
    return ElementTree.fromstring(b"".join(rest))


def xml_links(data: bytes, tag: str) -> dict[Pair, int]:
    """Links between GPUs of a file, by their PCI addresses."""
    root = xml_root(data)
    holder = {gpu: pci.get("busid", "") for pci in root.iter("pci") for gpu in pci.findall("gpu")}
    found: dict[Pair, int] = {}
    for gpu, address in holder.items():
        for link in gpu.findall(tag):
            target = link.get("target", "")
            if target in holder.values() and target != address:
                found[frozenset((address, target))] = int(link.get("count", "0"))
    return found


def xml_switch_links(data: bytes) -> Counter[str]:
    """How many links each GPU, by its PCI address, has to NVSwitches."""
    root = xml_root(data)
    found: Counter[str] = Counter()
    for pci in root.iter("pci"):
        for link in pci.findall("gpu/nvlink"):
            if link.get("tclass") == "0x068000":
                found[pci.get("busid", "")] += int(link.get("count", "0"))
    return found
