"""Finds the cheapest tree, with a stage for each edge, of every class at once, by one dynamic program.

A state is (stage k, device v that holds the row, set A of devices still to be served through v). `cheapest_trees` fills
tables of the best choice in every state, and `trace` reads the tree of one set from them. Callers bring prices of their
own; a round of pricing is mostly spent here.
Called by `flows`, `planner/column_generation/master/fractional`, `planner/column_generation/rounding/cheapest`,
`planner/column_generation/improvement/tree_exchange` and others. Free to change while prices are those of the cheapest
of all trees of tiny machines (`tests/planner/column_generation/test_tree_program.py`), and trees read from the tables
deliver (`tests/planner/column_generation/test_whole_plans.py`).
"""

from typing import NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.states import Moves, StateSpace, SubsetFamily, remaining_set
from dgcl.planner.planner_compiled import compiled

WAIT = -1  # in place of a move: the set stays where it is until the next stage


class Choices(NamedTuple):
    """The best choice in every state, K stages, P devices, F sets.

    Attributes:
        value: (K+1, P, F) float64, the price of finishing the state; inf where that is impossible.
        split: (K, P, F) int32: the index of a split in the family's pairs; where devices do not divide, the
            first, which is the whole set.
        move: (K, P, F) int32: the move by which set f leaves v in stage k as a whole, or WAIT.
        ahead, leave, single: scratch of `cheapest_trees`: (P, F) float64, the value of a set once a device has the row,
            and so is served itself; (F,) float64; (P,) int64, the set of each device alone, -1 where there is none.
    """

    value: FloatArray
    split: Int32Array
    move: Int32Array
    ahead: FloatArray
    leave: FloatArray
    single: Int64Array


def empty_choices(num_stages: int, space: StateSpace) -> Choices:
    """Allocate the tables that `cheapest_trees` fills."""
    world, num_sets = space.start.shape
    split, move = np.empty((2, num_stages, world, num_sets), np.int32)
    return Choices(
        np.empty((num_stages + 1, world, num_sets)),
        split,
        move,
        np.empty((world, num_sets)),
        np.empty(num_sets),
        np.empty(world, np.int64),
    )


@compiled(inline=False, allocates=False, entry=False)
def _find_singles(family: SubsetFamily, single: Int64Array) -> None:
    """Set `single` (P,) to the set of each device alone; -1 where there is none."""
    for w in range(single.shape[0]):
        single[w] = -1
        g = family.group_of[w]
        low, high = family.set_ptr[g], family.set_ptr[g + 1]
        mask = np.int64(1) << family.bit_of[w]
        while low < high:  # ascending: a binary search
            at = (low + high) // 2
            if family.set_mask[at] == mask:
                single[w] = at
                break
            if family.set_mask[at] < mask:
                low = at + 1
            else:
                high = at


@compiled(inline=False, allocates=False)
def cheapest_trees(family: SubsetFamily, moves: Moves, price: FloatArray, out: Choices) -> None:
    """Fill `out` for the link prices `price` (K, L), all >= 0.

    Going backwards over stages, let leave(k, v, B) be the cheapest way to serve B as a whole: the least of

    - waiting: value(k + 1, v, B);
    - one link (v, w) now: price(k, v, w) + value(k + 1, w, B - {w}). w need not be in B: a relay costs its link and
      nothing else.

    Then value(k, v, A) is the least of leave(k, v, B) + value(k, v, A - B) over the parts B of A that hold the lowest
    bit of A, so that each division into parts is tried once. Every stage-labelled tree is such a sequence of choices,
    so value(0, source, D) is at most the price of the cheapest tree; and choices that enter a device twice can be
    shortened to a tree that costs no more (drop the later entry, serve its subtree from the earlier one), so it is
    that price.

    Where a state's device is outside the group of its set (device_groups.py), the set is not divided.
    """
    num_stages, world, num_sets = out.split.shape
    num_groups = family.set_ptr.shape[0] - 1
    ahead, leave, single = out.ahead, out.leave, out.single
    _find_singles(family, single)
    for v in range(world):
        for f in range(num_sets):
            out.value[num_stages, v, f] = np.inf
        for g in range(num_groups):
            out.value[num_stages, v, family.set_ptr[g]] = 0.0
    for k in range(num_stages - 1, -1, -1):
        after, last = out.value[k + 1], k == num_stages - 1
        _values_on_arrival(family, after, ahead)
        for v in range(world):
            for g in range(num_groups):
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                via = out.move[k, v]
                for f in range(low, high):
                    leave[f], via[f] = after[v, f], WAIT
                for j in range(moves.ptr[v * num_groups + g], moves.ptr[v * num_groups + g + 1]):
                    cost, w = price[k, moves.link[j]], moves.dst[j]
                    if last:  # the receiver cannot send any more: it serves itself only
                        if family.group_of[w] == g:
                            alone = single[w]
                            if alone >= 0 and cost < leave[alone]:
                                leave[alone] = cost
                                via[alone] = j
                        continue
                    handed, cheapest, by = ahead[w, low:high], leave[low:high], via[low:high]
                    for i in range(
                        cheapest.shape[0]
                    ):  # from 0 and without branches, so that it is vectorised
                        candidate = cost + handed[i]
                        better = candidate < cheapest[i]
                        cheapest[i] = candidate if better else cheapest[i]
                        by[i] = np.int32(j) if better else by[i]
                _choose_splits(family, moves, leave, last, out, k, v, g)


