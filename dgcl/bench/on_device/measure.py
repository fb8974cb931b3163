"""The measurement that every rank of ``dgcl bench --device cuda`` runs: cases, widths and methods, in rounds."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

import dgcl
from dgcl.bench.flags import Flags, open_barrier
from dgcl.bench.on_device.clock import Clock
from dgcl.bench.on_device.gather import GatherLane
from dgcl.bench.on_device.lanes import CopyLane, ExchangeLane, Rows
from dgcl.bench.on_device.nccl import try_nccl
from dgcl.bench.on_device.peers import Needs, gloo_exchange, nccl_exchange
from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings
from dgcl.bench.rounds import Candidate, Lane, World, measure_case, num_messages
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.transport.cuda.exchange import DeviceExchange
from dgcl.transport.cuda.through_host import HostExchange

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

#: What is measured beside planners, and what it is.
PEERS: Final = {
    "gather": "index_select, and copies out of the others' memory",
    "gloo": "torch.distributed all_to_all_single by Gloo, of packed rows",
    "nccl": "the same by NCCL, where it runs between these ranks",
}
SAMPLE_BYTES: Final = (
    1 << 30
)  # of inputs and results, three times the rows, that are alive at once on each rank
_HOST_CALLS: Final = 20

Emit = Callable[[list[RankInfo] | Line | str], None]


class _Planned:
    """A communicator's own plan, through its public verbs."""

    def __init__(self, comm: Communicator) -> None:
        self.expand: Callable[[Tensor], Tensor] = comm.expand
        self.fold: Callable[[Tensor], Tensor] = comm.fold


