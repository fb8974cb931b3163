"""Programs of one device print the same numbers where three lines of them are changed."""

import pytest
import torch

import dgcl
from tests.dgcl.rows.own_modules import OWN
from tests.dgcl.rows.programs import DRAWS, PROGRAMS, fit, graph
from tests.support.rows_harness import differences, doubles, on_one_device, on_rank
from tests.support.samples import named


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


def check_threads(name, world_size, **options):
    script, make, graph = TASKS[name]
    ranks = dgcl.launch(lambda: on_rank(script, make, graph(), **options), world_size)
    assert differences(ranks, on_one_device(script, make, graph())) == []


@pytest.mark.sample(24, whole=True)
@pytest.mark.parametrize("name", sorted(TASKS.keys() - DRAWS))
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_on_threads(name, world_size):
    check_threads(name, world_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["masks", "printed", "forces", "gpr", "joined", "temperature", "autoencoder"]
)
@named("options", {
    "tail": {"strategy": "tail"}, "cover": {"strategy": "cover"}, "windows": {"strategy": "windows:2"},
    "grid": {"strategy": "grid:1,4,1"},
    "ranks without vertices": {"part": torch.arange(90) // 50 * 3},
})  # fmt: skip
def test_strategies(name, options):
    check_threads(name, 4, topology="uniform", **options)


@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", sorted(TASKS, key=lambda name: name not in DRAWS))
def test_on_processes(name, rank_pool):
    ranks = rank_pool(2).run(play, name)
    script, make, graph = TASKS[name]
    torch.manual_seed(0)
    assert differences(ranks, on_one_device(script, make, graph())) == []
