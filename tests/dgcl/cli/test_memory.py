"""``dgcl memory``: bytes by name, held against what torch and the communicator really hold; seconds by hand."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dgcl
from dgcl.cli.memory import MODELS
from tests.dgcl.cli.support import Run

WIDTHS = [7, 5, 5, 3]
EDGES = np.random.default_rng(0).integers(0, 40, (2, 200))


class Layer(nn.Module):
    """What ``MODELS`` says of a layer, in plain torch."""

    def __init__(self, model: str, width: int, out: int) -> None:
        super().__init__()
        self.model = model
        self.w = nn.Linear(width, out)
        if model != "gcn":
            self.v = nn.Linear(out if model == "gin" else width, out, bias=model == "gin")

    def forward(self, graph: Any, x: torch.Tensor, owned: int) -> torch.Tensor:
        if self.model == "gcn":
            return self.w(graph.sum(x)).relu()
        if self.model == "sage":
            return (self.w(graph.mean(x)) + self.v(x[:owned])).relu()
        return self.v(self.w(x[:owned] + graph.sum(x)).relu()).relu()


def on_rank(model: str, part: np.ndarray) -> dict[str, int]:
    """What a forward pass keeps, without exchanged rows and parameters; and the other figures."""
    comm = dgcl.build_comm_info(torch.from_numpy(EDGES), "uniform", part=part)
    graph, kept = comm.local_graph("csr"), dict[int, int]()
    layers = nn.ModuleList(Layer(model, width, out) for width, out in pairwise(WIDTHS)).float()
    apart = {each.untyped_storage().data_ptr() for each in layers.parameters()}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        if saved.dtype == torch.float32 and saved.dim() == 2:
            storage = saved.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    h = torch.ones(comm.num_owned, WIDTHS[0])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        for layer in layers:
            x = dgcl.graph_allgather(h)
            apart.add(x.untyped_storage().data_ptr())
            h = layer(graph, x, comm.num_owned)
    count = sum(each.numel() for each in layers.parameters())
    return {
        "kept for the backward": sum(size for at, size in kept.items() if at not in apart),
        "parameters": 4 * count,
        "gradients, optimiser": 4 * 3 * count,
        "features": 4 * WIDTHS[0] * comm.num_owned,
        "exchange": comm.memory(WIDTHS[:-1]).total,
    }


@pytest.mark.parametrize("model", MODELS)
def test_bytes_are_those_that_are_held(model: str, run: Run, folder: Path) -> None:
    part = (np.arange(40) % 3).astype(np.int32)
    np.save("parts.npy", part)
    (folder / "edges.txt").write_text("".join(f"{u} {v}\n" for u, v in [*EDGES.T, (39, 39)]))
    argv = ["edges.txt", "--ranks", "3", "--part", "parts.npy", "--json", "--widths", "7,5,5,3"]
    told = run("memory", *argv, "--model", model).json["ranks"]
    held = dgcl.launch(on_rank, 3, model, part)
    for mine, theirs in zip(told, held, strict=True):
        assert mine["total"] == sum(value for name, value in mine.items() if name != "total")
        for name in ("parameters", "gradients, optimiser", "features", "kept for the backward"):
            assert mine[name] == theirs[name], name
    exchange = [each["exchange tables"] + each["exchange buffers"] for each in told]
    assert exchange == pytest.approx([each["exchange"] for each in held], rel=0.02)  # one edge more


def test_an_epoch_is_exchanges_and_layers(run: Run, folder: Path) -> None:
    argv = "memory graph.npz --ranks 3 --part part.npy --topology line.json --model gcn --widths 8,4,2 --json"
    epoch = run(*argv.split(), "--work", "80,640").json["epoch"]
    # 7 edges, the fullest rank has 3, and 2 rows: 80 ns for an edge of 8 elements, 640 ns for a row by an 8 x 8 matrix.
    first = 1 * 3 * 80 + 2 * 2 * 640 * 8 * 4 / 64
    second = 2 * 3 * 40 + 3 * 2 * 640 * 4 * 2 / 64
    found = [layer["compute_seconds"] * 1e9 for layer in epoch["layers"]]
    assert found == pytest.approx([first, second])
    plans = {
        width: run(
            *f"plan graph.npz --part part.npy --topology line.json --row-bytes {width} --json".split()
        ).json["report"]
        for width in (32, 16)
    }
    assert epoch["layers"][0]["exchange_seconds"] == pytest.approx(plans[32]["takes"]["model_seconds"])
    assert epoch["layers"][1]["exchange_seconds"] == pytest.approx(
        plans[16]["takes"]["model_seconds"] + plans[16]["fold"]["seconds"]
    )
    total = sum(layer["compute_seconds"] + layer["exchange_seconds"] for layer in epoch["layers"])
    assert epoch["seconds"] == pytest.approx(total)
    text = run(*argv.replace(" --json", "").split(), "--work", "80,640", "--inference").out
    assert "forward\n" in text
    assert "not counted: the loss" in text


@pytest.mark.parametrize(
    "options, message",
    [
        ("--widths 8", "--widths must be two numbers or more"),
        ("--widths 8,4 --work 1,2", "goes with --topology"),
        ("--widths 8,4 --work 1 --topology line.json", "--work: must be two numbers"),
        ("--widths 8,4 --model gat", "invalid choice: 'gat'"),
        ("--widths 8,0", "must be a whole number of at least 1"),
    ],
)
def test_bad_options(options: str, message: str, run: Run, folder: Path) -> None:
    outcome = run("memory", "graph.npz", "--ranks", "3", *options.split())
    assert outcome.status == 2
    assert message in outcome.err
