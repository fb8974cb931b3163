from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dgcl.planner import Plan, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.reading.plot import layout, plot_plan
from tests.planner.machines import line, small_topology, switched

START = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Relation.from_classes(4, [(0, {1, 3}, 50), (2, {0}, 30)]), line(4), "spst")


@pytest.mark.parametrize("suffix", START)
def test_a_picture_of_each_format(plan: Plan, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    plot_plan(plan, path)
    assert path.read_bytes().startswith(START[suffix])
    assert path.stat().st_size > 5000


def test_the_picture_names_what_it_shows(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_plan(plan, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("d0", "d3", "stage 0", "stage 2", "w0:d0&gt;d1", "spst on line"):
        assert word in text or f"<!-- {word}" in text


@pytest.mark.parametrize(
    "plan_",
    [
        pytest.param(make_plan(Relation.from_classes(3, []), switched(3)), id="nothing sent"),
        pytest.param(make_plan(Relation.from_classes(1, []), switched(1)), id="one rank"),
        pytest.param(
            make_plan(Relation.from_classes(3, [(0, {1}, 1)]), small_topology(3, [(0, 1, 1.0), (0, 1, 2.0)])),
            id="parallel wires and a device apart",
        ),
    ],
)
def test_odd_plans_have_a_picture_too(plan_: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_plan(plan_, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000


def test_another_suffix_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf"):
        plot_plan(plan, tmp_path / "plan.gif")


def test_without_matplotlib_the_way_out_is_named(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dgcl\[viz\]'"):
        plot_plan(plan, tmp_path / "plan.png")


def test_everything_has_a_place_of_its_own() -> None:
    places = layout(switched(5))
    assert len(places) == 6
    assert len({(round(x, 6), round(y, 6)) for x, y in places.values()}) == 6
