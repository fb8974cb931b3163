"""A plan: trees for all classes, the topology they were made for, and what they cost. Pure data.

`Trees` is what a planner returns; `Plan` is what `make_plan` makes of it: costed, bounded, verified and
signed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.planner.arrays import (
    Int32Array,
    Int64Array,
    integer_array,
    require_length,
    require_pointers,
    require_range,
)
from dgcl.planner.options import PlanOptions as PlanOptions
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology


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
        bound: the best bound that the planner knows of, at least `bounds.best_bound`; None: not computed.
        made_by: name of the method whose trees these are, where the planner chose among several.

    Shapes and pointers are checked here; that the trees deliver the relation is `delivery.verify_trees`.
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
        require_pointers("edge_ptr", self.edge_ptr, num_edges, "the number of edges")
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
        edge_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        edges = np.arange(self.num_edges) + np.repeat(self.edge_ptr[:-1][order] - edge_ptr[:-1], sizes)
        return Trees(
            self.tree_class[order],
            self.tree_count[order],
            edge_ptr,
            self.edge_src[edges],
            self.edge_dst[edges],
            renumbered[self.edge_stage[edges]],
            self.bound,
            self.made_by,
        )


def tree_chunks(trees: Trees, edges: int = 1 << 17) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive trees with about `edges` edges: work that stays in a cache."""
    first = 0
    while first < trees.num_trees:
        last = int(np.searchsorted(trees.edge_ptr, trees.edge_ptr[first] + edges, side="right")) - 1
        last = min(max(first + 1, last), trees.num_trees)
        yield first, last
        first = last


@dataclass(frozen=True, eq=False)
class Plan:
    """Trees together with what they deliver, where, and at what cost. Made by `make_plan` or read by
    `Plan.load`.

    Attributes:
        relation: what is delivered.
        trees: how.
        topology: the machine that the plan was made for; its links are explicit.
        meta: the plan file's meta object (docs/plan-format.md), JSON values only.
    """

    relation: Relation
    trees: Trees
    topology: Topology
    meta: dict[str, Any]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.relation.world_size

    @property
    def method(self) -> str:
        """Name of the planner that made these trees."""
        return str(self.meta["method"])

    @property
    def row_bytes(self) -> int:
        """Bytes per vertex row that the stated seconds are for."""
        return int(self.meta["row_bytes"])

    @property
    def stage_seconds(self) -> list[float]:
        """Predicted seconds of each stage."""
        return list(self.meta["stage_seconds"])

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds of one allgather: the sum over stages."""
        return float(self.meta["predicted_seconds"])

    @property
    def lower_bound_seconds(self) -> float:
        """Seconds that no plan in the model can beat."""
        return float(self.meta["lower_bound_seconds"])

    @property
    def gap(self) -> float:
        """predicted / lower bound - 1; 0 when nothing is sent."""
        return float(self.meta["gap"])

    @property
    def direct_seconds(self) -> float | None:
        """Predicted seconds of peer-to-peer in the same model; None when a needed pair has no link."""
        value = self.meta["direct_seconds"]
        return None if value is None else float(value)

    @property
    def planning_seconds(self) -> float:
        """Seconds from relation in memory to plan in memory."""
        return float(self.meta["planning_seconds"])

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.meta["stage_seconds"])

    @property
    def fingerprint(self) -> str:
        """Hex sha256 over the arrays and the canonical meta (`plan_io.fingerprint` has the exact recipe)."""
        return str(self.meta["fingerprint"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/plan-format.md)."""
        from dgcl.planner.plan_io import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file and check its structure (`verify.check_plan_file` proves the rest).

        Raises:
            ValueError: for anything that is not a plan, naming the file and what is wrong.
            OSError: when the file cannot be opened.
        """
        from dgcl.planner.plan_io import load_plan

        return load_plan(path)
