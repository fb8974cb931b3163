"""Computes link prices from prices of connection-directions, and from chosen trees the rows on every link.

A link's route uses one or more connection-directions (a connection, one way), which other links may share. All rows are
sent at once through the states of states.py; rows of different classes (owner and destinations) that meet in one state
are one number from there on, so a round costs the same for a thousand classes as for a million. Over links of high
latency a row counts for more than one (`latency_factor`).
Called by `steiner_trees`, `planner/column_generation/master/fractional`, `planner/column_generation/search/grouped`,
`planner/column_generation/improvement/tree_exchange` and others. Free to change while the rows sent cost what their
trees were priced at (`tests/planner/column_generation/test_tree_program.py`), and factors are those calculated by hand
(`tests/planner/column_generation/test_price_bound.py`).
"""

from typing import NamedTuple

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily, remaining_set
from dgcl.planner.column_generation.pricing.tree_program import WAIT, Choices
from dgcl.planner.planner_compiled import compiled


class Routes(NamedTuple):
    """What links load: C connection-directions, L links.

    Attributes:
        ptr: (L+1,) int64, and direction: int32, the connection-directions of link l are
            ``direction[ptr[l]:ptr[l+1]]``.
        cost: (C,) float64, time units that one row takes on a connection-direction.
        factor: (L,) float64 >= 1, how much more a row counts that comes over a link of high latency
            (`latency_factor`); 1 without latencies, inf for links that may not be used.
        base: (L,) float64, a small price of each link in every stage, so that idle detours are not free.
    """

    ptr: Int64Array
    direction: Int32Array
    cost: FloatArray
    factor: FloatArray
    base: FloatArray


class PushBuffer(NamedTuple):
    """Scratch of `push`; K stages, P devices, F sets, G groups, L links.

    Attributes:
        here, later: (P, F), the rows at each device in this stage and in the next.
        busy, busy_later: (P, G) bool, where these are not all 0.
        leaving: (F,), the rows that leave a device.
        link_rows: (K, L), the rows over each link.
    """

    here: FloatArray
    later: FloatArray
    busy: BoolArray
    busy_later: BoolArray
    leaving: FloatArray
    link_rows: FloatArray


def push_buffer(num_stages: int, family: SubsetFamily, num_links: int) -> PushBuffer:
    """Allocate the scratch of `push`."""
    world, num_sets = family.group_of.shape[0], family.set_mask.shape[0]
    here, later = np.empty((2, world, num_sets))
    busy, busy_later = np.empty((2, world, family.set_ptr.shape[0] - 1), np.bool_)
    return PushBuffer(here, later, busy, busy_later, np.empty(num_sets), np.empty((num_stages, num_links)))


def latency_factor(latency: FloatArray, stage_time: float) -> FloatArray:
    """Return how much more rows count over links of this latency, in stages that take at most `stage_time`.

    In such a stage, whose time is T, a direction c that is busy for a time b(c) takes part in T >=
    latency(l) + b(c) for every link l in use through it, and latency(l) >= T * latency(l) / stage_time;
    hence T >= b(c) / (1 - latency(l) / stage_time). T is then also at least any average of these over the
    rows on c: sum over links l of (rows of l) * cost(c) * factor(l).
    """
    left = 1.0 - latency / stage_time
    return np.where(left > 1e-6, 1.0 / np.maximum(left, 1e-6), np.inf)


@compiled(inline=False, allocates=False)
def link_prices(weight: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Set `out` (K, L) to the price of a row on each link, given weights of directions (K, C)."""
    for k in range(out.shape[0]):
        for link in range(out.shape[1]):
            price = 0.0
            for i in range(routes.ptr[link], routes.ptr[link + 1]):
                c = routes.direction[i]
                price += weight[k, c] * routes.cost[c]
            out[k, link] = np.inf
            if routes.factor[link] < np.inf:
                out[k, link] = routes.base[link] + routes.factor[link] * price


@compiled(inline=False, allocates=False)
def add_busy_times(link_rows: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Add to `out` (K, C) how long the rows (K, L) over links keep each connection-direction busy."""
    for k in range(link_rows.shape[0]):
        for link in range(link_rows.shape[1]):
            if link_rows[k, link] != 0.0:
                rows = link_rows[k, link] * routes.factor[link]
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    out[k, c] += rows * routes.cost[c]


@compiled(inline=False, allocates=False, entry=False)
def push(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    start: FloatArray,
    first: int,
    last: int,
    buffer: PushBuffer,
) -> None:
    """Send the start rows of devices ``first:last`` through their chosen options; see ``buffer.link_rows``.

    Args:
        family, moves, choices, start: the states (StateSpace) and what to do in each.
        first, last: the owners whose rows are sent.
        buffer: scratch, and the output.
    """
    num_stages, world, num_sets = choices.split.shape
    num_groups = family.set_ptr.shape[0] - 1
    here, later, busy, busy_later, leaving, link_rows = buffer
    for k in range(num_stages):
        for link in range(link_rows.shape[1]):
            link_rows[k, link] = 0.0
    for f in range(num_sets):
        leaving[f] = 0.0
    for v in range(world):
        own = first <= v < last
        for g in range(num_groups):
            busy[v, g], busy_later[v, g] = own, False
        for f in range(num_sets):
            here[v, f], later[v, f] = start[v, f] if own else 0.0, 0.0
    for k in range(num_stages):
        for v in range(world):
            for g in range(num_groups):
                if not busy[v, g]:
                    continue
                busy[v, g] = False
                at = v * num_groups + g
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                for f in range(high - 1, low, -1):  # the rest of a split is a smaller set: visited later
                    rows = here[v, f]
                    if rows == 0.0:
                        continue
                    here[v, f] = 0.0
                    if not moves.splits[at]:
                        leaving[f] += rows
                        continue
                    choice = choices.split[k, v, f]
                    leaving[family.pair_first[choice]] += rows
                    rest = family.pair_rest[choice]
                    if rest != low:
                        here[v, rest] += rows
                for f in range(low + 1, high):
                    rows = leaving[f]
                    if rows == 0.0:
                        continue
                    leaving[f] = 0.0
                    j = choices.move[k, v, f]
                    if j == WAIT:
                        later[v, f] += rows
                        busy_later[v, g] = True
                        continue
                    w = moves.dst[j]
                    link_rows[k, moves.link[j]] += rows
                    left = remaining_set(family, f, g, np.int64(w))
                    if left != low:
                        later[w, left] += rows
                        busy_later[w, g] = True
        here, later = later, here
        busy, busy_later = busy_later, busy
