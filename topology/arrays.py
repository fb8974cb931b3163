"""Turns a topology into read-only numpy arrays: devices by rank, connections by direction, links with routes.

Load is counted per connection-direction: a full-duplex connection has two, a half-duplex one has one that both ways
share. `Topology.arrays()` makes the arrays once and keeps them. Wrong links raise KeyError.
Called by `model`, `show`, `planner/cost`, `planner/fold`, `planner/bounds/best` and others. Free to change while links
are sorted by their devices' ranks, and each route's directions lead from sender to receiver
(`tests/topology/test_arrays.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.parts import Connection, Device, Link


@dataclass(frozen=True, eq=False)
class TopologyArrays:
    """The connections and links of a topology as read-only arrays. Devices are numbered by rank, P of them.

    Load is counted per *connection-direction* c: a full-duplex connection has two, first a to b, then b to
    a; a half-duplex connection has one that both ways share. They are numbered in the order of the
    connections. There are L links.
    """

    num_devices: int
    bandwidth: NDArray[np.float64]  # (num_directions,) GB/s
    direction_connection: NDArray[np.int32]  # (num_directions,) position in Topology.connections
    direction_names: tuple[str, ...]  # (num_directions,) "connection:from>to", or "connection" if half duplex
    link_src: NDArray[np.int32]  # (L,) links are sorted by (src, dst)
    link_dst: NDArray[np.int32]  # (L,)
    link_ptr: NDArray[np.int64]  # (L + 1,) link l uses link_directions[link_ptr[l]:link_ptr[l + 1]]
    link_directions: NDArray[np.int32]  # connection-directions of each route, in order from src to dst
    link_latency: NDArray[np.float64]  # (L,) seconds, summed over the route
    link_of: NDArray[np.int32]  # (P, P) link from row to column, -1 where there is none

    @property
    def num_directions(self) -> int:
        """How many connection-directions there are."""
        return len(self.bandwidth)

    @property
    def num_links(self) -> int:
        """How many links there are."""
        return len(self.link_src)

    @property
    def routes(self) -> list[NDArray[np.int32]]:
        """The connection-directions of each link, in order from its ``src`` to its ``dst``."""
        return np.split(self.link_directions, self.link_ptr[1:-1])[: self.num_links]

    @property
    def link_of_hop(self) -> NDArray[np.int64]:
        """The link of each entry of ``link_directions``."""
        return np.repeat(np.arange(self.num_links), np.diff(self.link_ptr))


def topology_arrays(
    devices: Sequence[Device], connections: Sequence[Connection], links: Sequence[Link]
) -> TopologyArrays:
    """The numeric view of a topology's parts. Call :meth:`Topology.arrays`, which keeps it.

    All links go one hop at a time, since there may be a million.

    Raises:
        KeyError: A link has an unknown name, or is one of several of its pair; or its route does not lead to its end
            through switches only, or uses a connection twice.
    """
    num_devices, num_links = len(devices), len(links)
    rank = {device.name: index for index, device in enumerate(devices)}
    node = rank.copy()
    ends = [[node.setdefault(end, len(node)) for end in (c.a, c.b)] for c in connections]
    full = np.array([c.duplex == "full" for c in connections], np.int32)
    delay = np.array([c.latency for c in connections])
    direction_names: list[str] = []
    for c in connections:
        both = [f"{c.name}:{c.a}>{c.b}", f"{c.name}:{c.b}>{c.a}"]
        direction_names += both if c.duplex == "full" else [c.name]

    pair = np.array([rank[link.src] * num_devices + rank[link.dst] for link in links], np.int32)
    links = [links[index] for index in np.argsort(pair)]
    link_src, link_dst = np.divmod(np.sort(pair), np.int32(num_devices))
    number = {c.name: index for index, c in enumerate(connections)}
    wires = np.array([number[name] for link in links for name in link.route], np.int32)
    sizes = np.array([len(link.route) for link in links], np.int64)
    link_ptr = np.concatenate([[0], np.cumsum(sizes)])
    directions, latency = np.empty_like(wires), np.zeros(num_links)
    at, right = link_src.copy(), np.ones(num_links, np.bool_)
    for step in range(sizes.max(initial=0)):
        on = np.flatnonzero(sizes > step)
        hop = link_ptr[on] + step
        wire, here = wires[hop], at[on]
        a, b = np.array(ends)[wire].T
        back = here == b
        right[on] &= (back | (here == a)) & ((here >= num_devices) | (step == 0))
        at[on] = np.where(back, a, b)
        directions[hop] = (np.cumsum(1 + full) - 1 - full)[wire] + full[wire] * back
        latency[on] += delay[wire]
    passes = np.repeat(np.arange(num_links) * len(connections), sizes) + wires
    passes.sort(kind="stable")  # links follow each other already
    twice = (np.diff(np.sort(pair)) == 0).any() or (np.diff(passes) == 0).any()
    if twice or not (right & (at == link_dst) & (link_src != link_dst)).all():
        raise KeyError("links")
    direction_connection = np.repeat(np.arange(len(connections), dtype=np.int32), 1 + full)
    link_of = np.full((num_devices, num_devices), -1, dtype=np.int32)
    link_of[link_src, link_dst] = np.arange(num_links)
    arrays: dict[str, NDArray[Any]] = {
        "bandwidth": np.array([c.bandwidth for c in connections])[direction_connection],
        "direction_connection": direction_connection,
        "link_src": link_src,
        "link_dst": link_dst,
        "link_ptr": link_ptr,
        "link_directions": directions,
        "link_latency": latency,
        "link_of": link_of,
    }
    for array in arrays.values():
        array.setflags(write=False)
    return TopologyArrays(num_devices=num_devices, direction_names=tuple(direction_names), **arrays)
