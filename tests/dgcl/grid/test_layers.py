"""The convolutions of dgcl.nn on grids equal PyG's layers on one device, whose checkpoint loads on any grid."""

from pathlib import Path
from typing import Any

import pytest

import dgcl
import dgcl.nn
from tests.support.grid_aggregation import GRIDS, size_of, some

pytest.importorskip("torch_geometric.nn")
from tests.support.convolutions import (
    CASE_BY_NAME,
    GRAPHS,
    OURS,
    assert_equal_runs,
    features,
    reference,
    train,
)

SUMS = [layer for layer in OURS if layer != "sage-max"]


@pytest.mark.parametrize(
    "grid, layer, name, constant",
    [
        *some(GRIDS, 14, SUMS, GRAPHS, [False, True]),
        *((grid, "sage-max", "directed", False) for grid in ("1,1,3", "2,1,2")),
    ],
)
def test_training_is_that_of_one_device(grid: str, layer: str, name: str, constant: bool):
    wanted = reference(layer, name)  # first: its parameters are drawn once, and not by ranks side by side
    on_ranks = layer, name, size_of(grid), f"grid:{grid}", "auto", constant
    for found, _ in dgcl.launch(train, size_of(grid), *on_ranks):
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
