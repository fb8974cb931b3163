"""2D and 3D as published: activations stay split by columns; tiles of the adjacency travel in each aggregation.

Rank (i, k, j) of a grid has slice j of the rows of block (i, k), and a *tile*: those edges into part i from vertices at
depth k whose tails are in interval j. An aggregation, and a layer::

    blocks of slice j go down the columns       tiles go along the rows        sums of one head over depths: the fibres
    dense product: whole rows are gathered along the rows, and each rank makes its columns of the result
    backward: one gather of the aggregated gradient serves both the weight's and the rows' gradient

So a layer receives, in its forward as in its backward, blocks (n_k - n_ik) w, gather n_ik (f - w), fibres
(depth - 1) n_ik w, and 2 words for each edge of the row's other tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.aggregation.sparse import sum_dtype
from dgcl.bench.published.exchanges import connect_exchanges, places_by_id, scales_of, wanted_at
from dgcl.communicator import Communicator
from dgcl.graph import Graph
from dgcl.grid.grid import Grid, as_grid
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.ranks.context import context
from dgcl.relation.demand import Demand
from dgcl.topology import Topology

__all__ = ["GATHER", "TILES", "SplitRows"]

#: The exchanges of slices along a row of ranks, and of the edges of a tile.
GATHER, TILES = "gather", "tiles"


@dataclass(frozen=True, eq=False)
class _Tile:
    """What a rank knows of the graph.

    Attributes:
        by_head, by_tail: ``(E, 2)`` int32 edges of its tile, (head, tail) by head and (tail, head) by tail: heads are
            places in the rank's part, tails in its depth, both ascending by id.
        starts: ``(P + 1,)`` int64, the first edge of each rank's tile among all.
        sizes: Vertices of its part, and at its depth.
        scales: ``(n,)`` of its own vertices, for tails and for heads.
    """

    by_head: NDArray[np.int32]
    by_tail: NDArray[np.int32]
    starts: NDArray[np.int64]
    sizes: tuple[int, int]
    scales: tuple[NDArray[np.float64], NDArray[np.float64]]


class SplitRows:
    """Activations that stay split over a grid, and what models do with them. Construction is collective.

    Args:
        graph: On rank 0 (other ranks may pass None), as for :func:`dgcl.build_comm_info`.
        grid: (parts, depth, slices) of the grid: rows, layers and columns of the published algorithms.
        part: ``(N,)`` the owner of each vertex, as for grids; a block is the vertices of ``slices`` ranks. On rank 0.
        topology: The machine.
        reduce: "sum", "mean", or "gcn" for graphs with self loops.
        timeout: Seconds that a rank waits for another inside a call.

    Attributes:
        comm: The communicator, whose vertices are slices of rows.
        grid: The grid.
        vertices: ``(n,)`` int64, ascending: those of which this rank has a slice.
    """

    def __init__(
        self,
        graph: Any,
        grid: Any,
        part: Any,
        topology: str | Topology = "uniform",
        *,
        reduce: str = "sum",
        timeout: float = 300.0,
    ) -> None:
        control = context.require_control()
        self.grid = grid = as_grid(grid, control.world_size)

        row_bytes = {
            HALO: 512 // grid.slices,
            PARTIAL: 512 // grid.slices,
            GATHER: 512 // grid.slices,
            TILES: 8,
        }
        self.comm: Communicator
        self.comm, self._tile = connect_exchanges(
            graph,
            part,
            grid,
            functools.partial(_lay_out, grid=grid, reduce=reduce),
            topology,
            row_bytes,
            timeout,
        )
        self.vertices = self.comm.owned_ids // grid.slices
        self._columns, self._rows = places_by_id(self.comm, HALO), places_by_id(self.comm, GATHER)
        self._fibres = places_by_id(self.comm, PARTIAL) if grid.depth > 1 else None
        self._runs = _runs(self.comm.layouts[TILES].global_ids("local"), self._tile.starts)
        self._scales = tuple(torch.from_numpy(scale)[:, None] for scale in self._tile.scales)

    @property
    def place(self) -> int:
        """The slice that this rank has."""
        return int(self.grid.slice_of(self.comm.rank))

    def columns(self, width: int) -> slice:
        """Its columns of rows of so many."""
        each = self.grid.slice_width(width)
        return slice(min(self.place * each, width), min((self.place + 1) * each, width))

    def dispatch(self, x: Tensor) -> Tensor:
        """This rank's slice of ``(N, F)`` rows, the same on every rank: ``(n, slice width)``, zeros beyond F."""
        return self._padded(x[self.vertices][:, self.columns(x.shape[1])], x.shape[1])

    def collect(self, h: Tensor, width: int) -> Tensor:
        """``(N, width)`` whole rows, on every rank, of the ranks' slices. Collective."""
        items = self.comm.collect(h, None)
        assert items is not None
        return items.reshape(-1, self.grid.slices * h.shape[1])[:, :width]

    def convolve(self, h: Tensor, weight: Tensor) -> Tensor:
        """Aggregate, then multiply: slices of ``(A H) W``, whose gradients come by one gather. Collective.

        Args:
            h: ``(n, slice width of in_channels)``.
            weight: ``(in_channels, out_channels)``, the same on every rank; its gradient is a rank's share.

        Returns:
            ``(n, slice width of out_channels)``.
        """
        out: Tensor = _Convolution.apply(h, weight, self)
        return out

    def aggregate(self, h: Tensor, *, transposed: bool = False) -> Tensor:
        """``(n, w)`` slices to sums of their slices over all in-edges, or over out-edges. Not differentiable."""
        before, after = self._scales[::-1] if transposed else self._scales
        h = h * before.to(h.dtype)
        num_heads, num_tails = self._tile.sizes
        if transposed:
            heads = self._along_fibres(h)
            sums = self._sum(heads, self._tile.by_tail, num_tails, num_heads)
            out = self.comm.fold(_put_back(sums.to(h.dtype), self._columns), HALO)
        else:
            tails = self.comm.expand(h, HALO).index_select(0, self._columns)
            sums = self._sum(tails, self._tile.by_head, num_heads, num_tails).to(h.dtype)
            out = sums if self._fibres is None else self.comm.fold(_put_back(sums, self._fibres), PARTIAL)
        return out * after.to(h.dtype)

    def gather(self, h: Tensor) -> Tensor:
        """``(n, slices * w)`` whole rows, of this rank's ``(n, w)`` and the others' slices of the same rows."""
        slices = self.comm.expand(h, GATHER).index_select(0, self._rows)
        return slices.view(len(h), self.grid.slices * h.shape[1])

    def _along_fibres(self, h: Tensor) -> Tensor:
        """The rows of all vertices of this rank's part."""
        return h if self._fibres is None else self.comm.expand(h, PARTIAL).index_select(0, self._fibres)

    def _sum(self, rows: Tensor, tile: NDArray[np.int32], num_to: int, num_from: int) -> Tensor:
        """Sums over the edges of this rank's and the others' tiles, which are brought here and given up again."""
        edges = self.comm.expand(torch.from_numpy(tile), TILES).numpy()
        out = rows.new_zeros(num_to, rows.shape[1], dtype=sum_dtype(rows.dtype))
        for begin, end in self._runs:
            to, origin = edges[begin:end].T.copy()
            Block(to, origin, num_to, num_from).add(rows, out)
        return out

    def _padded(self, columns: Tensor, width: int) -> Tensor:
        """This rank's columns, with zeros beyond the last one of rows of ``width``."""
        missing = self.grid.slice_width(width) - columns.shape[1]
        return torch.nn.functional.pad(columns, (0, missing)) if missing else columns.contiguous()


