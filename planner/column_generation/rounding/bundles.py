"""Bundles: their trees in whole rows, from a fractional plan, and the vertices of classes that take them.

A bundle is all rows of one owner that must be brought to one set of one group of devices. The way of a row to one
group is independent of its way to another, so bundles are planned as a whole, whatever classes their rows are of; there
are at most P * F bundles for millions of classes. The trees of a fractional plan's answers each get a whole number of
rows. Once the trees of bundles are known, the vertices of every class are assigned to the trees of its bundles, in
order, and the trees of a vertex in all groups are joined to one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees, empty_choices
from dgcl.planner.column_generation.rounding.cheapest import Instance, cheapest_of
from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    LinkEnds,
    cleaned,
    compact,
    joined,
    same_tree,
)
from dgcl.planner.planner_compiled import compiled
from dgcl.planner.relation import mask_words
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

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

    def instance(self, problem: Problem, arrays: TopologyArrays) -> Instance:
        """Return the instance in which each bundle is a class of one item."""
        ends, item_ptr = LinkEnds(arrays.link_src, arrays.link_dst), np.arange(self.source.shape[0] + 1)
        space = problem.space
        return Instance(
            space.family, space.moves, problem.routes, ends, item_ptr, self.set_, self.source, self.dests
        )


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
    return Bundles(
        source.astype(np.int32), set_.astype(np.int32), masks[set_], space.rows[source, set_], number
    )


def assign_vertices(
    forest: Forest, bundles: Bundles, space: StateSpace, relation: Relation, arrays: TopologyArrays
) -> Trees:
    """Return trees for all classes from a compact forest of trees for all bundles.

    Second deliveries and useless relays are dropped.
    """
    num = int(forest.used[0])
    head = np.searchsorted(forest.class_[:num], np.arange(bundles.source.shape[0])).astype(np.int64)
    longest = int(forest.size[:num].max(initial=0)) * len(space.groups)
    tree_class, tree_count, edge_ptr, link, stage = _assign_vertices(
        forest, head, bundles.number, space.items.ptr, space.item_set, relation.source, relation.dests,
        relation.count, LinkEnds(arrays.link_src, arrays.link_dst), longest, relation.world_size,
    )  # fmt: skip
    return Trees(tree_class, tree_count, edge_ptr, arrays.link_src[link], arrays.link_dst[link], stage)


@compiled(entry=False)
def _next_tree(forest: Forest, t: int, out: Int64Array) -> None:
    """Set `out` to the rows of tree t, t, and where its edges begin and end."""
    out[0], out[1] = forest.count[t], t
    out[2], out[3] = forest.first[t], forest.first[t] + forest.size[t]


@compiled
def _assign_vertices(
    forest: Forest,
    head: Int64Array,
    number: Int32Array,
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    dests: MaskArray,
    count: Int64Array,
    ends: LinkEnds,
    longest: int,
    world: int,
) -> tuple[Int32Array, Int64Array, Int64Array, Int32Array, Int32Array]:
    """Return the arrays of `assign_vertices`; `head` (N,) is the first tree of each bundle."""
    num_classes = source.shape[0]
    rows_sent = rows_moved = 0.0
    for t in range(forest.used[0]):
        rows_sent += forest.count[t]
        rows_moved += forest.count[t] * forest.size[t]
    room_trees = num_classes + forest.used[0]  # each tree exhausts a class or a tree of a bundle
    room_edges = int(1.1 * rows_moved / max(1.0, rows_sent) * item_set.shape[0]) + 2 * longest
    tree_class, tree_count = np.empty(room_trees, np.int32), np.empty(room_trees, np.int64)
    edge_ptr = np.zeros(room_trees + 1, np.int64)
    out_link, out_stage = np.empty(room_edges, np.int32), np.empty(room_edges, np.int32)
    entered, needed = np.empty(world, np.int32), np.empty(world, np.int32)
    sorted_ = np.empty(longest, np.int64)  # the edges of one tree by (stage, link)
    keys = np.empty(forest.used[1], np.int64)
    for e in range(keys.shape[0]):
        keys[e] = np.int64(forest.stage[e]) << 32 | forest.link[e]
    now = np.empty((head.shape[0], 4), np.int64)  # of each bundle: rows left in its tree, the tree, its edges
    for b in range(head.shape[0]):
        _next_tree(forest, head[b], now[b])
    trees = edges = 0
    for c in range(num_classes):
        rows = count[c]
        first_tree = trees
        while rows > 0:
            size = rows
            for i in range(item_ptr[c], item_ptr[c + 1]):
                b = number[source[c], item_set[i]]
                if now[b, 0] == 0:
                    _next_tree(forest, now[b, 1] + 1, now[b])
                size = min(size, now[b, 0])
            if edges + longest > room_edges:
                room_edges = 2 * room_edges
                out_link = np.concatenate((out_link, np.empty(room_edges - out_link.shape[0], np.int32)))
                out_stage = np.concatenate((out_stage, np.empty(room_edges - out_stage.shape[0], np.int32)))
            link, stage = out_link[edges:], out_stage[edges:]
            num = 0
            for i in range(item_ptr[c], item_ptr[c + 1]):
                b = number[source[c], item_set[i]]
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
            same = same_tree(edge_ptr, out_link, out_stage, first_tree, trees, num)
            if same >= 0:
                tree_count[same] += size
                continue
            tree_class[trees], tree_count[trees] = c, size
            edges += num
            trees += 1
            edge_ptr[trees] = edges
    return tree_class[:trees], tree_count[:trees], edge_ptr[: trees + 1], out_link[:edges], out_stage[:edges]


def whole_forest(
    answers: Iterable[tuple[FloatArray, FloatArray]],
    bundles: Bundles,
    problem: Problem,
    arrays: TopologyArrays,
) -> Forest:
    """Return a compact forest of trees for all bundles.

    Args:
        answers: prices (K, L), at which the trees of the answer are the cheapest, and the share of the rows of each
            owner's block (B,) that follow it.
        bundles, problem, arrays: what is to be planned.
    """
    space, instance = problem.space, bundles.instance(problem, arrays)
    block = np.searchsorted(problem.block_ptr, bundles.source, side="right") - 1
    units, parts = min(UNITS, MOST / float(bundles.count.max())), []
    for price, share in answers:
        rows = np.zeros(price.shape)
        choices = empty_choices(price.shape[0], space.world_size, space.num_sets)
        amount = np.ceil(units * share[block] * bundles.count).astype(np.int64)
        which = np.flatnonzero(amount)
        cheapest_trees(space.family, space.moves, price, choices)
        parts.append((which, amount[which], *cheapest_of(instance, choices, which, amount[which], rows)))
    forest = joined(parts, arrays)
    _round(forest, bundles.count, rows)
    return compact(forest)


@compiled
def _round(forest: Forest, rows: Int64Array, error: FloatArray) -> None:
    """Turn the counts of trees, ordered by bundle, into whole ones that add up to the `rows` of each bundle.

    They are rounded down; each row that remains goes to the tree with the largest shortfall, its own and that of the
    (stage, link) pairs that it uses. So later bundles make up for the rounding of earlier ones. `error` (K, L) is
    scratch.
    """
    error[:] = 0.0
    first, num = 0, forest.used[0]
    missing, pull = np.empty(num), np.empty(num)
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
