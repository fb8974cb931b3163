"""Standing ranks on hosts; what needs them is skipped where no hosts can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.hosts import missing

PoolMaker = Callable[..., HostPool]


@pytest.fixture(scope="module")
def host_pool() -> Iterator[PoolMaker]:
    """``host_pool(ranks, megabytes, cards)``: the standing ranks of such hosts; arguments as of HostPool."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    pools: dict[tuple[object, ...], HostPool] = {}

    def pool(
        ranks: Sequence[int], megabytes: float | None = None, cards: Sequence[int] | None = None
    ) -> HostPool:
        key = (tuple(ranks), megabytes, None if cards is None else tuple(cards))
        if key not in pools:
            pools[key] = HostPool(ranks, megabytes, cards)
        return pools[key]

    yield pool
    for each in pools.values():
        each.close()
