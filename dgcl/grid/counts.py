"""Rows that travel on a grid, rank by rank, without a plan or programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.grid.grid import Grid
from dgcl.grid.needs import Needs


@dataclass(frozen=True, eq=False)
class Counts:
    """What each rank receives in an aggregation, and sums. Its backward receives ``folded`` items and ``expanded``.

    Attributes:
        grid: The grid.
        expanded: (P,) int64 items received before the sums.
        folded: (P,) int64 partial sums of items received after them.
        edges: (P,) int64 edges summed, and held.
    """

    grid: Grid
    expanded: NDArray[np.int64]
    folded: NDArray[np.int64]
    edges: NDArray[np.int64]

    @property
    def imbalance(self) -> float:
        """Edges of the fullest rank over the mean; 1 where there are no edges."""
        return float(self.edges.max() / self.edges.mean()) if self.edges.any() else 1.0


def count_needs(needs: Needs) -> Counts:
    """Count what travels; time O(N (parts + depth) / 64 + P)."""
    grid, owner = needs.grid, needs.owner
    part, depth = grid.part_of(owner), grid.depth_of(owner)
    read_at = np.zeros((grid.parts, grid.depth), np.int64)  # vertices at a depth that a part reads
    for r in range(grid.parts):
        read_at[r] = np.bincount(depth[has_bit(needs.readers, r)], minlength=grid.depth)
    expanded = np.repeat(read_at.ravel(), grid.slices)
    expanded -= np.bincount(owner[_has_own(needs.readers, part)], minlength=grid.size)
    contributors = np.bitwise_count(needs.summers).sum(0, dtype=np.int64)
    folded = grid.slices * np.bincount(owner, contributors, grid.size).astype(np.int64)
    folded -= np.bincount(owner[_has_own(needs.summers, depth)], minlength=grid.size)
    return Counts(grid, expanded, folded, needs.edges_of_ranks)


def has_bit(masks: NDArray[Any], bit: int) -> NDArray[np.bool_]:
    """(N,) whether a bit is set in masks (W, N)."""
    words = masks[bit // 64]
    return (words & words.dtype.type(1 << bit % 64)) != 0


def _has_own(masks: NDArray[Any], bits: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(N,) whether each vertex's own bit is set."""
    words = masks[bits // 64, np.arange(len(bits))]
    return (words >> (bits % 64).astype(masks.dtype) & masks.dtype.type(1)) != 0
