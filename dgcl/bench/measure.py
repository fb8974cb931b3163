"""The measurement that every rank runs: cases, widths and methods, in turns, with nothing unverified.

The methods of a case take turns, lap by lap, so that whatever else the host does hits all of them alike, and
their times may be compared within a run. A lap is a few calls back to back (as many as fit into
:data:`LAP_BYTES`), timed from the first rank's start to the last rank's end. The time that is reported is the
mean over all laps, the fastest lap and the median stand in the JSON twin.
"""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from dgcl.bench.baselines import GlooHaloExchange, GlooHaloPlainExchange, GlooKeptExchange
from dgcl.bench.exchange import Exchange, ExecutorExchange, HaloExchange, OperatorExchange
from dgcl.bench.flags import Flags
from dgcl.bench.lanes import EXPAND, FOLD, CopyLane, ExchangeLane, Lane, Lap, ReplicationLane
from dgcl.bench.methods import build_comm_info, exchange_of
from dgcl.bench.patterns import DTYPES
from dgcl.bench.prediction import predict
from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings, Timing
from dgcl.bench.trace import chrome_trace, record_exchange
from dgcl.context import context
from dgcl.control import Control
from dgcl.planner.methods import METHODS as PLANNERS
from dgcl.replication import METHOD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.planner import Plan

LAP_BYTES = 64 << 20  # of results that are alive at once, on each rank
MAX_LAP = 100  # calls
MIN_LAPS = 5  # so that a median means something

#: Ways to call "auto", or gloo, that are measured beside the methods that build_comm_info knows: without tensors;
#: as models call it; and halo rows alone.
CALLS: Mapping[str, tuple[str, Callable[[Communicator], Exchange | ExecutorExchange]]] = MappingProxyType(
    {
        "executor": ("auto", ExecutorExchange),
        "operator": ("auto", OperatorExchange),
        "halo": ("auto", HaloExchange),
        "gloo-halo": ("direct", GlooHaloExchange),
        "gloo-halo-plain": ("direct", GlooHaloPlainExchange),
        "gloo-kept": ("direct", GlooKeptExchange),
    }
)


@dataclass
class _Contender:
    method: str
    lane: Lane
    comm: Communicator | None = None
    plan: Plan | None = None
    note: str = ""
    halo_only: bool = False
    rows: int = 0  # that all ranks together write
    laps: tuple[list[Lap], list[Lap]] = field(default_factory=lambda: ([], []))


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
    meeting = Flags(control, settings.timeout)
    ranks: list[RankInfo] = []
    lines: list[Line] = []
    trace = None
    try:
        for case in cases:
            with _opened(case, settings, control, meeting) as world:
                if not ranks:
                    ranks = control.exchange(_describe(world.plain))
                    if control.rank == 0:
                        emit(ranks)
                for line in _measure_case(case, world, settings, control):
                    lines.append(line)
                    emit(line)
                if settings.trace and case is cases[-1]:
                    trace = _record(world, max(case.widths), DTYPES[settings.dtype], control, meeting)
    finally:
        meeting.close()
    return Measurement(ranks, lines, trace) if control.rank == 0 else None


def _record(
    world: _World, width: int, dtype: torch.dtype, control: Control, meeting: Flags
) -> dict[str, Any] | None:
    """The trace of one exchange by the first planned method, on rank 0. Collective."""
    comm = next((contender.comm for contender in world.contenders if contender.plan is not None), None)
    if comm is None:
        raise ValueError("trace: none of the methods is a plan, and others are not recorded")
    traces = control.gather(record_exchange(comm, width, dtype, meeting))
    return None if traces is None else chrome_trace(traces)


def split_method(method: str, fold: str) -> tuple[str, str]:
    """``"auto+atomic"`` as ``("auto", "atomic")``; without a fold of its own a method has the given one."""
    mover, _, own = method.partition("+")
    return mover, own or fold


def _describe(comm: Communicator) -> RankInfo:
    threads = torch.get_num_threads()
    return RankInfo(comm.rank, os.getpid(), socket.gethostname(), threads, comm.num_owned, comm.num_halo)


@dataclass
class _World:
    """What takes turns in one case."""

    name: str
    contenders: list[_Contender]
    plain: Communicator
    halo_rows: int
    local_rows: int
    copies: dict[int, _Contender]


