"""Communicators of several exchanges: relations, plans and numbers of stages differ, calls alternate."""

from collections.abc import Callable

import pytest
import torch

import dgcl
from dgcl.errors import DisagreementError
from tests.dgcl.transport.several_exchanges import RANKS, check_all, shares_of, worlds
from tests.support.rank_pool import RankPool
from tests.support.ranks import join
from tests.support.samples import named, slow

TREES = {
    "two": ("line", "direct"),
    "two, the other way round": ("direct", "line"),
    "three": ("hub", "direct", "random-1"),
}


def run_everywhere(
    trees: tuple[str, ...], channel: str, all_to_all: bool = False, pool: RankPool | None = None
) -> list[str]:
    """What goes wrong on any rank; ranks are threads, or the processes of a pool."""
    given = worlds(*trees)
    planned = {name: world.planned_rows for name, world in given.items()}
    args = (shares_of(given), planned, channel, all_to_all)
    told = dgcl.launch(check_all, RANKS, *args) if pool is None else pool.run(check_all, *args)
    return [text for texts in told for text in texts]


def test_the_numbers_of_stages_differ():
    stages = [world.plan.num_stages for world in worlds("line", "direct", "random-1").values()]
    assert len(set(stages)) > 1


@named("trees", TREES)
def test_between_threads(trees: tuple[str, ...]):
    assert run_everywhere(trees, "auto") == []


@named(
    "channel",
    {"one host": slow("memory"), "simulated hosts": "collective"},
)
def test_between_processes(channel: str, rank_pool: Callable[[int], RankPool]):
    assert run_everywhere(("line", "direct", "random-1"), channel, pool=rank_pool(RANKS)) == []


def test_a_baseline(rank_pool: Callable[[int], RankPool]):
    assert run_everywhere(("direct", "direct"), "auto", True, rank_pool(RANKS)) == []


def test_ranks_that_call_different_exchanges_disagree_at_once():
    shares = shares_of(worlds("direct", "direct"))

    def run() -> str:
        comm = join(shares, 60.0)
        name = "partials" if comm.rank == 1 else "halo"
        with pytest.raises(DisagreementError) as caught:
            comm.expand(torch.ones(comm.layouts[name].num_owned, 2), exchange=name)
        return str(caught.value)

    told = dgcl.launch(run, RANKS)
    assert all("expand of exchange 'partials' of rows of 8 bytes" in text for text in told), told


def test_exchanges_that_ranks_do_not_share_are_refused():
    some, others = worlds("direct", "direct"), worlds("direct")
    shares = [*shares_of(some)[:3], shares_of(others)[3]]

    def run():
        with pytest.raises(DisagreementError, match="rank 0 has halo, partials, rank 3 has halo"):
            join(shares)

    dgcl.launch(run, RANKS)


def test_an_exchange_that_is_not_there():
    shares = shares_of(worlds("direct", "line"))

    def run():
        comm = join(shares)
        with pytest.raises(ValueError, match=r"exchange must be one of 'halo', 'partials'.* \(got 'sums'\)"):
            comm.expand(torch.ones(comm.num_owned), exchange="sums")
        for verb in (comm.expand, comm.fold, comm.expand_async):
            with pytest.raises(ValueError, match=r"exchange must be one of .* \(got \['halo'\]\)"):
                verb(torch.ones(comm.num_owned), exchange=["halo"])  # type: ignore[arg-type]

    dgcl.launch(run, RANKS)


def test_all_are_described():
    shares = shares_of(worlds("direct", "line"))

    def run():
        comm = join(shares)
        assert "exchange 'partials': sends" in comm.describe()

    dgcl.launch(run, RANKS)
