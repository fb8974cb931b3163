"""Derives the routes of links where a topology lists connections only.

The route from ``src`` to ``dst`` runs through switches only, never through another device. Of all such routes
it is

1. one whose slowest connection is fastest (this bottleneck is W),
2. of those, one of the fewest connections, all of bandwidth >= W,
3. of those, the one whose list of connection names, in order from ``src`` to ``dst``, is smallest.

Latency and duplex do not matter. The rule defines exactly one route, so every reader of the same file derives the same
links.

Two searches from each device find it. *Bottlenecks*: Dijkstra's search, by the widest route instead of the shortest.
*Routes*: a breadth-first search over the connections of bandwidth >= W that visits neighbours in the order of
connection names.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np

from dgcl.topology.arrays import LinkNumbers
from dgcl.topology.parts import Connection, Device

Route: TypeAlias = tuple[int, ...]
# For each node its (connection, other node, bandwidth), by name. Devices are nodes 0..P-1, then switches.
_Adjacency: TypeAlias = list[list[tuple[int, int, float]]]


def derive_links(
    devices: Sequence[Device],
    connections: Sequence[Connection],
    groups: Sequence[int] | None = None,
    inside: Sequence[Mapping[int, Route]] = (),
) -> LinkNumbers:
    """The links of all ordered pairs of devices that connections join.

    If devices have ``groups``, those within a group are as ``inside[src]`` has them, by their end.

    With P devices, E connections and switches without alternative
    routes (a tree, however many speeds it has) this takes O(P (P + E log E)) steps: two searches per
    device. Alternatives cost one more search for each bottleneck that the searches so far have missed.
    """
    nodes = {device.name: index for index, device in enumerate(devices)}
    for connection in connections:
        for end in (connection.a, connection.b):
            nodes.setdefault(end, len(nodes))
    adjacency: _Adjacency = [[] for _ in nodes]
    for number, connection in sorted(enumerate(connections), key=lambda pair: pair[1].name):
        a, b = nodes[connection.a], nodes[connection.b]
        adjacency[a].append((number, b, connection.bandwidth))
        adjacency[b].append((number, a, connection.bandwidth))
    src, dst, sizes = [], [], [0]
    hops = [np.zeros(0, np.int32)]
    for start in range(len(devices)):
        route_to = _routes_from(start, adjacency, len(devices))
        if groups is not None:
            route_to = {end: route for end, route in route_to.items() if groups[end] != groups[start]}
            route_to |= inside[start]
        routes = sorted(route_to.items())
        src += [start] * len(routes)
        dst += [end for end, _ in routes]
        sizes += [len(route) for _, route in routes]
        hops.append(np.array([hop for _, route in routes for hop in route], np.int32))
    return LinkNumbers(
        np.array(src, np.int32), np.array(dst, np.int32), np.cumsum(sizes), np.concatenate(hops)
    )


def _bottlenecks(src: int, adjacency: _Adjacency, num_devices: int) -> dict[int, float]:
    """The widest bottleneck over all routes from ``src`` to each node that one leads to, in GB/s."""
    width = {src: float("inf")}
    queue = [(-width[src], src)]
    while queue:
        negative, node = heappop(queue)
        if -negative == width[node] and (node >= num_devices or node == src):
            for _, other, bandwidth in adjacency[node]:
                narrowest = min(-negative, bandwidth)
                if narrowest > width.get(other, 0.0):
                    width[other] = narrowest
                    heappush(queue, (-narrowest, other))
    return width


def _routes_from(src: int, adjacency: _Adjacency, num_devices: int) -> dict[int, Route]:
    """The route to every device that can be reached from ``src``.

    A search over connections of bandwidth >= w finds for each device the shortest and then smallest of
    *all* routes that are at least w wide. Where that route happens to be W wide, W >= w, it is the answer
    among the fewer routes that are W wide too. So one search at the smallest W that is still open settles
    at least the devices of this W, and usually all.
    """
    routes: dict[int, Route] = {}
    width = _bottlenecks(src, adjacency, num_devices)
    open_devices = [dst for dst in width if dst != src and dst < num_devices]
    while open_devices:
        at_least = min(width[dst] for dst in open_devices)
        shortest, bottleneck = _shortest_routes(src, at_least, adjacency, num_devices)
        for dst in open_devices:
            if bottleneck[dst] == width[dst]:
                routes[dst] = shortest[dst]
        open_devices = [dst for dst in open_devices if dst not in routes]
    return routes


def _shortest_routes(
    src: int, at_least: float, adjacency: _Adjacency, num_devices: int
) -> tuple[dict[int, Route], dict[int, float]]:
    """Breadth-first search from ``src`` over connections of bandwidth >= ``at_least``.

    Devices are reached but not passed through. The queue holds nodes in the order of (length, names) of
    their routes: this is true of the first, and a node's neighbours are appended in the order of (their
    predecessor's place in the queue, connection name). So the first route to reach a node is the smallest
    of the shortest ones. Returns routes and their bottlenecks, by node.
    """
    routes: dict[int, Route] = {src: ()}
    bottleneck = {src: float("inf")}
    queue = [src]
    for node in queue:  # the queue grows while it is read
        route, narrowest = routes[node], bottleneck[node]
        for number, other, bandwidth in adjacency[node]:
            if bandwidth >= at_least and other not in routes:
                routes[other] = (*route, number)
                bottleneck[other] = min(narrowest, bandwidth)
                if other >= num_devices:
                    queue.append(other)
    return routes, bottleneck
