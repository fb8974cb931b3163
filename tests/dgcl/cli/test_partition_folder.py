"""`dgcl partition --out DIR/`: a file for each rank."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dgcl
from dgcl.replication import METHOD
from dgcl.topology import save_topology
from tests.dgcl.cli.support import Run, listing
from tests.dgcl.replication.machines import machines
from tests.samples import named


def sizes(folder: Path) -> tuple[int, int, int]:
    comm = dgcl.load_comm_info(folder)
    return comm.num_owned, comm.num_nodes, comm.num_edges


def test_ranks_load_what_was_written(run: Run, folder: Path) -> None:
    arguments = ["partition", "graph.npz", "--parts", 3, "--method", "range", "--json", "--out"]
    report = run(*arguments, "parts/").json
    assert sorted(path.name for path in (folder / "parts").iterdir()) == [
        "plan.npz",
        "rank-00000.part",
        "rank-00001.part",
        "rank-00002.part",
    ]
    assert dgcl.launch(sizes, 3, folder / "parts") == [(size, 6, 7) for size in report["sizes"]]
    run(*arguments, "parts/")  # written anew


def test_a_folder_of_something_else_is_refused(run: Run, folder: Path) -> None:
    (folder / "mine").mkdir()
    np.save(folder / "mine" / "a.npy", np.zeros(1))
    failed = run("partition", "graph.npz", "--parts", 3, "--out", "mine/")
    assert failed.status == 2
    assert "has other files in it" in failed.err


def kept(folder: Path) -> tuple[int, int, str]:
    comm = dgcl.load_comm_info(folder)
    return comm.num_core, comm.num_owned, comm.choice


@named(
    "options, replicated, says",
    {
        "asked for": (["--planner", METHOD], True, f"{METHOD} was asked for"),
        "auto replicates": (["--work", "0,0"], True, f"auto chose {METHOD}"),
        "auto does not": (["--work", "1e6,1e6"], False, "auto chose the ordinary plan"),
    },
)
def test_parts_may_hold_replicas(
    run: Run, folder: Path, options: list[str], replicated: bool, says: str
) -> None:
    """Ranks 0 and 1 are on one machine, rank 2 on another; each reads rows of the other two."""
    save_topology(machines([0, 0, 1], network=0.001), folder / "two.json")
    arguments = ["partition", "graph.npz", "--parts", 3, "--method", "range", "--topology", "two.json"]
    made = run(*arguments, "--out", "parts/", "--hops", 2, *options, "--json").json
    assert says in made["choice"]
    found = dgcl.launch(kept, 3, folder / "parts")
    assert [core for core, _, _ in found] == [2, 2, 2]
    assert any(owned > core for core, owned, _ in found) == replicated
    assert all(says in choice for _, _, choice in found)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--out out.npy --hops 2", "--hops goes with --out DIR/"),
        ("--out out.npy --planner direct", "--planner goes with --out DIR/"),
        ("--out parts/ --hops 2", "--hops needs --topology"),
        ("--out parts/ --work 1,1", "--work goes with --hops"),
        (f"--out parts/ --planner {METHOD}", f"--planner {METHOD} needs --hops"),
        ("--out parts/ --hops 2 --planner ring", "--hops goes with --planner auto or"),
        ("--out parts/ --planner best", "method must be one of .*got 'best'"),
    ],
)
def test_options_of_a_plan_that_cannot_be_are_refused(
    run: Run, folder: Path, options: str, message: str
) -> None:
    before = listing(folder)
    failed = run("partition", "graph.npz", "--parts", "3", *options.split())
    assert failed.status == 2
    assert re.search(message, failed.err)
    assert listing(folder) == before