class _Convolution(torch.autograd.Function):
    """A layer as published: dW and dH share the gather of the aggregated gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, split: SplitRows) -> Tensor:
        ctx.split = split
        ctx.save_for_backward(h, weight)
        whole = split.gather(split.aggregate(h))[:, : weight.shape[0]]
        return split._padded(whole @ weight[:, split.columns(weight.shape[1])], weight.shape[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        split, (h, weight) = ctx.split, ctx.saved_tensors
        whole = split.gather(split.aggregate(grad, transposed=True))[:, : weight.shape[1]]
        mine = split.columns(weight.shape[0])
        grad_weight = torch.zeros_like(weight)
        grad_weight[mine] = h[:, : mine.stop - mine.start].T @ whole
        return split._padded(whole @ weight[mine].T, weight.shape[0]), grad_weight, None


def _put_back(rows: Tensor, places: Tensor) -> Tensor:
    """Rows in the order of ids as local rows of an exchange."""
    return torch.empty_like(rows).index_copy_(0, places, rows)


def _runs(ids: NDArray[np.int64], starts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Stretches of arriving edges that are of one tile and in its order."""
    tile = np.searchsorted(starts, ids, side="right")
    cuts = np.flatnonzero((np.diff(ids) < 0) | (np.diff(tile) != 0)) + 1
    bounds = [0, *cuts.tolist(), len(ids)]
    return [(begin, end) for begin, end in pairwise(bounds) if end > begin]


