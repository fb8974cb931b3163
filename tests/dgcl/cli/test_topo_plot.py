"""`dgcl topo plot`: pictures of machines, and of the load of plans on them."""

from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import Run

pytest.importorskip("matplotlib")


def test_a_machine(run: Run, folder: Path):
    outcome = run("topo", "plot", "line.json", "--out", "t.png")
    assert (outcome.status, outcome.err) == (0, "")
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")
    shown = run("topo", "plot", "dgx1", "--out", "t.svg", "--json").json
    assert shown == {"out": "t.svg", "name": "dgx1", "devices": 8, "connections": 29}


def test_a_plan_on_its_own_machine_and_on_another(run: Run, folder: Path, plan_file: Path):
    assert run("topo", "plot", "--plan", "plan.npz", "--out", "own.svg").status == 0
    assert "spst plan on line: " in (folder / "own.svg").read_text()
    assert run("topo", "plot", "uniform:3", "--plan", "plan.npz", "--out", "other.svg").status == 0
    assert "spst plan on uniform3: " in (folder / "other.svg").read_text()


def test_a_plan_that_lies_is_not_drawn(run: Run, folder: Path, plan_file: Path):
    with np.load(plan_file) as file:
        arrays = dict(file)
    arrays["tree_count"][0] += 1
    np.savez(plan_file, **arrays)
    outcome = run("topo", "plot", "--plan", "plan.npz", "--out", "t.svg")
    assert (outcome.status, outcome.out) == (2, "")
    assert "plan.npz: class 0 has" in outcome.err
    assert not (folder / "t.svg").exists()
