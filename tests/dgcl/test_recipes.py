"""The programs of README, the quickstart, the tutorial and the pages on data and on your model run as they stand.

Data sets are small ones of the same classes as those that a network would bring.
"""

import contextlib
import io
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.ranks.context import context
from tests.support.samples import named

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUM_NODES = 60


def blocks(page: str, heading: str, language: str = "python") -> list[str]:
    """The code blocks below a heading of a page."""
    text = (DOCS / page).read_text()
    below = text.split(f"\n{heading}\n", 1)[1] if heading else text
    return re.findall(
        rf"```{language}\n(.*?)```", re.split(r"\n## ", below)[0] if heading else below, re.DOTALL
    )


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    train = random.random(NUM_NODES) < 0.3
    return {
        "edges": random.integers(0, NUM_NODES, (2, 300)),
        "x": random.standard_normal((NUM_NODES, 16)).astype(np.float32),
        "y": random.integers(0, 4, NUM_NODES),
        "train": train,
        "test": ~train,
    }


def pyg_data() -> Any:
    data = pytest.importorskip("torch_geometric.data")
    made = {name: torch.from_numpy(value) for name, value in arrays().items()}
    return data.Data(
        x=made["x"],
        edge_index=made["edges"],
        y=made["y"],
        train_mask=made["train"],
        val_mask=made["test"],
        test_mask=made["test"],
    )


def dgl_graph() -> Any:
    dgl = pytest.importorskip("dgl")
    made = {name: torch.from_numpy(value) for name, value in arrays().items()}
    graph = dgl.graph((made["edges"][0], made["edges"][1]), num_nodes=NUM_NODES)
    graph.ndata.update(feat=made["x"], label=made["y"], train_mask=made["train"], test_mask=made["test"])
    return graph


class Ogb:
    """What ``NodePropPredDataset`` gives."""

    def __getitem__(self, index: int) -> tuple[dict[str, Any], np.ndarray]:
        made = arrays()
        graph = {
            "edge_index": made["edges"],
            "num_nodes": NUM_NODES,
            "node_feat": made["x"],
            "edge_feat": None,
        }
        return graph, made["y"][:, None]

    def get_idx_split(self) -> dict[str, np.ndarray]:
        made = arrays()
        return {
            "train": np.flatnonzero(made["train"]),
            "valid": np.arange(0),
            "test": np.flatnonzero(made["test"]),
        }


