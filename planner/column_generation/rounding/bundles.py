"""Rounds a fractional plan to trees of whole rows, and assigns the vertices of every class to them.

A *bundle* is all rows of one owner that must be brought to one set of one group of devices: at most P * F for P devices
and F sets, for millions of classes. A row's way to one group is independent of its way to another, so bundles are
rounded as a whole, whatever classes their rows are of. Then the vertices of every class are assigned to the trees of
its bundles, in order, and the trees of a vertex in all groups are joined to one.
Called by `planner/column_generation/search/grouped` and `planner/column_generation/search/stage_search`. Free to change
while every vertex gets a tree and stages stay within a row or two of their time
(`tests/planner/column_generation/test_whole_plans.py`), and bundles hold each row once per group
(`tests/planner/column_generation/test_grouped.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees, empty_choices
from dgcl.planner.column_generation.rounding.cheapest import Instance, cheapest_of, make_instance
from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    LinkEnds,
    cleaned,
    compact,
    joined,
    trees_from_forest,
)
from dgcl.planner.planner_compiled import compiled
from dgcl.planner.relation import mask_words
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.pricing.states import StateSpace

PLASTIC = 0.7548776662466927  # 1 / the plastic number; fractional parts of its multiples are evenly spread
UNITS, MOST = 2.0**20, 2.0**61  # in a row, and in all: trees are merged with their rows counted in these


@dataclass(frozen=True, eq=False)
class Bundles:
    """N bundles, in an order that keeps those of one owner, and those of one set, far apart.

    Attributes:
        source: (N,) int32, the owners.
        set_: (N,) int32, the sets.
        dests: (N, W) uint64, the sets as destination masks.
        count: (N,) int64, rows.
        number: (P, F) int32, the bundle of an owner and a set; -1: none.
    """

    source: Int32Array
    set_: Int32Array
    dests: MaskArray
    count: Int64Array
    number: Int32Array

    def instance(self, problem: Problem) -> Instance:
        """Return the instance in which each bundle is a class of one item."""
        item_ptr = np.arange(self.source.shape[0] + 1)
        return make_instance(problem, item_ptr, self.set_, self.source, self.dests)


def make_bundles(space: StateSpace) -> Bundles:
    """Return the bundles of a state space."""
    set_, source = np.nonzero(space.rows.T)
    order = np.argsort(np.arange(set_.shape[0]) * PLASTIC % 1.0, kind="stable")
    set_, source = set_[order], source[order]
    number = np.full(space.rows.shape, -1, np.int32)
    number[source, set_] = np.arange(set_.shape[0])
    masks = np.zeros((space.num_sets, mask_words(space.world_size)), np.uint64)
    for g, group in enumerate(space.groups):
        part = slice(int(space.family.set_ptr[g]), int(space.family.set_ptr[g + 1]))
        for bit, device in enumerate(group.tolist()):
            has = (space.family.set_mask[part] >> bit & 1).astype(np.uint64)
            masks[part, device >> 6] |= has << np.uint64(device & 63)
    owners, dests = source.astype(np.int32), masks[set_]
    owners.flags.writeable = dests.flags.writeable = False  # as a relation's, for which kernels are compiled
    return Bundles(owners, set_.astype(np.int32), dests, space.rows[source, set_], number)


def assign_vertices(forest: Forest, bundles: Bundles, space: StateSpace) -> Trees:
    """Return trees for all classes from a compact forest of trees for all bundles.

    Second deliveries and useless relays are dropped.
    """
    relation, arrays, item_ptr, num = space.relation, space.arrays, space.item_ptr, int(forest.used[0])
    first_tree = np.searchsorted(forest.class_[:num], np.arange(bundles.source.shape[0]))
    size = forest.size[:num]
    longest = int(size.max(initial=0)) * len(space.groups)
    bundle = bundles.number[np.repeat(relation.source, np.diff(item_ptr)), space.item_set]
    # Each tree exhausts a class or a tree of a bundle. Pages that are not used take no memory.
    of_class = np.add.reduceat(np.maximum.reduceat(size, first_tree)[bundle], item_ptr[:-1])
    room_trees, room_edges = relation.num_classes + num, int(of_class.sum()) + (num + 1) * longest
    tree_class, tree_count = np.empty(room_trees, np.int32), np.empty(room_trees, np.int64)
    edge_ptr, edges = np.zeros(room_trees + 1, np.int64), np.empty((2, room_edges), np.int32)
    entered, needed = np.empty((2, relation.world_size), np.int32)
    keys = forest.stage[: forest.used[1]].astype(np.int64) << 32 | forest.link[: forest.used[1]]
    trees = _assign_vertices(
        forest, first_tree, bundle, item_ptr, relation.source, relation.dests, relation.count,
        LinkEnds(arrays.link_src, arrays.link_dst), keys, np.empty((first_tree.shape[0], 4), np.int64),
        np.empty(longest, np.int64), entered, needed, tree_class, tree_count, edge_ptr, edges[0], edges[1],
    )  # fmt: skip
    num_edges = np.array([trees, edge_ptr[trees]])
    whole = Forest(tree_class, tree_count, edge_ptr, np.diff(edge_ptr), edges[0], edges[1], num_edges)
    return trees_from_forest(compact(whole), arrays)


@compiled(allocates=False, entry=False)
def _next_tree(forest: Forest, t: int, out: Int64Array) -> None:
    """Set `out` to the rows of tree t, t, and where its edges begin and end."""
    out[0], out[1] = forest.count[t], t
    out[2], out[3] = forest.first[t], forest.first[t] + forest.size[t]


@compiled(allocates=False)
def _assign_vertices(
    forest: Forest,
    bundle_tree: Int64Array,
    bundle: Int32Array,
    item_ptr: Int64Array,
    source: Int32Array,
    dests: MaskArray,
    count: Int64Array,
    ends: LinkEnds,
    keys: Int64Array,
    now: Int64Array,
    sorted_: Int64Array,
    entered: Int32Array,
    needed: Int32Array,
    tree_class: Int32Array,
    tree_count: Int64Array,
    edge_ptr: Int64Array,
    out_link: Int32Array,
    out_stage: Int32Array,
) -> int:
    """Write the trees of `assign_vertices`; return how many.

    Args:
        forest, bundle_tree: the trees, and the first of each bundle.
        bundle, item_ptr: the bundle of each item, and the items of each class.
        source, dests, count, ends: of the classes and links.
        keys: the edges of the forest as stage * 2**32 + link.
        now: scratch; of each bundle the rows left in its tree, the tree, its edges.
        sorted_: scratch; the edges of one tree by key.
        entered, needed: scratch of `cleaned`.
        tree_class, tree_count, edge_ptr, out_link, out_stage: outputs, with room.
    """
    for b in range(bundle_tree.shape[0]):
        _next_tree(forest, bundle_tree[b], now[b])
    trees = edges = 0
    for c in range(source.shape[0]):
        rows = count[c]
        while rows > 0:
            size = rows
            for i in range(item_ptr[c], item_ptr[c + 1]):
                b = bundle[i]
                if now[b, 0] == 0:
                    _next_tree(forest, now[b, 1] + 1, now[b])
                size = min(size, now[b, 0])
            link, stage = out_link[edges:], out_stage[edges:]
            num = 0
            for i in range(item_ptr[c], item_ptr[c + 1]):
                b = bundle[i]
                now[b, 0] -= size
                for e in range(now[b, 2], now[b, 3]):
                    key, at = keys[e], num
                    while at > 0 and sorted_[at - 1] > key:
                        sorted_[at] = sorted_[at - 1]
                        at -= 1
                    sorted_[at] = key
                    num += 1
            for e in range(num):
                link[e], stage[e] = sorted_[e] & 0xFFFFFFFF, sorted_[e] >> 32
            num = cleaned(link, stage, num, source[c], dests[c], ends, entered, needed)
            rows -= size
            tree_class[trees], tree_count[trees] = c, size
            edges += num
            trees += 1
            edge_ptr[trees] = edges
    return trees


def whole_forest(
    answers: Iterable[tuple[FloatArray, FloatArray]],
    bundles: Bundles,
    problem: Problem,
) -> Forest:
    """Return a compact forest of trees for all bundles.

    Args:
        answers: prices (K, L), at which the trees of the answer are the cheapest, and the share of the rows of each
            owner's block (B,) that follow it.
        bundles, problem: what is to be planned.
    """
    space, instance = problem.space, bundles.instance(problem)
    block = np.searchsorted(problem.block_ptr, bundles.source, side="right") - 1
    units, parts = min(UNITS, MOST / float(bundles.count.max())), []
    for price, share in answers:
        rows = np.zeros(price.shape)
        choices = empty_choices(price.shape[0], space)
        amount = np.ceil(units * share[block] * bundles.count).astype(np.int64)
        which = np.flatnonzero(amount)
        cheapest_trees(space.family, space.moves, price, choices)
        parts.append((which, amount[which], *cheapest_of(instance, choices, which, amount[which], rows)))
    forest = joined(parts)
    rows[:] = 0.0
    _round(forest, bundles.count, rows, *np.empty((2, forest.used[0])))
    return compact(forest)


@compiled(allocates=False)
def _round(
    forest: Forest, rows: Int64Array, error: FloatArray, missing: FloatArray, pull: FloatArray
) -> None:
    """Turn the counts of trees, ordered by bundle, into whole ones that add up to the `rows` of each bundle.

    They are rounded down; each row that remains goes to the tree with the largest shortfall, its own and that of the
    (stage, link) pairs that it uses. So later bundles make up for the rounding of earlier ones. Scratch: `error`
    (K, L), zeros at first; `missing` and `pull`, of each tree.
    """
    first, num = 0, forest.used[0]
    while first < num:
        bundle, last, total = forest.class_[first], first, 0.0
        while last < num and forest.class_[last] == bundle:
            total += forest.count[last]
            last += 1
        left = rows[bundle]
        for t in range(first, last):
            exact = rows[bundle] * (forest.count[t] / total)
            forest.count[t] = np.int64(np.floor(exact + 1e-9))
            left -= forest.count[t]
            missing[t], pull[t] = exact - forest.count[t], 0.0
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                pull[t] += error[forest.stage[e], forest.link[e]]
        while left != 0:  # floors of very large numbers can exceed the total by a few
            step, best = 1 if left > 0 else -1, -1
            for t in range(first, last):
                if step < 0 and forest.count[t] == 0:
                    continue
                if best < 0 or step * (missing[t] + pull[t]) > step * (missing[best] + pull[best]):
                    best = t
            forest.count[best] += step
            missing[best] -= step
            left -= step
        for t in range(first, last):
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                error[forest.stage[e], forest.link[e]] += missing[t]
        first = last
