"""Trees, the ways in which the rows of each class travel: what a planner returns and a plan holds.

A class may have several trees, for a part of its vertices each; an edge is a sender, a receiver and a stage. Shapes
and pointers are checked here; ``verify/delivery.py`` proves that trees deliver.
Called by users, `plan`, `cost`, `planner/methods/registry`, `dgcl/program/compile` and others. Free to change while
wrong arrays are refused by name (`tests/planner/test_plan_files.py`), and stages that nothing uses are closed up
(`tests/planner/methods/test_make_plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dgcl.planner.array_types import (
    Int32Array,
    Int64Array,
    integer_array,
    pointers,
    ranges,
    require_edge_pointers,
    require_length,
    require_range,
)

_CELLS = 1 << 22  # of a table by tree and rank


@dataclass(frozen=True)
class Bound:
    """A time that no plan of at most world_size - 1 stages can beat, and what forbids it.

    Attributes:
        seconds: the bound.
        where: readable, completes "limited by: ", e.g. "machine 0's NIC, in".
    """

    seconds: float
    where: str


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees for the classes of one relation (docs/plan-format.md, "Arrays").

    Attributes:
        tree_class: (T,) int32, the class that each tree serves.
        tree_count: (T,) int64, how many vertices of the class use it, >= 1; the counts of a class add up to
            its size.
        edge_ptr: (T+1,) int64, edges of tree t are ``edge_ptr[t]:edge_ptr[t+1]``, parents first.
        edge_src, edge_dst, edge_stage: (E,) int32, sender rank, receiver rank, stage.
        bound: the best bound that the planner knows of, at least that of
            :func:`dgcl.planner.bounds.best.best_bound`; None: not computed.
        made_by: name of the method whose trees these are, where the planner chose among several.

    Shapes and pointers are checked here; that the trees deliver the relation is proved by
    :func:`dgcl.planner.verify.delivery.verify_trees`.

    Raises:
        ValueError, TypeError: An array of a wrong type, shape or range; names the array.
    """

    tree_class: Int32Array
    tree_count: Int64Array
    edge_ptr: Int64Array
    edge_src: Int32Array
    edge_dst: Int32Array
    edge_stage: Int32Array
    bound: Bound | None = None
    made_by: str = ""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name in ("tree_class", "edge_src", "edge_dst", "edge_stage"):
            set_(self, name, integer_array(name, getattr(self, name), np.int32, 1))
        for name in ("tree_count", "edge_ptr"):
            set_(self, name, integer_array(name, getattr(self, name), np.int64, 1))
        num_trees, num_edges = self.tree_class.shape[0], self.edge_src.shape[0]
        require_length("tree_count", self.tree_count, num_trees, "one per tree")
        require_length("edge_ptr", self.edge_ptr, num_trees + 1, "one per tree, plus one")
        require_length("edge_dst", self.edge_dst, num_edges, "one per edge")
        require_length("edge_stage", self.edge_stage, num_edges, "one per edge")
        require_edge_pointers(self.edge_ptr, num_edges)
        require_range("tree_count", self.tree_count, 1, 1 << 62, "a positive number of vertices")
        require_range("edge_stage", self.edge_stage, 0, 1 << 30, "a stage")

    @property
    def num_trees(self) -> int:
        """Number of trees T."""
        return int(self.tree_class.shape[0])

    @property
    def num_edges(self) -> int:
        """Number of tree edges E."""
        return int(self.edge_src.shape[0])

    @property
    def num_stages(self) -> int:
        """Largest stage plus one; 0 without edges."""
        return int(self.edge_stage.max()) + 1 if self.num_edges else 0

    def edge_tree(self) -> Int64Array:
        """Return the tree of each edge, (E,) int64."""
        return np.repeat(np.arange(self.num_trees), np.diff(self.edge_ptr))

    def edge_count(self) -> Int64Array:
        """Return the rows that travel over each edge, (E,) int64."""
        return np.repeat(self.tree_count, np.diff(self.edge_ptr))

    def parents(self, world_size: int) -> Int64Array:
        """Return the edge of the same tree that enters each edge's sender, (E,) int64; -1 where that is the owner."""
        parent = np.full(self.num_edges, -1, np.int64)
        step = max(1, _CELLS // world_size)
        for first in range(0, self.num_trees, step):
            last = min(self.num_trees, first + step)
            edges = np.arange(self.edge_ptr[first], self.edge_ptr[last])
            cell = np.repeat(np.arange(last - first), np.diff(self.edge_ptr[first : last + 1])) * world_size
            entered = np.full((last - first) * world_size, -1, np.int64)
            entered[cell + self.edge_dst[edges]] = edges
            parent[edges] = entered[cell + self.edge_src[edges]]
        return parent

    def rows_moved(self) -> int:
        """Return the number of (row, link) hops of the whole plan."""
        return int(self.edge_count().sum())

    def normalised(self) -> Trees:
        """Return the same plan with trees ordered by class (stable) and without stages that nothing uses.

        Neither changes what is sent nor what it costs.
        """
        used = np.bincount(self.edge_stage, minlength=1) > 0
        ordered = bool((self.tree_class[1:] >= self.tree_class[:-1]).all())
        if ordered and (used.all() or not self.num_edges):
            return self
        renumbered = (np.cumsum(used) - 1).astype(np.int32)
        order = np.argsort(self.tree_class, kind="stable")
        sizes = np.diff(self.edge_ptr)[order]
        edges = ranges(self.edge_ptr[order], sizes)
        return Trees(
            self.tree_class[order],
            self.tree_count[order],
            pointers(sizes),
            self.edge_src[edges],
            self.edge_dst[edges],
            renumbered[self.edge_stage[edges]],
            self.bound,
            self.made_by,
        )


def tree_chunks(trees: Trees) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive trees with about 131,072 edges: work that stays in a cache."""
    first = 0
    while first < trees.num_trees:
        last = int(np.searchsorted(trees.edge_ptr, trees.edge_ptr[first] + (1 << 17), side="right")) - 1
        last = min(max(first + 1, last), trees.num_trees)
        yield first, last
        first = last
