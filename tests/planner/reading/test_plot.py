import sys

import numpy as np
import pytest

from dgcl.planner import Plan, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.reading.plan_plot import LANES, busiest, headline, plot_plan
from dgcl.planner.reading.render import seconds
from tests.support.samples import named
from tests.support.small_machines import line, small_topology, switched

START = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Relation.from_classes(4, [(0, {1, 3}, 50), (2, {0}, 30)]), line(4), "spst")


@pytest.mark.parametrize("suffix", START)
def test_a_picture_of_each_format(plan: Plan, tmp_path, suffix: str):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    plot_plan(plan, path)
    assert path.read_bytes().startswith(START[suffix])
    assert path.stat().st_size > 5000


def test_the_picture_names_what_it_shows(plan: Plan, tmp_path):
    pytest.importorskip("matplotlib")
    plot_plan(plan, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("d0", "d3", "stage 0", "stage 2", "stage 1", "line: spst plan"):
        assert word in text or f"<!-- {word}" in text


@named(
    "plan_",
    {
        "nothing sent": make_plan(Relation.from_classes(3, []), switched(3)),
        "one rank": make_plan(Relation.from_classes(1, []), switched(1)),
        "parallel wires and a device apart": make_plan(
            Relation.from_classes(3, [(0, {1}, 1)]), small_topology(3, [(0, 1, 1.0), (0, 1, 2.0)])
        ),
    },
)
def test_odd_plans_have_a_picture_too(plan_: Plan, tmp_path):
    pytest.importorskip("matplotlib")
    plot_plan(plan_, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000


def test_another_suffix_is_refused(plan: Plan, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf"):
        plot_plan(plan, tmp_path / "plan.gif")


def test_without_matplotlib_the_way_out_is_named(plan: Plan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dgcl\[viz\]'"):
        plot_plan(plan, tmp_path / "plan.png")


def test_the_busiest_are_shown_and_idle_ones_left_out():
    busy = np.zeros((2, 40))
    busy[0, :30] = np.arange(30)
    busy[1, 3] = 100.0
    assert busiest(busy) == [3, *range(29, 30 - LANES, -1)]
    assert busiest(busy[:, :2]) == [1]


def test_the_title_has_the_times_of_the_report(plan: Plan):
    what, outcome = headline(plan, "cora.npz")
    assert what == "cora.npz on line: spst plan for 4 ranks, rows of 512 bytes"
    assert seconds(plan.predicted_seconds) in outcome
    assert outcome.endswith(f"no plan takes less than {seconds(plan.lower_bound_seconds)}")
