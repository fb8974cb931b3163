"""Divides the devices into groups: all in one where that is affordable, else machines, sockets or clusters.

With one group of all devices the tree program is exact, at K * P * 3**(P-1) / 2 steps a round. Past a dozen
devices sets are kept per group instead: a row crosses to each other group once (over one link, after any
moves inside its own), and is spread there. The gap to the bounds (bounds/, master/price_bound.py), which hold for any
plan, shows what that costs.

Called by `planner/column_generation/search/`, `dgcl/cli/` and 2 more folders. Free to change while plans
are proved, repeat by seed and take no longer (`tests/planner/column_generation/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import IntArray
from dgcl.planner.bounds.cut_kernels import covers
from dgcl.planner.bounds.cuts import Cut, labels
from dgcl.planner.column_generation.pricing.states import MAX_GROUP, StateSpace, build_states, count_splits

if TYPE_CHECKING:
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
    everyone = np.arange(relation.world_size)
    if is_exact(relation):
        return build_states(relation, arrays, [everyone])
    groups = device_groups(topology)
    return build_states(relation, arrays, groups, None if every_link else allowed_links(arrays, groups))


def is_exact(relation: Relation) -> bool:
    """Tell whether all devices may form one group."""
    world = relation.world_size
    if world > MAX_GROUP:
        return False
    masks = np.unique(relation.dests[:, 0].astype(np.int64))
    return world * count_splits(world, masks) <= MAX_EXACT_SPLITS


def device_groups(topology: Topology) -> list[IntArray]:
    """Divide the devices into groups of at most `GROUP_SIZE`: by machine, then by socket, then by distance."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, device in enumerate(topology.devices):
        groups.setdefault((device.machine,), []).append(rank)
    sockets: dict[tuple[int, ...], list[int]] = {}
    for (machine,), ranks in groups.items():
        for rank in ranks:
            key = (machine, topology.devices[rank].socket) if len(ranks) > GROUP_SIZE else (machine,)
            sockets.setdefault(key, []).append(rank)
    groups_of_all: list[IntArray] = []
    distance = _distances(topology.arrays())
    for ranks in sockets.values():
        groups_of_all.extend(_clusters(np.array(ranks), distance))
    return groups_of_all


def _distances(arrays: TopologyArrays) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return (P, P) the times that a row between two devices takes on the connections of its route, added up."""
    cost = np.add.reduceat(1.0 / arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
    distance = np.full((arrays.num_devices, arrays.num_devices), np.inf)
    distance[arrays.link_src, arrays.link_dst] = cost
    np.maximum(distance, distance.T, out=distance)
    return distance


def _clusters(ranks: IntArray, distance: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[IntArray]:
    """Divide ranks into even groups of at most `GROUP_SIZE`, each grown from one rank by nearest neighbours."""
    num = -(-ranks.shape[0] // GROUP_SIZE)
    left = ranks.tolist()
    out = []
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


def allowed_links(arrays: TopologyArrays, groups: list[IntArray]) -> list[IntArray] | None:
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
    allowed: list[IntArray] = np.split(links[order], ends)
    return allowed if _all_served(arrays, groups, allowed) else None


def _all_served(arrays: TopologyArrays, groups: list[IntArray], allowed: list[IntArray]) -> bool:
    """Tell whether every device reaches every other over the links allowed for the latter's group."""
    world = arrays.num_devices
    for g, group in enumerate(groups):
        step = np.eye(world, dtype=np.float32)
        for v in range(world):
            step[v, arrays.link_dst[allowed[v * len(groups) + g]]] = 1.0
        reach, before = (
            np.arange(world)[:, None] == group,
            -1,
        )  # from which devices each of the group's is reached
        while before < (before := int(reach.sum())):
            reach = step @ reach.astype(np.float32) > 0.0
        if not reach.all():
            return False
    return True


def grouped_bound(space: StateSpace, topology: Topology) -> float:
    """Return a bound, in rows per GB/s, on plans in which rows cross to each group straight from their owner's.

    Every group must send a copy of each of its rows to each other group that needs it. Other plans may be
    faster: a group that has the row can send it on to a third (improvement/reparent.py).
    """
    arrays = topology.arrays()
    everyone = frozenset(range(topology.num_devices))
    cuts = [Cut((everyone.difference(group.tolist()),), "", "out") for group in space.groups]
    cover, _ = covers(labels(cuts, topology.num_devices), arrays)
    capacity = cover @ arrays.bandwidth
    worst = 0.0
    for g, group in enumerate(space.groups):
        rows = space.start[group].sum(axis=0)
        rows[space.family.set_ptr[g] : space.family.set_ptr[g + 1]] = 0.0
        if rows.any() and capacity[g] > 0.0:
            worst = max(worst, float(rows.sum() / capacity[g]))
    return worst


def least_stages(space: StateSpace) -> int:
    """Return the smallest number of stages in which every row can arrive over the allowed moves."""
    world, num_groups = space.world_size, len(space.groups)
    least = 0
    for g in range(num_groups):
        low, high = space.family.set_ptr[g], space.family.set_ptr[g + 1]
        group = space.groups[g]
        needed = np.zeros((world, group.shape[0]), np.bool_)
        for b in range(group.shape[0]):
            has = (space.family.set_mask[low:high] >> b & 1).astype(np.bool_)
            needed[:, b] = (space.start[:, low:high][:, has] > 0).any(axis=1)
        step = np.eye(world, dtype=np.float32)
        for v in range(world):
            at = v * num_groups + g
            step[v, space.moves.dst[space.moves.ptr[at] : space.moves.ptr[at + 1]]] = 1.0
        reach, stages = (
            np.arange(world)[:, None] == group,
            0,
        )  # from which devices each of the group's is reached
        while (needed & ~reach).any():
            assert stages < world, "a destination cannot be reached"
            reach = step @ reach.astype(np.float32) > 0.0
            stages += 1
        least = max(least, stages)
    return least
