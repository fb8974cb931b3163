"""The small programs in examples/: each runs, is short, and gives on ranks what it gives on one."""

import copy
import importlib
import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import dgcl
from dgcl.ranks.context import context

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = (
    "custom_layer",
    "forces",
    "hetero",
    "inference",
    "link_prediction",
    "mesh_from_files",
    "mesh_simulation",
    "moving_atoms",
    "plan_offline",
    "readout",
    "snapshots",
    "weather",
)


@pytest.fixture(scope="module")
def programs():
    """The programs by name, imported as Python runs them: with their folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield {name: importlib.import_module(name) for name in NAMES}
        for name in (*NAMES, "graphs"):
            patch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short(path):
    text, recipe = path.read_text(), path.stem in RECIPES
    assert text.count("\n") < (80 if recipe else 120)
    if recipe:  # so many lines name us beside the import, and beside what brings rows together to be printed
        lines = re.findall(r"\n +.*dgcl\.(?!c)", text)
        assert len(lines) <= (5 if path.stem in "hetero mesh_simulation weather" else 9)


def test_custom_layer(programs, capsys):
    programs["custom_layer"].main(3)
    assert "equal on 1 and 3 ranks" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="rows differ by up to"):
        programs["custom_layer"].main(3, exchange=False)


def test_inference(programs, tmp_path):
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


def links_alone(module, data, model, step):
    pairs, is_link = module.pairs_of_step(step, data.edge_label_index, data.num_nodes)
    u, v = model(data.x, data.edge_index)[pairs]
    return F.binary_cross_entropy_with_logits((u * v).sum(1), is_link)


def forces_alone(module, data, model, step):
    pos = data.pos.requires_grad_()
    energy = model["readout"](model["springs"](pos, data.edge_index).mean(0, keepdim=True)).squeeze()
    (gradient,) = torch.autograd.grad(energy, pos, create_graph=True)
    return F.mse_loss(energy, data.energy) + F.mse_loss(-gradient, data.forces)


def readout_alone(module, data, model, step):
    h = model["gin"](data.x, data.edge_index)
    pooled = torch.stack([h[data.batch == graph].mean(0) for graph in range(len(data.shape))])
    return F.cross_entropy(model["head"](pooled), data.shape)


def hetero_alone(module, data, model, step):
    paper = data["paper"]
    scores = model(data.x_dict, data.edge_index_dict)["paper"]
    return F.cross_entropy(scores[paper.train_mask], paper.y[paper.train_mask])


def mesh_alone(module, data, model, step):
    now, then = data.x[:, step % 10], data.x[:, step % 10 + 1]
    return F.mse_loss(model(now, data.edge_index, data.edge_attr), then)


def weather_alone(module, data, model, step):
    x = {name: rows.transpose(0, 1) for name, rows in data.x_dict.items()}
    return F.mse_loss(model(x, data.edge_index_dict).transpose(0, 1), data["grid"].y)


def snapshots_alone(module, data, model, step):
    state, outputs = data.x.new_zeros(len(data.x), 16), []
    for time, roads in enumerate(data.roads):
        out, state = model(data.x[:, time], state, roads)
        outputs.append(out)
    return F.mse_loss(torch.stack(outputs, 1), data.y)


#: The graph of a recipe, its model, and its loss in PyG alone.
RECIPES = {
    "link_prediction": (lambda module: module.ring_of_friends(40), "make_model", links_alone),
    "forces": (lambda module: module.cluster(30, 0.4), "make_model", forces_alone),
    "readout": (lambda module: module.rings_and_stars(6, 5), "make_model", readout_alone),
    "hetero": (lambda module: module.library(80, 40), "Model", hetero_alone),
    "mesh_simulation": (lambda module: module.mesh(7), "make_model", mesh_alone),
    "snapshots": (lambda module: module.traffic(40), "GraphGRU", snapshots_alone),
    "weather": (lambda module: module.globe(9), "Model", weather_alone),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_losses_of_one_device(programs, name):
    """In three steps of Adam, on 1, 3 and 4 ranks, from data on rank 0 alone."""
    graph, make, loss_alone = RECIPES[name]
    module = programs[name]
    data, model = graph(module), getattr(module, make)().double()
    if name == "hetero":
        with torch.no_grad():
            model(data.x_dict, data.edge_index_dict)
    alone = copy.deepcopy(model)
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.02 if name == "hetero" else 0.01)
    expected = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_alone(module, data, alone, step)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    def rank():
        first = context.require_control().rank == 0
        mine = copy.deepcopy(model)
        result = module.train(copy.deepcopy(data) if first else None, mine, 3)
        losses, rows = result if isinstance(result, tuple) else (result, None)
        return losses, list(mine.parameters()), rows

    for world_size in (1, 3, 4):
        results = dgcl.launch(rank, world_size)
        if name == "mesh_simulation":
            state = data.x[:, 0]
            for _ in range(3):
                state = alone(state, data.edge_index, data.edge_attr)
            torch.testing.assert_close(results[0][2], state.detach(), rtol=1e-9, atol=1e-9)
        for losses, parameters, _ in results:
            assert losses == pytest.approx(expected, rel=1e-10)
            for own, other in zip(parameters, alone.parameters(), strict=True):
                torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch):
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


def test_moving_atoms(programs):
    """The same on one rank and three, atoms that change their rank included; wrong forces would not keep the energy."""
    module = programs["moving_atoms"]

    def run():
        totals, x, seconds = module.simulate(4, 12)
        assert [*seconds] == ["neighbours", "rewire", "forces"]
        return totals, dgcl.collect(x)

    ((totals, places),) = dgcl.launch(run, 1)
    (several, found), *_ = dgcl.launch(run, 3)
    assert several == pytest.approx(totals, rel=1e-10)
    torch.testing.assert_close(found, places, rtol=1e-10, atol=1e-10)
    assert totals == pytest.approx(totals[:1] * 12, rel=1e-4)
    assert (places - torch.cat([module.plane(4, number) for number in range(4)])).abs().max() > 1e-4


def test_mesh_from_files(programs, tmp_path):
    """Each rank from its own file: the cells of a dense solve of the whole mesh."""
    module, side = programs["mesh_from_files"], 9
    module.write(tmp_path, 3, side)
    x, *_ = dgcl.launch(lambda: module.solve(tmp_path / f"cells-{context.require_control().rank}.npz"), 3)
    axis = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    near = (torch.cdist(axis, axis) < 1.1).fill_diagonal_(False).double()
    matrix = torch.eye(side**2).double() + module.STIFFNESS * (near.sum(1).diag() - near)
    expected = torch.arange(side**2).double().sin()
    for _ in range(module.STEPS):
        expected = torch.linalg.solve(matrix, expected)
    torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-10)


def test_plan_offline(programs, tmp_path):
    """Four devices; the file is a plan that the checker accepts, and the report's numbers are the plan's."""
    from dgcl.planner import check_plan_file

    module = programs["plan_offline"]
    plan = module.plan_for(None, "uniform4", 64)
    plan.save(tmp_path / "plan.npz")
    assert check_plan_file(tmp_path / "plan.npz").predicted_seconds == plan.predicted_seconds
    assert plan.lower_bound_seconds <= plan.predicted_seconds <= plan.direct_seconds
    assert f"{plan.predicted_seconds * 1e6:.1f} us (auto)" in module.report(plan)