def run_recipe(code: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a recipe on this rank; what it made, put together again, and the number of edges."""
    scope = dict(given)
    exec(code, scope)
    if "edge_index" in scope.get("data", ()):  # this rank's, from dgcl.dispatch
        data = scope["data"]
        scope |= {"x": data.x, "y": data.y, "train": data.train_mask, "test": data.test_mask}
    names = [name for name in ("x", "y", "train", "test") if name in scope]
    return {"num_edges": dgcl.current_communicator().num_edges} | {
        name: dgcl.collect(scope[name], None) for name in names
    }


def loops(edges: np.ndarray) -> int:
    return int((edges[0] == edges[1]).sum())


@named(
    "heading, dataset, num_edges",
    {
        "pyg": (
            "## PyG: Planetoid and other datasets of one graph",
            lambda: [pyg_data()],
            lambda e: e.shape[1],
        ),
        "dgl": ("## DGL datasets", lambda: [dgl_graph()], lambda e: e.shape[1] + NUM_NODES),
        "ogb": ("## OGB: node property prediction", Ogb, lambda e: 2 * e.shape[1] - loops(e)),
    },
)
def test_a_recipe_hands_out_all_rows(heading: str, dataset: Any, num_edges: Any):
    _, code = blocks("data.md", heading)
    made = arrays()
    for found in dgcl.launch(run_recipe, 2, code, {"dataset": dataset()}):
        assert found.pop("num_edges") == num_edges(made["edges"])
        assert {name: rows.tolist() for name, rows in found.items()} == {
            name: made[name].tolist() for name in ("x", "y", "train", "test")
        }


def test_data_on_rank_0_alone():
    (code,) = blocks("data.md", "## On rank 0 alone")
    data = pyg_data()

    def rank(data: Any) -> Any:
        first = context.control.rank == 0
        return run_recipe(code, {"first_rank": first, "load": (lambda: data) if first else None})

    for found in dgcl.launch(rank, 2, data):
        assert found["x"].equal(data.x)


def test_files(tmp_path, monkeypatch):
    (code,) = blocks("data.md", "## Files")
    monkeypatch.chdir(tmp_path)
    scope = {"data": pyg_data()}
    exec(code, scope)
    found: Any = scope["found"]
    assert found.graph.num_edges == 300
    assert np.array_equal(found.features, scope["data"].x)
    assert np.array_equal(found.labels, scope["data"].y)
    assert set(found.masks) == {"train", "test"}


def script(framework: str, after: bool) -> tuple[list[float], Any]:
    """Loss and accuracy, and the predictions of the script on the page, on this rank."""
    (diff,) = blocks("one_device.md", f"## A script of {framework}, before and after", "diff")
    code = "\n".join(line[1:] for line in diff.splitlines() if line[:1] != ("-" if after else "+"))
    load = {"PyG": pyg_data, "DGL": lambda: __import__("dgl").add_self_loop(dgl_graph())}[framework]
    torch.manual_seed(0)
    scope: dict[str, Any] = {"load": load}
    exec(code, scope)
    predictions = dgcl.collect(scope["predictions"]) if after else scope["predictions"]
    return [float(scope["loss"]), scope["accuracy"]], predictions


@pytest.mark.parametrize("framework", ["PyG", "DGL"])
def test_the_script_after_gives_what_the_script_before_gave(framework: str, rank_pool: Any):
    pytest.importorskip({"PyG": "torch_geometric", "DGL": "dgl"}[framework])
    numbers, predictions = script(framework, after=False)
    for found, of_ranks in rank_pool(3).run(script, framework, True):
        assert found == pytest.approx(numbers, rel=1e-5)
        assert of_ranks.equal(predictions)


def readme(after: bool) -> float:
    """The last loss of the lines of README on this rank; before they change none has dgcl's name."""
    lines = blocks("../README.md", "")[0].splitlines()
    torch.manual_seed(0)
    model = pytest.importorskip("torch_geometric.nn").GraphSAGE(16, 8, 2, 4)
    scope = {"data": pyg_data(), "model": model, "optimizer": torch.optim.Adam(model.parameters())}
    scope["F"] = torch.nn.functional
    exec("\n".join(line for line in lines if after or "dgcl" not in line), scope)
    return float(scope["loss"])


def test_the_lines_of_readme(rank_pool: Any):
    assert rank_pool(3).run(readme, True) == pytest.approx([readme(after=False)] * 3, rel=1e-5)


def quickstart(heading: str) -> list[float]:
    """The losses of a program of the quickstart, as rank 0 prints them."""
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(blocks("quickstart.md", heading)[0], scope)
    if "data" in scope:
        exec(*blocks("quickstart.md", "## How do I get my predictions back?"), scope)
        assert scope["predictions"].shape == (1000,)
    assert (dgcl.rank() == 0) == bool(printed.getvalue())
    return [float(line.split()[1]) for line in printed.getvalue().splitlines()]


@pytest.mark.parametrize("heading", ["## A whole program", "## The same with the verbs"])
def test_the_programs_of_the_quickstart(heading: str, rank_pool: Any):
    pytest.importorskip("torch_geometric")
    alone, (several, *others) = quickstart(heading), rank_pool(3).run(quickstart, heading)
    assert several == pytest.approx(alone, abs=2e-4)
    assert len(alone) == 5
    assert others == [[], []]


def lightning_steps(code: str, data: Any, distributed: bool) -> list[float]:
    """What Lightning's trainer does in three epochs, on this rank; the module needs ``log`` alone of Lightning's."""
    from torch_geometric.nn import GraphSAGE

    lightning: Any = types.ModuleType("lightning")
    lightning.LightningModule = type("LightningModule", (torch.nn.Module,), {"log": lambda *_, **__: None})
    scope: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lightning", lightning)
        exec(code, scope)
    torch.manual_seed(0)
    module = scope["FullGraph"](lambda: data, GraphSAGE(16, 64, 2, 4))
    module.setup("fit")
    step: Any = type("Step", (torch.nn.Sequential,), {"forward": lambda self: self[0].training_step(0, 0)})(
        module
    )
    if distributed:
        step = torch.nn.parallel.DistributedDataParallel(step)
    optimizer, losses = module.configure_optimizers(), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(step())
        losses[-1].backward()
        optimizer.step()
    module.validation_step(0, 0)
    return [*map(float, losses)]


def test_the_lightning_module_trains_as_on_one_device(rank_pool: Any):
    code, data = blocks("one_device.md", "## Lightning")[0], pyg_data()
    (alone,) = dgcl.launch(lightning_steps, 1, code, data, False)
    for losses in rank_pool(3).run(lightning_steps, code, data, True):
        assert losses == pytest.approx(alone, rel=1e-5)
    assert alone[2] < alone[0]


def test_the_function_for_a_notebook():
    scope = {"dgcl": dgcl, "graph": pyg_data(), "features": torch.ones(NUM_NODES, 3)}
    exec(blocks("quickstart.md", "## In a notebook or a test")[0], scope)  # it calls dgcl.launch


def tutorial(folder: Path, several: bool) -> list[str]:
    """What the script of the page prints on this rank: as it is for one device, or with the changes for ranks."""
    code, *more = blocks("tutorial.md", "")
    for hunk in blocks("tutorial.md", "", "diff")[0].split("@@\n") if several else ():
        before, after = ("".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != s) for s in "+-")
        assert code.count(before) == 1
        code = code.replace(before, after)
    scope: dict[str, Any] = {}
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join([code, *more[:2], more[-1]] if several else [code]), scope)
    return printed.getvalue().splitlines()


