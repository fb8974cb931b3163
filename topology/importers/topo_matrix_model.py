"""Makes a topology of the words that ``nvidia-smi topo -m`` prints between devices.

A word says what the path passes: PIX one PCIe switch, PXB several, PHB a host bridge, NODE several of them in a NUMA
node, SYS the bus between NUMA nodes. Such distances nest, so they give the tree: devices PIX apart hang on one switch,
switches PXB apart on an upper one, and all of a NUMA node on its processor, whose host bridges are taken never to
block. ``NV#`` hides what lies below it; the words of a NIC may still show it.
Called by `files`. Free to change while the tree has these distances, distances that do not nest are refused, and what
the words hide is a note (`tests/topology/importers/test_topo_matrix_model.py`).
"""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import networkx as nx

from dgcl.topology.checks import shown
from dgcl.topology.draft import Draft, Imported
from dgcl.topology.gpu_models import GpuModel
from dgcl.topology.importers.topo_matrix import LEVELS, TopoMatrix, nvlinks
from dgcl.topology.importers.topo_matrix_nvlink import wire_nvlinks
from dgcl.topology.rates import PCIE_SPEEDS, UNKNOWN_BUS, nvlink_rate, pcie_rate

_SYS = 5
_WORDS = ("", "PIX", "PXB", "PHB", "NODE", "SYS")


def topo_matrix_topology(matrix: TopoMatrix, name: str, gpu: GpuModel | None) -> Imported:
    """Model the machine of a matrix.

    Args:
        matrix: The words.
        name: What to call the topology.
        gpu: The GPU model, on which speeds depend; the matrix does not contain it.

    Raises:
        ValueError: The words contradict each other.
    """
    return _Model(matrix, gpu).build(name)


def _split(devices: Iterable[int], group: dict[int, int]) -> list[list[int]]:
    """Devices by their groups."""
    parts: dict[int, list[int]] = {}
    for device in devices:
        parts.setdefault(group[device], []).append(device)
    return list(parts.values())


