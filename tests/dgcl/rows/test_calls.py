"""How many of the library's own Python functions an operation on rows calls: what it costs, whatever the machine."""

import sys
from pathlib import Path

import dgcl
import torch
import torch_geometric.nn as pyg

from tests.dgcl.rows.harness import each_on_threads
from tests.dgcl.rows.programs import graph

HERE = str(Path(dgcl.__file__).parent)

#: The most that each may call.
TARGETS = {
    "relu": (12, lambda d, model: d.x.relu()),
    "x + x": (25, lambda d, model: d.x + d.x),
    "x @ w": (16, lambda d, model: d.x @ model.lin.weight),
    "cat": (30, lambda d, model: torch.cat([d.x, d.x], dim=1)),
    "x[mask]": (25, lambda d, model: d.x[d.train_mask]),
    "mean": (75, lambda d, model: d.x.mean(0)),
    "an accuracy": (225, lambda d, model: int((d.x.argmax(1)[d.val_mask] == d.y[d.val_mask]).sum()) / int(d.val_mask.sum())),
    "a GCN's forward": (150, lambda d, model: model(d.x, d.edge_index)),
}


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.first, self.second = torch.nn.Linear(6, 6), pyg.GCNConv(6, 16), pyg.GCNConv(16, 4)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def own_calls(function, *args) -> int:
    """Calls of our functions in the third call of a function on this thread."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(HERE)

    function(*args)
    function(*args)
    sys.setprofile(see)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count


def counts() -> dict[str, int]:
    """What each operation calls, on the rank that calls most."""

    def run(function, data):
        return own_calls(function, data, model_of())

    def model_of():
        return dgcl.distribute(GCN())

    ranks = each_on_threads(run, [function for _, function in TARGETS.values()], graph())
    return {name: max(each) for name, each in zip(TARGETS, ranks, strict=True)}


def test_own_calls():
    measured = counts()
    assert {name: count for name, count in measured.items() if count > TARGETS[name][0]} == {}
