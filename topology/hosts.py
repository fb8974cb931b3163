"""Models CPU ranks on several hosts as one topology, joined by network cards; each host as in `host`.

A row for another host is read by its sender's core, leaves by the NIC of its sender, enters by that of its receiver,
and is written there. It does not pass the memory connection of either host, which stands for copies within one.
Called by `dgcl/ranks/machines`. Free to change while ranks of a host are joined over its memory, ranks of different
hosts over their own NICs, at 10 Gb/s where a NIC's speed is unknown (`tests/dgcl/ranks/test_machines.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dgcl.topology.checks import check_num_devices
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.gpu_models import CPU_CORE
from dgcl.topology.machine import Net
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link

PORT_UNKNOWN = 1.25  # GB/s: 10 Gb/s, where the speed of a NIC is unknown


@dataclass(frozen=True)
class Host:
    """A host of the job: its copy rates, and the network ports that its ranks use (none: unknown)."""

    rates: CopyRates
    ports: tuple[Net, ...] = ()


def hosts_topology(
    hosts: Sequence[Host], host_of_rank: Sequence[int], port_of_rank: Sequence[int]
) -> Topology:
    """The topology of CPU ranks.

    Args:
        hosts: The hosts.
        host_of_rank: Rank r runs on ``hosts[host_of_rank[r]]``.
        port_of_rank: The position of its port among its host's.
    """
    check_num_devices(len(host_of_rank), f"{len(hosts)} hosts")
    # The first port of a host has no number in its names.
    ports = [str(port or "") for port in port_of_rank]
    connections: list[Connection] = []
    for number, host in enumerate(hosts):
        m = f"m{number}."
        connections.append(
            Connection(f"{m}memory", "memory", f"{m}loads", f"{m}stores", host.rates.all, duplex="half")
        )
        for position, port in enumerate(host.ports or (Net("nic", PORT_UNKNOWN, "Eth"),)):
            n = str(position or "")
            connections += [
                Connection(f"{m}out{n}", "bus", f"{m}loads", f"{m}nic{n}", host.rates.all),
                Connection(f"{m}in{n}", "bus", f"{m}nic{n}", f"{m}stores", host.rates.all),
                Connection(f"{m}wire{n}", port.kind, f"{m}nic{n}", "network", port.bandwidth or PORT_UNKNOWN),
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
        devices=tuple(Device(f"rank{r}", machine=host_of_rank[r], model=CPU_CORE) for r in ranks),
        connections=tuple(connections),
        links=tuple(
            Link(f"rank{src}", f"rank{dst}", _route(src, dst, host_of_rank, ports))
            for src in ranks
            for dst in ranks
            if src != dst
        ),
    )


def _route(src: int, dst: int, host_of_rank: Sequence[int], ports: Sequence[str]) -> tuple[str, ...]:
    here, there = host_of_rank[src], host_of_rank[dst]
    if here == there:
        return (f"core{src}", f"m{here}.memory", f"store{dst}")
    leaving, entering = ports[src], ports[dst]
    return (
        f"core{src}",
        f"m{here}.out{leaving}",
        f"m{here}.wire{leaving}",
        f"m{there}.wire{entering}",
        f"m{there}.in{entering}",
        f"store{dst}",
    )
