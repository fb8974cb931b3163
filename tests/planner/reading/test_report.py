import json

import pytest
from hypothesis import given

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.reading.explain import explain, find_class, render_class
from dgcl.planner.reading.plan_report import Failure, compare, report
from dgcl.planner.reading.render import render, seconds, size
from dgcl.topology import Connection, Device, Topology
from dgcl.topology.table import aligned as table
from tests.support.random_machines import instances
from tests.support.small_machines import line, switched

GB = 10**9

# Two machines of two devices: NVLink within (8 GB/s), one shared cable between (2 GB/s).
MACHINE = Topology(
    "pairs",
    tuple(Device(f"g{r}", machine=r // 2) for r in range(4)),
    (
        Connection("nv0", "NV", "g0", "g1", 8.0),
        Connection("nv1", "NV", "g2", "g3", 8.0),
        *(Connection(f"p{r}", "PCIe", f"g{r}", f"nic{r // 2}", 4.0) for r in range(4)),
        Connection("cable", "IB", "nic0", "nic1", 2.0),
    ),
)
RELATION = Relation.from_classes(4, [(0, {1}, 8), (0, {2, 3}, 4), (3, {0}, 2)])


@pytest.fixture(scope="module")
def facts() -> dict:
    outcomes = compare(RELATION, MACHINE, ("direct", "spst"), PlanOptions(row_bytes=GB))
    assert not isinstance(outcomes[0], Failure)
    return report(outcomes[0], outcomes)


def test_figures_worked_out_by_hand(facts: dict):
    """Direct: 8 GB over nv0 is 1 s; 8 GB over the cable one way is 4 s, 2 GB the other way 1 s."""
    assert facts["machine"]["devices"] == 4
    assert facts["machine"]["machines"] == 2
    assert facts["machine"]["connections"][0] == {"kind": "IB", "count": 1, "min_GBps": 2.0, "max_GBps": 2.0}
    relation = facts["relation"]
    assert (relation["boundary_vertices"], relation["deliveries"], relation["num_classes"]) == (14, 18, 3)
    assert relation["average_destinations"] == pytest.approx(18 / 14)
    assert [m["method"] for m in facts["methods"]] == ["direct", "spst"]
    direct = facts["methods"][0]
    assert (direct["predicted_seconds"], direct["num_stages"], direct["bytes_sent"]) == (4.0, 1, 18 * GB)
    assert facts["bound"] == {"seconds": 2.0, "limited_by": "machine 0's IB, out"}
    assert direct["to_bound"] == 2.0
    assert facts["takes"] == {
        "executed_seconds": 4.0,
        "executed": {"order": "neighbours", "shares": "equal", "sends_at_once": None},
        "model_seconds": 4.0,
        "bound_seconds": 2.0,
    }
    (stage,) = facts["stages"]
    assert stage["seconds"] == 4.0
    assert stage["busiest"][0] == {
        "connection": "cable:nic0>nic1",
        "way": "cable:nic0>nic1",
        "kind": "IB",
        "seconds": 4.0,
        "share_of_stage": 1.0,
    }
    assert [b["connection"] for b in stage["busiest"][1:]] == ["p0:g0>nic0", "nv0:g0>g1"]
    kinds = {k["kind"]: k for k in facts["kinds"]}
    assert kinds["IB"]["busiest_seconds"] == 4.0
    assert kinds["IB"]["share_of_plan"] == 1.0
    assert kinds["IB"]["average_use"] == pytest.approx((4 + 1) / 2 / 4)
    assert kinds["NV"]["average_use"] == pytest.approx(1 / 4 / 4)
    assert kinds["NV"]["bytes"] == 8 * GB
    assert kinds["PCIe"]["bytes"] == pytest.approx(2 * (8 + 2) * GB)


def test_the_report_is_json_and_fits_on_one_screen(facts: dict):
    assert json.loads(json.dumps(facts)) == facts
    lines = render(facts).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert (
        lines[2]
        == "takes     4 s as executed (order neighbours); 4 s by the model, at least 2 s any plan (2.000 of it)"
    )
    assert lines[3] == "bound     2 s, limited by: machine 0's IB, out"
    assert lines[4] == "fold      4 s back, bound 2 s"
    assert any(row.split()[:3] == ["direct", "4", "s"] for row in lines)


@pytest.mark.parametrize(
    "name, duplex, way",
    [
        ("g0-g1", "full", "g0>g1"),
        ("g1-g0", "full", "g0>g1"),
        ("g0-g1.2", "full", "g0-g1.2:g0>g1"),
        ("g0-g1", "half", "g0-g1"),
    ],
)
def test_a_connection_named_after_its_ends_is_named_once(name: str, duplex: str, way: str):
    wire = Connection(name, "NV", "g0", "g1", 8.0, duplex=duplex)
    pair = Topology("pair", (Device("g0"), Device("g1")), (wire,))
    shown = report(make_plan(Relation.from_classes(2, [(0, {1}, 8)]), pair, "direct"))
    assert shown["stages"][0]["busiest"][0]["way"] == way
    assert f" {way} 100%" in render(shown)


def test_the_fold_between_plan_and_table():
    """The plan that the report is about is in the table once, whether or not it was among the others."""
    outcomes = compare(RELATION, MACHINE, ("direct", "spst"))
    direct, spst = outcomes
    assert not isinstance(direct, Failure)
    assert not isinstance(spst, Failure)
    assert len(report(spst, outcomes)["methods"]) == 2
    assert [m["method"] for m in report(spst, [direct])["methods"]] == ["direct", "spst"]
    assert [m["method"] for m in report(spst)["methods"]] == ["spst"]


def test_a_method_that_is_impossible_says_so():
    outcomes = compare(Relation.from_classes(3, [(0, {2}, 1)]), line(3))
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [True, False, False]
    plan = outcomes[-1]
    assert not isinstance(plan, Failure)
    shown = report(plan, outcomes)
    assert "no such link" in shown["methods"][0]["impossible"]
    assert "impossible here" in render(shown)


def test_nothing_to_send_is_still_a_report():
    shown = report(make_plan(Relation.from_classes(2, []), switched(2)))
    assert shown["stages"] == []
    assert "0 rows to deliver" in render(shown)


@given(instances())
def test_shares_are_shares(case: tuple[Relation, Topology]):
    plan = make_plan(*case, "spst")
    shown = report(plan)
    assert json.loads(json.dumps(shown)) == shown
    for stage in shown["stages"]:
        busiest = stage["busiest"]
        assert all(0 < b["share_of_stage"] <= 1 + 1e-9 for b in busiest)
        assert [b["seconds"] for b in busiest] == sorted((b["seconds"] for b in busiest), reverse=True)
    if plan.num_stages:
        assert sum(stage["share_of_plan"] for stage in shown["stages"]) == pytest.approx(1)
    for kind in shown["kinds"]:
        assert 0 <= kind["average_use"] <= kind["share_of_plan"] + 1e-9
    render(shown)


# One class


@pytest.mark.parametrize("text", ["1", "0>2,3", "0 > 3, 2", " 1 "])
def test_a_class_is_named_by_number_or_by_owner_and_destinations(text: str):
    assert find_class(RELATION, text) == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("3", "class 3 does not exist: the relation has classes 0 to 2"),
        ("0>1,2", r"no class of rank 0 goes to exactly 1, 2 \(rank 0 owns 2 classes\)"),
        ("1>0", r"no class of rank 1 goes to exactly 0 \(rank 1 owns 0 classes\)"),
        ("a>b", "by its number or as OWNER>DEST"),
        ("", "by its number or as OWNER>DEST"),
    ],
)
def test_a_class_that_is_not_there(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        find_class(RELATION, text)


def test_the_trees_of_a_class_are_drawn():
    plan = make_plan(Relation.from_classes(4, [(0, {1, 3}, 5)]), line(4), "spst")
    shown = explain(plan, 0)
    assert json.loads(json.dumps(shown)) == shown
    assert [edge["relay"] for edge in shown["trees"][0]["edges"]] == [False, True, False]
    assert render_class(shown).splitlines() == [
        "class 0: 5 vertices of rank 0 (d0), needed by 1 (d1), 3 (d3)",
        "",
        "tree 0: 5 vertices (100.0%)",
        "  0",
        "  `- 1   stage 0, w",
        "     `- 2   stage 1, w, relay",
        "        `- 3   stage 2, w",
    ]
    with pytest.raises(ValueError, match="class 1 does not exist"):
        explain(plan, 1)


def test_many_trees_are_summed_up():
    plan = make_plan(RELATION, MACHINE, "spst", PlanOptions(row_bytes=GB))
    shown = explain(plan, 1)
    text = render_class(shown, most=1)
    assert text.count("\ntree ") == 1
    if len(shown["trees"]) > 1:
        assert f"and {len(shown['trees']) - 1} more trees for" in text


# Text


@pytest.mark.parametrize(
    "value, text",
    [(0, "0 s"), (2.5, "2.5 s"), (0.0012345, "1.234 ms"), (3e-6, "3 us"), (5e-10, "0.5 ns")],
)
def test_seconds(value: float, text: str):
    assert seconds(value) == text


@pytest.mark.parametrize("value, text", [(0, "0 B"), (999, "999 B"), (1234567, "1.235 MB"), (2e12, "2 TB")])
def test_size(value: float, text: str):
    assert size(value) == text


def test_tables_are_aligned():
    assert table(["a", "b"], [["long", "1"], ["x", "22"]]) == "a      b\nlong   1\nx     22"
