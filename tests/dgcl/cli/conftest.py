"""A folder of small files that the commands read, and a way to run them."""

import json
from pathlib import Path

import numpy as np
import pytest

from dgcl.cli import main
from tests.dgcl.cli.support import LINE, Outcome, Run, save_graph
from tests.support.importer_cases import MATRIX, TABLES, XML


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command in this process."""

    def run_main(*argv: object) -> Outcome:
        capsys.readouterr()
        status = main([str(a) for a in argv])
        return Outcome(status, *capsys.readouterr())

    return run_main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test, with inputs in it; commands name them as a user would."""
    monkeypatch.chdir(tmp_path)
    # The hand-made case: parts [0,0,1,1,2,2], needed rows 0>1:{1} 0>2:{0} 1>0:{3} 1>2:{2} 2>1:{4,5}.
    edges = [(0, 1), (0, 5), (1, 2), (2, 4), (3, 0), (4, 3), (5, 2)]
    save_graph(tmp_path / "graph.npz", 6, edges)
    (tmp_path / "graph.txt").write_text("# owner\n" + "".join(f"{u} {v}\n" for u, v in edges))
    np.save(tmp_path / "part.npy", np.array([0, 0, 1, 1, 2, 2], np.int32))
    (tmp_path / "line.json").write_text(json.dumps(LINE))
    (tmp_path / "cut.json").write_text(json.dumps({**LINE, "connections": LINE["connections"][:1]}))
    inputs = {"topo.txt": MATRIX, "nccl.xml": XML, "cut.xml": XML[:700], "p2p.txt": TABLES}
    for name, text in inputs.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def plan_file(folder: Path) -> Path:
    """A plan of the hand-made graph on the line."""
    argv = ["plan", "graph.npz", "--topology", "line.json", "--part", "part.npy", "--method", "spst"]
    assert main([*argv, "--out", "plan.npz", "--relation-out", "relation.npz", "--json"]) == 0
    return folder / "plan.npz"