class _Model:
    """Devices by number: the GPUs, then the NICs."""

    def __init__(self, matrix: TopoMatrix, gpu: GpuModel | None) -> None:
        self._matrix, self._gpu = matrix, gpu
        self._gpus = range(len(matrix.gpus))
        self._labels = [*matrix.gpus, *matrix.nics]
        self._names = [matrix.nic_names.get(label, label) for label in self._labels]
        self._names[: len(self._gpus)] = [name.lower() for name in matrix.gpus]
        for name, count in Counter(self._names).items():
            if count > 1:
                second = self._names.index(name, self._names.index(name) + 1)
                raise ValueError(f"{self._line(second)}{count} devices have the name {shown(name)}")
        self._pcie = pcie_rate(8.0 if gpu is None else PCIE_SPEEDS[gpu.pcie - 1])
        self._draft = Draft()
        # Pairs whose PCIe path is known, by its level.
        pairs = combinations(range(len(self._names)), 2)
        known = ((a, b) for a, b in pairs if a < len(matrix.words) and matrix.words[a][b] in LEVELS)
        self._level = {(a, b): LEVELS[matrix.words[a][b]] for a, b in known}

    def build(self, name: str) -> Imported:
        groups = [self._within(level) for level in range(_SYS)]
        for (a, b), level in self._level.items():
            for nearer in range(1, level):
                if groups[nearer][a] == groups[nearer][b]:
                    raise ValueError(
                        f"{self._line(a)}{self._labels[a]} and {self._labels[b]} are {_WORDS[level]} apart, but a "
                        f"chain of devices that are at most {_WORDS[nearer]} apart joins them"
                    )
        nodes = self._numa_nodes(groups[4])
        node_of = {device: index for index, node in enumerate(nodes) for device in node}
        for gpu, socket in enumerate(self._sockets(node_of)):
            self._draft.device(self._names[gpu], 0, socket, "" if self._gpu is None else self._gpu.name)
        if self._level:
            self._hang_all(nodes, groups)
        elif len(self._gpus) > 1:
            self._draft.note("the matrix tells nothing of PCIe: it is left out")
        wire_nvlinks(self._draft, self._matrix, self._names, self._gpu)
        self._note_speeds()
        return self._draft.finish(name)

    def _within(self, most: int) -> dict[int, int]:
        """The first device of those that are so far apart at most, chain by chain, for each of them."""
        near = nx.Graph(pair for pair, level in self._level.items() if level <= most)
        near.add_nodes_from(range(len(self._names)))
        return {device: min(group) for group in nx.connected_components(near) for device in group}

    def _line(self, device: int) -> str:
        """Where the row of a device is, as messages begin; empty where it has none."""
        line = self._matrix.lines.get(self._labels[device])
        return "" if line is None else f"line {line}: "

    def _numa_nodes(self, group: dict[int, int]) -> list[list[int]]:
        """Devices by NUMA node, the first GPU's first.

        The matrix's words decide, and where these leave it open, the affinity columns.
        """
        for a, b in combinations(self._gpus, 2):
            numa, cpus = (self._matrix.numas[a], self._matrix.numas[b]), self._matrix.cpus
            same = numa[0] == numa[1] if None not in numa else cpus[a] == cpus[b] != ""
            if same and group[a] != group[b]:
                left, right = ([d for d in group if group[d] == group[x]] for x in (a, b))
                if not any(self._apart(x, y) == _SYS for x in left for y in right):
                    group |= dict.fromkeys(right, group[a])
        return _split(sorted(group), group)

    def _sockets(self, node_of: dict[int, int]) -> list[int]:
        known = {numa for numa in self._matrix.numas if numa is not None}
        if None not in self._matrix.numas or (not self._level and (known or not any(self._matrix.cpus))):
            socket = next(numa for numa in range(len(known) + 1) if numa not in known)
            unknown = [self._names[gpu] for gpu in self._gpus if self._matrix.numas[gpu] is None]
            if unknown and len(self._gpus) > 1:
                self._draft.note(
                    f"NUMA nodes of {', '.join(unknown)} are not told: they were put on socket {socket}"
                )
            return [socket if numa is None else numa for numa in self._matrix.numas]
        return [node_of[gpu] for gpu in self._gpus]

    def _hang_all(self, nodes: list[list[int]], groups: list[dict[int, int]]) -> None:
        """PCIe trees, one for each NUMA node, and the bus between the nodes."""
        kept = [node for node in nodes if node[0] in self._gpus or len(self._matrix.words) > len(self._gpus)]
        if lost := [self._names[device] for node in nodes if node not in kept for device in node]:
            self._draft.note(f"{', '.join(lost)}: SYS from every GPU, and without a row: left out")
        cpus = self._cpu_names(kept)
        switches = 0

        def switch(above: str) -> str:
            nonlocal switches
            self._draft.wire(f"pcie{switches}", above, "PCIe", self._pcie)
            switches += 1
            return f"pcie{switches - 1}"

        for node, cpu in zip(kept, cpus, strict=True):
            for upper in _split(node, groups[2]):
                lower = _split(upper, groups[1])
                parent = switch(cpu) if len(lower) > 1 else cpu
                for devices in lower:
                    port = switch(parent) if len(devices) > 1 else parent
                    for device in devices:
                        self._draft.wire(self._names[device], port, "PCIe", self._pcie)
                        if device not in self._gpus:
                            self._draft.card(self._names[device])
        self._draft.star(cpus, "smp", UNKNOWN_BUS.kind, UNKNOWN_BUS.bandwidth)
        self._note_hidden(nodes)

    def _cpu_names(self, nodes: list[list[int]]) -> list[str]:
        numas = [{self._matrix.numas[d] for d in node if d in self._gpus} for node in nodes]
        numbers = [next(iter(ids)) if len(ids) == 1 else None for ids in numas]
        if None in numbers or len(set(numbers)) < len(numbers):
            numbers = [*range(len(nodes))]
        return [f"cpu{number}" for number in numbers]

    def _note_hidden(self, nodes: list[list[int]]) -> None:
        """Say which GPUs might share a PCIe switch behind their NVLinks."""
        hidden = set()
        for a, b in (
            pair for node in nodes for pair in combinations([d for d in node if d in self._gpus], 2)
        ):
            others = [
                (self._apart(a, d), self._apart(b, d)) for d in range(len(self._names)) if d not in (a, b)
            ]
            shown = any(None not in pair and (pair[0] != pair[1] or pair[0] == 1) for pair in others)
            if self._apart(a, b) is None and not shown:
                hidden |= {a, b}
        if hidden:
            names = ", ".join(self._names[device] for device in sorted(hidden))
            self._draft.note(
                f"whether {names} share PCIe switches is hidden behind their NVLinks: each hangs where its "
                f"other words put it"
            )

    def _apart(self, a: int, b: int) -> int | None:
        return self._level.get((min(a, b), max(a, b)))

    def _note_speeds(self) -> None:
        wires = []
        if any(nvlinks(word) for row in self._matrix.words for word in row):
            wires.append(f"{nvlink_rate(self._gpu.sm if self._gpu else None):g} GB/s for an NVLink")
        if self._level:
            wires.append(f"{self._pcie:g} GB/s for PCIe")
        if _SYS in self._level.values():
            wires.append(f"{UNKNOWN_BUS.bandwidth:g} GB/s between NUMA nodes")
        if wires:
            hint = "; name the GPU's model, or measure" if self._gpu is None else ""
            self._draft.note(f"the matrix tells no speeds: {', '.join(wires)} were assumed{hint}")
