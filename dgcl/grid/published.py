"""Words that the algorithms of the literature receive, for comparison: CAGNET's 1D, 1.5D, 2D and 3D (SC'20).

As published: 1D gathers all rows. 1.5D holds each block row on ``depth`` ranks, of which column j broadcasts its share
of the blocks, and adds up what they made. 2D and 3D keep activations split: they broadcast tiles of the adjacency
along rows and blocks of features down columns, 3D adds up over its layers, and each dense product gathers whole rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.grid.grid import Grid
from dgcl.grid.kernels import mark_depths
from dgcl.relation.demand import empty_masks

__all__ = ["WORDS_OF_AN_EDGE", "published_tiles", "published_words"]

#: A nonzero of a tile that is broadcast: its column and its value.
WORDS_OF_AN_EDGE = 2


def published_words(graph: Graph, owner: NDArray[np.int32], grid: Grid, width: int) -> NDArray[np.float64]:
    """(P,) words that each rank receives in the forward pass of a layer of rows of ``width`` words.

    Args:
        graph: N vertices.
        owner: (N,) int32, the rank of each; the blocks of the algorithm are these.
        grid: parts x depth x slices are its rows, layers and columns.
        width: Of the rows that are aggregated.
    """
    ranks = np.arange(grid.size)
    part, k, s = grid.part_of(ranks), grid.depth_of(ranks), grid.slice_of(ranks)
    num_at = np.zeros((grid.parts, grid.depth))
    np.add.at(num_at, (grid.part_of(owner), grid.depth_of(owner)), 1)
    of_part, of_depth = num_at.sum(1), num_at.sum(0)
    if grid.slices == 1 and grid.depth > 1:  # 1.5D: column k broadcasts its share of the block rows
        blocks = np.arange(grid.parts)
        column = blocks * grid.depth // grid.parts if grid.parts >= grid.depth else blocks
        share = np.bincount(column, of_part, grid.depth)
        received = share[k] - np.where(column[part] == k, of_part[part], 0)
        return width * (received + 2 * (grid.depth - 1) / grid.depth * of_part[part])
    mine = width // grid.slices + (s < width % grid.slices)
    own = num_at[part, k]
    words = WORDS_OF_AN_EDGE * published_tiles(graph, owner, grid) + (of_depth[k] - own) * mine
    return words + (grid.depth - 1) * own * mine + own * (width - mine)


def published_tiles(graph: Graph, owner: NDArray[np.int32], grid: Grid) -> NDArray[np.int64]:
    """(P,) nonzeros that each rank receives: those of its row and layer but for the tile that it holds."""
    code = grid.depth_of(owner) * grid.slices
    code += (grid.part_of(owner) * grid.slices + grid.slice_of(owner)) // grid.parts
    counts = np.zeros((grid.parts, grid.depth * grid.slices), np.int64)
    masks = empty_masks(graph.num_nodes, counts.shape[1])
    mark_depths(graph.indptr, graph.indices, grid.part_of(owner), code, masks, counts)
    tiles = counts.reshape(grid.parts, grid.depth, grid.slices)
    received: NDArray[np.int64] = tiles.sum(2, keepdims=True) - tiles
    return received.ravel()
