"""Partitions a graph with METIS (k-way, through pymetis), as an undirected simple graph.

G. Karypis and V. Kumar, "Multilevel k-way partitioning scheme for irregular graphs", 1998. Where it is likely to take
more than half of the free memory, it runs in a process of its own (`apart`).
Called by `partitioners`, `streaming` and `dgcl/offload/chunks`. Free to change while few edges are cut and weights are
balanced (`tests/dgcl/partition/test_parts.py`), and want of memory is an error that says so
(`tests/dgcl/partition/test_metis.py`).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.partition.apart import Ids, run_apart
from dgcl.partition.levels import Adjacency
from dgcl.topology.free_memory import available_memory

_log = logging.getLogger("dgcl")

_BYTES = 128  # for each vertex and neighbour: 30 on meshes, 60 to 100 on random graphs, 125 with hubs
TINY = 50  # vertices per part below which k-way coarsens too far and leaves parts empty; bisection does not


def metis_memory(size: int) -> tuple[int, int]:
    """Bytes that METIS may take for so many vertices and neighbours together, and those that are free."""
    return _BYTES * size, available_memory()


def cut_by_metis(graph: Adjacency, num_devices: Ids, tolerance: float, seed: int) -> Ids:
    """Call METIS once: labels (N,) of groups whose target weights are as their numbers of devices."""
    num_groups = len(num_devices)
    shares = num_devices / num_devices.sum()
    even = (num_devices == num_devices[0]).all()
    nothing = np.empty(0, np.int64)
    task = [
        graph.xadj,
        graph.adjncy,
        nothing if graph.weights is None else graph.weights,
        nothing if graph.edge_weights is None else graph.edge_weights,
        np.empty(0) if even else shares / shares.sum(),
        np.array([
            num_groups,
            graph.num_nodes < TINY * num_groups,
            seed,
            max(1, round(1000 * tolerance)),
        ]),
    ]  # fmt: skip
    about = f"METIS on {graph.num_nodes} vertices and {len(graph.adjncy)} neighbours"
    likely, free = metis_memory(graph.num_nodes + len(graph.adjncy))
    if likely > free // 2:
        _log.warning(
            "%s takes some %.3g GB of memory, where %.3g GB are free; partition='kaminpar' takes a tenth of that",
            about,
            likely / 1e9,
            free / 1e9,
        )
        return run_apart(_call_mapped, task, [[len(array) for array in task]], free, about)
    try:
        return _call(*task)
    except RuntimeError as error:  # METIS catches signals and says nothing of them
        raise InterruptedError(
            f"{about} ended by SIGTERM, or it had too little memory ({free / 1e9:.3g} GB were free, {likely / 1e9:.3g}"
            " are likely): METIS does not say which. Where it is memory, partition='kaminpar', 'streaming', 'random'"
            " or 'range' takes less"
        ) from error


def _call(*task: NDArray[Any]) -> Ids:
    import pymetis

    xadj, adjncy, weights, edge_weights, shares, numbers = task
    num_groups, recursive, seed, ufactor = numbers.tolist()
    result = pymetis.part_graph(
        num_groups,
        pymetis.CSRAdjacency(xadj, adjncy),
        vweights=weights if len(weights) else None,
        eweights=edge_weights if len(edge_weights) else None,
        tpwgts=shares.tolist() if len(shares) else None,
        recursive=bool(recursive),
        options=pymetis.Options(seed=seed, ufactor=ufactor),
    )
    return np.array(result.vertex_part, np.int64)


def _call_mapped(path: str, lengths: list[int]) -> Ids:
    """METIS on arrays of 8 bytes an element that lie one after the other in a file."""
    words = np.memmap(path, np.int64, "r")
    task = np.split(words, np.cumsum(lengths)[:-1])
    task[4] = task[4].view(np.float64)
    return _call(*task)
