import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.errors import CommError
from dgcl.transport.shared_memory.step_list import StepList
from tests.support.plans import World, make_world, random_world
from tests.support.rank_pool import RankPool
from tests.support.ranks import (
    DTYPES,
    SUMMABLE,
    folded,
    join,
    local_ids,
    on_threads,
    random_bits,
    same_bits,
)
from tests.support.samples import named, sampled, slow

SHAPES = ((), (1,), (7,), (3, 5), (128,), (602,), (0,), (2, 0, 3))

WORLDS = {
    "one rank": random_world(0, 1),
    "two": random_world(1, 2),
    "three in a line": random_world(2, 3, "line"),
    "four over a hub": random_world(3, 4, "hub"),
    "four in chains": random_world(4, 4, "chain"),
    "four at random": random_world(5, 4, "random-1"),
    "eight at random": random_world(6, 8, "random-2"),
    "eight direct": random_world(6, 8),
    "sixteen in a line": random_world(7, 16, "line", num_nodes=40, num_edges=120),
    "empty parts": random_world(8, 5, "random-1", empty=(0, 3)),
    "more ranks than vertices": random_world(9, 6, "line", num_nodes=3, num_edges=9),
    "nothing to exchange": make_world([(0, 1), (2, 3)], [0, 0, 1, 1], 2),
    "no edges": make_world([], [0, 1, 1], 2),
    "one rank without a halo": make_world([(0, 1), (0, 2)], [0, 1, 1], 2),
}
worlds = pytest.mark.parametrize(
    "world",
    sampled(WORLDS.values(), keep=lambda n: list(WORLDS)[n] != "sixteen in a line"),
    ids=WORLDS,
)


def _rows(full: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor, as bits; torch before 2.5 takes none of some types."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return full.view(bits.get(full.itemsize, full.dtype))[ids].view(full.dtype)


@pytest.mark.sample(3)
@worlds
def test_expand_copies_every_bit_of_every_type_and_shape(world: World):
    def run(comm: Communicator):
        ids = local_ids(comm)
        for dtype in DTYPES:
            for shape in SHAPES:
                full = random_bits((comm.num_nodes, *shape), dtype)
                rows, expected = (_rows(full, each) for each in (comm.owned_ids, ids))
                assert same_bits(comm.expand(rows), expected), (dtype, shape)

    on_threads(world, run)


@pytest.mark.sample(3)
@worlds
def test_fold_of_small_integers_is_exact_in_every_type(world: World):
    def run(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        for dtype in SUMMABLE:
            for shape in SHAPES:
                drawn = torch.randint(0, 7, (comm.num_local, *shape), generator=generator)
                rows = drawn.to(dtype)
                result = comm.fold(rows)
                assert same_bits(result, folded(comm, rows)), (dtype, shape)
                assert same_bits(rows, drawn.to(dtype)), "fold wrote to its argument"

    on_threads(world, run)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64], ids=str)
def test_integers_wrap_around_as_in_torch(dtype: torch.dtype):
    def run(comm: Communicator):
        rows = random_bits((comm.num_local, 5), dtype, seed=comm.rank)
        assert torch.equal(comm.fold(rows), folded(comm, rows))

    on_threads(WORLDS["four at random"], run)


