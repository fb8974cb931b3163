"""`dgcl partition --out DIR/`: a file for each rank."""

from pathlib import Path

import numpy as np

import dgcl
from tests.dgcl.cli.support import Run


def sizes(folder: Path) -> tuple[int, int, int]:
    comm = dgcl.load_comm_info(folder)
    return comm.num_owned, comm.num_nodes, comm.num_edges


def test_ranks_load_what_was_written(run: Run, folder: Path):
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


def test_a_folder_of_something_else_is_refused(run: Run, folder: Path):
    (folder / "mine").mkdir()
    np.save(folder / "mine" / "a.npy", np.zeros(1))
    failed = run("partition", "graph.npz", "--ranks", 3, "--out", "mine/")
    assert failed.status == 2
    assert "has other files in it" in failed.err
