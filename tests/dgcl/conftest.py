"""Fixtures of the tests of what runs on ranks."""

import multiprocessing
from collections.abc import Callable, Iterator

import pytest

from tests.support.rank_pool import PRELOAD, RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[Callable[[int], RankPool]]:
    """``rank_pool(world_size)``: the standing processes of that world size."""
    pools: dict[int, RankPool] = {}
    yield lambda world_size: pools.setdefault(world_size, RankPool(world_size))
    for pool in pools.values():
        pool.close()


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch):
    """Processes of :func:`dgcl.launch` begin as copies of one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
