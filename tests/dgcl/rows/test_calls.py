"""How many of the library's own Python functions a line calls: what it costs, whatever the machine."""

import sys
from pathlib import Path

import torch_geometric.nn as pyg

import dgcl
from tests.dgcl.rows.programs import graph
from tests.support.rows_harness import on_threads, value_of

#: The most that each may call.
TARGETS = {
    "x.relu()": 12,
    "x + x": 25,
    "x @ torch.ones(6, 6)": 16,
    "torch.cat([x, x], dim=1)": 30,
    "x[mask]": 25,
    "x.mean(0)": 75,
    "int((x.argmax(1)[mask] == y[mask]).sum()) / int(mask.sum())": 225,
    "model(x, edge_index)": 150,
}


def own_calls(line, data):
    """Calls of our functions when a line runs for the third time."""
    count = 0

    def see(frame, event, _):
        nonlocal count
        count += event == "call" and Path(dgcl.__file__).parent in Path(frame.f_code.co_filename).parents

    names = {"x": data.x, "y": data.y, "mask": data.val_mask, "edge_index": data.edge_index}
    names["model"] = dgcl.distribute(pyg.GCN(6, 16, 2, 4))
    for profile in (None, None, see):
        sys.setprofile(profile)
        value_of(line, **names)
    sys.setprofile(None)
    return count


def test_own_calls():
    counts = dict(zip(TARGETS, map(max, on_threads(own_calls, list(TARGETS), graph())), strict=True))
    assert {line: count for line, count in counts.items() if count > TARGETS[line]} == {}
