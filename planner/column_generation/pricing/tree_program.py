"""The cheapest stage-labelled tree of every class at once, by one dynamic program over states.

A state is (stage k, device v that holds the row, set A of devices still to be served through v). Going
backwards over stages, let leave(k, v, B) be the cheapest way to serve B as a whole: the least of

- waiting: value(k + 1, v, B);
- one link (v, w) now: price(k, v, w) + value(k + 1, w, B - {w}). w need not be in B: a relay costs its link
  and nothing else.

Then value(k, v, A) is the least of leave(k, v, B) + value(k, v, A - B) over the parts B of A that hold the
lowest bit of A, so that each division into parts is tried once. Every stage-labelled tree is such a
sequence of choices, so value(0, source, D) is at most the price of the cheapest tree; and choices that
enter a device twice can be shortened to a tree that is no dearer (drop the later entry, serve its subtree
from the earlier one), so it is that price.

Where a state's device is outside the group of its set (hierarchy.py), the set is not divided.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.compiled import compiled

RARE = 3  # sets of a group per one that has to be carried, from which only those are looked at
WAIT = -1  # in place of a move: the set stays where it is until the next stage


class Moves(NamedTuple):
    """Links that may be used from device v for a set of group g, P devices, G groups, M moves in all.

    Attributes:
        ptr: (P*G+1,) int64; the moves of (v, g) are ``ptr[v*G+g]:ptr[v*G+g+1]``.
        link, dst: (M,) int32, the link and the device at its end.
        splits: (P*G,) bool, whether v may divide sets of g.
        carried_ptr: (G*G+1,) int64; of the sets of group g the devices of group h may have to carry
            ``carried[carried_ptr[h*G+g]:carried_ptr[h*G+g+1]]``; nothing asks them for others.
        carried: int32, the ids of sets.
    """

    ptr: Int64Array
    link: Int32Array
    dst: Int32Array
    splits: BoolArray
    carried_ptr: Int64Array
    carried: Int32Array


class Choices(NamedTuple):
    """The best choice in every state, K stages, P devices, F sets.

    Attributes:
        value: (K+1, P, F) float64, the price of finishing the state; inf where that is impossible.
        split: (K, P, F) int32: the index of a split in the family's pairs; where devices do not divide, the
            first, which is the whole set.
        move: (K, P, F) int32: the move by which set f leaves v in stage k as a whole, or WAIT.
    """

    value: FloatArray
    split: Int32Array
    move: Int32Array


def empty_choices(num_stages: int, world: int, num_sets: int) -> Choices:
    """Allocate the tables that `cheapest_trees` fills."""
    return Choices(
        np.empty((num_stages + 1, world, num_sets)),
        np.empty((num_stages, world, num_sets), np.int32),
        np.empty((num_stages, world, num_sets), np.int32),
    )


@compiled
def rarely_carried(family: SubsetFamily, moves: Moves) -> BoolArray:
    """Tell for which groups (G, G) the devices of one have to carry only few sets of the other: one by one then."""
    num_groups = family.set_ptr.shape[0] - 1
    rare = np.zeros((num_groups, num_groups), np.bool_)
    for h in range(num_groups):
        for g in range(num_groups):
            many = moves.carried_ptr[h * num_groups + g + 1] - moves.carried_ptr[h * num_groups + g]
            rare[h, g] = h != g and RARE * many < family.set_ptr[g + 1] - family.set_ptr[g]
    return rare


@compiled
def _singles(family: SubsetFamily, world: int) -> Int64Array:
    """Return the set that holds a device and no other, (P,); -1: nothing asks for that."""
    single = np.full(world, -1, np.int64)
    for w in range(world):
        g = family.group_of[w]
        low, high = family.set_ptr[g], family.set_ptr[g + 1]
        wanted = np.int64(1) << family.bit_of[w]
        at = low + np.searchsorted(family.set_mask[low:high], wanted)
        if at < high and family.set_mask[at] == wanted:
            single[w] = at
    return single


@compiled
def cheapest_trees(family: SubsetFamily, moves: Moves, price: FloatArray, out: Choices) -> None:
    """Fill `out` for the link prices `price` (K, L), all >= 0."""
    num_stages, world, num_sets = out.split.shape
    num_groups = family.set_ptr.shape[0] - 1
    ahead = np.empty((world, num_sets))  # value of handing a set to a device, which then has its own row
    leave = np.empty(num_sets)
    rare = rarely_carried(family, moves)
    single = _singles(family, world)
    out.value[num_stages] = np.inf
    for g in range(num_groups):
        out.value[num_stages, :, family.set_ptr[g]] = 0.0
    for k in range(num_stages - 1, -1, -1):
        after, now = out.value[k + 1], out.value[k]
        for w in range(world):
            home, bit = family.group_of[w], family.bit_of[w]
            for g in range(num_groups):
                if g != home and rare[home, g]:
                    continue
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                if g == home:
                    for f in range(low, high):
                        ahead[w, f] = after[w, family.minus[f, bit]]
                else:
                    ahead[w, low:high] = after[w, low:high]
        for v in range(world):
            for g in range(num_groups):
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                via = out.move[k, v]
                home = family.group_of[v] * num_groups + g
                begin, end = moves.carried_ptr[home], moves.carried_ptr[home + 1]
                if rare[family.group_of[v], g]:
                    now[v, low] = 0.0
                    for i in range(begin, end):
                        set_ = moves.carried[i]
                        best, taken = after[v, set_], np.int64(WAIT)
                        for j in range(moves.ptr[v * num_groups + g], moves.ptr[v * num_groups + g + 1]):
                            w = moves.dst[j]
                            then = np.int64(set_)
                            if family.group_of[w] == g:
                                then = np.int64(family.minus[set_, family.bit_of[w]])
                            candidate = price[k, moves.link[j]] + after[w, then]
                            if candidate < best:
                                best, taken = candidate, np.int64(j)
                        now[v, set_] = best
                        via[set_] = taken
                        out.split[k, v, set_] = family.pair_ptr[set_]
                    continue
                leave[low:high] = after[v, low:high]
                via[low:high] = WAIT
                for j in range(moves.ptr[v * num_groups + g], moves.ptr[v * num_groups + g + 1]):
                    cost, w = price[k, moves.link[j]], moves.dst[j]
                    if k == num_stages - 1:  # whoever has no row by now can only be served itself
                        if family.group_of[w] == g:
                            alone = single[w]
                            if alone >= 0 and cost < leave[alone]:
                                leave[alone] = cost
                                via[alone] = j
                        continue
                    handed, cheapest, by = ahead[w, low:high], leave[low:high], via[low:high]
                    for i in range(cheapest.shape[0]):  # from 0 and without branches: several at a time
                        candidate = cost + handed[i]
                        better = candidate < cheapest[i]
                        cheapest[i] = candidate if better else cheapest[i]
                        by[i] = np.int32(j) if better else by[i]
                own = np.int64(0)
                if family.group_of[v] == g:
                    own = np.int64(1) << family.bit_of[v]
                now[v, low] = 0.0
                mine = now[v]
                splits = moves.splits[v * num_groups + g]
                for f in range(low + 1, high):
                    first = family.pair_ptr[f]
                    best, choice = leave[f], first
                    if family.set_mask[f] & own:
                        best = np.inf  # a holder never has to be served; nothing asks for this state
                    elif splits and k == num_stages - 1:  # only what is one link away can still be served
                        choice = np.int64(family.pair_ptr[f + 1] - 1)  # the lowest device, and the rest
                        best = leave[family.pair_first[choice]] + now[v, family.pair_rest[choice]]
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
                    now[v, f] = best
                    out.split[k, v, f] = choice
