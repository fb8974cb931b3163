"""Writes a topology as text for ``dgcl topo show``: devices, a matrix of links, connections, what links share.

Also `headline`: one line on what decides how to send on this machine.
Called by users (as `dgcl.topology.render_topology`), `dgcl/cli/topo` and `dgcl/cli/topo_import`. Free to change while
each preset can be shown, pairs without a link are seen, and large machines are counted instead of drawn
(`tests/topology/test_show.py`).
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.arrays import TopologyArrays
from dgcl.topology.model import Topology
from dgcl.topology.table import aligned, plural

_WIDEST_MATRIX = 32  # devices; beyond that a matrix is wider than any screen


def render_topology(topology: Topology) -> str:
    """Return text: devices, the matrix of links, the table of connections, and which links share them.

    The matrix is in the style of ``nvidia-smi topo -m``: the row is the sender, the column the receiver. An
    entry is the kind of the slowest connection of the link's route, for the link is as fast as this one,
    and where the route has more than one connection, their number: ``NV2`` is a wire between two GPUs,
    ``QPI(5)`` a route over five connections.
    """
    arrays = topology.arrays()
    sections = [
        _summary(topology, arrays),
        _links(topology, arrays),
        _connections(topology, arrays),
        _sharing(topology, arrays),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def headline(topology: Topology) -> str:
    """Return what decides how to send on this machine, in a line."""
    arrays = topology.arrays()
    noun = "GPU" if all("gpu" in device.name for device in topology.devices) else "device"
    devices = plural(topology.num_devices, noun)
    users = _users(arrays)
    shared = [  # a wire of one device is its own, whoever it sends to
        direction
        for direction, links in enumerate(users)
        if min(len(np.unique(ends[links])) for ends in (arrays.link_src, arrays.link_dst)) > 1
    ]
    if shared:
        worst = min(shared, key=lambda direction: arrays.bandwidth[direction] / len(users[direction]))
        rate, name = arrays.bandwidth[worst], arrays.direction_names[worst]
        return f"{devices}: {plural(len(users[worst]), 'pair')} share {rate:.4g} GB/s ({name})"
    rates = {arrays.bandwidth[route].min() for route in arrays.routes}
    if len(rates) == 1 and arrays.num_links == topology.num_devices * (topology.num_devices - 1):
        return f"{devices}, all alike: straight is best, unless some send far more than others"
    return f"{devices}: no pairs share a connection"


def _summary(topology: Topology, arrays: TopologyArrays) -> str:
    missing = topology.num_devices * (topology.num_devices - 1) - arrays.num_links
    lines = [
        f"{topology.name}: {plural(topology.num_devices, 'device')}, "
        f"{plural(len(topology.switches), 'switch')}, "
        f"{plural(len(topology.connections), 'connection')}, {plural(arrays.num_links, 'link')}"
        + (f" (none for {plural(missing, 'ordered pair')})" if missing else ""),
    ]
    places: dict[tuple[int, int], list[str]] = {}
    for device in topology.devices:
        places.setdefault((device.machine, device.socket), []).append(device.name)
    for (machine, socket), names in sorted(places.items()):
        lines.append(f"  machine {machine}, socket {socket}: {_name_list(names)}")
    return "\n".join(lines)


def _links(topology: Topology, arrays: TopologyArrays) -> str:
    if not arrays.num_links:
        return ""
    routes = arrays.routes
    slowest = [int(route[np.argmin(arrays.bandwidth[route])]) for route in routes]
    kinds = [topology.connections[arrays.direction_connection[direction]].kind for direction in slowest]
    ways = [
        f"{kind}({len(route)})" if len(route) > 1 else kind for kind, route in zip(kinds, routes, strict=True)
    ]
    speeds = [f"{arrays.bandwidth[direction]:.4g}" for direction in slowest]
    if topology.num_devices > _WIDEST_MATRIX:
        counts = Counter(zip(ways, speeds, strict=True)).most_common()
        rows = [["way", "GB/s", "links"], *([way, speed, str(count)] for (way, speed), count in counts)]
        return "\n".join(["links, by slowest connection (number of connections)", _columns(rows)])
    return "\n".join(
        [
            "links from row to column, by slowest connection (number of connections, if several)",
            _matrix(topology, arrays, ways),
            "",
            "GB/s of a link while nothing else is sent",
            _matrix(topology, arrays, speeds),
        ]
    )


def _matrix(topology: Topology, arrays: TopologyArrays, entries: list[str]) -> str:
    names = [device.name for device in topology.devices]
    rows = [["", *names]]
    for row, name in enumerate(names):
        links = arrays.link_of[row].tolist()
        cells = [entries[link] if link >= 0 else "-" for link in links]
        cells[row] = "X"
        rows.append([name, *cells])
    return _columns(rows)


def _connections(topology: Topology, arrays: TopologyArrays) -> str:
    if not topology.connections:
        return "no connections"
    num_users = np.bincount(arrays.link_directions, minlength=arrays.num_directions)
    rows = [["connection", "kind", "a", "b", "GB/s", "latency us", "duplex", "links (a to b, b to a)"]]
    for index, connection in enumerate(topology.connections):
        counts = num_users[arrays.direction_connection == index].tolist()
        rows.append(
            [
                connection.name,
                connection.kind,
                connection.a,
                connection.b,
                f"{connection.bandwidth:.4g}",
                f"{connection.latency * 1e6:.4g}",
                connection.duplex,
                ", ".join(map(str, counts)),
            ]
        )
    if not any(connection.latency for connection in topology.connections):
        rows = [row[:5] + row[6:] for row in rows]
    return "\n".join(["connections (GB/s in each direction; half duplex: in both together)", _columns(rows)])


def _sharing(topology: Topology, arrays: TopologyArrays) -> str:
    """One line for each connection-direction that several links use: from which devices to which they
    lead."""
    rows = []
    for direction, links in enumerate(_users(arrays)):
        if len(links) > 1:
            ends = [
                _name_list([topology.devices[rank].name for rank in np.unique(ranks[links])])
                for ranks in (arrays.link_src, arrays.link_dst)
            ]
            rows.append([arrays.direction_names[direction], str(len(links)), f"{ends[0]} > {ends[1]}"])
    if not rows:
        return ""
    return "\n".join(
        ["shared: these links divide the bandwidth", _columns([["direction", "links", "from > to"], *rows])]
    )


def _users(arrays: TopologyArrays) -> list[NDArray[np.intp]]:
    """For each connection-direction the links whose route uses it."""
    by_direction = np.argsort(arrays.link_directions, kind="stable")
    ends = np.cumsum(np.bincount(arrays.link_directions, minlength=arrays.num_directions))
    return np.split(arrays.link_of_hop[by_direction], ends[:-1]) if arrays.num_directions else []


def _name_list(names: Sequence[str]) -> str:
    """Names with runs of successive numbers drawn together: ``gpu0..3 gpu5``."""
    words: list[str] = []
    run: list[str] = []  # numbers of the run that ends in the last word
    stem = ""
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9][0-9]*)", name)
        if match and run and match[1] == stem and int(match[2]) == int(run[-1]) + 1:
            run.append(match[2])
            words[-1] = f"{stem}{run[0]}..{run[-1]}"
        else:
            stem, run = (match[1], [match[2]]) if match else ("", [])
            words.append(name)
    return " ".join(words)


def _columns(rows: list[list[str]]) -> str:
    return aligned(rows[0], rows[1:], range(len(rows[0])))
