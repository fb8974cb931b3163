"""Options of build_comm_info: groups, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dgcl
from dgcl.grid.grid import Grid
from dgcl.options import settle

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


def test_groups_set_what_the_plan_is_made_with():
    """The gap to stop at, for one."""
    dgcl.init()
    comm = dgcl.build_comm_info(
        EDGES,
        plan=dgcl.PlanOptions(row_bytes=64, gap=0.5, seed=3),
        partition=dgcl.PartitionOptions("range"),
    )
    assert (comm.plan.row_bytes, comm.plan.meta["seed"]) == (64, 3)
    comm.close()


@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"plan": 3}, TypeError, r"plan must be a dgcl.PlanOptions, or None \(got int\)"),
        ({"strategy": 2}, TypeError, r"strategy must be text such as .* or an object .*got 2\)"),
        ({"partition": 2}, TypeError, r"partition must be a method's name or a dgcl.PartitionOptions"),
    ],
)
def test_bad_options_are_raised_on_every_rank(given: dict[str, Any], error: type[Exception], message: str):
    def run():
        from dgcl.ranks.context import context

        mine = given if context.require_control().rank == 0 else {}
        with pytest.raises(error, match=message):
            dgcl.build_comm_info(EDGES, "uniform", **mine)

    dgcl.launch(run, 2)


def test_limits_of_memory_are_numbers_or_written_out():
    def kind(memory_limit: Any = None) -> Any:
        return settle(1, strategy="auto", model="gcn:8,8", memory_limit=memory_limit).strategy

    assert kind("8GiB").memory_limit == kind(8 << 30).memory_limit == 8 << 30
    assert kind().memory_limit is None
    for wrong in (-1, 0, "much", 1.5):
        with pytest.raises(
            ValueError, match=r"memory_limit must be a positive number of bytes, or like '8GB'"
        ):
            kind(wrong)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: dgcl.EdgePlacement("covers"), r"edges must be one of head, .*got 'covers'\); .* 'cover'"),
        (lambda: dgcl.EdgePlacement("cover", imbalance=0.5), "imbalance must be at least 1, the mean"),
        (
            lambda: dgcl.EdgePlacement("cover", imbalance=float("nan")),
            "imbalance must be at least 1, the mean",
        ),
        (lambda: dgcl.EdgePlacement("cover", imbalance="1.2"), r"imbalance must be .*got '1.2'"),  # type: ignore[arg-type]
    ],
)
def test_options_that_cannot_be_are_refused_where_they_are_made(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_options_of_any_rank_are_raised_on_all():
    def run():
        from dgcl.ranks.context import context

        strategy = "covers" if context.require_control().rank == 1 else "cover"
        with pytest.raises(ValueError, match="strategy must be one of halo"):
            dgcl.build_comm_info(EDGES, "uniform", strategy=strategy)

    dgcl.launch(run, 3)


def test_a_grid_takes_integers_of_any_kind():
    assert Grid(*np.array([2, 1, 4])) == Grid(2, 1, 4)
    assert str(Grid(*np.array([2, 1, 4]))) == "2,1,4"
