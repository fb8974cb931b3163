"""Assigns parts to devices, so that the same rows travel over better connections.

Placements are ranked by their cuts: for selected sets of devices (every set, on few), the rows that must enter it,
counted per destination, over the capacity into it. A norm combines these ratios; it is close to the maximum, but tells
apart placements with the same worst cut. Parts are swapped while that helps, on few devices from several placements.
The best are then planned in the order of their bounds, until the bound of the rest is above the best plan. (Bounds
alone do not decide: they do not see how many stages a machine needs.) The present placement is planned, too, and stays
unless another one is faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int64Array
from dgcl.planner.bounds.best import cut_bound
from dgcl.planner.bounds.cut_kernels import covers
from dgcl.planner.bounds.cuts import ALL_SUBSETS_UP_TO, candidate_cuts, labels
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

STARTS, FINALISTS = 24, 8  # placements from which parts are swapped, on few devices, and that are planned
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
    orders = _orders(relation, topology)
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


def _orders(relation: Relation, topology: Topology) -> list[Int64Array]:
    """Return the placements that swaps of two parts lead to, by the cuts of the machine.

    From the present placement, and on few devices from others drawn at random. Of placements that are equally good,
    as those that differ by a symmetry of the machine, the first.
    """
    cuts = [cut for cut in candidate_cuts(topology) if len(cut.groups) == 1]
    arrays, member = topology.arrays(), labels(cuts, topology.num_devices)
    capacity = covers(member, arrays)[0] @ arrays.bandwidth
    rows, world, draw = relation.pair_rows().astype(np.float64), relation.world_size, np.random.default_rng(0)
    distinct: dict[float, Int64Array] = {}
    for start in range(STARTS if world <= ALL_SUBSETS_UP_TO else 1):
        order = draw.permutation(world) if start else np.arange(world)
        score = _improve_by_swaps(rows, member >= 0, capacity, NORM, order)
        distinct.setdefault(float(f"{score:.9g}"), order)
    return [distinct[score] for score in sorted(distinct)[:FINALISTS]]


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
) -> float:
    """Swap the devices of two parts while the norm of rows over capacities falls; changes ``order``.

    Returns that norm to its power.

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
    return best
