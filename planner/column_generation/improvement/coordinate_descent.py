"""Coordinate descent: trees for bundles, improved batch by batch until all directions are evenly busy.

A bundle is all rows of one owner that must be brought to one set of one group of devices.

With devices in groups (pricing/groups.py) the way of a row to one group is independent of its way to another. A bundle
is therefore planned as a whole, whatever classes its rows are of; there are at most P * F bundles for millions of
classes. Once their trees are known, the vertices of every class are assigned to the trees of its bundles, in order, and
the trees of a vertex in all groups are joined to one.

At the start every bundle gets the cheapest tree at the prices of one answer of the aggregated problem (aggregated.py),
a batch of bundles at a time; directions that are ahead of their share cost more for the batches that follow. Then come
*passes*: batch by batch the bundles with expensive trees are offered the cheapest trees at the prices of that moment
(exchange.py), and take them as far as that makes the smoothed makespan (makespan.py) shorter. Rounds of multiplicative
weights turn all rows at once to what is cheap; this converges in a handful of passes, and always holds a whole plan.

The makespan is smoothed as sharply in a short stage as in a long one. With the same beta for all a stage would cost
log(directions) / beta before anything is sent in it, and short stages, in which NICs and switches are busy together,
would vanish.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.improvement.exchange import Instance, cheapest_tree, empty_tree, exchange
from dgcl.planner.column_generation.improvement.makespan import recompute, smooth_makespan
from dgcl.planner.column_generation.pricing.flows import add_busy_times, link_prices
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees, empty_choices
from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    LinkEnds,
    cleaned,
    compact,
    forest_from_trees,
    same_tree,
)
from dgcl.planner.compiled import compiled
from dgcl.planner.relation import mask_words
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.aggregated import AggregatedSolution
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

PLASTIC = 0.7548776662466927  # 1 / the plastic number; fractional parts of its multiples are evenly spread


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

    Second deliveries and useless relays are dropped, as in rounding/assembly.py.
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


BATCHES = 32  # price updates in a pass
MIN_BATCH = 64  # bundles
SHARPNESS = (20.0, 20.0, 50.0, 50.0, 100.0, 200.0, 400.0)  # beta(k) times the time of stage k, by pass
SHORT = 0.02  # of the plan's time: no stage counts as shorter
DIVIDED = 64  # rows from which a bundle is divided between the answers
GOLDEN = 0.6180339887498949  # 1 / the golden ratio; fractional parts of its multiples are evenly spread
# How much more expensive a direction becomes that is ahead of its share: the exponent, and its largest value.
CORRECTION, MAX_CORRECTION = 5.0, 5.0


class CoordinateDescent:
    """A plan of `num_stages` stages for all bundles, improved pass by pass.

    Attributes:
        time: the true time of the best plan so far, in rows per GB/s.
        num_passes: number of passes so far.
    """

    def __init__(
        self,
        problem: Problem,
        bundles: Bundles,
        arrays: TopologyArrays,
        aggregated: AggregatedSolution,
        latency_unit: float,
        deadline: float = np.inf,
    ) -> None:
        num_stages = aggregated.busy.shape[0]
        self.problem, self.bundles, self.arrays, self.num_stages = problem, bundles, arrays, num_stages
        space = problem.space
        self._choices = empty_choices(num_stages, space.world_size, space.num_sets)
        self._instance = bundles.instance(problem, arrays)
        self._forest = self._start(aggregated, deadline)
        self._best = compact(self._forest)  # a copy: passes change the other in place, and may gain nothing
        self._smooth = smooth_makespan(arrays, num_stages, latency_unit, self._forest)
        self.num_passes = 0
        self.time = recompute(self._smooth, problem.routes, np.ones(num_stages))

    def run_pass(self, enough: float, deadline: float = np.inf) -> None:
        """Offer every bundle a cheaper tree once.

        Args:
            enough: stop when the plan takes no longer than this, in rows per GB/s.
            deadline: on the clock of time.perf_counter.
        """
        sharpness = SHARPNESS[min(self.num_passes, len(SHARPNESS) - 1)]
        num = int(self._forest.used[0])
        step = max(MIN_BATCH, -(-num // BATCHES))
        reached = self.time
        for low in range(0, num, step):
            top = self._smooth.top
            beta = sharpness / np.maximum(top, SHORT * top.sum())
            reached = exchange(
                self._instance, self._choices, self._forest, self._smooth, beta, enough, 1, low, low + step, False
            )  # fmt: skip
            if reached <= enough or time.perf_counter() > deadline:
                break
        self._forest = compact(self._forest)
        self.num_passes += 1
        if reached < self.time:
            self.time, self._best = reached, compact(self._forest)

    def forest(self) -> Forest:
        """Return the best trees so far, compact; classes are bundles."""
        return self._best

    def _start(self, aggregated: AggregatedSolution, deadline: float) -> Forest:
        """Give every bundle trees that follow the aggregated answers; after the deadline all that are left at once."""
        space, routes, bundles = self.problem.space, self.problem.routes, self.bundles
        amounts = _divide_rows(bundles.count, aggregated.share)
        length = np.maximum(aggregated.busy.max(axis=1), SHORT * aggregated.busy.max(axis=1).sum())
        rows = np.zeros((self.num_stages, routes.base.shape[0]))
        price = np.empty_like(rows)
        parts = []
        num, done, total = bundles.count.shape[0], 0, int(bundles.count.sum())
        step = max(MIN_BATCH, -(-num // BATCHES))
        low = 0
        while low < num:
            step = num if time.perf_counter() > deadline else step
            busy = np.zeros_like(aggregated.busy)
            add_busy_times(rows, routes, busy)
            ahead = CORRECTION * (busy - done / total * aggregated.busy) / length[:, None]
            correction = np.exp(np.clip(ahead, -MAX_CORRECTION, MAX_CORRECTION))
            for weight, amount in zip(aggregated.weights, amounts[:, low : low + step], strict=True):
                which = low + np.flatnonzero(amount)
                link_prices(weight * correction, routes, price)
                cheapest_trees(space.family, space.moves, price, self._choices)
                count = amount[which - low]
                size, link, stage = _cheapest(self._instance, self._choices, which, count, rows)
                parts.append((which.astype(np.int32), count, size, link, stage))
            done += int(bundles.count[low : low + step].sum())
            low += step
        class_, count, size, link, stage = (np.concatenate(column) for column in zip(*parts, strict=True))
        ptr = np.concatenate([[0], np.cumsum(size)])
        ends = self.arrays.link_src[link], self.arrays.link_dst[link]
        return compact(forest_from_trees(Trees(class_, count, ptr, *ends, stage), self.arrays))


def _divide_rows(count: Int64Array, share: FloatArray) -> Int64Array:
    """Divide the rows of bundles in these shares, (n, N); small bundles go whole to one answer each, in turn."""
    ends = np.cumsum(share)
    ends[-1] = 1.0
    begins = np.concatenate([[0.0], ends[:-1]])
    offset = np.arange(count.shape[0]) * GOLDEN % 1.0
    divided = np.floor(ends[:, None] * count + offset) - np.floor(begins[:, None] * count + offset)
    chosen = (offset >= begins[:, None]) & (offset < ends[:, None])
    return np.where(count >= DIVIDED, divided.astype(np.int64), chosen * count)


@compiled(inline=False)
def _cheapest(
    instance: Instance, choices: Choices, which: Int64Array, count: Int64Array, link_rows: FloatArray
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return sizes and edges of the cheapest trees of the bundles `which`, and add their rows to `link_rows`."""
    num_stages, world, _ = choices.split.shape
    longest = 4 * world * num_stages
    size = np.empty(which.shape[0], np.int64)
    room = 8 * which.shape[0] + longest
    link, stage = np.empty(room, np.int32), np.empty(room, np.int32)
    tree = empty_tree(world, longest)
    edges = np.int64(0)
    for n in range(which.shape[0]):
        if edges + longest > link.shape[0]:
            link = np.concatenate((link, np.empty_like(link)))
            stage = np.concatenate((stage, np.empty_like(stage)))
        num = cheapest_tree(instance, choices, which[n], tree)
        for e in range(num):
            link[edges + e], stage[edges + e] = tree.link[e], tree.stage[e]
            link_rows[tree.stage[e], tree.link[e]] += count[n]
        size[n] = num
        edges += num
    return size, link[:edges], stage[:edges]
