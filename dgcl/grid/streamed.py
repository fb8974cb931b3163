"""Streamed edges: each rank of a slice group keeps a share of the group's edges, and the group has all in turn.

The ranks (r, k, 0), (r, k, 1), ... of a grid sum the same edges, each for its slice of the rows. Instead of all of them
rank s keeps one part in so many, and sends it to the others whenever the edges are summed. Edges travel in *blocks*,
the items of one more exchange: rows of int32 pairs (head, tail), the last block of a group filled up with -1. No float
holds a number of a vertex, so that there may be more than 2**24.

Heads are numbered among the vertices that the group sums to, and tails among those that it reads, ascending by id: all
ranks of a group number them alike, and each has a table of the local rows that they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.grid.counts import has_bit
from dgcl.grid.grid import Grid
from dgcl.grid.needs import Needs
from dgcl.planner.relation import mask_words
from dgcl.program.strategy import Rows
from dgcl.relation.demand import Demand
from dgcl.relation.local_graph import LocalGraph

__all__ = ["StreamedGraph", "block_demand", "build_streamed_graphs", "edges_of_block"]

_LARGEST_BLOCK = 512
_SHARE_BLOCKS = 64
"""Blocks in the share of a rank of the fullest group at least, where it has so many edges: shares differ by one."""


@dataclass(frozen=True, eq=False)
class StreamedGraph(LocalGraph):
    """A rank's rows, and its share of the edges between the rows of its slice group.

    Rows and degrees are those of a :class:`~dgcl.relation.local_graph.LocalGraph`; ``indptr`` and ``indices`` have no
    edge.

    Attributes:
        blocks: (B, n, 2) int32, the places of heads and tails of the edges that this rank keeps, in no row -1.
        head_rows: (H,) int32, the row in [0, num_heads) of each of the group's heads.
        tail_rows: (T,) int32, the local row of each of its tails.
        group_edges: Edges that this rank sums: those of its group.
    """

    blocks: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 1, 2), np.int32))
    head_rows: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    tail_rows: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    group_edges: int = 0

    @property
    def num_edges(self) -> int:
        """Edges that this rank keeps."""
        return int(np.count_nonzero(self.blocks[:, :, 0] >= 0))

    @property
    def streamed_bytes(self) -> int:
        """The blocks that this rank keeps, two windows of others', which are as much again, and the tables."""
        return 2 * self.blocks.nbytes + self.head_rows.nbytes + self.tail_rows.nbytes

    def rows_of(self, blocks: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """``(E,)`` int32 each: the rows of heads, and of tails, of the edges in some of the group's blocks."""
        heads, tails = blocks.reshape(-1, 2).T
        if len(heads) and heads.min() < 0:
            heads, tails = heads[heads >= 0], tails[heads >= 0]
        return self.head_rows[heads], self.tail_rows[tails]


def edges_of_block(needs: Needs) -> int:
    """Edges in a block: so few that the ranks of the fullest group can have shares of about one size."""
    return int(min(_LARGEST_BLOCK, max(1, int(needs.edges.max()) // (_SHARE_BLOCKS * needs.grid.slices))))


def block_demand(needs: Needs) -> Demand:
    """Who keeps each block, and who wants it: the other ranks of its group."""
    grid = needs.grid
    bounds = np.concatenate([_bounds(int(count), edges_of_block(needs), grid) for count in needs.edges.flat])
    owner = np.repeat(np.arange(grid.size, dtype=np.int32), np.diff(bounds.reshape(-1, grid.slices + 1)).flat)
    masks = np.zeros((mask_words(grid.size), len(owner)), np.uint64)
    for s in range(grid.slices):
        rank = owner - grid.slice_of(owner) + s
        bit = np.uint64(1) << (rank % 64).astype(np.uint64)
        masks[rank // 64, np.arange(len(owner))] |= np.where(rank == owner, np.uint64(0), bit)
    return Demand(grid.size, owner, masks)


def _bounds(num_edges: int, in_block: int, grid: Grid) -> NDArray[np.int64]:
    """(slices + 1,) where each rank's blocks of a group begin: as many for each, within one."""
    bounds: NDArray[np.int64] = (
        -(-num_edges // in_block) * np.arange(grid.slices + 1, dtype=np.int64) // grid.slices
    )
    return bounds


def build_streamed_graphs(graph: Graph, needs: Needs, rows: Iterable[Rows]) -> Iterator[StreamedGraph]:
    """The graphs of ranks, one at a time; ids of rows are those of items.

    Memory: of one group 16 bytes for each edge; of a rank 8 for each edge that it keeps, 4 for each vertex that its
    group sums to or reads, and 40 for each of its rows.

    Args:
        graph: N vertices.
        needs: Who reads and who sums which vertex.
        rows: As of :func:`dgcl.grid.local_graphs.build_grid_graphs`.

    Raises:
        ValueError: A rank sums an edge of which it has no row.
    """
    grid, owner = needs.grid, needs.owner
    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    blocks, bounds = np.zeros((0, 1, 2), np.int32), np.zeros(1, np.int64)
    heads = tails = np.zeros(0, np.int64)
    for rank, (owned, halo, partial) in enumerate(rows):
        s, slices = grid.slice_of(rank), grid.slices
        if s == 0:
            part, depth = grid.part_of(rank), grid.depth_of(rank)
            heads = np.flatnonzero((grid.part_of(owner) == part) & has_bit(needs.summers, depth))
            tails = np.flatnonzero((grid.depth_of(owner) == depth) & has_bit(needs.readers, part))
            num_edges = int(needs.edges[part, depth])
            blocks = _blocks(graph, heads, tails, num_edges, edges_of_block(needs))
            bounds = _bounds(num_edges, blocks.shape[1], grid)
        row_of = np.full(graph.num_nodes, -1, np.int32)
        mine = owned[s::slices] // slices
        row_of[mine] = np.arange(s, len(owned), slices)
        row_of[halo // slices] = np.arange(len(owned), len(owned) + len(halo))
        tail_rows = row_of[tails]
        row_of[halo // slices] = -1
        row_of[partial // slices] = np.arange(len(owned), len(owned) + len(partial))
        head_rows = row_of[heads]
        if (tail_rows < 0).any() or (head_rows < 0).any():
            raise ValueError(f"rank {rank} sums an edge of which it has no row")
        vertices = np.concatenate([owned, halo]) // slices
        yield StreamedGraph(
            owned_ids=owned,
            halo_ids=halo,
            indptr=np.zeros(len(owned) + len(partial) + 1, np.int64),
            indices=np.zeros(0, np.int32),
            edge_first=np.zeros(len(owned) + len(partial), np.int64),
            edge_order=None,
            in_degrees=in_degrees[vertices],
            out_degrees=out_degrees[vertices],
            num_nodes_global=graph.num_nodes,
            partial_ids=partial,
            partial_in_degrees=in_degrees[partial // slices],
            blocks=blocks[bounds[s] : bounds[s + 1]].copy(),
            head_rows=head_rows,
            tail_rows=tail_rows,
            group_edges=num_edges,
        )


def _blocks(
    graph: Graph, heads: NDArray[np.int64], tails: NDArray[np.int64], num_edges: int, in_block: int
) -> NDArray[np.int32]:
    """(B, in_block, 2) int32: the edges from ``tails`` to ``heads``, both ascending, in the order of the graph."""
    from dgcl.relation.local_graph_kernels import take_rows

    place = np.full(graph.num_nodes, -1, np.int32)
    place[tails] = np.arange(len(tails))
    degree = graph.indptr[heads + 1] - graph.indptr[heads]
    read = np.empty(degree.sum(), np.int32)
    take_rows(graph.indptr, graph.indices, heads, place, read)
    summed = np.repeat(np.arange(len(heads), dtype=np.int32), degree)
    here = read >= 0  # the others are summed at another depth
    pairs = np.full((-(-num_edges // in_block) * in_block, 2), -1, np.int32)
    pairs[:num_edges, 0], pairs[:num_edges, 1] = summed[here], read[here]
    return pairs.reshape(-1, in_block, 2)
