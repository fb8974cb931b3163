"""1.5D as published: each block of whole rows is on ``depth`` ranks, which add up what each of them summed.

Rank (i, j) of a grid (parts, depth, 1) has all rows of block i. Column j broadcasts its share S_j of the blocks: rank
(i, j) receives those of S_j but its own, sums the edges into block i from S_j, and the ranks of a block all-reduce. The
backward is the same along edges turned round. Dense products are made ``depth`` times, gradients of parameters are
those of column 0.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.aggregation.sparse import sum_dtype
from dgcl.bench.published.exchanges import (
    connect_exchanges,
    mean_of_ranks,
    places_by_id,
    scales_of,
    wanted_at,
)
from dgcl.communicator import Communicator
from dgcl.graph import Graph
from dgcl.grid.grid import Grid, as_grid
from dgcl.program.exchange import HALO
from dgcl.ranks.context import context
from dgcl.relation.demand import Demand
from dgcl.topology import Topology

__all__ = ["REDUCE", "ReplicatedRows"]

#: The exchange by which the ranks of a block add up, and spread the sums.
REDUCE = "reduce"


@dataclass(frozen=True, eq=False)
class _Edges:
    """What a rank knows of the graph.

    Attributes:
        forward, backward: ``(2, E)`` int32 edges that it sums, to and from: places in its block, and in its column's
            share; those of the backward go from heads to tails.
        share: Vertices of its column's share of the blocks, ascending.
        scales: ``(n,)`` of the block's vertices, for tails and for heads.
    """

    forward: NDArray[np.int32]
    backward: NDArray[np.int32]
    share: NDArray[np.int64]
    scales: tuple[NDArray[np.float64], NDArray[np.float64]]


class ReplicatedRows:
    """Rows of which each is on ``depth`` ranks, and what models do with them. Construction is collective.

    Args:
        graph, part, topology, reduce, timeout: As for :class:`~dgcl.bench.published.split.SplitRows`.
        grid: (parts, depth, 1).

    Attributes:
        comm: The communicator, whose vertices are copies of rows.
        grid: The grid.
        vertices: ``(n,)`` int64, ascending, of this rank's block.

    Raises:
        ValueError: A grid with slices.
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
        if grid.slices > 1:
            raise ValueError(f"grid ({grid}) must have one slice: 1.5D has whole rows")

        edges: _Edges
        self.comm: Communicator
        self.comm, edges = connect_exchanges(
            graph,
            part,
            grid,
            functools.partial(_lay_out, grid=grid, reduce=reduce),
            topology,
            {HALO: 512, REDUCE: 512},
            timeout,
        )
        self.vertices = self.comm.owned_ids // grid.depth
        self._counts = self.comm.rank % grid.depth == 0
        self._scales = tuple(torch.from_numpy(scale)[:, None] for scale in edges.scales)
        self._reduced = places_by_id(self.comm, REDUCE)
        ids = self.comm.layouts[HALO].global_ids("local") // grid.depth
        by_id = np.argsort(ids, kind="stable")
        local = by_id[np.searchsorted(ids[by_id], edges.share)]
        n, num_local = len(self.vertices), len(ids)
        self._blocks = [
            Block(to, local[origin], n, num_local) for to, origin in (edges.forward, edges.backward)
        ]

    def dispatch(self, x: Tensor) -> Tensor:
        """This rank's block of ``(N, F)`` rows, the same on every rank: ``(n, F)``."""
        return x[self.vertices]

    def collect(self, h: Tensor, width: int) -> Tensor:
        """``(N, width)`` rows, on every rank, of the first column's blocks. Collective."""
        copies = self.comm.collect(h, None)
        assert copies is not None
        return copies[:: self.grid.depth, :width]

    def convolve(self, h: Tensor, weight: Tensor) -> Tensor:
        """Aggregate, then multiply: ``(n, in_channels)`` to ``(n, out_channels)``. Collective.

        Args:
            h: Rows.
            weight: ``(in_channels, out_channels)``, the same on every rank; its gradient is zero but on column 0.
        """
        aggregated: Tensor = _Aggregate.apply(h, self, False)
        return aggregated @ self.once(weight)

    def once(self, parameter: Tensor) -> Tensor:
        """A parameter whose gradient counts on column 0 alone: the other columns have the same."""
        out: Tensor = _Once.apply(parameter, self._counts)
        return out

    def cross_entropy(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean of the whole graph, the same on each rank, with the gradient of all rows. Collective.

        Args:
            logits: ``(n, num_classes)``.
            labels: ``(n,)`` int64 classes of ``vertices``.
            mask: ``(n,)`` bool, the rows that count; default all.
        """
        mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
        own = torch.nn.functional.cross_entropy(logits[mask], labels[mask], reduction="sum")
        return mean_of_ranks(own, mask.sum(), self.comm, counted=self._counts)

    def aggregate(self, h: Tensor, *, transposed: bool = False) -> Tensor:
        """``(n, F)`` to sums over all in-edges, or over out-edges. Not differentiable."""
        before, after = self._scales[::-1] if transposed else self._scales
        block = self._blocks[transposed]
        rows = self.comm.expand(h * before.to(h.dtype), HALO)
        sums = rows.new_empty(len(h), h.shape[1], dtype=sum_dtype(h.dtype))
        block.put(rows, sums)
        held = torch.empty_like(h).index_copy_(0, self._reduced, sums.to(h.dtype))
        total = self.comm.expand(self.comm.fold(held, REDUCE), REDUCE)
        return total.index_select(0, self._reduced) * after.to(h.dtype)


class _Aggregate(torch.autograd.Function):
    """The whole aggregate on each copy, from the whole gradient on each copy."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: ReplicatedRows, transposed: bool) -> Tensor:
        ctx.rows, ctx.transposed = rows, transposed
        return rows.aggregate(h, transposed=transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _Aggregate.apply(grad.contiguous(), ctx.rows, not ctx.transposed), None, None


class _Once(torch.autograd.Function):
    """The same; its gradient is that given, or zero."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, counts: bool) -> Tensor:
        ctx.counts = counts
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad if ctx.counts else torch.zeros_like(grad), None


def _lay_out(
    graph: Graph, owner: NDArray[np.int32], grid: Grid, reduce: str
) -> tuple[Mapping[str, Demand], list[_Edges]]:
    """The demands of both exchanges, and what each rank knows."""
    part = grid.part_of(owner).astype(np.int64)
    # Balanced shares, of which some are empty where there are more columns than blocks.
    blocks = np.arange(grid.parts)
    column_of = blocks * grid.depth // grid.parts if grid.parts >= grid.depth else blocks
    heads = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    tails = graph.indices.astype(np.int64)
    scales = scales_of(graph, reduce)
    column = column_of[part]
    members = [np.flatnonzero(part == i) for i in range(grid.parts)]
    shares = [np.flatnonzero(column == j) for j in range(grid.depth)]
    told = []
    for rank in range(grid.size):
        i, j = grid.part_of(rank), grid.depth_of(rank)
        ends = (heads, tails), (tails, heads)
        mine = [(part[to] == i) & (column[origin] == j) for to, origin in ends]
        forward, backward = (
            np.stack([np.searchsorted(members[i], to[here]), np.searchsorted(shares[j], origin[here])])
            for (to, origin), here in zip(ends, mine, strict=True)
        )
        own_scales = scales[0][members[i]], scales[1][members[i]]
        told.append(_Edges(forward.astype(np.int32), backward.astype(np.int32), shares[j], own_scales))

    r, k = np.repeat(part, grid.depth), np.tile(np.arange(grid.depth), len(part))
    copies = grid.rank_at(r, k, 0)
    sent = np.repeat(column, grid.depth) == k
    others = [np.where(sent, grid.rank_at(i, k, 0), copies) for i in range(grid.parts)]
    same = [grid.rank_at(part, j, 0) for j in range(grid.depth)]
    return {
        HALO: wanted_at(copies, np.stack(others, 1), grid.size),
        REDUCE: wanted_at(owner, np.stack(same, 1), grid.size),
    }, told
