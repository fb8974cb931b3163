"""Wires the NVLinks of a matrix, which does not say whether GPUs are wired directly or to NVSwitches.

Through NVSwitches every pair shows all links of its GPUs at once, so the counts of a row add up to more than
a GPU has. Where they do not, GPUs are wired directly.
"""

from __future__ import annotations

from itertools import combinations

from dgcl.topology.draft import Draft
from dgcl.topology.importers.topo_matrix import TopoMatrix, nvlinks

_MOST_WIRED = 18  # no GPU has more links than that to other GPUs


def wire_nvlinks(draft: Draft, matrix: TopoMatrix, names: list[str], rate: float) -> None:
    """Draw the NVLinks; ``names`` are those of the GPUs, ``rate`` is GB/s each way of one link.

    Raises:
        ValueError: The counts are neither those of direct wires nor those of NVSwitches.
    """
    words = matrix.gpu_links
    count = {
        (i, j): nvlinks(words[i][j]) for i, j in combinations(range(len(words)), 2) if nvlinks(words[i][j])
    }
    islands = _islands(len(words), count)
    switched = [island for island in islands if _most_wires(island, count) > _MOST_WIRED]
    for island in islands:
        if island in switched:
            centre = "nvswitch" if len(switched) == 1 else f"nvswitch{switched.index(island)}"
            for gpu, links in _ports(island, count, matrix).items():
                draft.wire(names[gpu], centre, f"NV{links}", links * rate)
            continue
        for (a, b), links in count.items():
            if a in island:
                draft.wire(names[a], names[b], f"NV{links}", links * rate)
        inside = {count.get(pair, 0) for pair in combinations(island, 2)}
        if len(island) > 2 and len(inside) == 1:
            draft.note(
                f"{len(island)} GPUs with NV{inside.pop()} between any two were taken to be wired directly, "
                f"since {_most_wires(island, count)} links a GPU are enough for that"
            )


def _islands(num_gpus: int, count: dict[tuple[int, int], int]) -> list[list[int]]:
    """GPUs that NVLinks join, directly or over others; those without NVLinks left out."""
    of = list(range(num_gpus))
    for a, b in count:
        of = [of[a] if island == of[b] else island for island in of]
    islands: dict[int, list[int]] = {}
    for gpu in sorted({gpu for pair in count for gpu in pair}):
        islands.setdefault(of[gpu], []).append(gpu)
    return list(islands.values())


def _wires(gpu: int, count: dict[tuple[int, int], int]) -> int:
    """How many links a GPU would need if its pairs were wired directly."""
    return sum(links for pair, links in count.items() if gpu in pair)


def _most_wires(island: list[int], count: dict[tuple[int, int], int]) -> int:
    return max(_wires(gpu, count) for gpu in island)


def _ports(island: list[int], count: dict[tuple[int, int], int], matrix: TopoMatrix) -> dict[int, int]:
    """How many links each GPU has to the NVSwitches: a pair shows the fewer of its two ends."""
    ports = {gpu: max(links for pair, links in count.items() if gpu in pair) for gpu in island}
    busiest = max(island, key=lambda gpu: _wires(gpu, count))
    for a, b in combinations(island, 2):
        expected = min(ports[a], ports[b])
        if count.get((a, b), 0) != expected:
            line, most = matrix.lines[matrix.gpus[busiest]], _wires(busiest, count)
            raise ValueError(
                f"line {line}: by its row {matrix.gpus[busiest]} has {most} NVLinks, more than a GPU has "
                f"({_MOST_WIRED}), so they lead to NVSwitches; but then {matrix.gpus[a]} to {matrix.gpus[b]} "
                f"would be NV{expected} (got {matrix.gpu_links[a][b]})"
            )
    return ports
