"""`dgcl compare` and the pictures of plans and parts: figures are those of plans made one by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgcl.planner import PlanOptions, Relation, make_plan
from dgcl.topology import resolve_topology
from tests.dgcl.cli.support import Run

LINE = ("compare", "--relation", "relation.npz", "--topology", "line.json,uniform:3")


@pytest.fixture
def relation(folder: Path, plan_file: Path) -> Relation:
    return Relation.load(folder / "relation.npz")


def test_every_method_on_every_machine(run: Run, relation: Relation) -> None:
    outcome = run(*LINE, "--methods", "direct,spst,auto", "--row-bytes", 64, "--json")
    assert outcome.status == 0
    line, uniform = outcome.json["topologies"]
    assert (line["topology"], uniform["topology"]) == ("line", "uniform3")
    for found, spec in ((line, "line.json"), (uniform, "uniform:3")):
        assert found["deliveries"] == relation.deliveries
        assert [method["method"] for method in found["methods"]] == ["direct", "spst", "auto"]
        for method in found["methods"]:
            if "impossible" in method:
                continue
            plan = make_plan(relation, resolve_topology(spec, 3), method["method"], PlanOptions(row_bytes=64))
            assert method["predicted_seconds"] == pytest.approx(plan.predicted_seconds)
            assert plan.lower_bound_seconds <= found["bound_seconds"] * (1 + 1e-9)
            assert method["predicted_seconds"] >= found["bound_seconds"] * (1 - 1e-9)
    assert "impossible" not in uniform["methods"][0]


def test_the_table_has_a_line_for_each_method_and_the_bound(run: Run, relation: Relation) -> None:
    told = run(*LINE, "--methods", "direct,auto").out.splitlines()
    assert told[0].startswith("relation.npz, one exchange of rows of 512 bytes")
    assert told[2].split() == ["method", "line,", "3", "ranks", "uniform3,", "3", "ranks"]
    assert [row.split()[0] for row in told[3:]] == ["direct", "auto", "bound", "rows"]


def test_pictures(run: Run, folder: Path, relation: Relation) -> None:
    pytest.importorskip("matplotlib")
    assert run(*LINE, "--methods", "direct,auto", "--plot", "c.svg").out.endswith(
        "\n\npicture written to c.svg\n"
    )
    texts = (folder / "c.svg").read_text()
    for word in ("line, 3 ranks", "uniform3, 3 ranks", "direct", "the bound", "relation.npz: one exchange"):
        assert word in texts
    line = (
        "plan",
        "--relation",
        "relation.npz",
        "--topology",
        "line.json",
        "--compare",
        "auto",
        "--plot",
        "l.svg",
    )
    assert run(*line).status == 0
    assert "relation.npz on line: auto plan for 3 ranks" in (folder / "l.svg").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare --relation relation.npz --topology line.json --methods nothing", "method must be one of"),
        (
            "compare --relation relation.npz --topology line.json --plot c.gif",
            "--plot must end in .png.*c.gif",
        ),
        ("compare --relation relation.npz --topology ,", "--topology needs at least one"),
        ("compare --relation relation.npz --topology line.json,uniform:2", "2.*3"),
    ],
)
def test_bad_input(run: Run, folder: Path, plan_file: Path, line: str, message: str) -> None:
    outcome = run(*line.split())
    assert (outcome.status, outcome.out) == (2, "")
    assert re.search(message, outcome.err), outcome.err