def _lay_out(
    graph: Graph, owner: NDArray[np.int32], grid: Grid, reduce: str
) -> tuple[Mapping[str, Demand], list[_Tile]]:
    """The demands of all exchanges, and what each rank knows."""
    part, depth = grid.part_of(owner).astype(np.int64), grid.depth_of(owner).astype(np.int64)
    heads = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    tails = graph.indices
    interval = (part * grid.slices + grid.slice_of(owner)) // grid.parts
    tile = grid.rank_at(part[heads], depth[tails], interval[tails])
    in_part, in_depth = _places(part, grid.parts), _places(depth, grid.depth)
    sizes = np.bincount(part, minlength=grid.parts), np.bincount(depth, minlength=grid.depth)
    starts = np.zeros(grid.size + 1, np.int64)
    np.cumsum(np.bincount(tile, minlength=grid.size), out=starts[1:])
    of_tiles = np.split(np.argsort(tile, kind="stable"), starts[1:-1])
    scales = scales_of(graph, reduce)
    block = grid.part_of(owner) * grid.depth + grid.depth_of(owner)
    told = []
    for rank, edges in enumerate(of_tiles):
        pairs = np.stack([in_part[heads[edges]], in_depth[tails[edges]]], 1).astype(np.int32)
        by_tail = pairs[np.argsort(pairs[:, 1], kind="stable")][:, ::-1]
        mine = block == rank // grid.slices
        own_sizes = int(sizes[0][grid.part_of(rank)]), int(sizes[1][grid.depth_of(rank)])
        own_scales = scales[0][mine], scales[1][mine]
        told.append(_Tile(pairs, np.ascontiguousarray(by_tail), starts, own_sizes, own_scales))
    return _demands(part, depth, np.diff(starts), grid), told


def _demands(
    part: NDArray[np.int64], depth: NDArray[np.int64], edges: NDArray[np.int64], grid: Grid
) -> Mapping[str, Demand]:
    """Who wants which slice of a row in each exchange, and which edge; everything, as published."""
    s = np.tile(np.arange(grid.slices), len(part))
    r, k = np.repeat(part, grid.slices), np.repeat(depth, grid.slices)
    owner, tile = grid.rank_at(r, k, s), np.repeat(np.arange(grid.size), edges)

    def wanted(items: NDArray[Any], number: int, at: Callable[[int], NDArray[Any]]) -> Demand:
        ranks = np.stack([np.broadcast_to(at(i), items.shape) for i in range(number)], 1)
        return wanted_at(items, ranks, grid.size)

    demands = {HALO: wanted(owner, grid.parts, lambda i: grid.rank_at(i, k, s))}
    if grid.depth > 1:
        demands[PARTIAL] = wanted(owner, grid.depth, lambda i: grid.rank_at(r, i, s))
    demands[GATHER] = wanted(owner, grid.slices, lambda i: grid.rank_at(r, k, i))
    demands[TILES] = wanted(tile, grid.slices, lambda i: tile // grid.slices * grid.slices + i)
    return demands


def _places(group: NDArray[np.int64], num_groups: int) -> NDArray[np.int64]:
    """(N,) where each vertex stands among those of its group, ascending by id."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=num_groups)
    places = np.empty(len(group), np.int64)
    places[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places
