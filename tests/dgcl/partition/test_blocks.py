"""Blocks of consecutive parts are close to each other: the grid's parts are cut first."""

import itertools

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.partition import partition_graph
from dgcl.partition.levels import device_levels, with_blocks
from dgcl.topology import resolve_topology

RANKS = np.arange(8)


@pytest.mark.parametrize(
    "levels, block, sizes",
    [
        ([RANKS], 4, [2, 8]),  # two blocks, then their ranks
        ([RANKS], 1, [8]),
        ([RANKS], 8, [8]),
        ([RANKS // 4, RANKS], 2, [2, 4, 8]),  # blocks within sockets
        ([RANKS // 2, RANKS], 4, [2, 4, 8]),  # sockets within blocks
        ([RANKS // 4, RANKS], 4, [2, 8]),  # blocks are the sockets
        ([np.array([0, 0, 0, 1, 1, 1, 1, 1]), RANKS], 4, [2, 8]),  # neither lies within the other
    ],
)
def test_levels(levels: list[np.ndarray], block: int, sizes: list[int]):
    found = with_blocks(levels, RANKS // block)
    assert [len(np.unique(level)) for level in found] == sizes
    for coarse, fine in itertools.pairwise(found):
        assert len(np.unique(np.stack([coarse, fine]), axis=1).T) == len(np.unique(fine))
    assert found[-1] is levels[-1]


def test_fewer_edges_between_blocks_than_without():
    """Two communities of four groups: a block of four parts is a community, whatever the seed."""
    rng = np.random.default_rng(0)
    edges = []
    for first, size, count in ((0, 200, 1500), (200, 200, 1500), *((50 * i, 50, 400) for i in range(8))):
        edges.append(first + rng.integers(0, size, (2, count)))
    graph = as_graph(np.concatenate(edges, axis=1), 400)
    for topology in (None, resolve_topology("dgx1")):
        part = partition_graph(graph, 8, topology=topology, block=4)
        tails, heads = graph.edges()
        assert (part[tails] // 4 == part[heads] // 4).all()
        assert np.bincount(part, minlength=8).min() > 40
    assert len(device_levels(resolve_topology("dgx1"))) == 2
