"""``dgcl plan --edges``: both exchanges of an aggregation, side by side for each placement of edges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dgcl.cli import main
from dgcl.planner import Plan, check_plan_file


@pytest.fixture
def star_file(tmp_path: Path) -> Path:
    """Thirty leaves read by one vertex; leaves of the first part, the hub of another."""
    path = tmp_path / "star.txt"
    path.write_text("".join(f"{leaf} 30\n" for leaf in range(30)) + "30 31\n")
    np.save(tmp_path / "part.npy", np.array([0] * 30 + [1, 1], np.int32))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["plan", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_placements_side_by_side(star_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = star_file.with_name("part.npy")
    status, out, _ = run(
        capsys, star_file, "--part", part, "--topology", "uniform:2", "--edges", "auto", "--json"
    )
    told = json.loads(out)
    assert status == 0
    assert told["edges"] in ("tail", "cover")
    rows = {
        name: (facts["rows_expanded"], facts["rows_folded"]) for name, facts in told["placements"].items()
    }
    assert rows == {"head": (30, 0), "tail": (0, 1), "cover": (0, 1)}
    assert told["placements"]["cover"]["edges"] == [30, 1]
    for facts in told["placements"].values():
        assert facts["exchange_seconds"] == pytest.approx(facts["expand_seconds"] + facts["fold_seconds"])
        assert facts["lower_bound_seconds"] <= facts["exchange_seconds"] * (1 + 1e-12)


def test_both_plans_are_written_and_hold(star_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [star_file.with_name(name) for name in ("expand.npz", "fold.npz")]
    options = ["--part", star_file.with_name("part.npy"), "--topology", "uniform:2", "--edges", "cover"]
    status, out, _ = run(capsys, star_file, *options, "--out", files[0], "--fold-out", files[1])
    assert status == 0
    assert "cover <-" in out
    for file in files:
        check_plan_file(file)
    assert [Plan.load(file).relation.deliveries for file in files] == [0, 1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--synthetic", "reddit", "--edges", "cover"], "--edges goes with a graph"),
        (["GRAPH", "--edges", "cover", "--compare", "spst"], "--compare goes without --edges"),
        (["GRAPH", "--edges", "cover", "--plot", "p.png"], "--plot goes without --edges"),
        (["GRAPH", "--fold-out", "f.npz"], "--fold-out goes with --edges"),
        (["GRAPH", "--edges", "cover", "--work", "1"], "--work: must be two numbers"),
    ],
)
def test_what_does_not_go_together_is_refused(
    star_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = [str(star_file) if argument == "GRAPH" else argument for argument in arguments]
    status, out, err = run(capsys, *given, "--topology", "uniform:2")
    assert (status, out) == (2, "")
    assert message in err
