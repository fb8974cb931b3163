"""Measures exchanges on every rank: each case, row width and method, in rounds, with every result checked.

All methods of a width take turns in the same rounds, beside plain copies of as many bytes. Calls of a sample keep their
results, so the sample is limited by `SAMPLE_BYTES`. Rank 0 alone makes problems, and gets all lines.

Called by `dgcl/cli/bench`. Free to change while sizes and rows of a line are those of its problem, model and bound
those of its plan, and corrupted exchanges are counted as wrong (`tests/dgcl/bench/test_measure.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgcl.bench.barrier import Barrier
from dgcl.bench.baselines import AllToAll, build_comm_info
from dgcl.bench.lanes import CopyLane, ExchangeLane, Rows
from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings
from dgcl.bench.transports import Baseline, HaloCalls, calls_of
from dgcl.bench.turns import DEVICE, WALL, Lane, combine, take_turns
from dgcl.planner import PlanOptions
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import predicted_seconds
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.transport.steps import EXPAND, FOLD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.planner import Plan

SAMPLE_BYTES = 64 << 20  # of results that are alive at once, on each rank
MAX_CALLS = 100  # of a sample
MIN_SAMPLES = 5  # so that a median means something
_COPIES = "copies of {} rows"

#: Ways to call "auto", or an all-to-all, that are measured beside the methods that build_comm_info knows: halo
#: rows alone.
CALLS: dict[str, tuple[str, Callable[[Communicator], Baseline]]] = {
    "halo": ("auto", HaloCalls),
    "gloo-halo": ("direct", lambda comm: AllToAll(comm, halo_only=True)),
}


def measure(
    cases: Sequence[Case], settings: Settings, emit: Callable[[list[RankInfo] | Line], None]
) -> Measurement | None:
    """Measure all cases. Collective: every rank runs this.

    Args:
        cases, settings: The same on every rank.
        emit: Called on rank 0 with where the ranks run, and then with each line as it is ready.

    Returns:
        Everything, on rank 0; None elsewhere.

    Raises:
        ValueError: A method cannot work here.
        CommError: A rank is gone or late.
    """
    control = context.require_control()
    if settings.device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(control.rank % torch.cuda.device_count())
    ranks: list[RankInfo] = []
    lines: list[Line] = []
    with closing(Barrier(control, settings.timeout)) as barrier:
        for case in cases:
            with ExitStack() as opened:
                name, candidates = _open(case, settings, control, opened)
                if not ranks:
                    ranks = control.exchange(_describe(candidates[0].comm))
                    if control.rank == 0:
                        emit(ranks)
                for line in _measure_case(case, name, candidates, settings, barrier):
                    lines.append(line)
                    emit(line)
    return Measurement(ranks, lines) if control.rank == 0 else None


@dataclass(frozen=True)
class _Candidate:
    """A method that is compared with others, and what it moves, and by what."""

    method: str
    comm: Communicator
    exchange: Baseline
    rows: Rows

    @property
    def written(self) -> int:
        """Rows that all ranks together write in a call."""
        return self.comm.plan.relation.deliveries + self.own

    @property
    def own(self) -> int:
        """Those of them that are copied from their own."""
        return 0 if self.exchange.halo_only else self.comm.num_nodes


def _open(
    case: Case, settings: Settings, control: Control, opened: ExitStack
) -> tuple[str, list[_Candidate]]:
    """The problem's name, and a communicator for each method. Collective."""
    problem, candidates = case.problem() if control.rank == 0 else None, []
    for method in settings.methods:
        mover, call = CALLS.get(method, (method, calls_of))
        comm = build_comm_info(
            problem and problem.graph,
            settings.topology,
            part=problem and problem.part,
            method=mover,
            plan=PlanOptions(
                row_bytes=max(case.widths) * DTYPES[settings.dtype].itemsize, seed=settings.seed
            ),
            timeout=settings.timeout,
            device=settings.device,
            channel=settings.channel,
        )
        opened.callback(comm.close)
        candidates.append(_Candidate(method, comm, call(comm), Rows(comm)))
    return control.broadcast(problem and problem.name), candidates


def _measure_case(
    case: Case, name: str, candidates: list[_Candidate], settings: Settings, barrier: Barrier
) -> Iterator[Line]:
    """The lines of one case, on rank 0. Collective."""
    dtype, comm = DTYPES[settings.dtype], candidates[0].comm
    control, relation = comm.control, comm.plan.relation
    most, halo = max(control.exchange(comm.num_local)), relation.deliveries
    for width in case.widths:
        row_bytes = width * dtype.itemsize
        fit = SAMPLE_BYTES // max(most * row_bytes, 1)
        calls = max(1, min(fit, -(-settings.iterations // MIN_SAMPLES), MAX_CALLS))
        lanes: dict[str, Lane] = {}
        for each in candidates:
            for verb in (EXPAND, FOLD):
                lane = ExchangeLane(each.comm, each.exchange, each.rows, verb, (width, calls), dtype)
                lanes[f"{each.method} {verb}"] = lane
            num_bytes = round(each.written * row_bytes / control.world_size)
            lanes.setdefault(_COPIES.format(each.written), CopyLane(num_bytes, calls, comm.device))
        samples = take_turns(
            lanes,
            -(-settings.iterations // calls),
            calls=calls,
            warmup=-(-settings.warmup // calls),
            barrier=barrier,
            clock=DEVICE if comm.device.type == "cuda" else WALL,
        )
        times = {lane: combine(of_lane, control) for lane, of_lane in samples.items()}
        for each in candidates if control.rank == 0 else ():
            plan = None if isinstance(each.exchange, AllToAll) else each.comm.plan
            model, bound = (None, None) if plan is None else _predict(plan, row_bytes)
            yield Line(
                name=name,
                method=each.method,
                dtype=settings.dtype,
                width=width,
                halo_rows=halo,
                local_rows=comm.num_nodes + halo,
                size=case.size_factor * halo * row_bytes / control.world_size,
                busiest=int(relation.pair_rows().sum(0).max()) * row_bytes,
                own=each.own * row_bytes / control.world_size,
                moved=each.written * row_bytes,
                forward=times[f"{each.method} {EXPAND}"],
                backward=times[f"{each.method} {FOLD}"],
                copy=times[_COPIES.format(each.written)],
                model_seconds=model,
                bound_seconds=bound,
                stages=None if plan is None else plan.num_stages,
                messages=_num_messages(each.comm.plan),
            )


def _predict(plan: Plan, row_bytes: int) -> tuple[float, float]:
    """A plan's time and lower bound for rows of this size."""
    model = predicted_seconds(plan.trees, plan.topology.arrays(), row_bytes)
    # The certificate holds for the plan's own row size: narrower rows take at least their share of it.
    share = plan.lower_bound_seconds * min(1.0, row_bytes / plan.row_bytes)
    bound = max(best_bound(plan.relation, plan.topology, row_bytes).seconds, share)
    return model, min(bound, model)


def _num_messages(plan: Plan) -> int:
    """(stage, sender, receiver) of a plan, each once."""
    trees = plan.trees
    return len(np.unique([trees.edge_stage, trees.edge_src, trees.edge_dst], axis=1).T)


def _describe(comm: Communicator) -> RankInfo:
    return RankInfo(
        comm.rank,
        os.getpid(),
        socket.gethostname(),
        torch.get_num_threads(),
        comm.num_owned,
        comm.num_halo,
        str(comm.device),
    )
