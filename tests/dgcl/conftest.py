"""Fixtures of the tests of what runs on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.dgcl.rank_pool import RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[Callable[[int], RankPool]]:
    """``rank_pool(world_size)``: the standing processes of that world size."""
    pools: dict[int, RankPool] = {}
    yield lambda world_size: pools.setdefault(world_size, RankPool(world_size))
    for pool in pools.values():
        pool.close()
