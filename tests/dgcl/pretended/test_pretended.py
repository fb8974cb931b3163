"""What the library computes on a device, by nothing but torch's operations and collectives: held against the CPU."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils import backend_registration

from tests.dgcl.pretended.features import FEATURES_BY_NAME, compare, compare_on_device
from tests.support.rank_pool import RankPool

#: What moves rows or picks elements gives the bits of shared memory; sums over edges are of another kernel.
SAME_BITS = ("verbs", "started", "halo fold", "csr", "max", "min")
#: For what the host waits: this may not grow.
WAITS = {name: ["copy to the host"] for name in FEATURES_BY_NAME if name.startswith("offload")}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Processes of their own: torch knows one such device per process, for ever."""
    pool = RankPool(3)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def ranks_on_gpu() -> Iterator[RankPool]:
    pool = RankPool(3, "spawn")
    yield pool
    pool.close()


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no accelerators that are written in Python",
)
@pytest.mark.sample(5, whole=True)
@pytest.mark.parametrize("name", list(FEATURES_BY_NAME))
def test_a_device_computes_what_the_cpu_computes(name: str, ranks: RankPool):
    results = ranks.run(compare, name)
    assert {waits for _, waits in results} == {tuple(WAITS.get(name, ()))}
    assert {how for how, _ in results} <= (
        {"same bits"} if name.startswith(SAME_BITS) else {"same bits", "close"}
    )


def test_the_comparison_with_a_gpu_finds_what_is_right_on_the_cpu(ranks: RankPool):
    assert set(ranks.run(compare_on_device, "verbs", "collective", "cpu")) == {"same bits"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channel", ["collective", "memory"])
@pytest.mark.parametrize("name", list(FEATURES_BY_NAME))
def test_a_gpu_computes_what_the_cpu_computes(name: str, channel: str, ranks_on_gpu: RankPool):
    """Three ranks share it."""
    right = {"same bits", "close"} | ({"refused"} if channel == "memory" else set())
    assert set(ranks_on_gpu.run(compare_on_device, name, channel)) <= right
