"""Partitions a graph by three passes over its edges, with memory for its vertices only.

Semi-external label propagation: Y. Akhremtsev, P. Sanders and C. Schulz, "(Semi-)External Algorithms for Graph
Partitioning and Clustering", ALENEX 2015. The first pass gathers vertices in clusters by label propagation with a
limit of size, the second counts edges between clusters, which METIS divides, and in the third labels are parts.
Called by users, `partitioners`, `dgcl/cli/partition`, `dgcl/offload/chunks` and `dgcl/relation/partition_report`. Free
to change while edges in arrays of any size make parts, none of them empty, and files that are no part files are
refused by name (`tests/dgcl/partition/test_streaming.py`).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.build_csr import graph_from_edges
from dgcl.graph.csr import Graph, index_dtype
from dgcl.graph.id_arrays import as_ids, as_num_nodes
from dgcl.partition.apart import Ids
from dgcl.partition.levels import Adjacency, ensure_minimum, partition_levels
from dgcl.partition.metis import cut_by_metis
from dgcl.planner.npz import read_npz
from dgcl.topology.checks import check_path

_CLUSTERS = 16  # of a part, at least
_HALF_OF_CLUSTERS, _MOST_PAIRS = 1 << 17, 1 << 22  # that METIS gets: at most a GB
_BLOCK = 1 << 22  # edges at a time, or as many as vertices


class EdgeStream:
    """The edges of a graph that no memory holds, read in passes.

    Args:
        start_pass: Starts a pass over all edges: returns an iterator of ``(sources, heads)``, integer arrays of some
            edges each. Edges of one head should lie side by side, or at least in the same arrays.
        num_nodes: N; ids are 0..N-1.
    """

    def __init__(self, start_pass: Callable[[], Iterable[Sequence[Any]]], num_nodes: int):
        self.start_pass, self.num_nodes = start_pass, as_num_nodes(num_nodes)


def edge_files(folder: str | os.PathLike[str]) -> EdgeStream:
    """The edges of all part files of a folder: npz with ``sources`` and ``heads``.

    Where files have ``ids``, of vertices without edges for example, these are vertices, too. One file at a time is in
    memory. The number of vertices is one more than the largest id of all.

    Raises:
        ValueError, TypeError: There is no such file, or one is not what it should be.
    """
    paths = sorted(Path(check_path(folder, "folder")).glob("*.npz"))

    def start_pass() -> Iterator[list[NDArray[Any]]]:
        for path in paths:
            arrays = {"ids": [], **read_npz(path, None, what="part")}
            if not {"sources", "heads"} <= arrays.keys():
                raise ValueError(f"{path}: is no part file, which has sources and heads (it has {[*arrays]})")
            yield [as_ids(arrays[name], f"{path}: {name}") for name in ("sources", "heads", "ids")]

    if not paths:
        raise ValueError(f"folder must have part files, *.npz with sources and heads (got none in {folder})")
    largest = max(int(ids.max(initial=-1)) for arrays in start_pass() for ids in arrays)
    return EdgeStream(lambda: (arrays[:2] for arrays in start_pass()), largest + 1)


def blocks_of(graph: Graph | EdgeStream) -> Iterator[Graph]:
    """The edges in graphs of all vertices and some millions of edges.

    Raises:
        ValueError, TypeError: Edges of a stream are not what they should be.
    """
    size = max(_BLOCK, graph.num_nodes)
    if isinstance(graph, Graph):
        for start in range(0, graph.num_edges, size):
            indptr = np.clip(graph.indptr, start, start + size) - start
            yield Graph(graph.num_nodes, indptr, graph.indices[start : start + size])
        return
    for sources, heads in graph.start_pass():
        for start in range(0, max(len(sources), len(heads)), size):
            edges = sources[start : start + size], heads[start : start + size]
            yield graph_from_edges(*edges, graph.num_nodes)


def stream_levels(
    graph: Graph | EdgeStream, levels: Sequence[Ids], tolerance: float, seed: int
) -> NDArray[np.int32]:
    """Divide N >= P vertices over the devices of levels, in three passes over their in-edges.

    Memory: 60 bytes for each vertex, a block of edges, and what METIS takes for some 260,000 clusters and 4 million
    pairs of them; beyond that the smallest clusters are joined in the order of ids, and pairs of few edges left out.
    Levels and tolerance are as of :func:`dgcl.partition.levels.partition_levels`, the seed is METIS's.
    """
    from dgcl.partition.partition_kernels import propagate_labels

    num_nodes, num_parts = graph.num_nodes, len(levels[-1])
    labels, sizes = np.arange(num_nodes, dtype=index_dtype(num_nodes)), np.ones(num_nodes, np.int64)
    seen = np.zeros_like(sizes)
    for block in blocks_of(graph):
        most = num_nodes // (_CLUSTERS * num_parts)
        propagate_labels(block.indptr, block.indices, labels, sizes, most, seen)
    order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    place = np.arange(len(order)) - _HALF_OF_CLUSTERS
    joined = place * _HALF_OF_CLUSTERS // max(len(place) - _HALF_OF_CLUSTERS, _HALF_OF_CLUSTERS)
    sizes[order] = _HALF_OF_CLUSTERS + np.where(place < 0, place, joined)
    cluster = sizes[labels]
    del labels, sizes, order, place, joined
    clusters = graph_of_clusters(blocks_of(graph), cluster)
    part = partition_levels(clusters, levels, tolerance, partial(cut_by_metis, seed=seed))[cluster]
    del cluster, clusters
    sizes = np.bincount(part, minlength=num_parts)
    most = max(int((1 + tolerance) * num_nodes / num_parts), -(-num_nodes // num_parts))
    for block in blocks_of(graph):
        propagate_labels(block.indptr, block.indices, part, sizes, most, seen)
    ensure_minimum(part, np.ones(num_parts, np.int64), seen)
    return part


def graph_of_clusters(blocks: Iterable[Graph], cluster: Ids) -> Adjacency:
    """Clusters, weighted by their vertices, and the edges between them, by their number."""
    from scipy.sparse import coo_array, csr_array

    weights = np.bincount(cluster)
    edges = csr_array((len(weights), len(weights)), dtype=np.int64)
    for block in blocks:
        a, b = np.repeat(cluster, block.in_degrees()), cluster[block.indices]
        between = np.flatnonzero(a != b)
        edges += coo_array((np.ones_like(between), (a[between], b[between])), edges.shape).tocsr()
        if edges.nnz > _MOST_PAIRS:
            edges.data[np.argsort(edges.data, kind="stable")[:-_MOST_PAIRS]] = 0
            edges.eliminate_zeros()
    edges += edges.T
    return Adjacency(edges.indptr.astype(np.int64), edges.indices.astype(np.int64), weights, edges.data)
