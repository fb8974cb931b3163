"""Derives the routes of links where a topology lists connections only.

The route from ``src`` to ``dst`` runs through switches only, never through another device. Of all such routes
it is

1. one whose slowest connection is fastest (this bottleneck is W),
2. of those, one of the fewest connections, all of bandwidth >= W,
3. of those, the one whose list of connection names, in order from ``src`` to ``dst``, is smallest.

Latency and duplex do not matter. The rule defines exactly one route, so every reader of the same file derives the same
links.

Two searches find it. *Bottlenecks*: connections are added from the fastest to the slowest; the one that first joins two
devices is their bottleneck (as in Kruskal's maximum spanning tree, whose paths are the widest ones). *Routes*: a
breadth-first search over the connections of bandwidth >= W that visits neighbours in the order of connection names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.parts import Connection

Route: TypeAlias = tuple[str, ...]
# For each node its (connection name, other node, bandwidth), by name. Devices are nodes 0..P-1, then
# switches.
_Adjacency: TypeAlias = list[list[tuple[str, int, float]]]


def derive_routes(
    devices: Sequence[str], connections: Sequence[Connection]
) -> Iterator[tuple[str, str, Route]]:
    """Yield ``(src, dst, route)`` for every ordered pair of devices that connections join.

    Pairs come in the order of the devices. With P devices, E connections and switches without alternative
    routes (a tree, however many speeds it has) this takes O(P (P + E)) steps: one breadth-first search per
    device. Alternatives cost one more search for each bottleneck that the searches so far have missed.
    """
    nodes = _number_nodes(devices, connections)
    adjacency: _Adjacency = [[] for _ in nodes]
    for connection in sorted(connections, key=lambda c: c.name):
        a, b = nodes[connection.a], nodes[connection.b]
        adjacency[a].append((connection.name, b, connection.bandwidth))
        adjacency[b].append((connection.name, a, connection.bandwidth))
    widest = widest_bottlenecks(devices, connections)
    for src, name in enumerate(devices):
        for dst, route in sorted(_routes_from(src, widest[src].tolist(), adjacency, len(devices)).items()):
            yield name, devices[dst], route


def widest_bottlenecks(devices: Sequence[str], connections: Sequence[Connection]) -> NDArray[np.float64]:
    """The widest bottleneck over all routes of each pair of devices.

    Returns (P, P) float64 in GB/s, symmetric; 0 where no route joins the pair, inf on the diagonal.
    """
    num_devices = len(devices)
    nodes = _number_nodes(devices, connections)
    width = np.zeros((num_devices, num_devices))
    np.fill_diagonal(width, np.inf)

    def join(left: list[int], right: list[int], bandwidth: float) -> None:
        """Give the pairs of left x right that no faster connection has joined before their bottleneck."""
        block = width[np.ix_(left, right)]
        block[block == 0] = bandwidth
        width[np.ix_(left, right)] = block
        width[np.ix_(right, left)] = block.T

    # Sets of switches that the connections added so far join (union-find), and the devices attached to
    # each. A device may be attached to several sets: it does not forward, so it does not merge them.
    parent = list(range(len(nodes)))
    attached: dict[int, set[int]] = {node: set() for node in range(num_devices, len(nodes))}

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for connection in sorted(connections, key=lambda c: -c.bandwidth):
        a, b = sorted((nodes[connection.a], nodes[connection.b]))
        if b < num_devices:  # two devices
            join([a], [b], connection.bandwidth)
        elif a < num_devices:  # a device and a switch
            root = find(b)
            if a not in attached[root]:
                join([a], list(attached[root]), connection.bandwidth)
                attached[root].add(a)
        elif (small := find(a)) != (large := find(b)):  # two switches
            if len(attached[small]) > len(attached[large]):
                small, large = large, small
            join(list(attached[small]), list(attached[large]), connection.bandwidth)
            parent[small] = large
            attached[large] |= attached.pop(small)
    return width


def _number_nodes(devices: Sequence[str], connections: Sequence[Connection]) -> dict[str, int]:
    nodes = {name: index for index, name in enumerate(devices)}
    for connection in connections:
        for end in (connection.a, connection.b):
            nodes.setdefault(end, len(nodes))
    return nodes


def _routes_from(src: int, width: list[float], adjacency: _Adjacency, num_devices: int) -> dict[int, Route]:
    """The route to every device that can be reached from ``src``, of which ``width`` are the bottlenecks.

    A search over connections of bandwidth >= w finds for each device the shortest and then smallest of
    *all* routes that are at least w wide. Where that route happens to be W wide, W >= w, it is the answer
    among the fewer routes that are W wide too. So one search at the smallest W that is still open settles
    at least the devices of this W, and usually all.
    """
    routes: dict[int, Route] = {}
    open_devices = [dst for dst in range(num_devices) if dst != src and width[dst] > 0]
    while open_devices:
        at_least = min(width[dst] for dst in open_devices)
        found, bottleneck = _shortest_routes(src, at_least, adjacency, num_devices)
        for dst in open_devices:
            if bottleneck[dst] == width[dst]:
                routes[dst] = found[dst]
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
        for name, other, bandwidth in adjacency[node]:
            if bandwidth >= at_least and other not in routes:
                routes[other] = (*route, name)
                bottleneck[other] = min(narrowest, bandwidth)
                if other >= num_devices:
                    queue.append(other)
    return routes, bottleneck
