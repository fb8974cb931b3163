"""Programs of one device print the same numbers where three lines of them are changed."""

import pytest
import torch

import dgcl
from tests.dgcl.rows.harness import differences, doubles, on_one_device, on_rank
from tests.dgcl.rows.own_modules import OWN
from tests.dgcl.rows.programs import DRAWS, PROGRAMS, fit, graph


def node_task(data, model):
    """Teach a module of one's own to tell classes."""
    return fit(model, lambda: model(data.x, data.edge_index), data.y, data.train_mask)


TASKS = {name: (node_task, lambda data, make=make: make(), graph) for name, make in OWN.items()} | PROGRAMS


def play(name):
    """One program on this rank, a process with random numbers of its own but for rank 0's."""
    script, make, graph = TASKS[name]
    with doubles():
        torch.manual_seed(dgcl.rank())
        return on_rank(script, make, graph())


@pytest.mark.sample(8, whole=True)
@pytest.mark.parametrize("name", sorted(TASKS.keys() - DRAWS))
def test_on_threads(name):
    script, make, graph = TASKS[name]
    ranks = dgcl.launch(on_rank, 3, script, make, graph())
    assert differences(ranks, on_one_device(script, make, graph())) == []


@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", sorted(TASKS, key=lambda name: name not in DRAWS))
def test_on_processes(name, rank_pool):
    ranks = rank_pool(2).run(play, name)
    script, make, graph = TASKS[name]
    torch.manual_seed(0)
    assert differences(ranks, on_one_device(script, make, graph())) == []
