"""Divides the devices into groups, so that the search for trees stays affordable.

Up to about a dozen devices form one group, and the search is exact: K * P * 3**(P-1) / 2 steps a round for K stages and
P devices. Else groups are machines, sockets or clusters of at most 8: a row crosses to each other group once, over one
link, after any moves inside its own, and is spread there. What that costs is the gap to bounds that hold for any plan
(bounds/, master/price_bound.py).
Called by `planner/column_generation/search/stage_search`, `planner/methods/optimal` and `dgcl/cli/warmup`. Free to
change while plans of 32 devices stay within 3 % of the bound, and repeat
(`tests/planner/column_generation/test_grouped.py`), and the bound on plans by groups is the one calculated by hand
(`tests/planner/column_generation/test_reparent.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.bounds.cut_kernels import covers
from dgcl.planner.column_generation.pricing.states import MAX_GROUP, StateSpace, build_states, count_splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology
    from dgcl.topology.arrays import TopologyArrays

MAX_EXACT_SPLITS = 4_000_000  # (device, split) pairs up to which all devices form one group: any 12 devices
GROUP_SIZE = 8
MAX_ALL_LINKS = 24  # devices up to which every link may be used for every group


def plan_states(relation: Relation, topology: Topology, every_link: bool = False) -> StateSpace:
    """Return the state space of a relation: exact where affordable, else by groups.

    On many devices only some links are used on the way to a group (`allowed_links`), unless `every_link` may be.
    """
    arrays = topology.arrays()
    if _one_group_is_affordable(relation):
        return build_states(relation, arrays, [np.arange(relation.world_size)])
    groups = device_groups(topology)
    return build_states(relation, arrays, groups, None if every_link else allowed_links(arrays, groups))


def _one_group_is_affordable(relation: Relation) -> bool:
    """Tell whether all devices may form one group; of at most `GROUP_SIZE` they always may."""
    world = relation.world_size
    if world > MAX_GROUP:
        return False
    masks = np.unique(relation.dests[:, 0].astype(np.int64))
    return world * count_splits(world, masks) <= MAX_EXACT_SPLITS


def device_groups(topology: Topology) -> list[Int64Array]:
    """Divide the devices into groups of at most `GROUP_SIZE`: by machine, then by socket, then by distance."""
    sizes = Counter(device.machine for device in topology.devices)
    places: dict[tuple[int, int], list[int]] = {}
    for rank, device in enumerate(topology.devices):
        socket = device.socket if sizes[device.machine] > GROUP_SIZE else 0
        places.setdefault((device.machine, socket), []).append(rank)
    distance = _distances(topology.arrays())
    return [group for ranks in places.values() for group in _clusters(ranks, distance)]


def _distances(arrays: TopologyArrays) -> FloatArray:
    """Return (P, P) the times that a row between two devices takes on the connections of its route, added up."""
    cost = np.add.reduceat(1.0 / arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
    distance = np.full((arrays.num_devices, arrays.num_devices), np.inf)
    distance[arrays.link_src, arrays.link_dst] = cost
    np.maximum(distance, distance.T, out=distance)
    return distance


def _clusters(ranks: list[int], distance: FloatArray) -> list[Int64Array]:
    """Divide ranks into even groups of at most `GROUP_SIZE`, each grown from one rank by nearest neighbours."""
    num, left, out = -(-len(ranks) // GROUP_SIZE), ranks.copy(), []
    for part in range(num):
        size = -(-len(left) // (num - part))
        group = [left.pop(0)]
        while len(group) < size:
            near = min(
                left,
                key=lambda r: (min(distance[r, m] for m in group), sum(distance[r, m] for m in group), r),
            )
            left.remove(near)
            group.append(near)
        out.append(np.array(sorted(group)))
    return out


def allowed_links(arrays: TopologyArrays, groups: list[Int64Array]) -> list[Int64Array] | None:
    """Return for each (device, group) the links that may be used on the way into or inside that group.

    From inside the group: links to its devices. From elsewhere: links to neighbours of the same group, and
    into the target group those with the shortest routes (the rails). Where that leaves some device unable to
    reach another group or its own, and on few devices anyway, all links.
    """
    world = arrays.num_devices
    if world <= MAX_ALL_LINKS:
        return None
    group_of = np.zeros(world, np.int64)
    for g, group in enumerate(groups):
        group_of[group] = g
    num_groups, to = len(groups), group_of[arrays.link_dst]
    pair = arrays.link_src.astype(np.int64) * num_groups + to  # (device, group) to which each link leads
    hops = np.diff(arrays.link_ptr)
    fewest = np.full(world * num_groups, 1 << 30)
    np.minimum.at(fewest, pair, hops)
    inside = np.flatnonzero(group_of[arrays.link_src] == to)
    into = np.flatnonzero((group_of[arrays.link_src] != to) & (hops == fewest[pair]))
    # links inside a group are on the way to all groups
    of_all = (arrays.link_src[inside].astype(np.int64) * num_groups)[:, None] + np.arange(num_groups)
    pairs = np.concatenate([pair[into], of_all.reshape(-1)])
    links = np.concatenate([into, np.repeat(inside, num_groups)])
    order = np.lexsort((links, pairs))
    ends = np.searchsorted(pairs[order], np.arange(1, world * num_groups))
    allowed: list[Int64Array] = np.split(links[order], ends)
    return allowed if _all_served(arrays, groups, allowed) else None


def _all_served(arrays: TopologyArrays, groups: list[Int64Array], allowed: list[Int64Array]) -> bool:
    """Tell whether every device reaches every other over the links allowed for the latter's group."""
    num = len(groups)
    return all(
        _reached([arrays.link_dst[links] for links in allowed[g::num]], group)[-1].all()
        for g, group in enumerate(groups)
    )


