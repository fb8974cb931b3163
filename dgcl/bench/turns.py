"""Laps in turns, and the lines that they come to: what measurements on hosts and on devices have in common.

The methods of a case take turns, lap by lap, so that whatever else the machine does hits all of them alike, and
their times may be compared within a run. A lap is a few calls back to back, timed from the first rank's start to
the last rank's end; on devices, which share no clock, it lasts as long as on the slowest rank. The time that is
reported is the mean over all laps, the fastest lap and the median stand in the JSON twin.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch

from dgcl.bench.patterns import DTYPES
from dgcl.bench.prediction import predict
from dgcl.bench.records import Case, Line, Settings, Timing
from dgcl.ranks.control import Control

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.planner import Plan

EXPAND, FOLD = 0, 1
MAX_LAP: Final = 100  # calls
MIN_LAPS: Final = 5  # so that a median means something


@dataclass(frozen=True)
class Lap:
    """One rank's share of some calls in a row.

    Attributes:
        begin, end: Nanoseconds on a clock that all ranks share; where they share none, 0 and what the lap took.
        wrong: Elements that were not what they must be, over all the calls.
    """

    begin: int
    end: int
    wrong: int


class Lane(Protocol):
    """Runs laps. Every method is collective."""

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Make room for laps of ``calls`` calls with rows of ``width`` elements."""

    def run(self, verb: int, first: int, calls: int) -> Lap:
        """A lap of the iterations ``first`` to ``first + calls``."""


@dataclass
class Contender:
    """What takes turns with others.

    Attributes:
        method: Its name.
        lane: Runs its laps.
        comm, plan: What it moves rows by, where there is such a thing.
        note: What else there is to say.
        halo_only: Whether it returns halo rows alone.
        rows: That all ranks together write in a call.
        laps: Of expand and of fold, at the width that was measured last.
    """

    method: str
    lane: Lane
    comm: Communicator | None = None
    plan: Plan | None = None
    note: str = ""
    halo_only: bool = False
    rows: int = 0
    laps: tuple[list[Lap], list[Lap]] = field(default_factory=lambda: ([], []))


@dataclass
class World:
    """What takes turns in one case.

    Attributes:
        name: Of the problem.
        contenders: The methods.
        plain: A communicator whose ranks hold no replicas.
        halo_rows, local_rows: Rows delivered, and owned and halo rows, of all ranks together.
        copies: Plain copies of as many rows as any contender writes, by that number.
    """

    name: str
    contenders: list[Contender]
    plain: Communicator
    halo_rows: int
    local_rows: int
    copies: dict[int, Contender]


def nothing_more(contender: Contender) -> tuple[str, float | None]:
    """No further note, and no host time."""
    return "", None


def measure_case(
    case: Case,
    world: World,
    settings: Settings,
    control: Control,
    lap_bytes: int,
    remark: Callable[[Contender], tuple[str, float | None]] = nothing_more,
) -> Iterator[Line]:
    """The lines of one case, on rank 0. Collective.

    Args:
        case, world, settings, control: What is measured.
        lap_bytes: Of local rows that may be alive at once, on each rank.
        remark: Collective; what else there is to say of a contender, and the seconds that a call takes the host.
    """
    dtype = DTYPES[settings.dtype]
    most = max(control.exchange(world.plain.num_local))
    for width in case.widths:
        row_bytes = width * dtype.itemsize
        fit = lap_bytes // max(most * row_bytes, 1)
        calls = max(1, min(fit, -(-settings.iterations // MIN_LAPS), MAX_LAP))
        _take_turns([*world.contenders, *world.copies.values()], settings, width, dtype, calls)
        for contender in world.contenders:
            copy = world.copies[contender.rows]
            forward, backward = (
                _timing(control, contender.laps[verb], copy.laps[verb], calls) for verb in (EXPAND, FOLD)
            )
            more, host_seconds = remark(contender)
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
                note="; ".join(filter(None, [contender.note, more])),
                host_seconds=host_seconds,
            )


def _take_turns(
    contenders: list[Contender], settings: Settings, width: int, dtype: torch.dtype, calls: int
) -> None:
    """Run all laps; the contenders keep those that count."""
    for contender in contenders:
        contender.lane.prepare(width, dtype, calls)
        contender.laps = ([], [])
    warmup = -(-settings.warmup // calls)
    for turn in range(warmup + -(-settings.iterations // calls)):
        for contender in contenders:
            for verb in (EXPAND, FOLD):
                lap = contender.lane.run(verb, turn * calls, calls)
                if turn >= warmup:
                    contender.laps[verb].append(lap)


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
