"""Standing ranks on hosts; what needs them is skipped where no hosts can be made."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.hosts import missing
from tests.dgcl.multihost.support_hosts import world  # noqa: F401 (a fixture)

PoolMaker = Callable[..., HostPool]


@pytest.fixture(scope="session")
def standing() -> Iterator[dict[tuple[object, ...], HostPool]]:
    """Hosts without a limit, for all files."""
    pools: dict[tuple[object, ...], HostPool] = {}
    yield pools
    for each in pools.values():
        each.close()


@pytest.fixture(scope="module")
def host_pool(standing: dict[tuple[object, ...], HostPool]) -> Iterator[PoolMaker]:
    """``host_pool(ranks, megabytes, cards)``: the standing ranks of such hosts; arguments as of HostPool."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    limited: dict[tuple[object, ...], HostPool] = {}

    def pool(
        ranks: Sequence[int], megabytes: float | None = None, cards: Sequence[int] | None = None
    ) -> HostPool:
        key = (tuple(ranks), megabytes, None if cards is None else tuple(cards))
        pools = standing if megabytes is None else limited
        if key not in pools:
            pools[key] = HostPool(ranks, megabytes, cards)
        return pools[key]

    yield pool
    for each in limited.values():
        each.close()
