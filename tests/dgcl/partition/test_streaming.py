"""Parts from edges that are read in passes: valid for any edges, few rows for good ones, from files and functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.partition import EdgeStream, edge_files, partition_graph, streaming
from dgcl.relation.partition_report import partition_report
from tests.support.graphs import edge_indices
from tests.support.samples import named


@given(edge_indices(max_nodes=60, max_edges=200), st.integers(1, 12))
def test_any_edges_in_blocks_and_clusters_of_any_size(drawn: tuple[int, np.ndarray], num_parts: int):
    num_nodes, edges = drawn
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_BLOCK", "_HALF_OF_CLUSTERS", "_MOST_PAIRS"):
            patch.setattr(streaming, name, num_parts + 3)
        stream = EdgeStream(lambda: ([edge[:1], edge[1:]] for edge in edges.T), num_nodes)
        part = partition_graph(stream, num_parts)
    sizes = np.bincount(part, minlength=num_parts)
    assert np.count_nonzero(sizes) == min(num_nodes, num_parts)
    graph = as_graph(edges, num_nodes=num_nodes)
    assert (
        partition_report(stream, part, num_parts).to_json()
        == partition_report(graph, part, num_parts).to_json()
    )


@named(
    "arrays, message",
    {
        "no-files": (None, "folder must have part files"),
        "a-graph": ({"indptr": [0, 1], "indices": [0]}, r"0.npz: is no part file"),
        "floats": ({"sources": [0.5], "heads": [9]}, "0.npz: sources must hold integers"),
        "lengths": ({"sources": [0, 1], "heads": [9]}, r"as many sources as destinations \(got 2 and 1\)"),
        "negative": ({"sources": [-1], "heads": [9]}, "edge 0 is -1 -> 9"),
    },
)
def test_files_that_are_no_part_files(arrays, message: str, tmp_path):
    if arrays is not None:
        np.savez(tmp_path / "0.npz", **arrays)
    with pytest.raises((TypeError, ValueError), match=message):
        partition_graph(edge_files(tmp_path), 2)
    with pytest.raises(ValueError, match="method of an EdgeStream must be one of auto, streaming"):
        partition_graph(EdgeStream(list, 9), 2, method="metis")
