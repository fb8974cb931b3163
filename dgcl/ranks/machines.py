"""Finds the machines of a job and joins them into one topology: what ``topology="auto"`` means.

One rank of every machine describes it, and all ranks join the descriptions. For ranks on CPUs: measured speeds of
memory copies, and network ports (that of ``GLOO_SOCKET_IFNAME``, else the fastest). For ranks on GPUs: what NVML and
the kernel report, by the UUID of each rank's GPU, so that renumbering (``CUDA_VISIBLE_DEVICES``, containers) changes
nothing.

Called by `dgcl/build`, `dgcl/local_build`, `dgcl/prepare/shares`, `dgcl/advisor/choice`, `dgcl/calibration/run` and
others. Free to change while every rank gets the same topology, with device r for rank r, and what cannot be described
is an error on all (`tests/dgcl/ranks/test_machines.py`).
"""

import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dgcl.ranks.control import Control
from dgcl.ranks.memory_reach import ranks_that_share_memory
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.combine import join_machines
from dgcl.topology.copy_rates import copy_rates, num_copiers
from dgcl.topology.detect import Nvml, NvmlUnavailable, Sysfs, gpu_machine, visible_gpus
from dgcl.topology.detect.gpu_machine import fastest_port
from dgcl.topology.draft import Imported
from dgcl.topology.hosts import PORT_UNKNOWN, Host, hosts_topology
from dgcl.topology.machine import Net
from dgcl.topology.machine_topology import machine_topology

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs.

    Attributes:
        machine: The same for ranks that share a machine, and for no others.
        host: The machine's name, for people.
        gpu: The UUID of its GPU (``GPU-...``); ``""``: it runs on the CPU.
        interface: The network interface that Gloo is set to use; ``""``: none, it finds one.
    """

    machine: str
    host: str
    gpu: str = ""
    interface: str = ""


@dataclass(frozen=True)
class _Report:
    """What the first rank of a machine found there."""

    host: Host | None = None
    gpus: Imported | None = None
    fabric: str = ""
    facts: str = ""
    failure: str = ""


def place_of_this_rank(gpu: str = "", sysfs: Sysfs | None = None) -> RankPlace:
    """Where this process runs; ``gpu`` is the UUID of the GPU that it uses."""
    host = platform.node()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]  # Gloo alternates between several
    return RankPlace((sysfs or Sysfs()).machine_id() or host, host, gpu, interface)


def places_of_ranks(control: Control, gpu: str = "") -> list[RankPlace]:
    """Where every rank runs. Collective. Ranks that share memory are on one machine, whatever its name."""
    places = control.exchange(place_of_this_rank(gpu))
    lowest = ranks_that_share_memory(control)
    return [
        replace(place, machine=f"machine of rank {first}")
        for place, first in zip(places, lowest, strict=True)
    ]


def several_machines(places: Sequence[RankPlace]) -> bool:
    """Whether ranks run on more than one machine."""
    return len({place.machine for place in places}) > 1


def find_topology(
    control: Control,
    places: Sequence[RankPlace],
    *,
    sysfs: Sysfs | None = None,
    source: Nvml | None = None,
) -> Imported:
    """The machines of all ranks. Collective; every rank gets the whole.

    Args:
        control: The control plane.
        places: Where each rank runs: :func:`places_of_ranks`.
        sysfs: The kernel; None: that of this machine.
        source: The driver; None: NVML.

    Raises:
        ValueError: Some ranks run on GPUs and some do not, two share a GPU, or a machine cannot be described;
            on every rank.
    """
    on_gpus = {bool(place.gpu) for place in places}
    if len(on_gpus) > 1:
        raise ValueError(
            "topology: some ranks run on GPUs and others on CPUs; give a topology instead of 'auto'"
        )
    machines = list(dict.fromkeys(place.machine for place in places))
    me = places[control.rank]
    report = None
    if control.rank == next(r for r, place in enumerate(places) if place.machine == me.machine):
        mine = [place for place in places if place.machine == me.machine]
        report = _describe(mine, sysfs or Sysfs(), source)
    reports = {
        place.machine: wires for place, wires in zip(places, control.exchange(report), strict=True) if wires
    }
    for machine, wires in reports.items():
        if wires.failure:
            host = next(place.host for place in places if place.machine == machine)
            raise ValueError(f"topology: machine {host!r} cannot be described: {wires.failure}")
    ordered = [reports[machine] for machine in machines]
    imported = _join(ordered, [machines.index(place.machine) for place in places], places)
    if control.rank == 0:
        for number, wires in enumerate(ordered):
            _log.info("machine %d: %s", number, wires.facts)
        for note in imported.notes:
            _log.info("machines: %s", note)
    return imported


def describe_host(topology: Topology) -> str:
    """One line about this host and how fast it copies."""
    rates = {c.kind: c.bandwidth for c in topology.connections if c.kind == "core" or c.duplex == "half"}
    copies = (
        f"; copies {rates['core']:g} GB/s by one thread, {rates['memory']:g} together"
        if len(rates) == 2
        else ""
    )
    return f"{Sysfs().host()}{copies}"


def host_of_ranks(num_ranks: int) -> Topology:
    """The topology of CPU ranks that share this host, by its stored or measured rates; logged at INFO."""
    topology = resolve_topology("host", num_ranks)
    _log.info("this host: %s", describe_host(topology))
    return topology


def _describe(places: list[RankPlace], sysfs: Sysfs, source: Nvml | None) -> _Report:
    """Describe this machine. A failure is returned, not raised: the other machines wait."""
    facts = f"{places[0].host}: {sysfs.host()}"
    try:
        if not places[0].gpu:
            rates = copy_rates(num_copiers(len(places)))
            ports = [_port(sysfs, interface) for interface in _interfaces(places)]
            return _Report(host=Host(rates, tuple(ports)), facts=facts)
        if source is not None:
            return _describe_gpus(places, sysfs, source, facts)
        with Nvml() as nvml:
            return _describe_gpus(places, sysfs, nvml, facts)
    except (ValueError, NvmlUnavailable) as error:
        return _Report(failure=str(error), facts=facts)


def _interfaces(places: Sequence[RankPlace]) -> list[str]:
    """The interfaces that the ranks of a machine use, each once, in the order of the ranks."""
    return list(dict.fromkeys(place.interface for place in places))


def _port(sysfs: Sysfs, interface: str) -> Net:
    """A network port of this machine by the name of its interface, without a speed where it reports none."""
    port = sysfs.interface(interface) if interface else fastest_port(sysfs)
    return port or Net(interface or "nic", None, "Eth")


def _describe_gpus(places: list[RankPlace], sysfs: Sysfs, source: Nvml, facts: str) -> _Report:
    uuids = [place.gpu for place in places]
    gpus = visible_gpus(source.gpus(), ",".join(uuids))
    if len(gpus) < len(uuids):
        why = "two ranks use it" if len(set(uuids)) < len(uuids) else "the driver does not know it"
        raise ValueError(f"GPU {uuids[len(gpus)]!r}: {why}")
    fabrics = {gpu.fabric for gpu in gpus}
    imported = machine_topology(gpu_machine(source, sysfs, gpus), places[0].host or "machine")
    kinds = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return _Report(
        gpus=imported,
        fabric=fabrics.pop() if len(fabrics) == 1 else "",
        facts=f"{facts}; {len(gpus)} x {kinds}",
    )


def _join(reports: list[_Report], machine_of_rank: list[int], places: Sequence[RankPlace]) -> Imported:
    if all(report.host is not None for report in reports):
        return _join_hosts([report.host for report in reports if report.host], machine_of_rank, places)
    of_gpus = [report.gpus for report in reports if report.gpus is not None]
    notes = [
        f"machine {number}: {note}" for number, imported in enumerate(of_gpus) for note in imported.notes
    ]
    if len(of_gpus) == 1:
        return Imported(of_gpus[0].topology, of_gpus[0].notes)
    order = [(machine, machine_of_rank[:rank].count(machine)) for rank, machine in enumerate(machine_of_rank)]
    domains = list(dict.fromkeys(report.fabric for report in reports if report.fabric))
    shared = [
        {"nvswitch": f"nvlink domain {domains.index(report.fabric)}"} if report.fabric else {}
        for report in reports
    ]
    topology = join_machines(
        [imported.topology for imported in of_gpus], order, name=f"{len(of_gpus)} machines", shared=shared
    )
    apart = topology.num_devices * (topology.num_devices - 1) - len(topology.links)
    if apart:
        notes.append(
            f"{apart} ordered pairs of ranks have no link: no network port was found that joins them"
        )
    return Imported(topology, tuple(notes))


def _join_hosts(hosts: list[Host], host_of_rank: list[int], places: Sequence[RankPlace]) -> Imported:
    notes = [
        f"machine {number}: its network port does not tell its speed; {PORT_UNKNOWN:g} GB/s was assumed"
        for number, host in enumerate(hosts)
        if len(hosts) > 1 and any(port.bandwidth is None for port in host.ports)
    ]
    names = [
        _interfaces([place for place in places if place.machine == machine])
        for machine in dict.fromkeys(place.machine for place in places)
    ]
    ports = [names[host].index(place.interface) for host, place in zip(host_of_rank, places, strict=True)]
    return Imported(hosts_topology(hosts, host_of_rank, ports), tuple(notes))


def topology_of_job(
    control: Control, topology: str | Topology, places: Sequence[RankPlace]
) -> str | Topology:
    """What "auto" means where ranks run on more than one machine, or on GPUs; otherwise the topology as it is.

    Collective: what topology is asked for is rank 0's word.
    """
    if (several_machines(places) or places[0].gpu) and control.broadcast(
        isinstance(topology, str) and topology == "auto"
    ):
        gpus = [place.gpu for place in places]
        if gpus[0] and len(set(gpus)) < len(gpus):
            _log.info("ranks share a GPU: all links count as equally fast")
            return f"uniform:{control.world_size}"
        return find_topology(control, places).topology
    return topology
