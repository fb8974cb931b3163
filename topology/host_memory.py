"""Host memory as connections, for traffic between devices that is staged in it.

Without peer access, rows go from the sending GPU into the memory of its processor and from there to the
receiving GPU: each byte is stored once and loaded once. Where many such transfers run, the memory itself is
shared by all of them, like a bus.

A processor's endpoint ``cpu0`` gets a twin, ``cpu0.memory``, and two wires to it: ``cpu0.store``, which all
that is stored shares, and ``cpu0.load``. A staged route passes both, at the sender's processor.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from dgcl.topology.checks import check_number, nearest
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Link

_CPU = re.compile(r"(.*\.)?(cpu|numa)\d*(\.\d+)?")


def stage_in_host_memory(
    topology: Topology,
    bandwidth: float,
    *,
    pairs: Iterable[tuple[str, str]] | None = None,
    cpus: Collection[str] | None = None,
) -> Topology:
    """The topology with memory at its processors, and links staged in it.

    Args:
        topology: A machine whose PCIe trees meet at processors.
        bandwidth: GB/s that the memory of one processor moves, reads and writes together (what STREAM
            measures). Half of it is for stores and half for loads: what is staged takes as much of both.
        pairs: Ordered pairs of devices whose links are staged; None: all links that pass a processor.
        cpus: The endpoints that are processors; None: those called ``cpu<number>``.

    Pairs that a PCIe switch joins do not pass a processor, and keep their routes: a route uses no connection twice.

    Raises:
        ValueError: No processors, or a pair without a link that passes one.
    """
    check_number(bandwidth, "bandwidth", positive=True)
    hosts = [end for end in topology.switches if (_CPU.fullmatch(end) if cpus is None else end in cpus)]
    for cpu in cpus or ():
        if cpu not in hosts:
            raise ValueError(
                f"cpus must be switches of {topology.name!r} (got {cpu!r}){nearest(cpu, topology.switches)}"
            )
    if not hosts:
        raise ValueError(
            f"{topology.name!r} has no endpoint called cpu<number>: name its processors with cpus"
        )
    wires = [
        Connection(f"{cpu}.{way}", "DRAM", cpu, f"{cpu}.memory", bandwidth / 2)
        for cpu in hosts
        for way in ("store", "load")
    ]
    chosen = None if pairs is None else set(pairs)
    ends = {connection.name: (connection.a, connection.b) for connection in topology.connections}
    staged = {}
    for link in topology.links:
        if chosen is None or (link.src, link.dst) in chosen:
            route = _staged(link, ends, hosts)
            if route is not None:
                staged[link.src, link.dst] = route
    if chosen is not None and (left := sorted(chosen - set(staged))):
        src, dst = left[0]
        raise ValueError(
            f"pairs: the link from {src!r} to {dst!r} does not pass a processor, or does not exist"
        )
    links = tuple(
        replace(link, route=staged.get((link.src, link.dst), link.route)) for link in topology.links
    )
    return Topology(topology.name, topology.devices, (*topology.connections, *wires), links)


def _staged(link: Link, ends: dict[str, tuple[str, str]], hosts: list[str]) -> tuple[str, ...] | None:
    """The link's route with a visit to the memory of the first processor on it; None: it passes none."""
    at = link.src
    for step, name in enumerate(link.route):
        a, b = ends[name]
        at = b if at == a else a
        if at in hosts:
            return (*link.route[: step + 1], f"{at}.store", f"{at}.load", *link.route[step + 1 :])
    return None
