"""`dgcl partition --out DIR/`: a file for each rank."""

import re
from pathlib import Path

import numpy as np
import pytest

import dgcl
from tests.dgcl.cli.support import Run, listing


def sizes(folder: Path) -> tuple[int, int, int]:
    comm = dgcl.load_comm_info(folder)
    return comm.num_owned, comm.num_nodes, comm.num_edges


def test_ranks_load_what_was_written(run: Run, folder: Path) -> None:
    arguments = ["partition", "graph.npz", "--ranks", 3, "--partition", "range", "--json", "--out"]
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
    failed = run("partition", "graph.npz", "--ranks", 3, "--out", "mine/")
    assert failed.status == 2
    assert "has other files in it" in failed.err


@pytest.mark.parametrize(
    "options, message",
    [
        ("--out out.npy --strategy replicas:2", "--strategy goes with --out DIR/"),
        ("--out parts/ --strategy grid:2,2,1", "2 x 2 x 1 = 4 ranks, and there are 3"),
        ("--out parts/ --method best", "method must be one of .*got 'best'"),
    ],
)
def test_options_of_a_plan_that_cannot_be_are_refused(
    run: Run, folder: Path, options: str, message: str
) -> None:
    before = listing(folder)
    failed = run("partition", "graph.npz", "--ranks", "3", *options.split())
    assert failed.status == 2
    assert re.search(message, failed.err)
    assert listing(folder) == before
