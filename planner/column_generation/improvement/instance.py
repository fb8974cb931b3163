"""What the improvements of whole plans read and never change, in one tuple for compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.routes import Routes
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Moves
from dgcl.planner.column_generation.trees.edges import LinkEnds

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


class Instance(NamedTuple):
    """States, links, and the C classes (or bundles) whose rows travel; I items, W mask words.

    Attributes:
        family, moves: the states (`StateSpace`).
        routes, ends: what links load, and the devices that they join.
        item_ptr, item_set: (C+1,) int64 and (I,) int32, the sets to which the rows of each class must be brought.
        source: (C,) int32, the owners.
        dests: (C, W) uint64, the destinations.
    """

    family: SubsetFamily
    moves: Moves
    routes: Routes
    ends: LinkEnds
    item_ptr: Int64Array
    item_set: Int32Array
    source: Int32Array
    dests: MaskArray


def class_instance(problem: Problem, relation: Relation, arrays: TopologyArrays) -> Instance:
    """Return the instance of all classes of a relation."""
    space = problem.space
    return Instance(
        space.family,
        space.moves,
        problem.routes,
        LinkEnds(arrays.link_src, arrays.link_dst),
        space.items.ptr,
        space.item_set,
        relation.source,
        relation.dests,
    )
