"""A topology as arrays, for planners and simulators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.parts import Connection, Device, Link


class LinkNumbers(NamedTuple):
    """Links by number: ranks for devices, positions for connections. A thousand devices have a million links."""

    src: NDArray[np.int32]  # (L,) links are sorted by (src, dst), each pair once
    dst: NDArray[np.int32]  # (L,)
    ptr: NDArray[np.int64]  # (L + 1,) link l takes route[ptr[l]:ptr[l + 1]]
    route: NDArray[np.int32]  # connections of each route, in order from src to dst


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
    def links(self) -> LinkNumbers:
        """The links without what follows from them."""
        return LinkNumbers(
            self.link_src, self.link_dst, self.link_ptr, self.direction_connection[self.link_directions]
        )

    @property
    def link_of_hop(self) -> NDArray[np.int64]:
        """The link of each entry of ``link_directions``."""
        return np.repeat(np.arange(self.num_links), np.diff(self.link_ptr))


def number_links(
    devices: Sequence[Device], connections: Sequence[Connection], links: Sequence[Link]
) -> LinkNumbers:
    """The numbers of links; KeyError for an unknown name."""
    rank = {device.name: index for index, device in enumerate(devices)}
    number = {c.name: index for index, c in enumerate(connections)}
    links = sorted(links, key=lambda link: (rank[link.src], rank[link.dst]))
    return LinkNumbers(
        np.array([rank[link.src] for link in links], np.int32),
        np.array([rank[link.dst] for link in links], np.int32),
        np.cumsum([0, *(len(link.route) for link in links)]),
        np.array([number[name] for link in links for name in link.route], np.int32),
    )


def name_links(
    devices: Sequence[Device], connections: Sequence[Connection], links: LinkNumbers
) -> tuple[Link, ...]:
    """The links with these numbers."""
    ends = [device.name for device in devices]
    wires = [connections[c].name for c in links.route.tolist()]
    ptr = links.ptr.tolist()
    return tuple(
        Link(ends[src], ends[dst], tuple(wires[start:stop]))
        for src, dst, start, stop in zip(links.src, links.dst, ptr, ptr[1:], strict=False)
    )


def topology_arrays(
    devices: Sequence[Device], connections: Sequence[Connection], links: LinkNumbers
) -> TopologyArrays:
    """The numeric view of a topology's parts. Call :meth:`Topology.arrays`, which keeps it.

    All links go one hop at a time, since there may be a million. Numbers must be in range.

    Raises:
        KeyError: A link is one of several of its pair, or not in order; or its route does not lead to its end through
            switches only, or uses a connection twice.
    """
    num_devices, num_links = len(devices), len(links.src)
    node = {device.name: index for index, device in enumerate(devices)}
    ends = [[node.setdefault(end, len(node)) for end in (c.a, c.b)] for c in connections]
    full = np.array([c.duplex == "full" for c in connections], np.int32)
    delay = np.array([c.latency for c in connections])
    direction_names: list[str] = []
    for c in connections:
        both = [f"{c.name}:{c.a}>{c.b}", f"{c.name}:{c.b}>{c.a}"]
        direction_names += both if c.duplex == "full" else [c.name]

    link_src, link_dst, link_ptr, wires = links
    sizes = np.diff(link_ptr)
    directions, latency = np.empty_like(wires), np.zeros(num_links)
    at, right = link_src.copy(), np.ones(num_links, np.bool_)
    for step in range(sizes.max(initial=0)):
        on = np.flatnonzero(sizes > step)
        hop = link_ptr[on] + step
        wire, here = wires[hop], at[on]
        a, b = np.array(ends)[wire].T
        back = here == b
        right[on] &= (back | (here == a)) & ((here >= num_devices) | (step == 0))
        for before in range(step):
            right[on] &= wires[hop - before - 1] != wire
        at[on] = np.where(back, a, b)
        directions[hop] = (np.cumsum(1 + full) - 1 - full)[wire] + full[wire] * back
        latency[on] += delay[wire]
    in_order = np.diff(link_src * np.int64(num_devices) + link_dst) > 0
    if not (right & (at == link_dst) & (link_src != link_dst)).all() or not in_order.all():
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
