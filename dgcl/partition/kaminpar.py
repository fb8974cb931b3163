"""Partitions a graph with KaMinPar, in a tenth of METIS's memory; the package kaminpar is optional.

L. Gottesbüren, T. Heuer, P. Sanders, C. Schulz and D. Seemaier, "Deep Multilevel Graph Partitioning", ESA 2021. It is
good for graphs with hubs. Its binding reads files only, ends the process where memory is short, and heeds no Ctrl-C:
so it runs in a process of its own (`apart`).
Called by `partitioners`. Free to change while a seed repeats, its process alone ends where memory is short, and a
missing package is named (`tests/dgcl/partition/test_kaminpar.py`).
"""

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.partition.apart import Ids, run_apart
from dgcl.partition.levels import Adjacency
from dgcl.topology.free_memory import available_memory

_HEADER, _SEEDS = 24, 2**31


def has_kaminpar() -> bool:
    """Whether the package is installed."""
    return find_spec("kaminpar") is not None


def cut_by_kaminpar(graph: Adjacency, num_devices: Ids, tolerance: float, seed: int) -> Ids:
    """Call KaMinPar once: labels (N,) of groups whose weights are at most as their numbers of devices say.

    The graph goes as a file in memory in ParHIP's binary form: what it has not (weights, ids of 64 bits), N and M;
    (N + 1,) places of neighbours in bytes of the file, the neighbours, and weights of vertices.
    """
    n, m, width = graph.num_nodes, len(graph.adjncy), graph.adjncy.itemsize
    total = n if graph.weights is None else int(graph.weights.sum())
    limits = np.ceil(num_devices * (total * (1 + tolerance) / num_devices.sum())).astype(int).tolist()
    absent = 1 | (graph.weights is None) << 1 | (width == 4) << 3
    task = [np.array([absent, n, m]), width * graph.xadj + (_HEADER + 8 * (n + 1)), graph.adjncy]
    return run_apart(
        _call,
        task if graph.weights is None else [*task, graph.weights],
        [limits, seed % _SEEDS],
        available_memory(),
        f"KaMinPar on {n} vertices and {m} neighbours",
    )


def _call(path: str, limits: list[int], seed: int) -> NDArray[Any]:
    import kaminpar

    kaminpar.reseed(seed)
    graph = kaminpar.load_graph(path, kaminpar.GraphFileFormat.PARHIP, compress=True)
    os.truncate(path, 0)  # it was read: its memory is free
    # Several threads never give the same parts twice.
    labels = kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(graph, limits)
    return np.array(labels, np.int64)
