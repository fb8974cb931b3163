"""Faults at places inside the protocol: what every survivor says, that nothing stays, that life goes on."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.dgcl.faults.moments import KINDS as KINDS_AT_ANY_MOMENT
from tests.dgcl.faults.moments import culprit, draw, play_trials
from tests.support.fault_cases import KINDS, KINDS_OF_COLLECTIVES, Case, cases
from tests.support.fault_run import Harness
from tests.support.samples import matrix, sampled

pytestmark = pytest.mark.xdist_group("alone")

GRACE = 120.0  # the machine may be busy; the command `python -m tests.dgcl.faults` allows one second

#: One of each kind, at places of each sort.
FEW = [
    Case("line", "done: rows written, flag not", "kill", 2, 1, 1),
    Case("random-1", "done: seen, rows not read", "stop", 1, 2, 2),
    Case("line", "ready: place written, call not", "interrupt", 1, 0, 3),
    Case("line", "layer: before a backward", "raise", 1, 2, 4),
    Case("direct", "halo: started, not waited for", "return", 1, 1, 5),
    Case("line", "grow: before", "memory", 0, 1, 6),
    Case("random-1", "map: before", "memory", 0, 0, 7),
    Case("line", "set-up 1: before", "interrupt", 0, 1, 8),
    Case("line", "control page", "memory", 0, 2, 9),
    Case("random-1", "engine", "kill", 3, 2, 10),
    Case("line", "call: all told, nothing done", "interrupt", 1, 1, 11),
    Case("direct", "layer: before a call", "cross", 1, 0, 12),
    Case("random-1", "layer: before a backward", "cross", 1, 2, 13),
    Case("line", "set-up 1: after", "stop", 0, 1, 14),
    Case("line", "stage: sent, not arrived", "kill", 1, 1, 15, "collective"),
    Case("random-1", "layer: before a backward", "return", 1, 2, 16, "collective"),
    Case("direct", "stage: not sent", "interrupt", 2, 0, 17, "collective"),
    Case("random-1", "stage: sent, not arrived", "stop", 1, 2, 18, "collective"),
]


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    made = Harness(3, GRACE)
    yield made
    made.close()


@pytest.mark.parametrize("case", sampled(FEW, keep=lambda case: case % 6 == 0), ids=str)
def test_a_fault_of_each_kind(case: Case, harness: Harness):
    assert harness.play(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("sixth", [0, *(matrix(k) for k in range(1, 6))])
@pytest.mark.parametrize("channel", ["auto", "collective"])
def test_every_kind_of_fault_at_every_place(channel: str, sixth: int):
    """Once; worlds, victims and moments are drawn. Two harnesses at a time: each mostly waits for deadlines."""
    harnesses = [Harness(3, GRACE) for _ in range(2)]
    table = KINDS if channel == "auto" else KINDS_OF_COLLECTIVES
    num = sum(map(len, table.values()))
    chosen = list(cases(harnesses[0].worlds, num, seed=1, channel=channel))[sixth::6]

    def play(number: int):
        try:
            for case in chosen[number :: len(harnesses)]:
                harnesses[number].play(case)
        finally:
            harnesses[number].close()

    with ThreadPoolExecutor(len(harnesses)) as pool:
        list(pool.map(play, range(len(harnesses))))
    tallies = [harness.tally for harness in harnesses]
    assert [text for tally in tallies for text in tally.wrong] == []
    faults = set().union(*(tally.faults for tally in tallies))
    assert faults == {(case.kind, case.point) for case in chosen}
    assert sum(tally.fresh for tally in tallies) > len(chosen) * 0.9


@pytest.mark.matrix
def test_thirty_faults_at_random_moments():
    """Every survivor has an error in time. It names the victim, but for one trial at most: on a busy machine a rank may
    be later than the deadline by itself.
    """
    outcomes = play_trials(
        [
            replace(trial, deadline=120.0) if trial.kind != "stop" else trial
            for trial in draw(30, seed=1, deadline=10.0)
        ],
        at_once=2,
    )
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    blames = [text for text in wrong if re.match(r"rank \d+: (PeerLost|CommTimeout|Comm)Error: ", text)]
    assert [text for text in wrong if text not in blames] == []
    assert len(blames) <= 1, blames
    assert {outcome.trial.kind for outcome in outcomes} == set(KINDS_AT_ANY_MOMENT)


@pytest.mark.parametrize(
    "text, blamed",
    [
        ("PeerLostError: rank 0, expand (call 3): rank 2 has died, and stage 0: 4 rows missing from rank 2", 2),
        ("CommError: rank 1 stops because rank 0 reports: rank 2 left fold 4 at stage 0: KeyboardInterrupt() (rank 1,"
         " fold (call 4) was at stage 0)", 2),
        ("CommTimeoutError: rank 0, fold (call 2): waited 2 s in vain: stage 1: 3 rows missing from rank 1 (it is in"
         " this call, and waits for rank 2); stage 1: rank 1 is not ready", 2),
        ("PeerLostError: rank 0: exchange over the control group failed: rank 2 has died or left, says rank 1", 2),
        ("CommTimeoutError: rank 0: exchange over the control group failed: rank 2 has not come (timed out; rank 1"
         " waits for it)", 2),
        ("PeerLostError: rank 0 stops its part of the set-up: rank 1 has died or left (its connection is closed)", 1),
        ("PeerLostError: rank 1: all_reduce_sum over the control group failed: rank 0 has ended: rank 0, fold (call 4):"
         " rank 2 has died, and stage 0: rank 2 is not ready", 2),
        ("PeerLostError: rank 1: all_reduce_sum over the control group failed: rank 0 has ended", 0),
        ("CommError: rank 1 stops because rank 0 reports: rank 2: rows of a started exchange were dropped (rank 1, fold"
         " (call 9) was at stage 0)", 2),
        ("PeerLostError: rank 1 stops because rank 2 reports: rank 2: rank 0 has died", 0),
        ("RuntimeError: in the user's program (on rank 0)", 0),
        ("CommError: rank 0: the 3 ranks cannot connect to each other: one has died", None),
    ],
)  # fmt: skip
def test_who_an_error_blames(text: str, blamed: int | None):
    """The judge of the faults at random moments."""
    assert culprit(text) == blamed
