"""What the library computes on a device, by nothing but torch's operations and collectives: held against the CPU."""

from collections.abc import Iterator

import pytest

from tests.dgcl.pretended.features import FEATURES_BY_NAME, compare
from tests.dgcl.rank_pool import RankPool

#: What moves rows or picks elements gives the bits of shared memory; sums over edges are of another kernel.
SAME_BITS = ("verbs", "started", "halo fold", "csr", "max", "min")
#: For what the host waits: this may not grow.
WAITS = {
    **{name: ["tolist"] for name in FEATURES_BY_NAME if name.startswith(("GCN", "SAGE"))},
    **{name: ["copy to the host"] for name in FEATURES_BY_NAME if name.startswith("offload")},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Processes of their own: torch knows one such device per process, for ever."""
    pool = RankPool(3)
    yield pool
    pool.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", list(FEATURES_BY_NAME))
def test_a_device_computes_what_the_cpu_computes(name: str, ranks: RankPool):
    results = ranks.run(compare, name)
    assert {waits for _, waits in results} == {tuple(WAITS.get(name, ()))}
    assert {how for how, _ in results} <= (
        {"same bits"} if name.startswith(SAME_BITS) else {"same bits", "close"}
    )
