"""The convolutions of dgcl.nn on grids equal PyG's layers on one device, whose checkpoint loads on any grid."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dgcl
import dgcl.nn
from tests.dgcl.grid.support_aggregation import GRIDS, connect, size_of, some

pytest.importorskip("torch_geometric.nn")
from tests.dgcl.nn.support_convolutions import (
    CASE_BY_NAME,
    GRAPHS,
    OURS,
    STEPS,
    WIDTHS,
    Run,
    assert_equal_runs,
    features,
    initial,
    reference,
)

SUMS = [layer for layer in OURS if layer != "sage-max"]


def train(layer: str, name: str, grid: str, constant: bool) -> Run:
    case = CASE_BY_NAME[name]
    comm = connect(case, grid)
    model = nn.ModuleList(OURS[layer](*pair) for pair in itertools.pairwise(WIDTHS)).double()
    model.load_state_dict(initial(layer))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x = comm.dispatch_features(features(case.num_nodes))
    labels, mask = comm.owned_ids % WIDTHS[-1], torch.from_numpy(case.train)[comm.owned_ids]
    given = comm.aggregator().constant(x) if constant else x
    losses = []
    for _ in range(STEPS):
        logits = model[1](torch.relu(model[0](given)))
        loss = dgcl.nn.loss(F.cross_entropy)(logits, labels, mask)
        optimizer.zero_grad()
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    whole = comm.collect(logits.detach(), None)
    return losses, whole, {key: value.detach() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("grid, layer, name, constant", some(GRIDS, 14, SUMS, GRAPHS, [False, True]))
def test_training_is_that_of_one_device(grid: str, layer: str, name: str, constant: bool):
    wanted = reference(layer, name)  # first: its parameters are drawn once, and not by ranks side by side
    for found in dgcl.launch(train, size_of(grid), layer, name, grid, constant):
        assert_equal_runs(found, wanted)


@pytest.mark.parametrize("grid", ["1,1,3", "2,1,2"])
def test_maxima_of_neighbours(grid: str):
    wanted = reference("sage-max", "directed")
    for found in dgcl.launch(train, size_of(grid), "sage-max", "directed", grid, False):
        assert_equal_runs(found, wanted)


def build_twice(folder: Path, grid: Any) -> list[str]:
    """The way that plans took, in each of two jobs with one cache."""
    case, found = CASE_BY_NAME["directed"], []
    for _ in range(2):
        comm = dgcl.build_comm_info(case.graph, "uniform:4", strategy=f"grid:{grid}", cache=folder)
        found.append(comm.plan.fingerprint)
        comm.aggregator()(comm.dispatch_features(features(case.num_nodes)))
    return found


@pytest.mark.parametrize("grid", ["2,1,2", "1,4,1"])
def test_plans_of_a_grid_come_from_the_cache(grid: Any, tmp_path, caplog):
    with caplog.at_level("INFO", logger="dgcl"):
        for first, second in dgcl.launch(build_twice, 4, tmp_path / "cache", grid):
            assert first == second
    cached = [record for record in caplog.records if "come from the cache" in record.getMessage()]
    assert len(cached) >= 2  # both exchanges of the second job
    assert not [record for record in caplog.records if "is not used" in record.getMessage()]
