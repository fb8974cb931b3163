"""Times several candidates in turns, so that other work on the machine slows all of them alike.

    >>> from dgcl.bench.turns import in_turns
    >>> times = in_turns({"sorted": lambda: sorted(range(99)), "list": lambda: list(range(99))}, rounds=5)
    >>> times["sorted"].ratio(times["list"]) > 1        # median of the rounds' ratios
    True

A round takes a sample, a few calls in a row, of each candidate; another one begins each round. Ranks time themselves,
after a barrier; a call ends when the slowest rank's does. Called by `measure`, `lanes`, `dgcl/calibration/timing` and
programs in ``docs/figures``. Free to change while nothing but calls is timed (`tests/dgcl/bench/test_turns.py`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from dgcl.ranks.control import Control


class Lane:
    """A candidate; ``run`` alone is timed."""

    def prepare(self, first: int, calls: int) -> None:
        """Make ready for the calls ``first`` to ``first + calls``; by itself nothing."""

    def run(self, call: int) -> object:
        """Carry out one of them, the ``call``-th of those prepared for."""
        raise NotImplementedError

    def check(self) -> int:
        """Count what is wrong in the results since ``prepare``; by itself nothing is checked."""
        return 0


@dataclass(frozen=True)
class Function(Lane):
    """A function without arguments as a lane."""

    function: Callable[[], object]

    def run(self, call: int) -> object:
        """Call it."""
        return self.function()


@dataclass(frozen=True)
class Clock:
    """Marks moments; what lies between them is read later, for a device has not reached them yet.

    Attributes:
        mark: Marks this moment.
        read: Nanoseconds of marks, on a scale of their own.
    """

    mark: Callable[[], Any]
    read: Callable[[list[Any]], Sequence[int]]


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _elapsed(events: list[torch.cuda.Event]) -> list[int]:
    events[-1].synchronize()
    return [round(1e6 * events[0].elapsed_time(event)) for event in events]


WALL = Clock(time.perf_counter_ns, list)
PROCESS = Clock(time.process_time_ns, list)  # of all threads of the process
DEVICE = Clock(_event, _elapsed)  # of the current stream


@dataclass(frozen=True)
class Sample:
    """One rank's share of some calls in a row.

    Attributes:
        ends: Nanoseconds from the first call's begin to each call's end.
        wrong: What its lane counted.
        begin: Of the first call, by the clock.
    """

    ends: tuple[int, ...]
    wrong: int = 0
    begin: int = 0


@dataclass(frozen=True)
class Timing:
    """How long a candidate's calls take, in seconds.

    Attributes:
        samples: Mean time of a call in each sample, in the order of rounds.
        calls: Time of each call: from the end of the one before, on the last rank, to its own.
        wrong: Over all calls and ranks.
    """

    samples: list[float]
    calls: list[float]
    wrong: int = 0

    @property
    def seconds(self) -> float:
        """Mean of all calls."""
        return statistics.fmean(self.samples)

    @property
    def best(self) -> float:
        """Of the samples."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """Of the samples."""
        return statistics.median(self.samples)

    def percentile(self, percent: float) -> float:
        """The shortest time that so many percent of the calls do not exceed."""
        return float(np.percentile(self.calls, percent, method="inverted_cdf"))

    def ratio(self, other: Timing) -> float:
        """How many times as long as the other it takes: median over rounds that both had."""
        return statistics.median(a / b for a, b in zip(self.samples, other.samples, strict=True))


def take_turns(
    lanes: Mapping[str, Lane],
    rounds: int,
    *,
    calls: Mapping[str, int] | int = 1,
    warmup: int = 0,
    barrier: Callable[[], object] = lambda: None,
    clock: Clock,
) -> dict[str, list[Sample]]:
    """This rank's samples of each lane. Collective where the barrier is.

    Args:
        lanes: By name; every rank has the same names in the same order.
        rounds: That count.
        calls: Of a sample (of each lane).
        warmup: Rounds before them that do not.
        barrier: Returns when every rank has called it; between all that is timed and all that is not.
        clock: Times the calls.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(warmup + rounds):
        begin = number % len(names)
        for name in names[begin:] + names[:begin]:
            lane, count = lanes[name], calls if isinstance(calls, int) else calls[name]
            lane.prepare(number * count, count)
            barrier()
            marks = [clock.mark()]
            for call in range(count):
                lane.run(call)
                marks.append(clock.mark())
            first, *ends = clock.read(marks)
            barrier()  # a check would run in the time of ranks on the same core that are not done
            sample = Sample(tuple(end - first for end in ends), lane.check(), first)
            if number >= warmup:
                samples[name].append(sample)
    return samples


def combine(samples: Sequence[Sample], control: Control | None, *, one_clock: bool = False) -> Timing:
    """One lane's samples of all ranks. Collective with a control; without, those of this process alone.

    With ``one_clock``, that of a host, a sample begins when it does on the first rank.
    """
    ranks = [samples] if control is None else control.exchange(samples)
    ends = [
        np.max([np.add(sample.ends, one_clock * (sample.begin - each[0].begin)) for sample in each], axis=0)
        - one_clock * min(sample.begin - each[0].begin for sample in each)
        for each in zip(*ranks, strict=True)
    ]
    return Timing(
        [float(each[-1]) / len(each) / 1e9 for each in ends],
        [float(span) / 1e9 for each in ends for span in np.diff(each, prepend=0)],
        sum(sample.wrong for each in ranks for sample in each),
    )


def in_turns(
    candidates: Mapping[str, Lane | Callable[[], object]],
    rounds: int = 7,
    *,
    enough: float = 0.0,
    control: Control | None = None,
    clock: Clock = WALL,
) -> dict[str, Timing]:
    """Time candidates against each other. Collective with a control.

    Args:
        candidates: Lanes or functions without arguments, by name.
        rounds: That count, after one that does not.
        enough: Seconds of a sample: a call is repeated until it takes that long. 0: it is not.
        control: Of the ranks that call this; None: this process is alone.
        clock: Times the calls.

    Returns:
        The timing of each, of the slowest rank.
    """
    lanes: dict[str, Lane] = {
        name: Function(each) if callable(each) else each for name, each in candidates.items()
    }
    barrier = control.barrier if control is not None else lambda: None
    first = take_turns(lanes, 1, barrier=barrier, clock=clock)
    calls = {name: max(1, math.ceil(enough / combine(first[name], control).best)) for name in lanes}
    samples = take_turns(lanes, rounds, calls=calls, barrier=barrier, clock=clock)
    return {name: combine(samples[name], control) for name in lanes}
