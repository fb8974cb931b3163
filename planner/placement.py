"""Which part goes on which device: the same rows over better connections, before anything is planned.

A placement is judged first by its cuts: for every set of devices, rows that must enter it over the capacity
into it, combined by a norm that is close to the maximum but tells apart placements with the same worst cut. On
up to `ALL_ORDERS` devices all placements are compared; beyond, parts are swapped while that helps, on the cuts
of candidate_cuts and with rows counted per destination. The best few are then judged by their price bound
(prices/bound.py), which plans come within a percent of, and the present placement competes with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.bounds import cut_bound
from dgcl.planner.compiled import compiled
from dgcl.planner.cost import GIGA
from dgcl.planner.cut_kernels import covers
from dgcl.planner.cuts import Cut, candidate_cuts, labels
from dgcl.planner.prices.bound import price_bound
from dgcl.planner.prices.hierarchy import is_exact
from dgcl.planner.reach import require_same_size
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology

ALL_ORDERS = 8
FINALISTS = 12
NORM = 8.0


@dataclass(frozen=True, eq=False)
class Placement:
    """Where each part should run.

    Attributes:
        device_of_part: (P,) int64, a permutation: what was part p should be part ``device_of_part[p]``, so a
            partition becomes ``device_of_part[part]``.
        relation: the relation after that.
        bound_before, bound_after: estimated seconds of the best plan, before and after: lower bounds from a
            short search.
    """

    device_of_part: Int64Array
    relation: Relation
    bound_before: float
    bound_after: float


def place(relation: Relation, topology: Topology, row_bytes: int = 512) -> Placement:
    """Return the best placement found; the present one if none is better.

    Deterministic. Placements in which a part could not reach one that needs its rows are never returned
    unless the present one is such.

    Raises:
        ValueError: the relation and the topology differ in size.
    """
    require_same_size(relation.world_size, topology)
    world = relation.world_size
    present = np.arange(world)
    if relation.num_classes == 0 or world == 1:
        return Placement(present, relation, 0.0, 0.0)
    finalists = _all_orders(relation, topology) if world <= ALL_ORDERS else _swaps(relation, topology)
    before = _estimate(relation, topology, row_bytes)
    best = Placement(present, relation, before, before)
    for order in finalists:
        placed = placed_relation(relation, order)
        after = _estimate(placed, topology, row_bytes)
        if after < best.bound_after * (1.0 - 1e-3):
            best = Placement(order, placed, before, after)
    return best


def placed_relation(relation: Relation, device_of_part: Int64Array) -> Relation:
    """Return the relation in which part p has become part ``device_of_part[p]``."""
    source = device_of_part[relation.source]
    dests = np.zeros_like(relation.dests)
    for part, device in enumerate(device_of_part.tolist()):
        bit = relation.dests[:, part >> 6] >> np.uint64(part & 63) & np.uint64(1)
        dests[:, device >> 6] |= bit << np.uint64(device & 63)
    order = np.lexsort((*(dests[:, word] for word in range(dests.shape[1])), source))
    return Relation(relation.world_size, source[order].astype(np.int32), dests[order], relation.count[order])


def _estimate(relation: Relation, topology: Topology, row_bytes: int) -> float:
    """Return a bound that good plans come near to, in seconds; inf where rows cannot get where they must."""
    try:
        cut = cut_bound(relation, topology, row_bytes).seconds
    except ValueError:  # this placement asks for a way that does not exist
        return np.inf
    if not is_exact(relation):
        return cut
    arrays = topology.arrays()
    prices = price_bound(
        relation, arrays, np.arange(relation.world_size), factor=np.ones(arrays.num_links),
        aim=cut / row_bytes * GIGA, rounds=120, steps=3,
    )  # fmt: skip
    return max(cut, prices.value * row_bytes / GIGA)


def _capacities(topology: Topology, cuts: list[Cut]) -> FloatArray:
    """Return the GB/s across each cut; 0 where no link crosses."""
    arrays = topology.arrays()
    cover, _ = covers(
        labels(cuts, topology.num_devices), arrays.link_of, arrays.link_ptr, arrays.link_directions,
        arrays.link_latency, arrays.bandwidth,
    )  # fmt: skip
    return np.asarray(cover @ arrays.bandwidth, np.float64)


def _all_orders(relation: Relation, topology: Topology) -> list[Int64Array]:
    """Return the best placements by all cuts into sets of devices, of all placements."""
    world = relation.world_size
    into = [
        Cut((frozenset(r for r in range(world) if m >> r & 1),), "", "in") for m in range(1, (1 << world) - 1)
    ]
    capacity = np.concatenate([[0.0], _capacities(topology, into), [0.0]])
    need = np.zeros(1 << world)
    _rows_into(relation.source, relation.dests[:, 0], relation.count, need)
    found = np.zeros((FINALISTS, world), np.int64)
    score = np.full(FINALISTS, np.inf)
    _search_orders(need, capacity, NORM, found, score)
    return [order for order, value in zip(found, score, strict=True) if value < np.inf]


@compiled
def _rows_into(source: Int32Array, dests: np.ndarray, count: Int64Array, need: FloatArray) -> None:  # type: ignore[type-arg]
    """Set `need` (2**P,) to the rows that must enter each set of parts."""
    for c in range(source.shape[0]):
        own = np.int64(1) << np.int64(source[c])
        wanted = np.int64(dests[c])
        for mask in range(need.shape[0]):
            if not mask & own and mask & wanted:
                need[mask] += count[c]


@compiled
def _search_orders(
    need: FloatArray, capacity: FloatArray, norm: float, found: Int64Array, score: FloatArray
) -> None:
    """Fill `found` (n, P) and `score` (n,) with the best of all permutations, best first."""
    world = found.shape[1]
    order = np.arange(world)
    device_mask = np.zeros(need.shape[0], np.int64)
    while True:
        total, worst = 0.0, score[-1] ** norm
        for mask in range(1, need.shape[0] - 1):
            part = 0
            while not (mask >> part) & 1:
                part += 1
            device_mask[mask] = device_mask[mask & (mask - 1)] | np.int64(1) << order[part]
            if need[mask] > 0.0:
                room = capacity[device_mask[mask]]
                total += (need[mask] / room) ** norm if room > 0.0 else np.inf
                if total >= worst:
                    break
        if total < worst:
            at = score.shape[0] - 1
            value = total ** (1.0 / norm)
            while at > 0 and score[at - 1] > value:
                score[at], found[at] = score[at - 1], found[at - 1]
                at -= 1
            score[at], found[at] = value, order
        # the next permutation in lexicographic order
        i = world - 2
        while i >= 0 and order[i] > order[i + 1]:
            i -= 1
        if i < 0:
            return
        j = world - 1
        while order[j] < order[i]:
            j -= 1
        order[i], order[j] = order[j], order[i]
        low, high = i + 1, world - 1
        while low < high:
            order[low], order[high] = order[high], order[low]
            low += 1
            high -= 1


def _swaps(relation: Relation, topology: Topology) -> list[Int64Array]:
    """Return what swapping pairs of parts leads to, from the present placement, on a selection of cuts."""
    cuts = [cut for cut in candidate_cuts(topology) if len(cut.groups) == 1]
    capacity = _capacities(topology, cuts)
    member = labels(cuts, topology.num_devices) >= 0
    order = np.arange(relation.world_size)
    _improve_by_swaps(relation.pair_rows().astype(np.float64), member, capacity, NORM, order)
    return [order]


@compiled
def _after_swap(rows: FloatArray, inside: BoolArray, entering: float, a: int, b: int) -> float:
    """Return the rows into a set when part `a` leaves it and part `b` joins it; `inside` (P,) is the set."""
    for p in range(inside.shape[0]):
        if p == a or p == b:
            continue
        if inside[p]:
            entering += rows[a, p] - rows[b, p]
        else:
            entering += rows[p, b] - rows[p, a]
    return entering + rows[a, b] - rows[b, a]


@compiled
def _improve_by_swaps(
    rows: FloatArray, member: BoolArray, capacity: FloatArray, norm: float, order: Int64Array
) -> None:
    """Swap the devices of two parts while the norm of rows over capacities falls; `order` is changed in place.

    Args:
        rows: (P, P) rows that one part (row) owns and another (column) needs.
        member: (N, P) sets of devices, and `capacity` (N,) into them.
        norm: of the times of the sets.
        order: (P,) the device of each part.
    """
    num, world = member.shape
    inside = np.empty((num, world), np.bool_)
    entering, then = np.zeros(num), np.empty(num)
    best = 0.0
    for n in range(num):
        for p in range(world):
            inside[n, p] = member[n, order[p]]
        for s in range(world):
            for d in range(world):
                if inside[n, d] and not inside[n, s]:
                    entering[n] += rows[s, d]
        if entering[n] > 0.0:
            best += (entering[n] / capacity[n]) ** norm if capacity[n] > 0.0 else np.inf
    improved = True
    while improved:
        improved = False
        for a in range(world):
            for b in range(a + 1, world):
                total = 0.0
                for n in range(num):
                    then[n] = entering[n]
                    if inside[n, a] and not inside[n, b]:
                        then[n] = _after_swap(rows, inside[n], entering[n], a, b)
                    elif inside[n, b] and not inside[n, a]:
                        then[n] = _after_swap(rows, inside[n], entering[n], b, a)
                    if then[n] > 0.5:  # whole rows: less is rounding
                        total += (then[n] / capacity[n]) ** norm if capacity[n] > 0.0 else np.inf
                if total < best * (1.0 - 1e-9):
                    best = total
                    improved = True
                    entering[:] = then
                    order[a], order[b] = order[b], order[a]
                    for n in range(num):
                        inside[n, a], inside[n, b] = inside[n, b], inside[n, a]