def measure_on_device(
    cases: Sequence[Case], settings: Settings, emit: Emit, device: str = "cuda"
) -> Measurement | None:
    """Measure all cases with rows on ``device``. Collective: every rank runs this.

    Rank r is on GPU r modulo the number of GPUs.

    Args:
        cases, settings: The same on every rank. Methods are planners and :data:`PEERS`.
        emit: Told on rank 0 where the ranks run, each line as it is ready, and why a peer cannot be measured.
        device: The kind of device.

    Returns:
        Everything, on rank 0; None elsewhere.

    Raises:
        ValueError: There is no device.
        CommError: A rank is gone or late.
    """
    control = context.require_control()
    if device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(control.rank % torch.cuda.device_count())
    flags = open_barrier(control, settings.timeout)
    if not isinstance(flags, Flags):
        raise ValueError(
            f"device: {device} ranks are measured on one machine; these are on several (use cpu)"
        )
    ranks: list[RankInfo] = []
    lines: list[Line] = []
    tell: Emit = emit if control.rank == 0 else lambda record: None

    def remark(candidate: Candidate) -> tuple[str, float | None]:
        host = _host_seconds(candidate, control)
        return "" if host is None else f"a call takes the host {1e6 * host:.0f} us", host

    try:
        for case in cases:
            with _opened(case, settings, control, flags, device, tell) as world:
                if not ranks:
                    ranks = control.exchange(_describe(world.plain))
                    tell(ranks)
                for line in measure_case(case, world, settings, control, SAMPLE_BYTES // 3, remark):
                    lines.append(line)
                    tell(line)
    finally:
        flags.close()
    return Measurement(ranks, lines) if control.rank == 0 else None


def _describe(comm: Communicator) -> RankInfo:
    name = str(comm.device)
    if comm.device.type == "cuda":
        name = f"{name}, {torch.cuda.get_device_name(comm.device)}"
    counts = comm.num_owned, comm.num_halo
    return RankInfo(comm.rank, os.getpid(), socket.gethostname(), torch.get_num_threads(), *counts, name)


@contextmanager
def _opened(
    case: Case, settings: Settings, control: Control, flags: Flags, device: str, tell: Emit
) -> Iterator[World]:
    """A communicator and a lane for each method; all closed at the end."""
    problem = case.problem() if control.rank == 0 else None
    built: dict[str, Communicator] = {}

    def build(method: str) -> Communicator:
        if method not in built:
            built[method] = dgcl.build_comm_info(
                problem and problem.graph,
                settings.topology,
                part=problem and problem.part,
                method=method,
                plan=dgcl.PlanOptions(
                    row_bytes=max(case.widths) * DTYPES[settings.dtype].itemsize, seed=settings.seed
                ),
                timeout=settings.timeout,
                device=device,
            )
        return built[method]

    plain = build("direct")
    clock = Clock(plain.device, lambda: _finish(built))
    candidates: list[Candidate] = []
    lane: Lane
    for method in settings.methods:
        if method not in PEERS:
            comm = build(method)
            lane = ExchangeLane(comm, _Planned(comm), Rows(comm), clock, flags)
            candidates.append(Candidate(method, lane, comm, comm.plan))
            continue
        try:
            lane, note = _peer(method, plain, clock, flags)
        except ValueError as error:  # the same on every rank
            tell(f"{method} is left out: {error}")
            continue
        candidates.append(Candidate(method, lane, note=note))
    mine, first = _ranks_on_device(plain)
    counts = control.exchange((plain.num_halo, plain.num_local))
    halo_rows, local_rows = (sum(column) for column in zip(*counts, strict=True))
    busiest = max(halo for halo, _ in counts)
    share = round(local_rows * mine / control.world_size) if first else 0
    copy = Candidate("copy", CopyLane(share, plain.device, clock, flags))
    for candidate in candidates:
        candidate.rows, candidate.own_rows = local_rows, local_rows - halo_rows
        candidate.messages = num_messages(plain.plan if candidate.plan is None else candidate.plan)
    name = control.broadcast(problem and problem.name)
    yield World(name, candidates, plain, halo_rows, local_rows, busiest, {local_rows: copy})
    for candidate in candidates:
        if isinstance(candidate.lane, GatherLane):
            candidate.lane.close()
    for comm in built.values():
        comm.close()


def _finish(built: dict[str, Communicator]) -> None:
    for comm in built.values():
        comm.synchronize()


def _peer(method: str, comm: Communicator, clock: Clock, flags: Flags) -> tuple[Lane, str]:
    """Return the lane of a peer and any notes. Collective.

    Raises:
        ValueError: It cannot be had here; on every rank, with the same words.
    """
    needs, rows = Needs(comm), Rows(comm)
    if method == "gather":
        transport = device_transport(comm)
        if not transport.shares_memory:
            raise ValueError("ranks share no memory")
        gathering = GatherLane(comm, transport.device, needs, rows, clock, flags)
        gathering.prepare(1, torch.float32, 1)
        return gathering, "the barrier of the ranks between packing and copying is not timed"
    if method == "gloo":
        exchange, note = gloo_exchange(comm, needs)
        return ExchangeLane(comm, exchange, rows, clock, flags), note
    problem = try_nccl(comm.world_size) if comm.rank == 0 else ""
    problem = comm.control.broadcast(problem)
    if problem:
        raise ValueError(f"NCCL does not run between {comm.world_size} ranks here: {problem}")
    return ExchangeLane(comm, nccl_exchange(comm, needs), rows, clock, flags), ""


def device_transport(comm: Communicator) -> DeviceExchange | HostExchange:
    """The transport of a communicator whose rows are on a device."""
    assert isinstance(comm.transport, (DeviceExchange, HostExchange)), type(comm.transport)
    return comm.transport


def _ranks_on_device(comm: Communicator) -> tuple[int, bool]:
    """How many ranks share this rank's device, and whether this is the first of them."""
    devices = device_transport(comm).devices
    mine = [rank for rank, each in enumerate(devices) if each == devices[comm.rank]]
    return len(mine), mine[0] == comm.rank


def _host_seconds(candidate: Candidate, control: Control) -> float | None:
    """Host time of a call of a plan, the median, on the rank that takes longest. Collective."""
    if candidate.plan is None or not isinstance(candidate.lane, ExchangeLane):
        return None
    return max(control.exchange(statistics.median(candidate.lane.host_seconds(_HOST_CALLS))))
