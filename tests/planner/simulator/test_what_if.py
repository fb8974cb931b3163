import json

import pytest

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.what_if import render_what_if, what_if
from tests.planner.machines import line, switched


def test_a_relay_chain_answers_as_worked_out_by_hand() -> None:
    """0 -> 1 -> 2, 16 rows of 1 GB, 1 GB/s: 32 s; in 16 slices 17 s; with a port at half speed 2 x."""
    plan = make_plan(Relation.from_classes(3, [(0, {2}, 16)]), line(3), "spst", PlanOptions(row_bytes=10**9))
    answers = what_if(plan)
    assert [answer.seconds for answer in answers] == pytest.approx([32, 32, 64, 32, 17, 32])
    assert [answer.to_model for answer in answers] == pytest.approx([1, 1, 2, 1, 17 / 32, 1])
    assert answers[2].question == "likewise, device d1 2 times slower"
    assert json.loads(json.dumps([answer.to_json() for answer in answers]))
    lines = render_what_if(answers).splitlines()
    assert len(lines) == len(answers)
    assert lines[0].endswith("32000.000 ms   1.000 x model")


def test_a_plan_that_sends_nothing_leaves_nothing_to_ask() -> None:
    plan = make_plan(Relation.from_classes(3, []), switched(3))
    assert what_if(plan) == []
    assert render_what_if([]) == "nothing is sent"
