"""Runs rounds of samples, one of each method, and summarises them in lines.

Shared by the measurements on hosts and on devices.

Every round takes one sample of each method of a case, so that whatever else the machine does hits all of them
alike, and their times may be compared within a run. A sample is a few calls back to back, timed from the first
rank's start to the last rank's end; on devices, which share no clock, it lasts as long as on the slowest rank. The
time that is reported is the mean over all samples, the fastest sample and the median stand in the JSON twin.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import torch

from dgcl.bench.patterns import DTYPES
from dgcl.bench.prediction import predict
from dgcl.bench.records import Case, Line, Settings, Timing
from dgcl.ranks.control import Control
from dgcl.transport.steps import EXPAND, FOLD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.planner import Plan

MAX_CALLS: Final = 100  # calls
MIN_SAMPLES: Final = 5  # so that a median means something


@dataclass(frozen=True)
class Sample:
    """One rank's share of some calls in a row.

    Attributes:
        begin, end: Nanoseconds on a clock that all ranks share; where they share none, 0 and what the sample took.
        wrong: Elements that were not what they must be, over all the calls.
        marks: When each call ended, by the same clock; empty where single calls are not timed.
    """

    begin: int
    end: int
    wrong: int
    marks: tuple[int, ...] = ()


class Lane(Protocol):
    """Runs samples. Every method is collective."""

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Make room for samples of ``calls`` calls with rows of ``width`` elements."""

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """A sample of the iterations ``first`` to ``first + calls``."""


@dataclass
class Candidate:
    """A method that is compared with others.

    Attributes:
        method: Its name.
        lane: Runs its samples.
        comm, plan: What it moves rows by, where there is such a thing.
        note: What else there is to say.
        halo_only: Whether it returns halo rows alone.
        rows: That all ranks together write in a call.
        own_rows: Those of them that a rank copies from its own.
        messages: Of a call, of all ranks together; None: the method does not tell.
        samples: Of expand and of fold, at the width that was measured last.
    """

    method: str
    lane: Lane
    comm: Communicator | None = None
    plan: Plan | None = None
    note: str = ""
    halo_only: bool = False
    rows: int = 0
    own_rows: int = 0
    messages: int | None = None
    samples: tuple[list[Sample], list[Sample]] = field(default_factory=lambda: ([], []))


@dataclass
class World:
    """What is measured in one case.

    Attributes:
        name: Of the problem.
        candidates: The methods.
        plain: A communicator whose ranks hold no replicas.
        halo_rows, local_rows: Rows delivered, and owned and halo rows, of all ranks together.
        busiest_rows: Rows delivered to the rank that gets most.
        copies: Plain copies of as many rows as any candidate writes, by that number.
    """

    name: str
    candidates: list[Candidate]
    plain: Communicator
    halo_rows: int
    local_rows: int
    busiest_rows: int
    copies: dict[int, Candidate]


def nothing_more(candidate: Candidate) -> tuple[str, float | None]:
    """No further note, and no host time."""
    return "", None


def measure_case(
    case: Case,
    world: World,
    settings: Settings,
    control: Control,
    sample_bytes: int,
    remark: Callable[[Candidate], tuple[str, float | None]] = nothing_more,
) -> Iterator[Line]:
    """The lines of one case, on rank 0. Collective.

    Args:
        case, world, settings, control: What is measured.
        sample_bytes: Of local rows that may be alive at once, on each rank.
        remark: Collective; what else there is to say of a candidate, and the seconds that a call takes the host.
    """
    dtype = DTYPES[settings.dtype]
    most = max(control.exchange(world.plain.num_local))
    for width in case.widths:
        row_bytes = width * dtype.itemsize
        fit = sample_bytes // max(most * row_bytes, 1)
        calls = max(1, min(fit, -(-settings.iterations // MIN_SAMPLES), MAX_CALLS))
        _run_rounds([*world.candidates, *world.copies.values()], settings, width, dtype, calls)
        for candidate in world.candidates:
            copy = world.copies[candidate.rows]
            forward, backward = (
                _timing(control, candidate.samples[verb], copy.samples[verb], calls)
                for verb in (EXPAND, FOLD)
            )
            more, host_seconds = remark(candidate)
            if control.rank > 0:
                continue
            model, bound = predict(candidate.plan, row_bytes)
            yield Line(
                name=world.name,
                fraction=case.fraction,
                method=candidate.method,
                dtype=settings.dtype,
                width=width,
                halo_rows=world.halo_rows,
                local_rows=world.local_rows,
                size=case.size_factor * world.halo_rows * row_bytes / control.world_size,
                busiest=world.busiest_rows * row_bytes,
                own=candidate.own_rows * row_bytes / control.world_size,
                moved=candidate.rows * row_bytes,
                forward=forward,
                backward=backward,
                model_seconds=model,
                bound_seconds=bound,
                stages=None if candidate.plan is None else candidate.plan.num_stages,
                note="; ".join(filter(None, [candidate.note, more])),
                host_seconds=host_seconds,
                messages=candidate.messages,
            )


def _run_rounds(
    candidates: list[Candidate], settings: Settings, width: int, dtype: torch.dtype, calls: int
) -> None:
    """Run all samples; the candidates keep those that count."""
    for candidate in candidates:
        candidate.lane.prepare(width, dtype, calls)
        candidate.samples = ([], [])
    warmup = -(-settings.warmup // calls)
    for number in range(warmup + -(-settings.iterations // calls)):
        for candidate in candidates:
            for verb in (EXPAND, FOLD):
                sample = candidate.lane.run(verb, number * calls, calls)
                if number >= warmup:
                    candidate.samples[verb].append(sample)


def _timing(control: Control, samples: list[Sample], copies: list[Sample], calls: int) -> Timing:
    """Combine the ranks' samples: from the first start to the last end. Collective."""
    every, every_copy = control.exchange(samples), control.exchange(copies)
    times = [time for ranks in zip(*every, strict=True) for time in call_seconds(ranks)]
    seconds, copy_seconds = (
        [
            (max(sample.end for sample in ranks) - min(sample.begin for sample in ranks)) / calls / 1e9
            for ranks in zip(*given, strict=True)
        ]
        for given in (every, every_copy)
    )
    return Timing(
        seconds=statistics.fmean(seconds),
        best=min(seconds),
        median=statistics.median(seconds),
        copy_seconds=statistics.fmean(copy_seconds),
        wrong=sum(sample.wrong for given in (every, every_copy) for ranks in given for sample in ranks),
        samples=seconds,
        copy_samples=copy_seconds,
        calls=times or seconds,
    )


def call_seconds(ranks: Sequence[Sample]) -> list[float]:
    """Seconds of each call of a sample: until it has ended on all ranks, since the call before had. Their sum is
    the sample's time."""
    ends = np.array([sample.marks for sample in ranks]).max(axis=0) - min(sample.begin for sample in ranks)
    return (np.diff(ends, prepend=0) / 1e9).tolist() if ends.size else []


def num_messages(plan: Plan) -> int:
    """(stage, sender, receiver) of a plan, each once."""
    trees = plan.trees
    return len(
        set(zip(trees.edge_stage.tolist(), trees.edge_src.tolist(), trees.edge_dst.tolist(), strict=True))
    )
