"""Gives the cheapest trees of classes or bundles at given prices as lists of edges, ordered by stage.

They are read from the tables of pricing/tree_program.py, one tree per group of devices, and joined. An edge that
delivers a row a second time, or to a relay that does not pass it on, is dropped, so a tree may cost less than its
tables say.
Called by `bundles`, `planner/column_generation/improvement/tree_exchange`,
`planner/column_generation/improvement/reparent` and `planner/column_generation/search/grouped`. Free to change while
trees reach every destination and enter no device twice (`tests/planner/column_generation/test_whole_plans.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Choices, trace
from dgcl.planner.column_generation.rounding.forest import LinkEnds, cleaned, sort_by_stage
from dgcl.planner.planner_compiled import compiled

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem


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


def make_instance(
    problem: Problem, item_ptr: Int64Array, item_set: Int32Array, source: Int32Array, dests: MaskArray
) -> Instance:
    """Return the instance of these classes."""
    space = problem.space
    ends = LinkEnds(space.arrays.link_src, space.arrays.link_dst)
    return Instance(space.family, space.moves, problem.routes, ends, item_ptr, item_set, source, dests)


def class_instance(problem: Problem) -> Instance:
    """Return the instance of all classes of the relation."""
    space = problem.space
    return make_instance(problem, space.item_ptr, space.item_set, space.relation.source, space.relation.dests)


class TreeBuffer(NamedTuple):
    """The edges of one tree, with scratch; P devices.

    Attributes:
        link, stage: int32, the edges.
        stack: (n, 3) int64 scratch of `trace`.
        entered, needed: (P,) int32 scratch of `cleaned`.
    """

    link: Int32Array
    stage: Int32Array
    stack: Int64Array
    entered: Int32Array
    needed: Int32Array


def empty_tree(world: int, room: int) -> TreeBuffer:
    """Allocate a tree of up to `room` edges."""
    return TreeBuffer(
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty((room, 3), np.int64),
        np.empty(world, np.int32),
        np.empty(world, np.int32),
    )


@compiled(inline=False, allocates=False, entry=False)
def cheapest_tree(instance: Instance, choices: Choices, c: int, out: TreeBuffer) -> int:
    """Put the cheapest tree of class c into `out`, clean and by stages; return the number of its edges."""
    source, num = instance.source[c], 0
    for i in range(instance.item_ptr[c], instance.item_ptr[c + 1]):
        num = trace(
            instance.family, instance.moves, choices, source, instance.item_set[i], out.link, out.stage, num, out.stack
        )  # fmt: skip
    sort_by_stage(out.link, out.stage, num)
    return cleaned(
        out.link, out.stage, num, source, instance.dests[c], instance.ends, out.entered, out.needed
    )


def cheapest_of(
    instance: Instance, choices: Choices, which: Int64Array, count: Int64Array, link_rows: FloatArray
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return sizes and edges of the cheapest trees of the bundles `which`, and add their rows to `link_rows`."""
    num_stages, world, _ = choices.split.shape
    size = np.empty(which.shape[0], np.int64)
    edges = np.empty((2, which.shape[0] * world), np.int32)  # a tree enters each device once
    tree = empty_tree(world, 4 * world * num_stages)
    used = _write_cheapest(instance, choices, which.astype(np.int32), count, link_rows, tree, size, *edges)
    return size, *edges[:, :used].copy()


@compiled(allocates=False)
def _write_cheapest(
    instance: Instance,
    choices: Choices,
    which: Int32Array,
    count: Int64Array,
    link_rows: FloatArray,
    tree: TreeBuffer,
    size: Int64Array,
    link: Int32Array,
    stage: Int32Array,
) -> int:
    """Write what `cheapest_of` returns into `size`, `link` and `stage`; return the number of edges."""
    edges = 0
    for n in range(which.shape[0]):
        num = cheapest_tree(instance, choices, which[n], tree)
        for e in range(num):
            link[edges + e], stage[edges + e] = tree.link[e], tree.stage[e]
            link_rows[tree.stage[e], tree.link[e]] += count[n]
        size[n] = num
        edges += num
    return edges