@compiled(inline=False, allocates=False, entry=False)
def _values_on_arrival(family: SubsetFamily, after: FloatArray, ahead: FloatArray) -> None:
    """Set `ahead` (P, F) to the values `after` (P, F) a device has the row and is served."""
    for w in range(ahead.shape[0]):
        home, bit = family.group_of[w], family.bit_of[w]
        for g in range(family.set_ptr.shape[0] - 1):
            low, high = family.set_ptr[g], family.set_ptr[g + 1]
            if g == home:
                for f in range(low, high):
                    ahead[w, f] = after[w, family.minus[f, bit]]
            else:
                for f in range(low, high):
                    ahead[w, f] = after[w, f]


@compiled(inline=False, allocates=False, entry=False)
def _choose_splits(
    family: SubsetFamily, moves: Moves, leave: FloatArray, last: bool, out: Choices, k: int, v: int, g: int
) -> None:
    """Choose splits for all sets of group g at device v in stage k; `leave` (F,) is the cost of undivided sets."""
    low, high = family.set_ptr[g], family.set_ptr[g + 1]
    own = np.int64(0)
    if family.group_of[v] == g:
        own = np.int64(1) << family.bit_of[v]
    mine = out.value[k, v]
    mine[low] = 0.0
    splits = moves.splits[v * (family.set_ptr.shape[0] - 1) + g]
    for f in range(low + 1, high):
        first = family.pair_ptr[f]
        best, choice = leave[f], first
        if family.set_mask[f] & own:
            best = np.inf  # the holder needs no row; this state is never read
        elif splits and last:  # each device is served over one link
            choice = np.int64(family.pair_ptr[f + 1] - 1)  # the lowest device, and the rest
            best = leave[family.pair_first[choice]] + mine[family.pair_rest[choice]]
        elif splits:
            end = family.pair_ptr[f + 1]
            parts, rests = family.pair_first[first:end], family.pair_rest[first:end]
            nth = np.int64(0)
            for q in range(1, parts.shape[0]):
                candidate = leave[np.uint32(parts[q])] + mine[np.uint32(rests[q])]
                better = candidate < best
                best = candidate if better else best
                nth = np.int64(q) if better else nth
            choice = first + nth
        mine[f] = best
        out.split[k, v, f] = choice


@compiled(inline=False, allocates=False, entry=False)
def trace(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    source: int,
    set_: int,
    link: Int32Array,
    stage: Int32Array,
    num: int,
    stack: Int64Array,
) -> int:
    """Append the edges of the cheapest tree of one set to `link` and `stage`.

    Args:
        family, moves, choices: the states, and the choices of `cheapest_trees`.
        source, set_: the owner and the set to serve.
        link, stage: outputs, written from position `num` on.
        num: see there.
        stack: (n, 3) scratch.

    Returns:
        The number of edges in `link` and `stage` afterwards.
    """
    num_groups = family.set_ptr.shape[0] - 1
    group = 0
    while family.set_ptr[group + 1] <= set_:
        group += 1
    low = family.set_ptr[group]
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, source, set_
    depth = 1
    while depth:
        depth -= 1
        k, v, f = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if moves.splits[v * num_groups + group]:
            choice = choices.split[k, v, f]
            rest = family.pair_rest[choice]
            f = np.int64(family.pair_first[choice])
            if rest != low:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, v, rest
                depth += 1
        j = choices.move[k, v, f]
        if j == WAIT:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, v, f
            depth += 1
            continue
        w = moves.dst[j]
        link[num], stage[num] = moves.link[j], k
        num += 1
        f = remaining_set(family, f, group, np.int64(w))
        if f != low:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, w, f
            depth += 1
    return num
