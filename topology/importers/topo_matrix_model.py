"""Makes a topology of the words of ``nvidia-smi topo -m``.

The word between two devices says what their path passes: PIX one PCIe switch, PXB several, PHB a host
bridge, NODE several of them in a NUMA node, SYS the bus between NUMA nodes. Such distances nest, so they give
the tree: devices that are PIX apart hang on one switch, switches that are PXB apart on an upper one, what is PHB
apart on one host bridge where a NUMA node has several, and all of a NUMA node on its processor. ``NV#`` hides
what lies below it; the words of a NIC may still show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from dgcl.topology.checks import shown
from dgcl.topology.draft import Draft, Imported
from dgcl.topology.importers.topo_matrix import LEVELS, TopoMatrix, nvlinks
from dgcl.topology.importers.topo_matrix_nvlink import wire_nvlinks
from dgcl.topology.rates import PCIE_SPEEDS, UNKNOWN_BUS, GpuModel, nvlink_rate, pcie_rate

_SYS = 5


def topo_matrix_topology(matrix: TopoMatrix, name: str, gpu: GpuModel | None = None) -> Imported:
    """Model the machine of a matrix.

    Args:
        matrix: The words.
        name: What to call the topology.
        gpu: The GPU model, on which speeds depend; the matrix does not contain it.

    Raises:
        ValueError: The words contradict each other.
    """
    return _Model(matrix, gpu).build(name)


@dataclass(frozen=True)
class _Groups:
    """Devices by which of them are within a level of each other: ``of[i]`` is the group of device i."""

    of: tuple[int, ...]

    def members(self, among: Iterable[int]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for device in among:
            groups.setdefault(self.of[device], []).append(device)
        return list(groups.values())


class _Model:
    def __init__(self, matrix: TopoMatrix, gpu: GpuModel | None) -> None:
        self._matrix, self._gpu = matrix, gpu
        self._num_gpus = len(matrix.gpus)
        self._names = [name.lower() for name in matrix.gpus] + [
            matrix.nic_names.get(nic, nic) for nic in matrix.nics
        ]
        for name, count in Counter(self._names).items():
            if count > 1:
                second = self._names.index(name, self._names.index(name) + 1)
                raise ValueError(f"{self._line(second)}{count} devices have the name {shown(name)}")
        self._level = self._known_levels()
        self._pcie = pcie_rate(8.0 if gpu is None else PCIE_SPEEDS[gpu.pcie - 1])
        self._nvlink = nvlink_rate(None if gpu is None else gpu.sm)
        self._draft = Draft()

    def build(self, name: str) -> Imported:
        groups = [self._within(level) for level in range(_SYS)]
        self._check_nested(groups)
        nodes = self._numa_nodes(groups[4])
        self._note_affinity(nodes)
        sockets = self._sockets(nodes)
        for device in range(self._num_gpus):
            self._draft.device(self._names[device], 0, sockets[device])
        if self._level:
            self._hang_all(nodes, groups)
        elif self._num_gpus > 1:
            self._draft.note("the matrix tells nothing of PCIe: it is left out")
        wire_nvlinks(self._draft, self._matrix, self._names, self._gpu)
        self._note_speeds()
        return self._draft.finish(name)

    def _known_levels(self) -> dict[tuple[int, int], int]:
        """Levels of the pairs whose PCIe path is known, each pair once, the smaller first."""
        m, gpus = self._matrix, self._num_gpus
        words = {(i, j): m.gpu_links[i][j] for i, j in combinations(range(gpus), 2)}
        words |= {(i, gpus + k): m.gpu_nic[i][k] for i in range(gpus) for k in range(len(m.nics))}
        if m.nic_nic is not None:
            words |= {(gpus + k, gpus + n): m.nic_nic[k][n] for k, n in combinations(range(len(m.nics)), 2)}
        return {pair: LEVELS[word] for pair, word in words.items() if word in LEVELS}

    def _within(self, most: int) -> _Groups:
        of = list(range(len(self._names)))
        for (a, b), level in self._level.items():
            if level <= most and of[a] != of[b]:
                of = [of[a] if group == of[b] else group for group in of]
        return _Groups(tuple(of))

    def _check_nested(self, groups: list[_Groups]) -> None:
        for (a, b), level in self._level.items():
            for nearer in range(1, level):
                if groups[nearer].of[a] == groups[nearer].of[b]:
                    word, near = _word(level), _word(nearer)
                    raise ValueError(
                        f"{self._line(a)}{self._label(a)} and {self._label(b)} are {word} apart, but a chain "
                        f"of devices that are at most {near} apart joins them"
                    )

    def _label(self, device: int) -> str:
        gpus, nics = self._matrix.gpus, self._matrix.nics
        return gpus[device] if device < self._num_gpus else nics[device - self._num_gpus]

    def _line(self, device: int) -> str:
        """Where the row of a device is, as messages begin; empty where it has none."""
        line = self._matrix.lines.get(self._label(device))
        return "" if line is None else f"line {line}: "

    def _numa_nodes(self, nearest: _Groups) -> list[list[int]]:
        """Devices by NUMA node, the first GPU's first.

        The matrix's words decide, and where these leave it open, the affinity columns.
        """
        of = list(nearest.of)
        matrix = self._matrix
        for a, b in combinations(range(self._num_gpus), 2):
            numa = matrix.numa(a), matrix.numa(b)
            same = numa[0] == numa[1] if None not in numa else matrix.cpus(a) == matrix.cpus(b) != ""
            if same and of[a] != of[b]:
                left, right = ([d for d, group in enumerate(of) if group == of[x]] for x in (a, b))
                pairs = [(min(x, y), max(x, y)) for x in left for y in right]
                if not any(self._level.get(pair) == _SYS for pair in pairs):
                    of = [of[a] if group == of[b] else group for group in of]
        return _Groups(tuple(of)).members(range(len(of)))

    def _sockets(self, nodes: list[list[int]]) -> list[int]:
        numas = [self._matrix.numa(gpu) for gpu in range(self._num_gpus)]
        known = {numa for numa in numas if numa is not None}
        if None not in numas or (
            not self._level and (known or not any(map(self._matrix.cpus, range(self._num_gpus))))
        ):
            socket = next(numa for numa in range(len(known) + 1) if numa not in known)
            unknown = [self._names[gpu] for gpu, numa in enumerate(numas) if numa is None]
            if unknown and self._num_gpus > 1:
                self._draft.note(
                    f"NUMA nodes of {', '.join(unknown)} are not told: they were put on socket {socket}"
                )
            return [socket if numa is None else numa for numa in numas]
        node_of = {device: index for index, node in enumerate(nodes) for device in node}
        return [node_of[gpu] for gpu in range(self._num_gpus)]

    def _hang_all(self, nodes: list[list[int]], groups: list[_Groups]) -> None:
        """PCIe trees, one for each NUMA node, and the bus between the nodes."""
        kept, lost = [], []
        for node in nodes:
            if any(device < self._num_gpus for device in node) or self._matrix.nic_nic is not None:
                kept.append(node)
            else:
                lost += [self._names[device] for device in node]
        if lost:
            self._draft.note(f"{', '.join(lost)}: SYS from every GPU, and without a row: left out")
        cpus = self._cpu_names(kept)
        switches = 0
        root_of = self._host_bridges(kept, cpus, groups)
        for node, cpu in zip(kept, cpus, strict=True):
            for upper in groups[2].members(node):
                lower = groups[1].members(upper)
                parent = root_of.get(groups[3].of[upper[0]], cpu)
                if len(lower) > 1:
                    parent = f"pcie{switches}"
                    switches += 1
                    self._draft.wire(parent, cpu, "PCIe", self._pcie)
                for devices in lower:
                    port = parent
                    if len(devices) > 1:
                        port = f"pcie{switches}"
                        switches += 1
                        self._draft.wire(port, parent, "PCIe", self._pcie)
                    for device in devices:
                        self._draft.wire(self._names[device], port, "PCIe", self._pcie)
                        if device >= self._num_gpus:
                            self._draft.card(self._names[device])
        self._draft.star(cpus, "smp", UNKNOWN_BUS.kind, UNKNOWN_BUS.bandwidth)
        self._note_hidden(nodes)

    def _host_bridges(self, nodes: list[list[int]], cpus: list[str], groups: list[_Groups]) -> dict[int, str]:
        """Host bridges of NUMA nodes that have several, by their groups: those with more than one wire below.

        How they meet in the processor is not told; each gets a wire as fast as all below it, which never blocks.
        """
        names: dict[int, str] = {}
        for node, cpu in zip(nodes, cpus, strict=True):
            bridges = groups[3].members(node)
            for bridge in bridges if len(bridges) > 1 else []:
                wires = len(groups[2].members(bridge))
                if wires > 1:
                    name = names[groups[3].of[bridge[0]]] = f"bridge{len(names)}"
                    self._draft.wire(name, cpu, "root", wires * self._pcie)
        if names:
            self._draft.note(
                f"{', '.join(names.values())}: PCIe host bridges of a NUMA node that has several; that their way "
                f"into the processor never blocks was assumed"
            )
        return names

    def _note_affinity(self, nodes: list[list[int]]) -> None:
        """Say which GPUs of one affinity the words put on different NUMA nodes, and the other way round."""
        node_of = {device: index for index, node in enumerate(nodes) for device in node}
        texts = {gpu: self._matrix.affinity_text(gpu) for gpu in range(self._num_gpus)}
        odd = {
            gpu
            for pair in combinations(texts, 2)
            if all(texts[gpu] for gpu in pair)
            and (texts[pair[0]] == texts[pair[1]]) != (node_of[pair[0]] == node_of[pair[1]])
            for gpu in pair
        }
        if odd:
            names = ", ".join(f"{self._names[gpu]} ({texts[gpu]})" for gpu in sorted(odd))
            self._draft.note(
                f"affinities of {names} do not go with the words between them, which decided their NUMA nodes"
            )

    def _cpu_names(self, nodes: list[list[int]]) -> list[str]:
        numas = [{self._matrix.numa(d) for d in node if d < self._num_gpus} for node in nodes]
        numbers = [next(iter(ids)) if len(ids) == 1 else None for ids in numas]
        if None in numbers or len(set(numbers)) < len(numbers):
            return [f"cpu{index}" for index in range(len(nodes))]
        return [f"cpu{numa}" for numa in numbers]

    def _note_hidden(self, nodes: list[list[int]]) -> None:
        """Say which GPUs might share a PCIe switch behind their NVLinks."""
        hidden = set()
        for node in nodes:
            for a, b in combinations([device for device in node if device < self._num_gpus], 2):
                others = [d for d in range(len(self._names)) if d not in (a, b)]
                seen = [(self._apart(a, d), self._apart(b, d)) for d in others]
                if self._apart(a, b) is None and not any(
                    None not in pair and (pair[0] != pair[1] or pair[0] == 1) for pair in seen
                ):
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
        if any(nvlinks(word) for row in self._matrix.gpu_links for word in row):
            wires.append(f"{self._nvlink:g} GB/s for an NVLink")
        if self._level:
            wires.append(f"{self._pcie:g} GB/s for PCIe")
        if _SYS in self._level.values():
            wires.append(f"{UNKNOWN_BUS.bandwidth:g} GB/s between NUMA nodes")
        if wires:
            hint = "; name the GPU's model, or measure" if self._gpu is None else ""
            self._draft.note(f"the matrix tells no speeds: {', '.join(wires)} were assumed{hint}")


def _word(level: int) -> str:
    return {1: "PIX", 2: "PXB", 3: "PHB", 4: "NODE", 5: "SYS"}[level]
