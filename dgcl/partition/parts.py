"""Who owns which vertex: METIS by machine, socket and device, or at random, or in ranges.

>>> from dgcl.graph import as_graph
>>> from dgcl.partition import partition_graph
>>> partition_graph(as_graph([[0, 1, 2, 3], [1, 0, 3, 2]]), 2, method="range")
array([0, 0, 1, 1], dtype=int32)
"""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.csr import require_graph
from dgcl.graph.id_arrays import as_ids
from dgcl.partition.check import as_num_parts
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, check_index, check_number, shown

METHODS = ("metis", "random", "range")
"""How vertices come to their parts, besides "auto", which needs a topology and a plan."""

BALANCES = ("vertices", "edges")
"""What METIS makes equal over parts: vertices, or a vertex and its in-edges each (the work of a layer)."""

_log = logging.getLogger("dgcl")


def partition_graph(
    graph: Graph,
    num_parts: int,
    *,
    topology: Topology | None = None,
    method: str = "metis",
    seed: int = 0,
    vertex_weights: Any = None,
    balance_tolerance: float = 0.03,
    block: int = 1,
) -> NDArray[np.int32]:
    """Divide a graph's vertices over parts; part r belongs on device r.

    Methods:

    - ``metis``: few edges between parts (k-way, on the graph without directions, loops and repeated edges).
      Where the topology has several machines, or several sockets in a machine, first between machines, then
      between the sockets of each, then between devices, so that most traffic stays off the slow connections.
    - ``random``: at random, parts of equal size.
    - ``range``: vertices in order, parts of equal size; good where neighbours have neighbouring ids.

    No part is empty, except where there are fewer vertices than parts: then vertex v goes to part v, the last
    parts own nothing, and a warning is logged. The same arguments give the same parts.

    Args:
        graph: N vertices.
        num_parts: number of parts P.
        topology: the machine, P devices; None: all devices are alike.
        method: one of the above.
        seed: for ``metis`` and ``random``, >= 0.
        vertex_weights: (N,) integers >= 0, the work of each vertex, for ``metis``; None: all alike.
        balance_tolerance: how much heavier than the mean a part may be, for ``metis``: 0.03 allows 3%.
        block: so many consecutive parts, a divisor of P, are to be close to each other, for ``metis``: first the graph
            is divided into blocks, where these fit the levels of the topology.

    Returns:
        (N,) int32, the part of each vertex.

    Raises:
        ValueError, TypeError: an argument is out of range, or does not fit the others.
    """
    num_parts = as_num_parts(num_parts)
    seed = check_index(seed, "seed", 0, 2**63 - 1)
    check_choice(method, "method", METHODS)
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
    return _metis(graph, num_parts, topology, seed, weights, balance_tolerance, block)


def balance_weights(graph: Graph, balance: str, method: str) -> NDArray[np.int64] | None:
    """``vertex_weights`` of :func:`partition_graph` that balance one of :data:`BALANCES`; None: all alike.

    Args:
        graph: The graph to be partitioned.
        balance: "vertices" or "edges".
        method: The method of the partition; edges are balanced by "metis" alone.

    Raises:
        ValueError: An unknown balance, or one of edges with another method than ``metis``.
    """
    require_graph(graph)
    check_choice(balance, "balance", BALANCES)
    if balance == "vertices":
        return None
    check_choice(method, "method", METHODS)
    if method != "metis":
        raise ValueError(f"balance='edges' goes with partition method 'metis' (got {method!r})")
    return 1 + graph.in_degrees().astype(np.int64)


def _metis(
    graph: Graph,
    num_parts: int,
    topology: Topology | None,
    seed: int,
    weights: NDArray[np.int64] | None,
    balance_tolerance: float,
    block: int,
) -> NDArray[np.int32]:
    """Run METIS over the levels of the topology."""
    from dgcl.partition.kernels import symmetric_adjacency
    from dgcl.partition.metis import MetisOptions, device_levels, metis_partition, with_blocks

    levels = [np.arange(num_parts)] if topology is None else device_levels(topology)
    levels = with_blocks(levels, np.arange(num_parts) // block)
    xadj, adjncy = symmetric_adjacency(graph.indptr, graph.indices)
    return metis_partition(
        xadj, adjncy, levels, weights=weights, options=MetisOptions(seed, balance_tolerance)
    )


def _check_weights(vertex_weights: Any, num_nodes: int, method: str) -> NDArray[np.int64] | None:
    """Vertex weights as METIS takes them."""
    if vertex_weights is None:
        return None
    if method != "metis":
        raise ValueError(f"vertex_weights go with method 'metis' (got {method!r}); leave them out")
    weights = as_ids(vertex_weights, "vertex_weights").astype(np.int64)
    if len(weights) != num_nodes:
        raise ValueError(f"vertex_weights must have one entry per vertex, {num_nodes} (got {len(weights)})")
    if weights.min() < 0:
        raise ValueError(f"vertex_weights must be >= 0 (got {weights.min()})")
    if float(weights.sum(dtype=np.float64)) >= 2.0**62:
        raise ValueError("vertex_weights add up to 2**62 or more; scale them down")
    return weights if weights.any() else None
