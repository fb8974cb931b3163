"""Adds the NVLinks that ``nvidia-smi topo -m`` shows (``NV#``) to a topology, as direct wires or through NVSwitches.

The matrix does not say which. Through NVSwitches every pair shows all links of its GPUs at once, so the counts of a row
add up to more than a GPU has. Where they do not, GPUs are wired directly.
Called by `topo_matrix_model`. Free to change while this rule decides, by the number of NVLinks of the GPU's model, and
counts that fit neither way are refused (`tests/topology/importers/test_topo_matrix_model.py`).
"""

from itertools import combinations

import networkx as nx

from dgcl.topology.draft import Draft
from dgcl.topology.gpu_models import GpuModel
from dgcl.topology.importers.topo_matrix import TopoMatrix, nvlinks
from dgcl.topology.rates import most_nvlinks, nvlink_rate


def wire_nvlinks(draft: Draft, matrix: TopoMatrix, names: list[str], gpu: GpuModel | None) -> None:
    """Draw the NVLinks; ``names`` are those of the GPUs.

    Raises:
        ValueError: The counts are neither those of direct wires nor those of NVSwitches, or not those of this model.
    """
    words, rate = matrix.words, nvlink_rate(gpu.sm if gpu else None)
    most, model = (gpu.nvlinks, gpu.name) if gpu else (most_nvlinks(100), "GPU")
    graph: nx.Graph[int] = nx.Graph()
    for a, b in combinations(range(len(matrix.gpus)), 2):
        if links := nvlinks(words[a][b]):
            graph.add_edge(a, b, links=links)
            if gpu and links > most:
                raise ValueError(
                    f"line {matrix.lines[matrix.gpus[a]]}: {matrix.gpus[a]} to {matrix.gpus[b]} is NV{links}, but"
                    f" a {gpu.name} has {most or 'no'} NVLinks: is gpu right?"
                )
    wires = dict(graph.degree(weight="links"))  # that a GPU would need if its pairs were wired directly
    islands = sorted(map(sorted, nx.connected_components(graph)))
    switched = [island for island in islands if max(wires[me] for me in island) > most]
    for island in islands:
        if island in switched:
            centre = "nvswitch" if len(switched) == 1 else f"nvswitch{switched.index(island)}"
            # A pair shows the fewer links of its two ends.
            ports = {me: max(nvlinks(word) for word in words[me]) for me in island}
            for a, b in combinations(island, 2):
                if nvlinks(words[a][b]) != (expected := min(ports[a], ports[b])):
                    busiest = max(island, key=wires.__getitem__)
                    name, line = matrix.gpus[busiest], matrix.lines[matrix.gpus[busiest]]
                    raise ValueError(
                        f"line {line}: by its row {name} has {wires[busiest]} NVLinks, more than a {model} has "
                        f"({most}), so they lead to NVSwitches; but then {matrix.gpus[a]} to {matrix.gpus[b]} "
                        f"would be NV{expected} (got {words[a][b]})"
                    )
            for me, links in ports.items():
                draft.wire(names[me], centre, f"NV{links}", links * rate)
            continue
        counts = {(a, b): nvlinks(words[a][b]) for a, b in combinations(island, 2)}
        for (a, b), links in counts.items():
            if links:
                draft.wire(names[a], names[b], f"NV{links}", links * rate)
        if gpu is None and len(island) > 2 and len(set(counts.values())) == 1:
            draft.note(
                f"{len(island)} GPUs with NV{links} between any two were taken to be wired directly, since "
                f"{wires[island[0]]} links a GPU are enough for that; if they are part of a machine with NVSwitches, "
                f"name their model"
            )
