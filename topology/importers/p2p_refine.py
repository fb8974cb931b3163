"""Fits the bandwidths of a topology's connections to measured rates between GPUs.

A sender alone is as fast as the slowest connection of its route. So a connection is at least as fast as the fastest
pair that uses it; and pairs whose rate no other connection of their route can explain are as fast as it is. If several
connections of a route could be the slowest, the one that the fewest pairs share is taken: a GPU's own port rather than
the bus that all use. A connection that is never the slowest is not measured; it keeps its figure, raised to the fastest
pair that uses it.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.checks import shown
from dgcl.topology.draft import Imported
from dgcl.topology.importers.p2p_tables import P2pTables
from dgcl.topology.model import Topology

_SAME_RATE = 1.05  # rates within 5% are one rate: measurements of one wire differ by as much
_ONE_WAY = 1.5  # below this, both directions together do not go beyond what one carries, by much


def refine_with_p2p(imported: Imported, tables: P2pTables) -> Imported:
    """The topology with measured bandwidths; routes are derived anew from them.

    Latencies are left alone: the test's include launching the copy.

    Raises:
        ValueError: The tables are for another number of GPUs, or deny peer access to GPUs that the topology
            wires directly.
    """
    topology = imported.topology
    if tables.num_gpus != topology.num_devices:
        raise ValueError(
            f"the tables are for {tables.num_gpus} GPUs, the topology {topology.name!r} has "
            f"{topology.num_devices}; measure the same GPUs that the topology describes"
        )
    _check_access(topology, tables)
    measured = tables.bandwidth
    bandwidth = _fit(topology, measured)
    connections = tuple(
        replace(connection, bandwidth=value)
        for connection, value in zip(topology.connections, bandwidth, strict=True)
    )
    refined = Topology(topology.name, topology.devices, connections)
    worst = _worst(refined, measured)
    notes = [
        *imported.notes,
        f"routes between GPUs have the rates that p2pBandwidthLatencyTest measured: the model is within "
        f"{worst:.0%} of every pair",
    ]
    shared = _half_duplex_pairs(tables)
    if shared:
        notes.append(
            f"{shared} pairs do not reach {_ONE_WAY:g} times the rate of one direction in both together: "
            f"their wires may be half duplex, which is not modelled"
        )
    return Imported(refined, tuple(notes))


def _check_access(topology: Topology, tables: P2pTables) -> None:
    connected = tables.connected
    if connected is None:
        return
    rank = {device.name: index for index, device in enumerate(topology.devices)}
    for connection in topology.connections:
        if connection.a in rank and connection.b in rank:
            a, b = rank[connection.a], rank[connection.b]
            if not (connected[a, b] and connected[b, a]):
                header = tables.lines.get("P2P Connectivity")
                row = b if connected[a, b] else a
                where = "" if header is None else f"line {header + row + 1}: "
                raise ValueError(
                    f"{where}the connectivity matrix denies peer access between GPUs {a} and {b}, which "
                    f"{shown(connection.name)} of the topology joins directly"
                )


def _fit(topology: Topology, measured: NDArray[np.float64]) -> list[float]:
    arrays = topology.arrays()
    routes = (
        [
            sorted(set(arrays.direction_connection[hops].tolist()))
            for hops in np.split(arrays.link_directions, arrays.link_ptr[1:-1])
        ]
        if arrays.num_links
        else []
    )
    rates = measured[arrays.link_src, arrays.link_dst]
    users: list[list[int]] = [[] for _ in topology.connections]
    for link, route in enumerate(routes):
        for connection in route:
            users[connection].append(link)
    fastest = [float(max(rates[links])) if links else 0.0 for links in users]
    # Links by the connections that explain their rate: of those that may be slowest, the least shared.
    explained: list[list[float]] = [[] for _ in topology.connections]
    for route, rate in zip(routes, rates.tolist(), strict=True):
        slowest = min(fastest[c] for c in route)
        tight = [c for c in route if fastest[c] <= slowest * _SAME_RATE]
        least = min(len(users[c]) for c in tight)
        for connection in tight:
            if len(users[connection]) == least:
                explained[connection].append(rate)
    return [
        float(np.median(explained[c])) if explained[c] else max(connection.bandwidth, fastest[c])
        for c, connection in enumerate(topology.connections)
    ]


def _worst(topology: Topology, measured: NDArray[np.float64]) -> float:
    """The largest relative difference between a link's rate in the model and as measured."""
    arrays = topology.arrays()
    if not arrays.num_links:
        return 0.0
    model = np.minimum.reduceat(arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
    return float(np.abs(model / measured[arrays.link_src, arrays.link_dst] - 1).max())


def _half_duplex_pairs(tables: P2pTables) -> int:
    one = tables.tables.get("Unidirectional P2P=Enabled Bandwidth")
    both = tables.tables.get("Bidirectional P2P=Enabled Bandwidth")
    if one is None or both is None:
        return 0
    slow = both < _ONE_WAY * np.minimum(one, one.T)
    return int(np.triu(slow, 1).sum())
