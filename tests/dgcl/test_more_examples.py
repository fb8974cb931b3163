"""The small programs in examples/: each runs, is short, and gives on ranks what it gives on one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import dgcl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("custom_layer", "inference", "mesh_simulation", "plan_offline")


@pytest.fixture(scope="module")
def programs():
    """The programs by name, imported as Python runs them: with their folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield {name: importlib.import_module(name) for name in NAMES}
        for name in (*NAMES, "graphs"):
            patch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short(name) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 120


def test_custom_layer(programs, capsys) -> None:
    programs["custom_layer"].main(3)
    assert "equal on 1 and 3 ranks" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="step 1: 0 differs"):
        programs["custom_layer"].main(3, exchange=False)


def test_inference(programs, tmp_path) -> None:
    """From one checkpoint, on one rank and on three: the same class for each vertex."""
    module, width = programs["inference"], programs["inference"].WIDTHS[0]
    data = sys.modules["graphs"].planted_communities(num_nodes=150, num_classes=3, width=width)
    checkpoint = str(tmp_path / "model.pt")
    torch.save(module.Model(3).state_dict(), checkpoint)
    (alone,) = dgcl.launch(module.predict, 1, data, checkpoint)
    several = dgcl.launch(module.predict, 3, data, checkpoint)
    assert alone.shape == (150,)
    assert len(alone.unique()) > 1
    assert several[0].equal(alone)
    assert several[1] is None


def test_mesh_simulation(programs, monkeypatch) -> None:
    """Parameters are set here: ranks that are threads draw from torch's one generator at the same time."""
    module = programs["mesh_simulation"]

    class Seeded(module.Simulator):
        def __init__(self, comm) -> None:
            super().__init__(comm)
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    monkeypatch.setattr(module, "Simulator", Seeded)
    run = module.simulate
    ((losses, state),) = dgcl.launch(run, 1, 6, 12, 3)
    (several, found), _ = dgcl.launch(run, 2, 6, 12, 3)
    assert several == pytest.approx(losses, rel=1e-3)
    torch.testing.assert_close(found, state, rtol=1e-3, atol=1e-3)
    assert losses[10] < losses[0]


def test_plan_offline(programs, tmp_path) -> None:
    """Four devices; the file is a plan that the checker accepts, and the report's numbers are the plan's."""
    from dgcl.planner import check_plan_file

    module = programs["plan_offline"]
    plan = module.plan_for(None, "uniform4", 64)
    plan.save(tmp_path / "plan.npz")
    assert check_plan_file(tmp_path / "plan.npz").predicted_seconds == plan.predicted_seconds
    assert plan.lower_bound_seconds <= plan.predicted_seconds <= plan.direct_seconds
    assert f"{plan.predicted_seconds * 1e6:.1f} us (auto)" in module.report(plan)
