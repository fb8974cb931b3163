"""`dgcl plan --plot`: a picture with the machine, the method and the ranks."""

from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run


def test_picture(run: Run, folder: Path, plan_file: Path):
    pytest.importorskip("matplotlib")
    argv = ("plan", "--relation", "relation.npz", "--topology", "line.json", "--plot", "l.svg")
    assert run(*argv).status == 0
    assert "relation.npz on line: auto plan for 3 ranks" in (folder / "l.svg").read_text()
