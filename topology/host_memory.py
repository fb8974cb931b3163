"""Adds host memory to a topology, for links between GPUs whose rows are staged in it.

Without peer access, rows go from the sending GPU into the memory of its processor, and from there to the receiving GPU:
each byte is stored once and loaded once, and all such transfers share the memory. The names of its connections: see
below.
Called by `topology/presets/wires`. Free to change while each route over a processor passes the memory of the sender's,
and senders of one socket share it (`tests/topology/test_host_memory.py`).
"""

import re
from dataclasses import replace

from dgcl.topology.checks import check_number
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Link

# A processor's endpoint ``cpu0`` gets a twin, ``cpu0.memory``, and two wires to it: ``cpu0.store``, which all that is
# stored shares, and ``cpu0.load``. A staged route passes both, at the sender's processor. Where many transfers run, the
# memory itself is shared by all of them, like a bus.

_CPU = re.compile(r"(.*\.)?(cpu|numa)\d*(\.\d+)?")


def stage_in_host_memory(topology: Topology, bandwidth: float) -> Topology:
    """The topology with memory at its processors, and links staged in it.

    Args:
        topology: A machine whose PCIe trees meet at processors.
        bandwidth: GB/s that the memory of one processor moves, reads and writes together (what STREAM
            measures). Half of it is for stores and half for loads: what is staged takes as much of both.

    Pairs that a PCIe switch joins do not pass a processor, and keep their routes: a route uses no connection twice.

    Raises:
        ValueError: There is no endpoint called ``cpu<number>``.
    """
    check_number(bandwidth, "bandwidth", positive=True)
    hosts = [end for end in topology.switches if _CPU.fullmatch(end)]
    if not hosts:
        raise ValueError(f"{topology.name!r} has no endpoint called cpu<number>, as its processors must be")
    wires = [
        Connection(f"{cpu}.{way}", "DRAM", cpu, f"{cpu}.memory", bandwidth / 2)
        for cpu in hosts
        for way in ("store", "load")
    ]
    ends = {connection.name: (connection.a, connection.b) for connection in topology.connections}
    links = tuple(replace(link, route=_staged(link, ends, hosts)) for link in topology.links)
    return Topology(topology.name, topology.devices, (*topology.connections, *wires), links)


def _staged(link: Link, ends: dict[str, tuple[str, str]], hosts: list[str]) -> tuple[str, ...]:
    """The link's route with a visit to the memory of the first processor on it; as it is where it passes none."""
    at = link.src
    for step, name in enumerate(link.route):
        a, b = ends[name]
        at = b if at == a else a
        if at in hosts:
            return (*link.route[: step + 1], f"{at}.store", f"{at}.load", *link.route[step + 1 :])
    return link.route