def without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.]*( [mun]s)?", "#", line)


def test_the_tutorial_prints_what_its_page_says(rank_pool: Any, tmp_path):
    pytest.importorskip("torch_geometric")
    page = (DOCS / "tutorial.md").read_text().splitlines()
    first, *others = rank_pool(3).run(tutorial, tmp_path, True)
    assert first[:5] == tutorial(tmp_path, False)
    assert {*map(without_numbers, first)} <= {*map(without_numbers, page)}
    assert others == [[], []]


def your_model(folder: Path) -> float:
    """Each block of the page on this rank, but for Lightning's, after the names that its reader has."""
    import dgl.nn
    from torch_geometric.nn import SAGEConv

    edges, linear, current = pyg_data().edge_index, torch.nn.Linear, dgcl.current_communicator
    square = type("Square", (torch.autograd.Function,), {"forward": lambda ctx, x: x * x})
    scope = {"torch": torch, "dgcl": dgcl, "F": torch.nn.functional, "fused": torch.sin, "kernel": torch.cos}
    scope |= {"MyFunction": square, "linear": linear(16, 16), "train_mask": None}
    scope |= {name: pyg_data() for name in ("batch", "data", "graph")}

    def rows(width: int) -> torch.Tensor:
        return torch.ones(current().num_owned, width)

    given: dict[str, Callable[[], dict[str, Any]]] = {
        "ends=": lambda: {"batch": {"pos": torch.ones(NUM_NODES), "_idx_j": edges[0], "_idx_i": edges[1]}},
        "my_x": lambda: {
            "owned_ids": current().owned_ids, "my_x": rows(16), "model": linear(16, 4),
            "edges": edges[:, torch.as_tensor(current().part)[edges[1]] == dgcl.rank()],
        },
        '"dgl"': lambda: {
            "comm": dgcl.build_comm_info(pyg_data()), "conv": dgl.nn.SAGEConv(16, 16, "mean"), "x": rows(16),
        },
        "g.pair": lambda: {"conv": SAGEConv(16, 16)},
        "edge_mlp": lambda: {"edge_features": torch.ones(300, 3), "layers": [(linear(35, 3), linear(19, 16))]},
        "nn.loss": lambda: {
            "logits": rows(4).requires_grad_(), "labels": rows(1)[:, 0].long(), "model": linear(4, 4),
            "optimizer": torch.optim.Adam(scope["linear"].parameters()),
        },
    }  # fmt: skip
    with contextlib.chdir(folder):
        for code in (code for code in blocks("one_device.md", "") if "lightning" not in code):
            scope |= next((names() for word, names in given.items() if word in code), {})
            exec(code, scope)
    return float(scope["loss"])


def test_the_blocks_of_your_model_run(rank_pool: Any, tmp_path):
    pytest.importorskip("dgl")
    pytest.importorskip("torch_geometric")
    assert rank_pool(3).run(your_model, tmp_path) == pytest.approx([np.log(4)] * 3)  # of four equal logits
