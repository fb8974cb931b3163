"""Faults at places inside the protocol: what every survivor says, that nothing stays, that life goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dgcl.faults.cases import KINDS, Case, cases
from tests.dgcl.faults.run import Harness

pytestmark = pytest.mark.xdist_group("alone")

GRACE = 20.0  # the machine may be busy; the command `python -m tests.dgcl.faults` allows one second

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
]


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    made = Harness(3, GRACE)
    yield made
    made.close()


@pytest.mark.parametrize("case", FEW, ids=str)
def test_a_fault_of_each_kind(case: Case, harness: Harness) -> None:
    assert harness.play(case) == []


@pytest.mark.slow
def test_every_kind_of_fault_at_every_place() -> None:
    """Once; worlds, victims and moments are drawn."""
    harness = Harness(3, GRACE)
    chosen = list(cases(harness.worlds, sum(map(len, KINDS.values())), seed=1))
    try:
        for case in chosen:
            harness.play(case)
    finally:
        harness.close()
    assert harness.tally.wrong == []
    assert set(harness.tally.faults) == {(kind, point) for point, kinds in KINDS.items() for kind in kinds}
    assert harness.tally.fresh > len(chosen) * 0.9
