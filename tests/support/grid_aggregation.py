"""What :mod:`tests.dgcl.grid.test_aggregation` shares with other tests."""

from typing import Any

import numpy as np
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.grid.grid import legal_grids
from tests.support.aggregator import (
    CASE_BY_NAME,
    SUMS,
    aggregated,
    toy_figures,
)
from tests.support.awkward import Case
from tests.support.exchanges import in_ranges, toy_24
from tests.support.samples import sampled

WORLDS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
GRIDS = [str(grid) for world_size in WORLDS for grid in legal_grids(world_size)]


#: What runs every day; the rest with the slow tests.
DAILY = ("1,1,3", "1,1,4", "1,3,1", "1,3,2", "2,1,2", "2,2,1", "2,2,2")


def some(grids: list[str], every: int, *axes: Any) -> list[Any]:
    """Grids times other axes: of the daily grids about one case in so many every day."""

    def keep(grid: int, *places: int) -> bool:
        return grids[grid] in DAILY and (DAILY.index(grids[grid]) + sum(places)) % every == 0

    return sampled(grids, *axes, keep=keep)


def size_of(grid: str) -> int:
    return int(np.prod([int(number) for number in grid.split(",")]))


def connect(case: Case, grid: str, **options: Any) -> dgcl.Communicator:
    return dgcl.build_comm_info(
        case.graph, "uniform", part=case.part(size_of(grid)), strategy=f"grid:{grid}", **options
    )


def on_rank(name: str, grid: str) -> list[dict[str, Tensor]]:
    case = CASE_BY_NAME[name]
    comm = connect(case, grid)
    return [aggregated(comm, case, reduce, weighted) for reduce, weighted in SUMS]


def train_the_toy(grid: str) -> dict[str, float]:
    part = in_ranges(24, size_of(grid))
    return toy_figures(dgcl.build_comm_info(toy_24(), "uniform", part=part, strategy=f"grid:{grid}"))
