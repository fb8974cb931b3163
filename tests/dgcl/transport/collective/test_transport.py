"""The collective transport moves the bits that shared memory moves, for all plans, types, shapes, verbs and ranks."""

import contextlib
from collections.abc import Callable

import pytest
import torch

import dgcl
from dgcl.transport.base import Transport
from tests.support.collective_ranks import apart
from tests.support.plans import TREES, World, make_world, random_world, wandering
from tests.support.rank_pool import RankPool
from tests.support.ranks import DTYPES, SUMMABLE, join, on_threads, random_bits, same_bits
from tests.support.samples import slow

SHAPES = ((), (1,), (7,), (2, 3), (128,), (0,))

WORLDS = {
    **{f"{trees} of {size}": random_world(size, size, trees) for size in (2, 3, 4, 8) for trees in TREES},
    "one rank": random_world(0, 1),
    "detours of 5": random_world(5, 5, wandering(1)),
    "empty parts": random_world(8, 5, "random-1", empty=(0, 3)),
    "more ranks than vertices": random_world(9, 6, "line", num_nodes=3, num_edges=9),
    "nothing to exchange": make_world([(0, 1), (2, 3)], [0, 0, 1, 1], 2),
    "one rank without a halo": make_world([(0, 1), (0, 2)], [0, 1, 1], 2),
}

LARGE = random_world(1, 3, "random-1", num_nodes=6000, num_edges=40000)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of very different sizes, whose sums depend on their order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-6, 7, shape, generator=generator).double())
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator) * sizes
    return drawn.to(dtype) if dtype.is_floating_point else (drawn * 99).to(torch.int64).to(dtype)


def results(
    transport: Transport, rows: tuple[int, int], dtype: torch.dtype, shape: tuple[int, ...], seed: int
):
    """What every verb gives; rows are kept strided, as columns of wider ones."""
    num_owned, num_local = rows
    x = random_bits((num_owned, *shape, 2), dtype, seed)[..., 0]
    out = [transport.expand(x), transport.begin_expand(x).wait()]
    if dtype in SUMMABLE and not dtype.is_complex:  # of which communicators make real ones
        g = numbers((num_local, *shape, 2), dtype, seed)[..., 0]
        into = g[:num_owned].clone(memory_format=torch.contiguous_format)
        out += [transport.fold(g), transport.begin_fold(g[num_owned:]).wait(into)]
        assert out[-1] is into
    return out


def compare(name: str) -> list[str]:
    """Where the two transports differ on this rank."""
    shares, different = WORLDS[name].shares(), []
    with (
        contextlib.closing(join(shares, 60.0)) as one,
        contextlib.closing(join(shares, 60.0, channel="collective")) as other,
    ):
        rows = one.num_owned, one.num_local
        for dtype, shape in zip(DTYPES * 3, SHAPES * 8, strict=True):  # three shapes of each type
            pairs = zip(
                *(results(comm.transport, rows, dtype, shape, one.rank) for comm in (one, other)),
                strict=True,
            )
            different += [f"{dtype} {shape} {k}" for k, (a, b) in enumerate(pairs) if not same_bits(a, b)]
        if not (one.transport.bytes_sent == other.transport.bytes_sent).all():
            different.append("bytes")
    return different


@pytest.mark.sample(4, whole=True)
@pytest.mark.parametrize("name", WORLDS)
def test_threads(name: str):
    assert dgcl.launch(compare, WORLDS[name].world_size, name) == [[]] * WORLDS[name].world_size


@pytest.mark.sample(4, whole=True)
@pytest.mark.parametrize("name", [name for name in WORLDS if WORLDS[name].world_size in (2, 4)])
def test_processes(name: str, rank_pool: Callable[[int], RankPool]):
    assert rank_pool(WORLDS[name].world_size).run(compare, name) == [[]] * WORLDS[name].world_size


@pytest.mark.parametrize(
    "size, ranks_a_host, trees", [slow(4, 1, "random-1"), slow(3, 2, "random-1"), (4, 2, "line")]
)
def test_ranks_on_several_hosts(
    size: int, ranks_a_host: int, trees: str, rank_pool: Callable[[int], RankPool]
):
    assert rank_pool(size).run(apart, ranks_a_host, compare, f"{trees} of {size}") == [[]] * size


@pytest.mark.parametrize("name", ["line of 4", "random-1 of 4"])
def test_bytes_sent_are_those_planned(name: str):
    world: World = WORLDS[name]

    def run() -> tuple[list[int], list[int]]:
        comm = join(world.shares(), channel="collective")
        comm.fold(comm.expand(torch.ones(comm.num_owned, 3, dtype=torch.float64)))
        return comm.bytes_sent["expand"].tolist(), comm.bytes_sent["fold"].tolist()

    sent = dgcl.launch(run, world.world_size)
    planned = 24 * world.planned_rows
    assert [expand for expand, _ in sent] == planned.tolist()
    assert [fold for _, fold in sent] == planned.T.tolist()


def test_a_started_call_without_stages_may_be_dropped():
    def run(comm: dgcl.Communicator):
        rows = torch.ones(comm.num_owned, 2)
        started = comm.expand_async(rows)
        del started
        assert torch.equal(comm.expand(rows), rows)

    on_threads(make_world([(0, 0)], [0], 1), run, channel="collective")


def test_a_captured_call_is_refused_and_the_next_one_works(monkeypatch):
    def run(comm: dgcl.Communicator):
        rows = torch.ones(comm.num_owned, 2)
        with monkeypatch.context() as patch:
            patch.setattr(comm.transport, "_device", torch.device("cuda"))
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            with pytest.raises(RuntimeError, match="rank 0: a call cannot be captured into a CUDA graph"):
                comm.expand(rows)
        assert torch.equal(comm.expand(rows), rows)

    on_threads(make_world([(0, 0)], [0], 1), run, channel="collective")