@named(
    "dtype, unit, per_hop",
    {
        "float16": (torch.float16, 2.0**-11, True),
        "bfloat16": (torch.bfloat16, 2.0**-8, True),
        "float32": (torch.float32, 2.0**-24, False),
        "float64": (torch.float64, 2.0**-53, False),
    },
)
@pytest.mark.parametrize(
    "name", ["three in a line", "four in chains", "eight at random", "sixteen in a line"]
)
def test_fold_of_floats_is_within_its_bound(name: str, dtype: torch.dtype, unit: float, per_hop: bool):
    """16-bit floats: one rounding per hop and one at the owner; wider ones: one per addition."""

    def run(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        rows = torch.randn(comm.num_local, 33, dtype=torch.float64, generator=generator).to(dtype)
        exact, size = folded(comm, rows.double()), folded(comm, rows.double().abs())
        hops = comm.plan.num_stages if per_hop else comm.world_size
        room = (1 + unit) ** (hops + 1) * (1 + 2.0**-23 * comm.world_size * per_hop) - 1
        error = (comm.fold(rows).double() - exact).abs()
        assert (error <= room * size + 2.0**-50 * size).all(), float((error / size).max() / unit)

    on_threads(WORLDS[name], run)


@worlds
def test_bytes_executed_are_bytes_planned(world: World):
    shapes = [(torch.float32, (7,)), (torch.int8, ()), (torch.float64, (2, 3)), (torch.float16, (0,))]
    row_bytes = 28 + 1 + 48

    def run(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        for dtype, shape in shapes:
            comm.expand(torch.zeros(comm.num_owned, *shape, dtype=dtype))
            comm.fold(torch.zeros(comm.num_local, *shape, dtype=dtype))
        return comm.bytes_sent["expand"], comm.bytes_sent["fold"]

    results = on_threads(world, run)
    planned = world.planned_rows * row_bytes
    assert np.array_equal(torch.stack([expand for expand, _ in results]), planned)
    assert np.array_equal(torch.stack([fold for _, fold in results]), planned.T)


def test_bytes_are_counted_once_when_memory_is_new():
    """Halo and relay rows of one send lie in two new segments, which the sender maps one by one."""

    def run(comm: Communicator):
        planned = torch.from_numpy(world.planned_rows[comm.rank])
        sent = torch.zeros(3, dtype=torch.int64)
        for width in (1, 60_000, 1):
            assert torch.equal(
                comm.expand(torch.ones(comm.num_owned, width)), torch.ones(comm.num_local, width)
            )
            sent += planned * width * 4
            assert torch.equal(comm.bytes_sent["expand"], sent)

    world = WORLDS["three in a line"]
    on_threads(world, run)


@worlds
def test_forward_backward_forward_again_is_exact(world: World):
    """Nothing is carried over from call to call, neither in relay rows nor in arrivals."""

    def run(comm: Communicator):
        ids = local_ids(comm)
        for step in range(4):
            full = random_bits((comm.num_nodes, 6), torch.int64, seed=step)
            assert torch.equal(comm.expand(full[comm.owned_ids]), full[ids])
            rows = random_bits((comm.num_local, 9), torch.int64, seed=100 * step + comm.rank)
            assert torch.equal(comm.fold(rows), folded(comm, rows))

    on_threads(world, run)


# Whose memory a result lives in.


def test_results_outlive_the_communicator():
    def run(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        result = comm.expand(comm.owned_ids)
        total = comm.fold(torch.ones(comm.num_local, 2))
        expected = local_ids(comm)
        comm.close()
        return result, total, expected

    results = on_threads(WORLDS["four at random"], run)
    gc.collect()
    for result, total, expected in results:
        assert torch.equal(result, expected)
        result += 1  # and they are ordinary memory
        assert torch.equal(result, expected + 1)
        assert (total >= 1).all()


def test_memory_does_not_grow_when_results_die():
    def run(comm: Communicator):
        pool = comm.transport.runtime.pool
        x = torch.zeros(comm.num_owned, 64, requires_grad=True)
        sizes = []
        for _ in range(60):
            dgcl.graph_allgather(x).square().sum().backward()
            sizes.append((pool.bytes_allocated, pool.bytes_in_use))
        assert len(set(sizes[2:])) == 1, sizes

    on_threads(WORLDS["four at random"], run)


@named(
    "keep",
    {
        "detach": lambda result: result.detach(),
        "slice": lambda result: result[-1:],
        "view": lambda result: result.view(-1),
        "transpose": lambda result: result.t(),
        "storage": lambda result: result.untyped_storage(),
        "numpy": lambda result: result.numpy(),
        "saved for backward": lambda result: result.clone().requires_grad_() * result,  # saved by autograd
    },
)
def test_whatever_shows_a_result_keeps_its_memory(keep):  # type: ignore[no-untyped-def]
    def run(comm: Communicator):
        full = torch.arange(comm.num_nodes * 2.0).view(-1, 2)
        result = comm.expand(full[comm.owned_ids])
        address, kept = result.data_ptr(), keep(result)
        del result
        others = [comm.expand(full[comm.owned_ids] + 1) for _ in range(5)]
        assert address not in [other.data_ptr() for other in others], "the block was handed out again"
        del kept, others
        again = [comm.expand(full[comm.owned_ids]) for _ in range(7)]
        assert address in [other.data_ptr() for other in again], "the block was never handed out again"

    on_threads(WORLDS["three in a line"], run)


def test_results_may_be_written_to():
    """A result is the caller's: writing to it touches neither the owner's rows nor another rank's result."""

    def run(comm: Communicator):
        rows = comm.owned_ids.clone()
        first = comm.expand(rows)
        first.fill_(-1)
        comm.control.barrier()
        assert torch.equal(rows, comm.owned_ids)
        assert torch.equal(comm.expand(rows), local_ids(comm))
        rows.fill_(5)
        total = comm.fold(torch.ones(comm.num_local))
        total.zero_()
        comm.control.barrier()
        assert torch.equal(comm.fold(torch.ones(comm.num_local)), folded(comm, torch.ones(comm.num_local)))

    on_threads(WORLDS["four at random"], run)


@named(
    "shape_up",
    {
        "expanded": lambda grad: grad[:, :1].expand(-1, grad.shape[1]),
        "transposed": lambda grad: grad.t().contiguous().t(),
        "strided": lambda grad: torch.stack([grad, grad], dim=2)[:, :, 0],
        "flipped": lambda grad: grad.flip(0).flip(0),
        "negative view": lambda grad: torch._neg_view(grad),
    },
)
def test_gradients_of_any_strides_are_only_read(shape_up):  # type: ignore[no-untyped-def]
    def run(comm: Communicator):
        x = torch.ones(comm.num_owned, 6, dtype=torch.float64, requires_grad=True)
        base = torch.arange(comm.num_local * 6.0, dtype=torch.float64).view(-1, 6)
        grad = shape_up(base)
        before = grad.clone()
        (result,) = torch.autograd.grad(dgcl.graph_allgather(x), x, grad)
        assert torch.equal(grad, before)
        assert torch.equal(result, folded(comm, before))

    on_threads(WORLDS["four at random"], run)


@named(
    "strided",
    {
        "transposed": lambda rows: rows.t().contiguous().t(),
        "every other row": lambda rows: rows.repeat_interleave(2, dim=0)[::2],
        "expanded": lambda rows: rows[:, :1].expand(-1, 6),
        "flipped": lambda rows: rows.flip(1),
    },
)
def test_rows_of_any_strides_are_sent(strided):  # type: ignore[no-untyped-def]
    def run(comm: Communicator):
        full = torch.arange(comm.num_nodes * 6).view(-1, 6)
        assert torch.equal(comm.expand(strided(full[comm.owned_ids])), strided(full)[local_ids(comm)])

    on_threads(WORLDS["three in a line"], run)


# Several communicators, and modes of torch.


@named("mode", {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode})
def test_without_autograd(mode):  # type: ignore[no-untyped-def]
    def run(comm: Communicator):
        x = torch.randn(comm.num_owned, 3, requires_grad=True)
        with mode():
            result = dgcl.graph_allgather(x)
            assert not result.requires_grad
            assert result.is_inference() == (mode is torch.inference_mode)
            total = comm.fold(torch.ones(comm.num_local, 3))
        assert torch.equal(result[: comm.num_owned], x)
        assert torch.equal(total, folded(comm, torch.ones(comm.num_local, 3)))
        assert dgcl.graph_allgather(x).requires_grad

    on_threads(WORLDS["four at random"], run)


# Between processes: memory of others, mapped when it is first named.


def between_processes(name: str):
    """Every type, and rows so wide that segments are added while peers already work."""
    comm = join(WORLDS[name].shares())
    ids = local_ids(comm)
    for width in (1, 30, 20000):
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
            full = random_bits((comm.num_nodes, width), dtype, seed=width)
            assert same_bits(comm.expand(full[comm.owned_ids]), full[ids]), (width, dtype)
        rows = random_bits((comm.num_local, width), torch.int32, seed=comm.rank)
        assert torch.equal(comm.fold(rows), folded(comm, rows))
    planned = torch.from_numpy(WORLDS[name].planned_rows)[comm.rank]
    row_bytes = sum((1, 30, 20000)) * (4 + 8 + 2 + 1)
    assert torch.equal(comm.bytes_sent["expand"], planned * row_bytes)
    comm.close()


@pytest.mark.parametrize("name", [slow("three in a line"), slow("four over a hub"), "four at random"])
def test_rows_between_processes(rank_pool: Callable[[int], RankPool], name: str):
    rank_pool(WORLDS[name].world_size).run(between_processes, name)


def test_an_interrupt_between_a_start_and_its_result_is_an_error_on_peers(
    monkeypatch,
):
    """Nobody could wait for the call any more."""
    run_steps = StepList.run

    def interrupted(self: StepList, *arguments: Any, started: bool = False, **keywords: Any) -> Any:
        result = run_steps(self, *arguments, started=started, **keywords)
        if started and self._runtime.rank == 1:
            raise KeyboardInterrupt
        return result

    def run(comm: Communicator):
        rows = torch.ones(comm.num_owned, 3)
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                comm.expand_async(rows)  # none of its rows can have come yet
        comm.control.barrier()
        if comm.rank != 1:
            with contextlib.suppress(CommError):
                comm.expand_async(rows).wait()
        comm.control.barrier()
        with pytest.raises(CommError, match="the start of an exchange was interrupted"):
            comm.expand(rows)

    monkeypatch.setattr(StepList, "run", interrupted)
    on_threads(WORLDS["four at random"], run)
