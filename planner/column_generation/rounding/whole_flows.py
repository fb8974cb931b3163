"""Rounds fractional flows to whole rows, state by state: floors, then remainders by error diffusion."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.pricing.flows import Flows
from dgcl.planner.column_generation.pricing.new_arrays import (
    new_float_table,
    new_floats,
    new_int_table,
    new_ints,
)
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily, remaining_set
from dgcl.planner.compiled import compiled


class WholeFlows(NamedTuple):
    """`Flows` in whole rows: wait (K, P, F), pair (K, A), move (K, B), all int64, indexed as there."""

    wait: Int64Array
    pair: Int64Array
    move: Int64Array


def whole_flows(
    family: SubsetFamily, moves: Moves, rows: Int64Array, flows: Flows, num_links: int
) -> WholeFlows:
    """Round `flows` so that every one of the `rows` (P, F) at the start is conserved in every state.

    In each state the rows that really arrived are divided among the options in the proportions of `flows`,
    rounded down; each remaining row goes to the option with the largest shortfall so far: of the states behind
    it, and for moves of the link. Later states thereby make up for the rounding errors of earlier ones (also of
    those where no row arrived) instead of adding to them.
    """
    whole = WholeFlows(
        np.zeros(flows.wait.shape, np.int64),
        np.zeros(flows.pair.shape, np.int64),
        np.zeros(flows.move.shape, np.int64),
    )
    widest = int(np.diff(family.pair_ptr).max(initial=1)) + int(np.diff(moves.ptr).max(initial=1)) + 2
    _round(family, moves, rows, flows, num_links, whole, np.empty(widest, np.int64), np.empty(widest))
    return whole


@compiled(inline=False, entry=False)
def _apportion(rows: int, num: int, wanted: FloatArray, owed: FloatArray, out: Int64Array) -> None:
    """Divide `rows` in the proportions ``wanted[:num]``; remainders by fraction plus half of ``owed``."""
    total = 0.0
    for o in range(num):
        total += wanted[o]
    if rows == 0 or total == 0.0:
        assert rows == 0
        for o in range(num):
            out[o] = 0
        return
    left = rows
    for o in range(num):
        exact = rows * (wanted[o] / total)
        out[o] = np.int64(np.floor(exact + 1e-9))
        left -= out[o]
        owed[o] = exact - out[o] + 0.5 * owed[o]
    while left != 0:
        best = -1
        for o in range(num):
            if left > 0:
                if wanted[o] > 0.0 and (best < 0 or owed[o] > owed[best]):
                    best = o
            elif out[o] > 0 and (best < 0 or owed[o] < owed[best]):
                best = o  # floors of very large numbers can exceed the total by a few
        step = 1 if left > 0 else -1
        out[best] += step
        owed[best] -= step
        left -= step


@compiled
def _round(
    family: SubsetFamily,
    moves: Moves,
    start: Int64Array,
    flows: Flows,
    num_links: int,
    whole: WholeFlows,
    amount: Int64Array,
    owed: FloatArray,
) -> None:
    """Fill `whole` from the rows `start` (P, F); `amount` and `owed` are scratch, one entry per option."""
    num_stages, world, num_sets = flows.wait.shape
    num_groups = family.set_ptr.shape[0] - 1
    here, later = new_int_table(world, num_sets), new_int_table(world, num_sets)
    here_error, later_error = new_float_table(world, num_sets), new_float_table(world, num_sets)
    leaving, leaving_error = new_ints(num_sets), new_floats(num_sets)
    link_error, wanted = new_floats(num_links), new_floats(amount.shape[0])
    for v in range(world):
        for f in range(num_sets):
            here[v, f] = start[v, f]
    for k in range(num_stages):
        for link in range(num_links):
            link_error[link] = 0.0
        for v in range(world):
            for f in range(num_sets):
                later[v, f], later_error[v, f] = 0, 0.0
        for v in range(world):
            for g in range(num_groups):
                at = v * num_groups + g
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                begin, end = moves.ptr[at], moves.ptr[at + 1]
                own = np.int64(0)
                if family.group_of[v] == g:
                    own = np.int64(1) << family.bit_of[v]
                for f in range(low, high):
                    leaving[f], leaving_error[f] = 0, 0.0
                for f in range(high - 1, low, -1):
                    rows = here[v, f]
                    if family.set_mask[f] & own:
                        continue
                    if not moves.splits[at]:
                        leaving[f] += rows
                        leaving_error[f] += here_error[v, f]
                        continue
                    num = 0
                    for q in range(family.pair_ptr[f], family.pair_ptr[f + 1]):
                        wanted[num] = flows.pair[k, flows.pair_base[at] + q]
                        owed[num] = leaving_error[family.pair_first[q]] + here_error[v, family.pair_rest[q]]
                        num += 1
                    _apportion(rows, num, wanted, owed, amount)
                    num = 0
                    for q in range(family.pair_ptr[f], family.pair_ptr[f + 1]):
                        part, rest = family.pair_first[q], family.pair_rest[q]
                        error = wanted[num] - amount[num]
                        whole.pair[k, flows.pair_base[at] + q] = amount[num]
                        leaving[part] += amount[num]
                        leaving_error[part] += error
                        if rest != low:
                            here[v, rest] += amount[num]
                            here_error[v, rest] += error
                        num += 1
                for f in range(low + 1, high):
                    base = flows.move_base[at] + (f - low) * (end - begin)
                    wanted[0], owed[0] = flows.wait[k, v, f], later_error[v, f]
                    for j in range(end - begin):
                        wanted[1 + j] = flows.move[k, base + j]
                        owed[1 + j] = link_error[moves.link[begin + j]]
                    _apportion(leaving[f], 1 + end - begin, wanted, owed, amount)
                    whole.wait[k, v, f] = amount[0]
                    later[v, f] += amount[0]
                    later_error[v, f] += wanted[0] - amount[0]
                    for j in range(end - begin):
                        rows = amount[1 + j]
                        whole.move[k, base + j] = rows
                        error = wanted[1 + j] - rows
                        link_error[moves.link[begin + j]] += error
                        w = moves.dst[begin + j]
                        left = remaining_set(family, f, g, np.int64(w))
                        if left != low:
                            later[w, left] += rows
                            later_error[w, left] += error
        here, later = later, here
        here_error, later_error = later_error, here_error
