"""Aggregations on grids between hosts: slices through memory within a host, and over the network between them."""

import pytest

from tests.dgcl.multihost.conftest import PoolMaker
from tests.support.aggregator import EXACT, SUMS, TOY, assert_close, expected
from tests.support.grid_aggregation import on_rank, train_the_toy

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("hosts")]

RANKS = [2, 2]


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2", "2,2,1", "1,2,2"])
def test_equals_the_dense_product(grid: str, host_pool: PoolMaker):
    for found in host_pool(RANKS).run(on_rank, "multi-edges", grid):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected("multi-edges", reduce, weighted))


@pytest.mark.parametrize("grid", ["1,1,4", "2,2,1"])
def test_the_toy_graph(grid: str, host_pool: PoolMaker):
    for found in host_pool(RANKS).run(train_the_toy, grid):
        assert found == pytest.approx(TOY, rel=EXACT)
