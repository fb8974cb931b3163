"""Divides a graph's vertices over parts, by METIS, KaMinPar, streaming, at random, or in ranges.

>>> from dgcl.graph import as_graph
>>> from dgcl.partition import partition_graph
>>> partition_graph(as_graph([[0, 1, 2, 3], [1, 0, 3, 2]]), 2, method="range")
array([0, 0, 1, 1], dtype=int32)

Called by users, `dgcl/prepare/shares`, `dgcl/cli/partition`, `dgcl/offload/chunks`, `dgcl/advisor/choice` and others.
Free to change while every part has vertices, a seed repeats, few edges are cut, and part r is for device r
(`tests/dgcl/partition/test_parts.py`; what "auto" takes: `tests/dgcl/partition/test_kaminpar.py`).
"""

import logging
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.csr import require_graph
from dgcl.graph.id_arrays import as_ids
from dgcl.partition.apart import Ids
from dgcl.partition.check_part import as_num_parts
from dgcl.partition.kaminpar import cut_by_kaminpar, has_kaminpar
from dgcl.partition.levels import Adjacency, device_levels, partition_levels, with_blocks
from dgcl.partition.metis import cut_by_metis, metis_memory
from dgcl.partition.streaming import EdgeStream, stream_levels
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, check_index, check_number, shown

METHODS = ("auto", "metis", "kaminpar", "streaming", "random", "range")
"""How vertices come to their parts."""

BALANCES = ("vertices", "edges")
"""What is made equal over parts: vertices, or a vertex and its in-edges each (the work of a layer)."""

_WEIGHING = ("auto", "metis", "kaminpar")  # methods that know weights of vertices
_OF_WEIGHTS = " or ".join(map(repr, _WEIGHING))
_MANY_EDGES, _HUB = 1 << 19, 200  # of a graph on which KaMinPar is worth a process; a hub, in mean degrees

_log = logging.getLogger("dgcl")


