"""The small programs in examples/: each runs, is short, and gives on ranks what it gives on one."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch

import dgcl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("custom_layer", "hetero", "inference", "mesh_simulation", "plan_offline")


@pytest.fixture(scope="module")
def programs():
    """The programs by name, imported as Python runs them: with their folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield {name: importlib.import_module(name) for name in NAMES}
        for name in (*NAMES, "graphs"):
            patch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short(path) -> None:
    assert len(path.read_text().splitlines()) < 120


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


def test_hetero(programs, monkeypatch) -> None:
    """Parameters are set here, as below; the oracle of a layer is dense matrices of each kind of edges."""
    module = programs["hetero"]

    class Seeded(module.RelationalGCN):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    monkeypatch.setattr(module, "RelationalGCN", Seeded)
    data = module.library(60, 30)
    ((losses, found),) = dgcl.launch(module.train, 1, data, 5)
    (several, same), (_, nothing) = dgcl.launch(module.train, 2, data, 5)
    assert several == pytest.approx(losses, rel=1e-4)
    assert same.equal(found)
    assert nothing is None
    assert losses[-1] < losses[0]

    def layer(rank_data):
        comms = module.connect(rank_data)
        x = dgcl.dispatch_features(rank_data.features)
        made = Seeded(comms, 8, 4)
        return dgcl.collect(made(x).detach(), None), made

    (rows, made), _ = dgcl.launch(layer, 2, data)
    wanted = made.own(data.features)
    for kind, read in zip(module.EDGES, made.read, strict=True):
        dense = torch.zeros(data.num_nodes, data.num_nodes)
        dense.index_put_(
            tuple(torch.from_numpy(data.edges[kind]).flip(0)), torch.tensor(1.0), accumulate=True
        )
        wanted = wanted + read(dense @ data.features / dense.sum(1, keepdim=True).clamp(min=1))
    torch.testing.assert_close(rows, wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch) -> None:
    """Its code cells, one after the other; of IPython it needs what shows a picture."""
    matplotlib = pytest.importorskip("matplotlib")
    display = types.ModuleType("IPython.display")
    display.Image = lambda name, width: Path(name).read_bytes()
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    scope: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert scope["difference"] < 1e-5
    assert scope["accuracy"] > 0.8
    pictures = [o for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 2, "keep the notebook as it was run, with its pictures"


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
