"""`dgcl topo plot`: pictures of machines."""

from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run

pytest.importorskip("matplotlib")


def test_a_machine(run: Run, folder: Path):
    outcome = run("topo", "plot", "line.json", "--out", "t.png")
    assert (outcome.status, outcome.err) == (0, "")
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")
    shown = run("topo", "plot", "dgx1", "--out", "t.svg", "--json").json
    assert shown == {"out": "t.svg", "name": "dgx1", "devices": 8, "connections": 29}
