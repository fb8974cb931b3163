"""Windows played event by event take what closed formulas say, where there are some."""

from __future__ import annotations

import numpy as np
import pytest

from dgcl.planner import PlanOptions, Relation, make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.simulator.windows import simulate_windows, sums_by_rows
from dgcl.planner.windows import window_plans
from dgcl.topology import preset
from tests.planner.machines import switched

ROW = 1 << 20


def closed_form(exchange: float, sums: float, num_windows: int) -> float:
    return exchange + sums + (num_windows - 1) * max(exchange, sums)


@pytest.mark.parametrize("num_windows", [1, 2, 3, 8])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 2.5], ids=lambda share: f"sums {share} times the exchange")
def test_equal_windows_take_what_the_formula_says(share, num_windows) -> None:
    rows = 240
    relation = Relation.from_classes(4, [(r, {s}, rows) for r in range(4) for s in range(4) if s != r])
    plan = make_plan(relation, switched(4), "direct", PlanOptions(row_bytes=ROW))
    plans = window_plans(plan, num_windows)
    exchange = simulate(plans[0]).seconds
    assert all(simulate(each).seconds == pytest.approx(exchange) for each in plans)
    sums = np.full((4, num_windows), share * exchange)
    found = simulate_windows(plans, sums)
    wanted = closed_form(exchange, share * exchange, num_windows)
    assert found.seconds == pytest.approx(wanted, rel=1e-9)
    assert (found.summed >= found.arrived + sums - 1e-12).all()


def test_a_slow_rank_holds_the_others_up_no_more_than_their_rows_need_it() -> None:
    """Rank 1 sums for long; rank 0, which sends to it and reads nothing, ends with the last start of rank 1."""
    plan = make_plan(
        Relation.from_classes(2, [(0, {1}, 4)]), switched(2), "direct", PlanOptions(row_bytes=ROW)
    )
    plans = window_plans(plan, 4)
    exchange = simulate(plans[0]).seconds
    sums = np.array([[0.0] * 4, [10 * exchange] * 4])
    found = simulate_windows(plans, sums)
    assert found.seconds == pytest.approx(exchange * (1 + 40), rel=1e-9)
    # Window 3 may start once window 1 is summed, and window 2 has arrived.
    assert found.arrived[0, 3] == pytest.approx(exchange * (1 + 20 + 1), rel=1e-9)


@pytest.mark.parametrize("by", ["mixed", "owner"])
def test_sums_are_divided_by_rows_and_no_window_costs_more_than_the_whole(by) -> None:
    generator = np.random.default_rng(0)
    classes = [(r, {int(d) for d in generator.permutation(8)[:3]} - {r}, int(generator.integers(1, 500)))
               for r in range(8)]  # fmt: skip
    plan = make_plan(Relation.from_classes(8, classes), preset("dgx1"))
    plans = window_plans(plan, None if by == "owner" else 3, by)  # type: ignore[arg-type]
    assert len(plans) == (8 if by == "owner" else 3)
    assert sum(each.trees.rows_moved() for each in plans) == plan.trees.rows_moved()
    assert sum(each.relation.deliveries for each in plans) == plan.relation.deliveries
    assert all(each.predicted_seconds <= plan.predicted_seconds * (1 + 1e-12) for each in plans)
    assert all(each.lower_bound_seconds <= each.predicted_seconds for each in plans)
    sums = sums_by_rows(plans, 2.0)
    reads = plan.relation.pair_rows().sum(axis=0) > 0
    assert sums.sum(axis=1) == pytest.approx(2.0 * reads)
    found = simulate_windows(plans, sums)
    whole = simulate_windows([plan], sums.sum(axis=1, keepdims=True))
    assert found.seconds >= max(sums.sum(axis=1).max(), 0.0)
    assert whole.seconds == pytest.approx(simulate(plan).rank_finish[reads].max() + 2.0, rel=1e-6)


def test_bad_windows_and_sums_are_refused() -> None:
    plan = make_plan(Relation.from_classes(2, [(0, {1}, 4)]), switched(2), "direct")
    for windows, by, says in (
        (0, "mixed", "from 1 to 4"),
        (5, "mixed", "from 1 to 4"),
        (3, "owner", "must be 2"),
    ):
        with pytest.raises(ValueError, match=says):
            window_plans(plan, windows, by)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sums must be"):
        simulate_windows([plan], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="one window at least"):
        simulate_windows([], np.zeros((2, 0)))
