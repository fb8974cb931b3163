"""T(K), and the number of stages that suits a row width."""

from __future__ import annotations

import pytest

from dgcl.planner import Relation
from dgcl.planner.prices.stage_choice import StageTime, best_number, stage_times
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import preset
from tests.planner.exhaustive import fractional_optimum
from tests.planner.machines import known_answer_topology, line

GB = 10**9


def test_the_known_answer() -> None:
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    times = stage_times(relation, known_answer_topology())
    assert [t.num_stages for t in times] == [1, 2]
    assert times[0].seconds_per_byte * GB == pytest.approx(8.0)
    assert times[1].seconds_per_byte * GB == pytest.approx(8 / 3, rel=2e-3)
    best = fractional_optimum(relation, known_answer_topology(), GB, num_stages=2)
    assert times[1].seconds_per_byte * GB == pytest.approx(best, rel=2e-3)


def test_numbers_in_which_rows_cannot_arrive_are_left_out() -> None:
    times = stage_times(Relation.from_classes(4, [(0, {3}, 2)]), line(4))
    assert [t.num_stages for t in times] == [3]


def test_more_stages_never_take_longer() -> None:
    times = stage_times(synthetic_relation("com-orkut", 8, scale=0.01), preset("dgx1"))
    values = [t.seconds_per_byte for t in times]
    assert values == sorted(values, reverse=True)


def test_narrow_rows_want_fewer_stages() -> None:
    times = [StageTime(1, 9e-9), StageTime(2, 4e-9), StageTime(3, 3e-9)]
    chosen = [best_number(times, row_bytes, stage_seconds=1e-6) for row_bytes in (1, 150, 300, 2000)]
    assert chosen == [1, 1, 2, 3]
    assert best_number(times, 100, stage_seconds=0.0) == 3