@contextmanager
def _opened(case: Case, settings: Settings, control: Control, meeting: Flags) -> Iterator[_World]:
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

    contenders: list[_Contender] = []
    plain: Communicator | None = None  # the first one that holds no replicas
    for method in settings.methods:
        if method == "replication":
            continue
        mover, fold = split_method(method, settings.fold)
        mover, call = CALLS.get(mover, (mover, exchange_of))
        comm = build(mover, fold)
        replicated = "replication" in comm.plan.meta
        plain = plain if replicated else plain or comm
        is_plan = (mover in PLANNERS or mover == METHOD) and not method.startswith("gloo")
        planned = comm.plan if is_plan else None
        note = "" if fold == "sum" else f"fold {fold}"
        note = ", ".join(filter(None, [note, _replicas(comm, settings.layers) if replicated else ""]))
        exchange = call(comm)
        lane = ExchangeLane(comm, exchange, meeting)
        halo_only = getattr(exchange, "halo_only", False)
        contenders.append(_Contender(method, lane, comm, planned, note, halo_only))
    plain = plain or build("direct", "sum")
    if "replication" in settings.methods:
        contenders.append(_replication(build("replication", "sum"), plain, settings.layers, meeting))
    name = control.broadcast(problem and problem.name)
    counts = control.exchange((plain.num_halo, plain.num_local))
    halo_rows, local_rows = (sum(column) for column in zip(*counts, strict=True))
    for contender in contenders:
        contender.rows = halo_rows if contender.halo_only else local_rows
        if contender.plan is not None and "replication" in contender.plan.meta:
            assert contender.comm is not None
            contender.rows = sum(control.exchange(contender.comm.num_local))
    lanes = {n: CopyLane(plain, n / control.world_size, meeting) for n in {c.rows for c in contenders}}
    copies = {n: _Contender("copy", lane) for n, lane in sorted(lanes.items())}
    yield _World(name, contenders, plain, halo_rows, local_rows, copies)
    for plain_copies in lanes.values():
        plain_copies.close()
    for comm in opened:
        comm.close()


def _replicas(comm: Communicator, layers: int) -> str:
    """What the ranks hold, against the graph. Collective."""
    rows = sum(comm.control.exchange(comm.num_owned)) / comm.num_nodes
    edges = sum(comm.control.exchange(comm.local.num_edges)) / max(comm.num_edges, 1)
    return f"{layers} layers hold {rows:.2f} x the rows and sum over {edges:.2f} x the edges"


def _replication(comm: Communicator, plain: Communicator, layers: int, meeting: Flags) -> _Contender:
    note = f"{_replicas(comm, layers)}; the time is that of the additional sums"
    return _Contender("replication", ReplicationLane(comm, plain, meeting), note=note)


def _measure_case(case: Case, world: _World, settings: Settings, control: Control) -> Iterator[Line]:
    """The lines of one case, on rank 0. Collective."""
    dtype = DTYPES[settings.dtype]
    most = max(control.exchange(world.plain.num_local))
    for width in case.widths:
        row_bytes = width * dtype.itemsize
        fit = LAP_BYTES // max(most * row_bytes, 1)
        calls = max(1, min(fit, -(-settings.iterations // MIN_LAPS), MAX_LAP))
        _take_turns([*world.contenders, *world.copies.values()], settings, width, dtype, calls)
        for contender in world.contenders:
            copy = world.copies[contender.rows]
            forward, backward = (
                _timing(control, contender.laps[verb], copy.laps[verb], calls) for verb in (EXPAND, FOLD)
            )
            if control.rank > 0:
                continue
            model, bound = predict(contender.plan, row_bytes)
            yield Line(
                name=world.name,
                fraction=case.fraction,
                method=contender.method,
                dtype=settings.dtype,
                width=width,
                halo_rows=world.halo_rows,
                local_rows=world.local_rows,
                size=world.halo_rows * row_bytes / control.world_size,
                moved=contender.rows * row_bytes,
                forward=forward,
                backward=backward,
                model_seconds=model,
                bound_seconds=bound,
                stages=None if contender.plan is None else contender.plan.num_stages,
                note=contender.note,
            )


def _take_turns(
    contenders: list[_Contender], settings: Settings, width: int, dtype: torch.dtype, calls: int
) -> None:
    """Run all laps; the contenders keep them."""
    for contender in contenders:
        contender.lane.prepare(width, dtype, calls)
        contender.laps = ([], [])
    number = 0
    for _ in range(-(-settings.warmup // calls)):
        for contender in contenders:
            for verb in (EXPAND, FOLD):
                contender.lane.run(verb, number, calls)
        number += calls
    for _ in range(-(-settings.iterations // calls)):
        for contender in contenders:
            for verb in (EXPAND, FOLD):
                contender.laps[verb].append(contender.lane.run(verb, number, calls))
        number += calls


def _timing(control: Control, laps: list[Lap], copies: list[Lap], calls: int) -> Timing:
    """Put the ranks' laps together: from the first start to the last end. Collective."""
    every, every_copy = control.exchange(laps), control.exchange(copies)
    seconds, copy_seconds = (
        [
            (max(lap.end for lap in ranks) - min(lap.begin for lap in ranks)) / calls / 1e9
            for ranks in zip(*given, strict=True)
        ]
        for given in (every, every_copy)
    )
    return Timing(
        seconds=statistics.fmean(seconds),
        best=min(seconds),
        median=statistics.median(seconds),
        copy_seconds=statistics.fmean(copy_seconds),
        wrong=sum(lap.wrong for given in (every, every_copy) for ranks in given for lap in ranks),
        laps=seconds,
        copy_laps=copy_seconds,
    )
