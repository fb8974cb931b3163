"""Assigns parts to devices, so that the same rows travel over better connections.

Placements are first ranked by their cuts. For every set of devices: the rows that must enter it, over the capacity
into it. A norm combines these ratios; it is close to the maximum, but tells apart placements with the same worst cut.
On up to ``ALL_ORDERS`` devices all placements are compared, and those that differ only by a symmetry of the machine
count once. Beyond, parts are swapped while that helps, on the cuts of ``candidate_cuts`` and with rows counted per
destination. The best few are then planned in the order of their bounds, until the bound of the rest is above the best
plan. (Bounds alone do not decide: they do not see how many stages a machine needs.) The present placement is planned,
too, and stays unless another one is faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.bounds.best import cut_bound
from dgcl.planner.bounds.cut_kernels import covers
from dgcl.planner.bounds.cuts import Cut, candidate_cuts, labels
from dgcl.planner.column_generation.master.price_bound import price_bound
from dgcl.planner.column_generation.pricing.groups import is_exact
from dgcl.planner.compiled import compiled
from dgcl.planner.cost import GIGA, predicted_seconds
from dgcl.planner.methods.registry import get_planner
from dgcl.planner.options import PlanOptions
from dgcl.planner.reach import require_routes, require_same_size
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology

ALL_ORDERS = 8
KEPT = 400  # placements kept by their cuts, before symmetric ones are removed
FINALISTS = 12
NORM = 8.0
COMPARED_GAP = 0.005  # placements are compared by plans within this gap
LEAST_GAIN = 1e-3  # relative; parts are not moved for less


@dataclass(frozen=True, eq=False)
class Placement:
    """Where each part should run.

    Attributes:
        device_of_part: (P,) int64, a permutation: part p becomes part ``device_of_part[p]``, so a partition
            becomes ``device_of_part[part]``.
        relation: the relation after that.
        seconds_before, seconds_after: of one allgather by a plan for the present placement and for this one, both
            planned by ``auto`` to within half a percent of their bounds where it can; inf where some needed pair has
            no route.
    """

    device_of_part: Int64Array
    relation: Relation
    seconds_before: float
    seconds_after: float

    @property
    def moves(self) -> bool:
        """Whether any part changes its device."""
        return bool((self.device_of_part != np.arange(self.device_of_part.shape[0])).any())


def place(relation: Relation, topology: Topology, options: PlanOptions | None = None) -> Placement:
    """Return the best placement found; the present one if none is better by a tenth of a percent.

    Deterministic without a time limit; with one, no further placement is planned once it is over. A placement in
    which some needed pair has no route is returned only if it is the present one.

    Args:
        relation: what must be delivered, parts numbered as they are.
        topology: the machine.
        options: row width and limits; the defaults of :class:`PlanOptions` if None.

    Raises:
        ValueError: the relation and the topology differ in size.
    """
    options = PlanOptions() if options is None else options
    require_same_size(relation.world_size, topology)
    world = relation.world_size
    present = np.arange(world)
    if relation.num_classes == 0 or world == 1:
        return Placement(present, relation, 0.0, 0.0)
    started = time.perf_counter()
    before = _planned(relation, topology, options)
    best = Placement(present, relation, before, before)
    orders = _all_orders(relation, topology) if world <= ALL_ORDERS else _swaps(relation, topology)
    placed = [(order, placed_relation(relation, order)) for order in orders]
    bounds = [_bound(candidate, topology, options.row_bytes) for _, candidate in placed]
    for i in sorted(range(len(orders)), key=bounds.__getitem__):
        late = options.time_limit is not None and time.perf_counter() - started > options.time_limit
        if late or bounds[i] >= best.seconds_after * (1.0 - LEAST_GAIN):
            break
        order, candidate = placed[i]
        after = _planned(candidate, topology, options)
        if after < best.seconds_after * (1.0 - LEAST_GAIN):
            best = Placement(order, candidate, before, after)
    return best


def _planned(relation: Relation, topology: Topology, options: PlanOptions) -> float:
    """Return the seconds of a plan; inf where some needed pair has no route."""
    try:
        require_routes(relation.pair_rows(), topology)
    except ValueError:  # no route
        return np.inf
    coarse = replace(options, gap=max(options.gap, COMPARED_GAP))
    trees = get_planner("auto")(relation, topology, coarse)
    return predicted_seconds(trees, topology.arrays(), options.row_bytes)


def placed_relation(relation: Relation, device_of_part: Int64Array) -> Relation:
    """Return the relation in which part p has become part ``device_of_part[p]``."""
    source = device_of_part[relation.source]
    dests = np.zeros_like(relation.dests)
    for part, device in enumerate(device_of_part.tolist()):
        bit = relation.dests[:, part >> 6] >> np.uint64(part & 63) & np.uint64(1)
        dests[:, device >> 6] |= bit << np.uint64(device & 63)
    order = np.lexsort((*(dests[:, word] for word in range(dests.shape[1])), source))
    return Relation(relation.world_size, source[order].astype(np.int32), dests[order], relation.count[order])


def _bound(relation: Relation, topology: Topology, row_bytes: int) -> float:
    """Return a bound on every plan; inf where some needed pair has no route."""
    try:
        cut = cut_bound(relation, topology, row_bytes).seconds
    except ValueError:
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
    cover, _ = covers(labels(cuts, topology.num_devices), arrays)
    return np.asarray(cover @ arrays.bandwidth, np.float64)


def _all_orders(relation: Relation, topology: Topology) -> list[Int64Array]:
    """Return the best of all placements by their cuts into sets of devices, none twice up to symmetry."""
    world = relation.world_size
    into = [
        Cut((frozenset(r for r in range(world) if m >> r & 1),), "", "in") for m in range(1, (1 << world) - 1)
    ]
    capacity = np.concatenate([[0.0], _capacities(topology, into), [0.0]])
    need = np.zeros(1 << world)
    _rows_into(relation.source, relation.dests[:, 0], relation.count, need)
    found = np.zeros((KEPT, world), np.int64)
    score = np.full(KEPT, np.inf)
    _search_orders(need, capacity, NORM, found, score)
    distinct: dict[bytes, Int64Array] = {}
    for order in found[score < np.inf]:
        distinct.setdefault(_symmetry_key(order, capacity, topology), order)
    return list(distinct.values())[:FINALISTS]


def _symmetry_key(order: Int64Array, capacity: FloatArray, topology: Topology) -> bytes:
    """Return a key of a placement: capacities into sets of parts, and their links.

    Equal for placements that a symmetry of the machine turns into each other.
    """
    arrays = topology.arrays()
    sets = np.arange(capacity.shape[0])
    devices = np.bitwise_or.reduce((sets[:, None] >> np.arange(order.shape[0]) & 1) << order, axis=1)
    widest = np.minimum.reduceat(arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
    link = arrays.link_of[np.ix_(order, order)]
    seen = (
        capacity[devices],
        np.where(link >= 0, widest[link], 0.0),
        np.where(link >= 0, arrays.link_latency[link], 0.0),
        np.where(link >= 0, np.diff(arrays.link_ptr)[link], 0),
    )
    return b"".join(np.ascontiguousarray(part).tobytes() for part in seen)


@compiled
def _rows_into(source: Int32Array, dests: np.ndarray, count: Int64Array, need: FloatArray) -> None:  # type: ignore[type-arg]
    """Set ``need`` (2**P,) to the rows that must enter each set of parts."""
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
    """Fill ``found`` (n, P) and ``score`` (n,) with the best of all permutations, best first."""
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
                into = capacity[device_mask[mask]]
                total += (need[mask] / into) ** norm if into > 0.0 else np.inf
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
    """Return the placement that swaps of two parts lead to, from the present one, by selected cuts."""
    cuts = [cut for cut in candidate_cuts(topology) if len(cut.groups) == 1]
    capacity = _capacities(topology, cuts)
    member = labels(cuts, topology.num_devices) >= 0
    order = np.arange(relation.world_size)
    _improve_by_swaps(relation.pair_rows().astype(np.float64), member, capacity, NORM, order)
    return [order]


@compiled(entry=False)
def _after_swap(rows: FloatArray, inside: BoolArray, entering: float, a: int, b: int) -> float:
    """Return the rows into a set when part ``a`` leaves it and ``b`` joins it; ``inside`` (P,) is the set."""
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
    """Swap the devices of two parts while the norm of rows over capacities falls; changes ``order``.

    Args:
        rows: (P, P) rows that one part (row) owns and another (column) needs.
        member, capacity: (N, P) sets of devices, and (N,) GB/s into them.
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
                    if then[n] > 0.5:  # rows are whole: less is a rounding error
                        total += (then[n] / capacity[n]) ** norm if capacity[n] > 0.0 else np.inf
                if total < best * (1.0 - 1e-9):
                    best = total
                    improved = True
                    entering[:] = then
                    order[a], order[b] = order[b], order[a]
                    for n in range(num):
                        inside[n, a], inside[n, b] = inside[n, b], inside[n, a]
