"""Links between devices, and the order of machines, as planning machine by machine reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.bounds.cuts import machines_of

if TYPE_CHECKING:
    from dgcl.topology import Topology, TopologyArrays


class Machines(NamedTuple):
    """The links of a topology, and its devices by machine.

    Attributes:
        hop: (P, P, H) int32, the directions that the link from row to column uses, as many as count; filled up with -1.
            By pairs, since the links to one machine then lie together.
        latency: (P, P) float64, of each link, in rows per GB/s.
        inverse: (num_directions,) float64, 1 over the bandwidth.
        machine_of: (P,) int64.
        first, member: (M+1,) and (P,) int64, machine m has the devices ``member[first[m]:first[m + 1]]``.
        apart: (M, M) int64, from machine to machine, in steps: 1 for the nearest.
        order: (M, M) int64, in row m the machines in the order in which rows of m enter them.
        nearest: (M, M) int64, in row m the machines by how far m is apart from them.
        step: rows go on from machines that are multiples of it apart from their owner's.
    """

    hop: Any
    latency: Any
    inverse: Any
    machine_of: Any
    first: Any
    member: Any
    apart: Any
    order: Any
    nearest: Any
    step: Any


def machine_links(topology: Topology, unit: float) -> Machines:
    """Return the links and machines of a topology; `unit` is the seconds of one row per GB/s."""
    arrays, machine = topology.arrays(), machines_of(topology)
    member = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[member], np.arange(int(machine.max()) + 2))
    world = arrays.num_devices
    link, place, direction = _hops_that_count(arrays)
    used = np.bincount(direction) > 0
    kept, number = np.flatnonzero(used), (np.cumsum(used, dtype=np.int32) - 1)[direction]
    hop = np.full((world, world, int(place.max(initial=0)) + 1), -1, np.int32)
    hop[arrays.link_src[link], arrays.link_dst[link], place] = number
    latency = np.zeros((world, world))
    latency[arrays.link_src, arrays.link_dst] = arrays.link_latency / unit
    num, num_hops = len(first) - 1, np.bincount(link, minlength=arrays.num_links)
    some = np.flatnonzero(num_hops)
    src, dst = arrays.link_src[some], arrays.link_dst[some]
    apart = np.full((num, num), np.iinfo(np.int64).max)
    np.minimum.at(apart, (machine[src], machine[dst]), num_hops[some])
    np.fill_diagonal(apart, 0)
    apart = np.unique(apart, return_inverse=True)[1]
    return Machines(
        hop, latency, 1.0 / arrays.bandwidth[kept], machine, first.astype(np.int64), member.astype(np.int64),
        apart, apart, np.argsort(apart.T, kind="stable"), 1,
    )  # fmt: skip


def _hops_that_count(arrays: TopologyArrays) -> tuple[Int64Array, Int64Array, Int32Array]:
    """Return link, place in its route and direction of each hop, with one direction of those that the same links use.

    It is the narrowest; the others are never busier. Sums of numbers drawn for the links tell which links use one.
    """
    link_of_hop = arrays.link_of_hop
    drawn = np.random.default_rng(0).random(arrays.num_links)
    users = np.bincount(arrays.link_directions, weights=drawn[link_of_hop], minlength=arrays.num_directions)
    order = np.lexsort((arrays.bandwidth, users))
    kept = np.zeros(arrays.num_directions, np.bool_)
    kept[order[np.flatnonzero(np.diff(users[order], prepend=-1.0))]] = True
    hops = np.flatnonzero(kept[arrays.link_directions])
    link = link_of_hop[hops]
    place = np.arange(link.shape[0]) - np.searchsorted(link, link)
    return link, place, arrays.link_directions[hops]
