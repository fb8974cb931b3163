"""Derives the route of each link, where a topology lists connections only.

A route passes no device on its way. Of all routes from device ``src`` to device ``dst`` it is

1. one whose slowest connection is fastest (this bottleneck is W),
2. of those, one of the fewest connections, all of bandwidth >= W,
3. of those, the one whose list of connection names, in order from ``src`` to ``dst``, is smallest.

Latency and duplex do not matter. The rule must not change: every reader of the same file derives the same links.
Called by `model` and `what_if`. Free to change while each pair gets this route (`tests/topology/test_routes.py`).
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

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
    routes (a tree, however many speeds it has) this takes O(P (P + E log E)) steps: two searches per
    device. Alternatives cost one more search for each bottleneck that the searches so far have missed.
    """
    nodes = {name: index for index, name in enumerate(devices)}
    for connection in connections:
        for end in (connection.a, connection.b):
            nodes.setdefault(end, len(nodes))
    adjacency: _Adjacency = [[] for _ in nodes]
    for connection in sorted(connections, key=lambda c: c.name):
        a, b = nodes[connection.a], nodes[connection.b]
        adjacency[a].append((connection.name, b, connection.bandwidth))
        adjacency[b].append((connection.name, a, connection.bandwidth))
    for src, name in enumerate(devices):
        for dst, route in sorted(_routes_from(src, adjacency, len(devices)).items()):
            yield name, devices[dst], route


def _bottlenecks(src: int, adjacency: _Adjacency, num_devices: int) -> dict[int, float]:
    """The widest bottleneck over all routes from ``src`` to each node that one leads to, in GB/s."""
    width = {src: float("inf")}
    queue = [(-width[src], src)]  # Dijkstra's search, by the widest route instead of the shortest
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
        for name, other, bandwidth in adjacency[node]:
            if bandwidth >= at_least and other not in routes:
                routes[other] = (*route, name)
                bottleneck[other] = min(narrowest, bandwidth)
                if other >= num_devices:
                    queue.append(other)
    return routes, bottleneck
