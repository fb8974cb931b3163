"""The timer: whose turn it is, what is timed and what is not, and how ranks and rounds are put together."""

from itertools import count

import pytest

from dgcl.bench.turns import Clock, Sample, Timing, combine, in_turns, take_turns


class Counted:
    """A clock that advances by a second a look, and a lane that notes what is done to it."""

    def __init__(self, name: str, steps: list[str]):
        self.name, self.steps = name, steps

    def prepare(self, first: int, calls: int):
        self.steps.append(f"{self.name} prepares {first}+{calls}")

    def run(self, call: int):
        self.steps.append(f"{self.name} runs {call}")

    def check(self) -> int:
        self.steps.append(f"{self.name} checks")
        return 3


def ticking(seconds: int = 1) -> Clock:
    return Clock(count(0, 10**9 * seconds).__next__, list)


def test_rounds_take_turns_and_begin_with_another_lane_each_time():
    steps: list[str] = []
    lanes = {name: Counted(name, steps) for name in "ab"}
    samples = take_turns(
        lanes, 2, calls={"a": 1, "b": 2}, barrier=lambda: steps.append("all"), clock=ticking()
    )
    of_a = ["a prepares {}+1", "all", "a runs 0", "all", "a checks"]
    of_b = ["b prepares {}+2", "all", "b runs 0", "b runs 1", "all", "b checks"]
    rounds = [(0, of_a), (0, of_b), (2, of_b), (1, of_a)]
    assert steps == [step.format(first) for first, each in rounds for step in each]
    found = {name: [(sample.ends, sample.wrong) for sample in each] for name, each in samples.items()}
    assert found == {"a": [((10**9,), 3)] * 2, "b": [((10**9, 2 * 10**9), 3)] * 2}


def test_rounds_that_warm_up_do_not_count_and_have_calls_of_their_own():
    steps: list[str] = []
    samples = take_turns({"a": Counted("a", steps)}, 2, warmup=3, clock=ticking())
    assert len(samples["a"]) == 2
    assert [step for step in steps if "prepares" in step][-1] == "a prepares 4+1"


class Ranks:
    """What another rank had: twice as long, but for the first call."""

    def exchange(self, mine: list[Sample]) -> list[list[Sample]]:
        return [mine, [Sample((each.ends[0] // 2, 2 * each.ends[1]), 1) for each in mine]]


def test_a_call_ends_when_it_has_on_the_slowest_rank():
    timing = combine([Sample((2 * 10**9, 4 * 10**9))], Ranks())  # type: ignore[arg-type]
    assert timing == Timing([4.0], [2.0, 6.0], wrong=1)


def test_with_one_clock_a_sample_begins_on_the_first_rank():
    timing = combine([Sample((2 * 10**9, 4 * 10**9), begin=7 * 10**9)], Ranks(), one_clock=True)  # type: ignore[arg-type]
    assert timing == Timing([5.5], [9.0, 2.0], wrong=1)


def test_a_timing_has_means_of_samples_and_quantiles_of_calls():
    timing = Timing([1.0, 4.0, 2.5], [0.5, 1.5, 4.0, 4.0, 1.0, 4.0])
    assert (timing.seconds, timing.best, timing.median) == (2.5, 1.0, 2.5)
    assert [timing.percentile(percent) for percent in (0, 50, 95, 100)] == [0.5, 1.5, 4.0, 4.0]
    assert timing.ratio(Timing([1.0, 1.0, 5.0], [])) == 1.0


def test_functions_are_repeated_until_a_sample_takes_long_enough():
    calls: list[str] = []
    timings = in_turns({"f": lambda: calls.append("f"), "g": lambda: None}, 2, enough=3.5, clock=ticking())
    assert len(calls) == 1 + 2 * 4
    assert [len(timings["f"].samples), len(timings["f"].calls)] == [2, 8]
    assert timings["f"].seconds == pytest.approx(1.0)
