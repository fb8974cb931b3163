"""Fits the bandwidths of a topology's connections to measured rates between pairs of GPUs.

A pair's rate is put down to the slowest connection of its route; the rule is below. A connection that is never the
slowest is not measured: it keeps its figure, raised to the fastest pair that uses it. Routes are derived anew.
Called by `files`. Free to change while each pair's rate in the model is the measured one, shared connections carry what
passes them, and tables of other GPUs are refused (`tests/topology/importers/test_p2p.py`); real tables, within 5 %:
`tests/topology/importers/test_shared_files.py`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.draft import Imported
from dgcl.topology.model import Topology

_SAME_RATE = 1.05  # rates within 5% are one rate: measurements of one wire differ by as much


# A sender alone is as fast as the slowest connection of its route. So a connection is at least as fast as the fastest
# pair that uses it; and pairs whose rate no other connection of their route can explain are as fast as it is. If
# several connections of a route could be the slowest, the one that the fewest pairs share is taken: a GPU's own port
# rather than the bus that all use. A connection that is never the slowest is not measured; it keeps its figure, raised
# to the fastest pair that uses it.


def refine_with_p2p(imported: Imported, measured: NDArray[np.float64]) -> Imported:
    """The topology with measured bandwidths; routes are derived anew from them.

    Args:
        imported: What to refine.
        measured: ``(P, P)`` GB/s from the row's to the column's device.

    Raises:
        ValueError: The rates are those of another number of GPUs.
    """
    topology = imported.topology
    if len(measured) != topology.num_devices:
        raise ValueError(
            f"the tables are for {len(measured)} GPUs, the topology {topology.name!r} has "
            f"{topology.num_devices}; measure the same GPUs that the topology describes"
        )
    connections = tuple(
        replace(connection, bandwidth=value)
        for connection, value in zip(topology.connections, _fit(topology, measured), strict=True)
    )
    refined = Topology(topology.name, topology.devices, connections)
    note = (
        f"routes between GPUs have the rates that p2pBandwidthLatencyTest measured: the model is within "
        f"{_worst(refined, measured):.0%} of every pair"
    )
    return Imported(refined, (*imported.notes, note))


def _fit(topology: Topology, measured: NDArray[np.float64]) -> list[float]:
    arrays = topology.arrays()
    routes = [sorted(set(arrays.direction_connection[hops].tolist())) for hops in arrays.routes]
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