def _reached(receivers: Sequence[Int32Array], group: Int64Array) -> list[BoolArray]:
    """Return, for 0, 1, ... stages until nothing changes, which devices reach which of the group in that many.

    (P, size) each. Device v sends to ``receivers[v]``.
    """
    step = np.eye(len(receivers), dtype=np.float32)
    for v, heads in enumerate(receivers):
        step[v, heads] = 1.0
    reached = [np.arange(len(receivers))[:, None] == group]
    while True:
        further = step @ reached[-1].astype(np.float32) > 0.0
        if (further == reached[-1]).all():
            return reached
        reached.append(further)


def grouped_bound(space: StateSpace) -> float:
    """Return a bound, in rows per GB/s, on plans in which rows cross to each group straight from their owner's.

    Every group must send a copy of each of its rows to each other group that needs it. Other plans may be
    faster: a group that has the row can send it on to a third (improvement/reparent.py).
    """
    inside = space.family.group_of == np.arange(len(space.groups))[:, None]
    cover, _ = covers(np.where(inside, -1, 0), space.arrays)  # the cuts out of each group
    capacity = cover @ space.arrays.bandwidth
    worst = 0.0
    for g, group in enumerate(space.groups):
        rows = space.start[group].sum(axis=0)
        rows[space.family.set_ptr[g] : space.family.set_ptr[g + 1]] = 0.0
        if rows.any() and capacity[g] > 0.0:
            worst = max(worst, float(rows.sum() / capacity[g]))
    return worst


def least_stages(space: StateSpace) -> int:
    """Return the smallest number of stages in which every row can arrive over the allowed moves."""
    receivers, least = np.split(space.moves.dst, space.moves.ptr[1:-1]), 0
    for g, group in enumerate(space.groups):
        sets = slice(*space.family.set_ptr[g : g + 2])
        has = space.family.set_mask[sets, None] >> np.arange(group.shape[0]) & 1
        needed = (space.start[:, sets] > 0.0) @ has > 0
        reached = _reached(receivers[g :: len(space.groups)], group)
        assert not (needed & ~reached[-1]).any(), "a destination cannot be reached"
        least = max(least, sum(bool((needed & ~each).any()) for each in reached))
    return least