def partition_graph(
    graph: Graph | EdgeStream,
    num_parts: int,
    *,
    topology: Topology | None = None,
    method: str = "auto",
    seed: int = 0,
    vertex_weights: Any = None,
    balance_tolerance: float = 0.03,
    block: int = 1,
) -> NDArray[np.int32]:
    """Divide a graph's vertices over parts; part r belongs on device r.

    Methods:

    - ``auto``: ``kaminpar`` where it is installed and METIS would not fit into memory, or vertices are balanced in a
      large graph with hubs; ``streaming`` for edges in passes, or where METIS would not fit and KaMinPar is not there;
      else ``metis``. A line of the log (INFO) says why.
    - ``metis``: few edges between parts (k-way, on the graph without directions, loops and repeated edges).
      Where the topology has several machines, or several sockets in a machine, first between machines, then
      between the sockets of each, then between devices, so that most traffic stays off the slow connections.
    - ``kaminpar``: the same by KaMinPar (the package ``kaminpar``): a tenth of the memory, fewer rows where vertices
      are balanced and the graph has hubs, and parts that may be lighter than the mean by more than the tolerance.
    - ``streaming``: three passes over the edges, with memory for the vertices and METIS on clusters of them
      (semi-external label propagation); vertices are balanced.
    - ``random``: at random, parts of equal size.
    - ``range``: vertices in order, parts of equal size; good where neighbours have neighbouring ids.

    No part is empty, except where there are fewer vertices than parts: then vertex v goes to part v, the last
    parts own nothing, and a warning is logged. The same arguments give the same parts.

    Args:
        graph: N vertices; or their edges in passes, for all methods but ``metis`` and ``kaminpar``.
        num_parts: number of parts P.
        topology: the machine, P devices; None: all devices are alike.
        method: one of the above.
        seed: >= 0.
        vertex_weights: (N,) integers >= 0, the work of each vertex, for ``metis`` and ``kaminpar``; None: all alike.
        balance_tolerance: how much heavier than the mean a part may be, where few edges are cut: 0.03 allows 3%.
        block: so many consecutive parts, a divisor of P, are to be close to each other: first the graph is divided into
            blocks, where these fit the levels of the topology.

    Returns:
        (N,) int32, the part of each vertex.

    Raises:
        ValueError, TypeError: an argument is out of range, or does not fit the others.
        MemoryError: the method needs more memory than is free.
        ImportError: KaMinPar is not installed.
    """
    num_parts = as_num_parts(num_parts)
    seed = check_index(seed, "seed", 0, 2**63 - 1)
    check_choice(method, "method", METHODS)
    if method == "kaminpar" and not has_kaminpar():
        raise ImportError("method 'kaminpar' needs the package kaminpar: pip install 'dgcl[kaminpar]'")
    if isinstance(graph, EdgeStream):
        check_choice(method, "method of an EdgeStream", ("auto", "streaming", "random", "range"))
    else:
        require_graph(graph)
    if not (topology is None or isinstance(topology, Topology)):
        raise TypeError(
            f"topology must be a Topology, or None (got {shown(topology)});"
            " dgcl.topology.resolve_topology(name, num_parts) makes one"
        )
    if topology is not None and topology.num_devices != num_parts:
        raise ValueError(
            f"topology {topology.name!r} has {topology.num_devices} devices, but num_parts is {num_parts}; "
            "topology.restrict(n) takes the first n"
        )
    if as_num_parts(block, "block") > num_parts or num_parts % block:
        raise ValueError(f"block must divide num_parts {num_parts} (got {block})")
    weights = _check_weights(vertex_weights, graph.num_nodes, method)
    if not 0 < check_number(balance_tolerance, "balance_tolerance", positive=True) <= 1:
        raise ValueError(f"balance_tolerance must be > 0 and <= 1 (got {balance_tolerance})")
    if graph.num_nodes <= num_parts:
        if graph.num_nodes < num_parts:
            _log.warning(
                "the graph has %d vertices for %d parts: parts from %d on own none; fewer ranks would do",
                graph.num_nodes,
                num_parts,
                graph.num_nodes,
            )
        return np.arange(graph.num_nodes, dtype=np.int32)
    even = (np.arange(graph.num_nodes, dtype=np.int64) * num_parts // graph.num_nodes).astype(np.int32)
    if method == "range" or num_parts == 1:
        return even
    if method == "random":
        return np.random.default_rng(seed).permutation(even)
    from dgcl.partition.partition_kernels import symmetric_adjacency

    levels = [np.arange(num_parts)] if topology is None else device_levels(topology)
    levels = with_blocks(levels, np.arange(num_parts) // block)
    if method == "auto":
        method, why = choose_method(graph, weights)
        _log.info("parts by %s: %s", method, why)
    if method == "streaming" or isinstance(graph, EdgeStream):
        return stream_levels(graph, levels, balance_tolerance, seed)
    cut, ids = (
        (cut_by_metis, np.empty(0, np.int64)) if method == "metis" else (cut_by_kaminpar, graph.indices[:0])
    )
    xadj, adjncy = symmetric_adjacency(graph.indptr, graph.indices, ids)
    adjacency = Adjacency(xadj, adjncy, weights)
    return partition_levels(adjacency, levels, balance_tolerance, partial(cut, seed=seed))


def choose_method(graph: Graph | EdgeStream, weights: Ids | None = None) -> tuple[str, str]:
    """What "auto" takes for a graph and vertices of these weights, and why.

    KaMinPar, where it is installed and METIS would not fit into memory, or where vertices are balanced and a graph of a
    million neighbours has hubs: there it needs less time and mostly fewer halo rows (docs/data.md). Where METIS
    would not fit and KaMinPar is not there: streaming, if vertices have no weights.
    """
    if isinstance(graph, EdgeStream):
        return "streaming", "edges are read in passes"
    likely, free = metis_memory(graph.num_nodes + 2 * graph.num_edges)
    if likely > free // 2:
        chosen = "kaminpar" if has_kaminpar() else "streaming" if weights is None else "metis"
        return chosen, f"METIS takes some {likely / 1e9:.3g} GB, where {free / 1e9:.3g} GB are free"
    if weights is not None or not has_kaminpar():
        return "metis", "vertices have weights, or the package kaminpar is not installed"
    largest = int((graph.in_degrees() + graph.out_degrees()).max())
    ratio = largest * graph.num_nodes / max(1, 2 * graph.num_edges)
    chosen = "kaminpar" if graph.num_edges >= _MANY_EDGES and ratio >= _HUB else "metis"
    return chosen, f"{graph.num_edges} edges, {largest} at a vertex: {ratio:.3g} times the mean"


def balance_weights(graph: Graph, balance: str, method: str) -> Ids | None:
    """``vertex_weights`` of :func:`partition_graph` that balance one of :data:`BALANCES`; None: all alike.

    Args:
        graph: The graph to be partitioned.
        balance: "vertices" or "edges".
        method: The method of the partition; edges are balanced by "metis" and "kaminpar" alone.

    Raises:
        ValueError: An unknown balance, or one of edges with another method.
    """
    require_graph(graph)
    check_choice(balance, "balance", BALANCES)
    if balance == "vertices":
        return None
    check_choice(method, "method", METHODS)
    if method not in _WEIGHING:
        raise ValueError(f"balance='edges' goes with partition method {_OF_WEIGHTS} (got {method!r})")
    return 1 + graph.in_degrees().astype(np.int64)


def _check_weights(vertex_weights: Any, num_nodes: int, method: str) -> Ids | None:
    """Vertex weights as METIS takes them."""
    if vertex_weights is None:
        return None
    if method not in _WEIGHING:
        raise ValueError(f"vertex_weights go with method {_OF_WEIGHTS} (got {method!r}); leave them out")
    weights = as_ids(vertex_weights, "vertex_weights").astype(np.int64)
    if len(weights) != num_nodes:
        raise ValueError(f"vertex_weights must have one entry per vertex, {num_nodes} (got {len(weights)})")
    if weights.min() < 0:
        raise ValueError(f"vertex_weights must be >= 0 (got {weights.min()})")
    if float(weights.sum(dtype=np.float64)) >= 2.0**62:
        raise ValueError("vertex_weights add up to 2**62 or more; scale them down")
    return weights if weights.any() else None
