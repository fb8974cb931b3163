"""Programs of one device print the same numbers where three lines of them are changed."""

import pytest
import torch
import torch.nn.functional as F

import dgcl
from tests.dgcl.rows.harness import differences, doubles, on_one_device, on_rank, on_threads
from tests.dgcl.rows.own_modules import OWN
from tests.dgcl.rows.programs import PROGRAMS, adam, graph


def node_task(data, model):
    """Train a module of one's own to tell classes."""
    mask = data.train_mask
    losses = adam(model, lambda: F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask]))
    model.eval()
    return {"losses": losses, "out": model(data.x, data.edge_index), "gradients": [weight.grad for weight in model.parameters()], "buffers": list(model.buffers())}


def play(name):
    """One program on this rank, a process with random numbers of its own but for rank 0's."""
    each = PROGRAMS[name]
    with doubles():
        torch.manual_seed(dgcl.rank())
        return on_rank(each.script, each.make, each.graph(), {})


def expected_of(name):
    each = PROGRAMS[name]
    torch.manual_seed(0)
    return on_one_device(each.script, each.make, each.graph())


DRAWS = {name for name, each in PROGRAMS.items() if each.draws}


@pytest.mark.sample(6, whole=True)
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - DRAWS))
def test_programs(name):
    each = PROGRAMS[name]
    assert differences(on_threads(each.script, each.make, each.graph()), expected_of(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_on_processes(name, rank_pool):
    assert differences(rank_pool(2).run(play, name), expected_of(name)) == []


@pytest.mark.sample(6, whole=True)
@pytest.mark.parametrize("name", OWN)
def test_modules_of_ones_own(name):
    make = lambda data: OWN[name]()  # noqa: E731
    assert differences(on_threads(node_task, make, graph()), on_one_device(node_task, make, graph())) == []
