"""`dgcl show`, and the words for machines that are not there, which `plan`, `simulate` and `advise` share."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import LINE, Run

PLAN = "plan graph.npz --part part.npy --method spst --topology line.json"
ADVISE = "advise graph.npz --part part.npy --model gcn:8,4 --topology line.json"


def test_shows_what_plan_printed(run: Run, folder: Path):
    planned = run(*f"{PLAN} --explain 0>1 --out p.npz --html p.html".split()).out.splitlines()
    shown = run(*["show", "p.npz", "--explain", "0>1", "--html", "q.html"]).out.splitlines()
    assert [line for line in planned if not line.startswith("spst ")][:-3] == [
        line for line in shown if not line.startswith("spst ")
    ][:-2]
    assert run(*["simulate", "p.npz", "--html", "s.html", "--trace", "t.json"]).status == 0
    for name in "pqs":
        text = (folder / f"{name}.html").read_text().partition('type="application/json">')[2]
        assert len(json.loads(text.partition("</script>")[0])["wires"]) == 2
    assert "--html p.npz: is also plan.npz" in run(*["show", "p.npz", "--html", "p.npz"]).err


def test_two_plans_side_by_side(run: Run, folder: Path, plan_file: Path):
    run(*f"{PLAN} --scale left=0.5 --out slow.npz".split())
    shown = run(*["show", "plan.npz", "--against", "slow.npz", "--json"]).json["against"]
    assert [plan["machine"] for plan in shown["plans"]] == ["line", "line, left x 0.5"]
    assert {each["in use"]: each["second"] / each["first"] for each in shown["differ"]} == {
        "left:d0>d1": 2,
        "left:d1>d0": 2,
    }
    np.save(folder / "other.npy", np.array([0, 1, 1, 1, 2, 2], np.int32))
    run(*["plan", "graph.npz", "--part", "other.npy", "--topology", "line.json", "--out", "o.npz"])
    assert "plans of one relation" in run(*["show", "plan.npz", "--against", "o.npz"]).err


@pytest.mark.parametrize("verb", [PLAN, "simulate plan.npz", ADVISE])
def test_the_same_words_everywhere(run: Run, folder: Path, plan_file: Path, verb: str):
    same = run(*verb.split(), "--json").json
    for change in ("--scale left=2", "--scale wire=0.5 --add NV1:d0-d2=3"):
        assert run(*verb.split(), *change.split(), "--json").json != same
    for change, message in (
        ("--without d0-d9", "--without must name"),
        ("--add d0-d1", "--add must be"),
        ("--scale left=x", "--scale left= must be followed"),
        ("--without left", "rank 0 (d0)"),
    ):
        refused = run(*verb.split(), *change.split())
        assert (refused.status, message in refused.err) == (2, True)


def test_simulate_takes_a_way_round_and_says_what_limits(run: Run, folder: Path):
    """Rank 0 sends 4 MB to 1 by a wire of 4 GB/s; without it they go over a switch, of 2 GB/s."""
    slow = [
        {"name": f"s{i}", "kind": "PCIe", "a": f"d{i}", "b": "switch", "bandwidth": 2.0} for i in range(2)
    ]
    (folder / "t.json").write_text(json.dumps({**LINE, "connections": [*LINE["connections"], *slow]}))
    np.savez(
        folder / "r.npz", world_size=3, source=np.int32([0]), dests=np.uint64([[2]]), count=np.int64([1])
    )
    run(*["plan", "--relation", "r.npz", "--topology", "t.json", "--row-bytes", "4000000", "--out", "p.npz"])
    for change, seconds in (("", 1e-3), ("--without left", 2e-3), ("--without left --scale PCIe=4", 5e-4)):
        played = run("simulate", "p.npz", *change.split(), "--json").json
        assert played["seconds"] == pytest.approx(seconds)
        assert max(each["used"] for each in played["connections"]) == pytest.approx(1)
    limit = run("show", "p.npz", "--json").json["limited_by"]
    assert f"limited by  {limit}" in run("simulate", "p.npz").out


@pytest.mark.parametrize(
    "call, lines",
    [
        ("plan graph.npz --topology line.json,uniform:3 --ranks 2,3", 4),
        ("plan graph.npz --topology line.json,uniform:3 --strategy tail", 2),
        ("simulate plan.npz --topology line.json,uniform:3", 2),
    ],
)
def test_several_machines_are_one_table(run: Run, folder: Path, plan_file: Path, call: str, lines: int):
    assert len(run(*call.split()).out.splitlines()) == lines + 1
    assert len(run(*call.split(), "--json").json["machines"]) == lines
    assert "--html is of one machine" in run(*call.split(), "--html", "p.html").err


def test_sensitivity(run: Run, folder: Path):
    facts = run(*f"{PLAN} --sensitivity --json".split()).json
    assert facts["sensitivity"][0]["half as fast"] == pytest.approx(2 * facts["predicted_seconds"])
    assert "if these were" in run(*f"{PLAN} --sensitivity".split()).out


def test_presets_are_listed_as_on_their_page(run: Run):
    page = (Path(__file__).resolve().parents[3] / "docs" / "topology.md").read_text().splitlines()
    presets = run("topo", "list", "--json").json["presets"]
    lines = run("topo", "list").out.splitlines()
    assert len(lines) == len(presets) + 3
    assert presets[0]["what"].startswith("NVIDIA DGX-1 with eight V100")
    for each in presets:
        (line,) = (line for line in page if line.startswith(f"| `{each['preset']}` |"))
        assert each["preset"] == "gh200" or each["rates"].split(" on ")[0].split(",")[0] in line


def test_the_bare_command_prints_its_help(run: Run):
    assert (run().status, "COMMAND" in run().out, run("--paint").status) == (0, True, 2)
