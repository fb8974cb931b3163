"""The measurement that every rank runs: cases, widths and methods, in rounds; all results are verified."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from dgcl.bench.baselines import GlooHaloCalls, GlooHaloPlainCalls, GlooKeptTransport
from dgcl.bench.flags import Barrier, Flags, open_barrier
from dgcl.bench.lanes import CopyLane, ExchangeLane, ReplicationLane
from dgcl.bench.methods import build_comm_info
from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings
from dgcl.bench.rounds import Candidate, World, measure_case, num_messages
from dgcl.bench.trace import chrome_trace, record_exchange
from dgcl.bench.transports import HaloCalls, Measured, OperatorCalls, RuntimeCalls, calls_of
from dgcl.planner.methods import METHODS as PLANNERS
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.replication import METHOD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

SAMPLE_BYTES = 64 << 20  # of results that are alive at once, on each rank

#: Ways to call "auto", or gloo, that are measured beside the methods that build_comm_info knows: without tensors;
#: as models call it; and halo rows alone.
CALLS: Mapping[str, tuple[str, Callable[[Communicator], Measured]]] = MappingProxyType(
    {
        "executor": ("auto", RuntimeCalls),
        "operator": ("auto", OperatorCalls),
        "halo": ("auto", HaloCalls),
        "gloo-halo": ("direct", GlooHaloCalls),
        "gloo-halo-plain": ("direct", GlooHaloPlainCalls),
        "gloo-kept": ("direct", GlooKeptTransport),
    }
)


def measure(
    cases: Sequence[Case], settings: Settings, emit: Callable[[list[RankInfo] | Line], None]
) -> Measurement | None:
    """Measure all cases. Collective: every rank runs this.

    Args:
        cases, settings: The same on every rank.
        emit: Told on rank 0 where the ranks run, and then each line as it is ready.

    Returns:
        Everything, on rank 0; None elsewhere.

    Raises:
        ValueError: A method cannot work here.
        CommError: A rank is gone or late.
    """
    control = context.require_control()
    flags = open_barrier(control, settings.timeout)
    if not flags.shared_clock:
        _check_machines(settings)
    ranks: list[RankInfo] = []
    lines: list[Line] = []
    trace = None
    try:
        for case in cases:
            with _opened(case, settings, control, flags) as world:
                if not ranks:
                    ranks = control.exchange(_describe(world.plain))
                    if control.rank == 0:
                        emit(ranks)
                for line in measure_case(case, world, settings, control, SAMPLE_BYTES):
                    lines.append(line)
                    emit(line)
                if settings.trace and case is cases[-1]:
                    trace = _record(world, max(case.widths), DTYPES[settings.dtype], control, flags)
    finally:
        flags.close()
    return Measurement(ranks, lines, trace) if control.rank == 0 else None


def _check_machines(settings: Settings) -> None:
    """Refuse what ranks on several machines cannot do.

    Raises:
        ValueError: With what they can.
    """
    for method in settings.methods:
        mover, fold = split_method(method, settings.fold)
        if mover in ("swap", "padded", "replication") or fold != "sum":
            raise ValueError(
                f"method {method!r} needs ranks that share one machine's memory, and these are on several;"
                " take a planner, executor, operator, halo, gloo or gloo-kept, gloo-halo, with fold 'sum'"
            )
    if settings.trace:
        raise ValueError("trace: the ranks are on several machines, whose clocks differ; trace ranks of one")


def _record(
    world: World, width: int, dtype: torch.dtype, control: Control, flags: Barrier
) -> dict[str, Any] | None:
    """The trace of one exchange by the first planned method, on rank 0. Collective."""
    assert isinstance(flags, Flags)
    comm = next((candidate.comm for candidate in world.candidates if candidate.plan is not None), None)
    if comm is None:
        raise ValueError(
            "trace: none of the methods is a plan, and others are not recorded; add a planner, e.g. auto"
        )
    traces = control.gather(record_exchange(comm, width, dtype, flags))
    return None if traces is None else chrome_trace(traces)


def split_method(method: str, fold: str) -> tuple[str, str]:
    """``"auto+atomic"`` as ``("auto", "atomic")``; without a fold of its own a method has the given one."""
    mover, _, own = method.partition("+")
    return mover, own or fold


def _describe(comm: Communicator) -> RankInfo:
    threads = torch.get_num_threads()
    return RankInfo(comm.rank, os.getpid(), socket.gethostname(), threads, comm.num_owned, comm.num_halo)


@contextmanager
def _opened(case: Case, settings: Settings, control: Control, flags: Barrier) -> Iterator[World]:
    """A communicator and a lane for each method; all closed at the end."""
    problem = case.problem() if control.rank == 0 else None
    opened: list[Communicator] = []

    def build(method: str, fold: str) -> Communicator:
        comm = build_comm_info(
            problem and problem.graph,
            settings.topology,
            part=problem and problem.part,
            method=method,
            fold=fold,
            layers=settings.layers,
            row_bytes=max(case.widths) * DTYPES[settings.dtype].itemsize,
            seed=settings.seed,
            timeout=settings.timeout,
        )
        opened.append(comm)
        return comm

    candidates: list[Candidate] = []
    plain: Communicator | None = None  # the first one that holds no replicas
    for method in settings.methods:
        if method == "replication":
            continue
        mover, fold = split_method(method, settings.fold)
        mover, call = CALLS.get(mover, (mover, calls_of))
        comm = build(mover, fold)
        replicated = comm.layout.is_replicated
        plain = plain if replicated else plain or comm
        is_plan = (mover in PLANNERS or mover == METHOD) and not method.startswith("gloo")
        planned = comm.plan if is_plan else None
        note = "" if fold == "sum" else f"fold {fold}"
        note = ", ".join(filter(None, [note, _replicas(comm, settings.layers) if replicated else ""]))
        exchange = call(comm)
        lane = ExchangeLane(comm, exchange, flags)
        halo_only = getattr(exchange, "halo_only", False)
        told = num_messages(comm.plan) if is_plan or method.startswith("gloo") else None
        candidates.append(Candidate(method, lane, comm, planned, note, halo_only, messages=told))
    plain = plain or build("direct", "sum")
    if "replication" in settings.methods:
        candidates.append(_replication(build("replication", "sum"), plain, settings.layers, flags))
    name = control.broadcast(problem and problem.name)
    counts = control.exchange((plain.num_halo, plain.num_local))
    halo_rows, local_rows = (sum(column) for column in zip(*counts, strict=True))
    for candidate in candidates:
        candidate.rows = halo_rows if candidate.halo_only else local_rows
        candidate.own_rows = candidate.rows - halo_rows
        if candidate.plan is not None and candidate.comm is not None and candidate.comm.layout.is_replicated:
            candidate.rows = sum(control.exchange(candidate.comm.num_local))
            candidate.own_rows = sum(control.exchange(candidate.comm.num_owned))
    lanes = {n: CopyLane(plain, n / control.world_size, flags) for n in {c.rows for c in candidates}}
    copies = {n: Candidate("copy", lane) for n, lane in sorted(lanes.items())}
    busiest = max(halo for halo, _ in counts)
    yield World(name, candidates, plain, halo_rows, local_rows, busiest, copies)
    for plain_copies in lanes.values():
        plain_copies.close()
    for comm in opened:
        comm.close()


def _replicas(comm: Communicator, layers: int) -> str:
    """What the ranks hold, against the graph. Collective."""
    rows = sum(comm.control.exchange(comm.num_owned)) / comm.num_nodes
    edges = sum(comm.control.exchange(comm.local.num_edges)) / max(comm.num_edges, 1)
    return f"{layers} layers hold {rows:.2f} x the rows and sum over {edges:.2f} x the edges"


def _replication(comm: Communicator, plain: Communicator, layers: int, flags: Barrier) -> Candidate:
    note = f"{_replicas(comm, layers)}; the time is that of the additional sums"
    return Candidate("replication", ReplicationLane(comm, plain, flags), note=note)
