"""A topology as arrays, for planners and simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.garbage import no_garbage_search
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
    def link_of_hop(self) -> NDArray[np.int64]:
        """The link of each entry of ``link_directions``."""
        return np.repeat(np.arange(self.num_links), np.diff(self.link_ptr))

    def direction_name(self, direction: int) -> str:
        """The name of a connection-direction, such as ``gpu0-plx0:gpu0>plx0``."""
        return self.direction_names[direction]


@no_garbage_search()
def topology_arrays(
    devices: Sequence[Device], connections: Sequence[Connection], links: Sequence[Link]
) -> TopologyArrays:
    """The numeric view of a topology's parts. Call :meth:`Topology.arrays`, which keeps it."""
    first_direction: dict[str, int] = {}
    direction_connection: list[int] = []
    direction_names: list[str] = []
    for index, c in enumerate(connections):
        ways = [f"{c.name}:{c.a}>{c.b}", f"{c.name}:{c.b}>{c.a}"] if c.duplex == "full" else [c.name]
        first_direction[c.name] = len(direction_names)
        direction_names += ways
        direction_connection += [index] * len(ways)

    num_devices = len(devices)
    rank = {device.name: index for index, device in enumerate(devices)}
    # Of each connection: its ends, the direction from each, its latency. A table, since there may be millions of hops.
    hop = {
        c.name: (c.a, c.b, first_direction[c.name], first_direction[c.name] + (c.duplex == "full"), c.latency)
        for c in connections
    }
    links = sorted(links, key=lambda link: (rank[link.src], rank[link.dst]))
    link_ptr, link_directions, link_latency = [0], [], []
    for link in links:
        at, latency = link.src, 0.0
        for name in link.route:
            a, b, forth, back, delay = hop[name]
            if at == a:
                link_directions.append(forth)
                at = b
            else:
                link_directions.append(back)
                at = a
            latency += delay
        link_ptr.append(len(link_directions))
        link_latency.append(latency)
    link_of = np.full((num_devices, num_devices), -1, dtype=np.int32)
    arrays: dict[str, NDArray[Any]] = {
        "bandwidth": np.array([connections[c].bandwidth for c in direction_connection], dtype=np.float64),
        "direction_connection": np.array(direction_connection, dtype=np.int32),
        "link_src": np.array([rank[link.src] for link in links], dtype=np.int32),
        "link_dst": np.array([rank[link.dst] for link in links], dtype=np.int32),
        "link_ptr": np.array(link_ptr, dtype=np.int64),
        "link_directions": np.array(link_directions, dtype=np.int32),
        "link_latency": np.array(link_latency, dtype=np.float64),
        "link_of": link_of,
    }
    link_of[arrays["link_src"], arrays["link_dst"]] = np.arange(len(links), dtype=np.int32)
    for array in arrays.values():
        array.setflags(write=False)
    return TopologyArrays(num_devices=num_devices, direction_names=tuple(direction_names), **arrays)
