"""CPU ranks on several hosts as one topology: each host as in :mod:`dgcl.topology.host`, joined by its NIC.

A row for another host is read by its sender's core, leaves by the NIC, and is written at the other end; it
does not pass the memory connection of either host, which stands for copies within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgcl.topology.checks import check_num_devices
from dgcl.topology.host import CopyRates
from dgcl.topology.machine import Net
from dgcl.topology.model import Connection, Device, Link, Topology

PORT_UNKNOWN = 1.25  # GB/s: 10 Gb/s, where a NIC does not tell its speed


@dataclass(frozen=True)
class Host:
    """A host of the job: how fast it copies, and the network port that it uses (None: not told)."""

    rates: CopyRates
    port: Net | None = None


def hosts_topology(hosts: Sequence[Host], host_of_rank: Sequence[int]) -> Topology:
    """The topology of CPU ranks, rank r on ``hosts[host_of_rank[r]]``."""
    check_num_devices(len(host_of_rank), f"{len(hosts)} hosts")
    connections: list[Connection] = []
    for number, host in enumerate(hosts):
        m = f"m{number}."
        port = host.port or Net("nic", PORT_UNKNOWN, "Eth")
        connections += [
            Connection(f"{m}memory", "memory", f"{m}loads", f"{m}stores", host.rates.all, duplex="half"),
            Connection(f"{m}out", "bus", f"{m}loads", f"{m}nic", host.rates.all),
            Connection(f"{m}in", "bus", f"{m}nic", f"{m}stores", host.rates.all),
            Connection(f"{m}wire", port.kind, f"{m}nic", "network", port.bandwidth or PORT_UNKNOWN),
        ]
    for rank, number in enumerate(host_of_rank):
        rates = hosts[number].rates
        connections += [
            Connection(f"core{rank}", "core", f"rank{rank}", f"m{number}.loads", rates.one),
            Connection(f"store{rank}", "memory", f"m{number}.stores", f"rank{rank}", rates.all),
        ]
    ranks = range(len(host_of_rank))
    return Topology(
        name=f"{len(hosts)} hosts, {len(ranks)} ranks",
        devices=tuple(Device(f"rank{r}", machine=host_of_rank[r]) for r in ranks),
        connections=tuple(connections),
        links=tuple(
            Link(f"rank{src}", f"rank{dst}", _route(src, dst, host_of_rank))
            for src in ranks
            for dst in ranks
            if src != dst
        ),
    )


def _route(src: int, dst: int, host_of_rank: Sequence[int]) -> tuple[str, ...]:
    here, there = host_of_rank[src], host_of_rank[dst]
    if here == there:
        return (f"core{src}", f"m{here}.memory", f"store{dst}")
    return (
        f"core{src}",
        f"m{here}.out",
        f"m{here}.wire",
        f"m{there}.wire",
        f"m{there}.in",
        f"store{dst}",
    )
