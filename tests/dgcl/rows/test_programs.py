"""Programs of one device print the same numbers where three lines of them are changed."""

import functools

import pytest
import torch.nn.functional as F

from tests.dgcl.rows.harness import differences, on_one_device, on_rank, on_threads
from tests.dgcl.rows.own_modules import OWN
from tests.dgcl.rows.programs import PROGRAMS, adam, graph
from tests.samples import named


def node_task(data, model):
    """Train a module of one's own to tell classes."""
    mask = data.train_mask
    losses = adam(model, lambda: F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask]))
    model.eval()
    return {"losses": losses, "out": model(data.x, data.edge_index), "gradients": [weight.grad for weight in model.parameters()], "buffers": list(model.buffers())}


def play(name, options):
    """One program on this rank, a process."""
    each = PROGRAMS[name]
    return on_rank(each.script, each.make, each.graph(), options)


@pytest.mark.sample(6, whole=True)
@named("name", {name: name for name, each in PROGRAMS.items() if not each.draws})
def test_programs(name):
    each = PROGRAMS[name]
    data = each.graph()
    assert differences(on_threads(each.script, each.make, data), on_one_device(each.script, each.make, data)) == []


@pytest.mark.sample(6, whole=True)
@pytest.mark.parametrize("name", OWN)
def test_modules_of_ones_own(name):
    make = lambda data: OWN[name]()  # noqa: E731
    assert differences(on_threads(node_task, make, graph()), on_one_device(node_task, make, graph())) == []
