"""Expand and fold of device tensors, on devices made of host memory: rows, order, streams, memory, graphs."""

import ctypes
import threading
import time

import numpy as np
import pytest
import torch

from dgcl.errors import CommError
from tests.support.fake_cuda import FakeCuda, Memory
from tests.support.fake_ranks import Rank, on_devices, on_stream, open_fake
from tests.support.fold_rounding import fold_bound
from tests.support.plans import make_world, random_world
from tests.support.ranks import random_bits, same_bits
from tests.support.samples import named, slow

LINE = random_world(3, 3, "line")
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


def both_verbs(rank: Rank, width: int, dtype: torch.dtype, rounds: int = 3):
    """Rounds, because what a first call leaves behind must not help a second."""
    for seed in range(rounds):
        expanded = rank.exchange.expand(rank.owned(width, dtype, seed))
        folded = rank.exchange.fold(rank.local(width, dtype, seed))
        rank.wait()
        assert torch.equal(expanded, rank.expanded(width, dtype, seed)), "expand"
        assert torch.equal(folded, rank.folded(width, dtype, seed)), "fold"


@named("shared", {"one-device": True, "a-device-each": slow(False)})
@pytest.mark.parametrize(
    "trees",
    [
        "line",
        "hub",
        slow("direct"),
        slow("chain"),
        "random-1",
    ],
)
def test_rows_arrive_and_sums_are_right(trees: str, shared: bool):
    world = random_world(3, 4, trees)
    counted, _ = on_devices(
        world,
        lambda rank: (both_verbs(rank, 3, torch.float32), rank.exchange.bytes_sent[0])[1],
        shared=shared,
    )
    for rank, sent in enumerate(counted):
        assert np.array_equal(sent[0], 3 * 3 * 4 * world.planned_rows[rank])
        assert np.array_equal(sent[1], 3 * 3 * 4 * world.planned_rows[:, rank])


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_streams_will_do(seed: int):
    on_devices(random_world(5, 4, "random-1"), lambda rank: both_verbs(rank, 2, torch.int32), seed=seed)


DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16, torch.int64, torch.uint8)


@pytest.mark.parametrize("width", [1, 7, slow(8)])
def test_element_types_and_widths(width: int):
    def body(rank: Rank):
        for dtype in DTYPES:
            both_verbs(rank, width, dtype, 1)

    on_devices(LINE, body)


def test_expand_moves_bits():
    every = random_bits((60, 2, 3), torch.bfloat16)

    def body(rank: Rank):
        out = rank.exchange.expand(every[torch.from_numpy(rank.program.owned_ids)])
        rank.wait()
        assert same_bits(out, every[torch.from_numpy(rank.local_ids)])

    on_devices(LINE, body)


@pytest.mark.parametrize("empty, world_size", [((0,), 3), ((1, 2), 3), ((), 1)], ids=str)
def test_ranks_with_nothing(empty: tuple[int, ...], world_size: int):
    world = random_world(4, world_size, "direct", empty=empty)

    def body(rank: Rank):
        both_verbs(rank, 3, torch.float32)
        assert rank.exchange.expand(torch.zeros(rank.program.num_owned, 0)).shape == (
            rank.program.num_local,
            0,
        )
        rank.wait()

    on_devices(world, body)


def test_strided_and_expanded_gradients():
    def body(rank: Rank):
        wide = rank.local(6)
        strided = rank.exchange.fold(wide[:, ::2])
        ones = rank.exchange.fold(torch.ones(1).expand(rank.program.num_local, 3))
        rank.wait()
        assert torch.equal(strided, rank.folded(6)[:, ::2])
        held = np.zeros(60)
        for program in rank.world.programs:
            held[np.concatenate([program.owned_ids, program.halo_ids])] += 1
        assert np.array_equal(ones[:, 0].numpy(), held[rank.program.owned_ids])

    on_devices(LINE, body)


def test_rows_that_are_not_aligned_are_summed_in_smaller_units():
    def body(rank: Rank):
        memory = torch.zeros(rank.program.num_local * 4 + 1)
        rows = memory[1:].view(-1, 4)
        rows.copy_(rank.local(4))
        out = rank.exchange.fold(rows)
        rank.wait()
        assert torch.equal(out, rank.folded(4))

    on_devices(LINE, body)


def test_no_call_waits_for_the_device():
    """All calls return while nothing at all runs; then all of it is right."""
    frozen: list[FakeCuda] = []

    def body(rank: Rank):
        both_verbs(rank, 5, torch.float32, 1)
        rank.control.barrier()
        if rank.rank == 0:
            frozen[0].frozen.set()
            frozen[0].blocks.clear()
        rank.control.barrier()
        results = []
        for seed in range(4):
            for width in (5, 9):  # of the second kind none has been made before
                expanded = rank.exchange.expand(rank.owned(width, seed=seed))
                results.append((expanded, rank.exchange.fold(rank.local(width, seed=seed)), width, seed))
        rank.control.barrier()
        assert frozen[0].blocks == [], "a call has waited"
        rank.control.barrier()
        frozen[0].frozen.clear()
        rank.wait()
        for expanded, folded, width, seed in results:
            assert torch.equal(expanded, rank.expanded(width, seed=seed))
            assert torch.equal(folded, rank.folded(width, seed=seed))

    on_devices(LINE, body, prepare=frozen.extend)


def test_results_that_die_while_they_are_written_are_not_handed_out_again():
    """The host is far ahead of the device, on which ranks run in any order."""

    def body(rank: Rank):
        kept = []
        for step in range(12):
            out = rank.exchange.expand(rank.owned(4, seed=step))
            if step % 3 == 0:
                kept.append((step, out))
            del out
        rank.wait()
        for step, out in kept:
            assert torch.equal(out, rank.expanded(4, seed=step)), step
        assert rank.exchange.pool.num_in_use == len(kept)

    on_devices(random_world(5, 4, "random-2"), body, seed=3)


def test_steps_reuse_their_memory():
    def body(rank: Rank):
        for step in range(3):
            rank.exchange.fold(rank.exchange.expand(rank.owned(40, seed=step)))
        before = rank.exchange.pool.file.size
        for step in range(8):
            rank.exchange.fold(rank.exchange.expand(rank.owned(40, seed=step)))
        assert rank.exchange.pool.file.size == before
        rank.wait()

    on_devices(LINE, body)


def test_calls_on_other_streams_come_in_order():
    def body(rank: Rank):
        streams = [rank.stream, rank.device.driver.create_stream()]
        rank.fake.slow.add(rank.stream)  # what was enqueued first runs last, unless something makes it wait
        results = []
        for step in range(12):
            with on_stream(streams[step % 2]):
                results.append(rank.exchange.expand(rank.owned(3, seed=step)))
        for stream in streams:
            with on_stream(stream):
                rank.wait()
        for step, out in enumerate(results):
            assert torch.equal(out, rank.expanded(3, seed=step)), step

    on_devices(LINE, body)


@pytest.mark.parametrize("told", ["dies-there", "named", "not-told"])
def test_a_block_that_another_stream_reads_is_not_handed_out(told: str):
    """Where nobody is told of the reader, the block is given out: so the test can see it."""

    def body(rank: Rank) -> bool:
        side = rank.device.driver.create_stream()
        out = rank.exchange.expand(rank.owned(3, seed=1))
        rank.wait()
        rank.control.barrier()
        address, seen = out.data_ptr(), []
        gate = threading.Event()
        # A reader on another stream, held up as long as the gate is shut.
        rank.fake._streams[side].put(lambda: seen.append(out_copy()), gate.is_set)
        size = out.nbytes

        def out_copy() -> torch.Tensor:
            rank.fake.check(address, size)
            return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.float32)

        if told == "named":
            rank.exchange.record_stream(out, side)
        if told == "dies-there":
            with on_stream(side):
                del out
        else:
            del out
        for step in range(2, 6):
            rank.exchange.expand(rank.owned(3, seed=step))
        rank.wait()
        gate.set()
        rank.fake.drain()
        rank.control.barrier()
        return torch.equal(seen[0].view(-1, 3), rank.expanded(3, seed=1))

    right, _ = on_devices(PAIR, body, shared=False)
    assert right == [told != "not-told"] * 2


def test_memory_that_is_short_is_waited_for_on_the_device():
    def body(rank: Rank):
        side = rank.device.driver.create_stream()
        out = rank.exchange.expand(rank.owned(100_000))
        rank.wait()
        gate = threading.Event()
        rank.fake._streams[side].put(lambda: None, gate.is_set)
        with on_stream(side):
            del out
        rank.control.barrier()
        rank.fake.limit = 0  # no more can be had
        again = rank.exchange.expand(rank.owned(100_000, seed=1))
        time.sleep(0.02)
        assert not torch.equal(again, rank.expanded(100_000, seed=1)), "did not wait for the reader"
        gate.set()
        rank.wait()
        assert torch.equal(again, rank.expanded(100_000, seed=1))

    on_devices(PAIR, body, shared=False)


def test_too_little_memory_is_an_error_with_sizes():
    def body(rank: Rank) -> str:
        rank.exchange.expand(rank.owned(3))
        rank.wait()
        rank.control.barrier()
        if rank.rank == 0:
            rank.fake.limit = 0
        with pytest.raises((MemoryError, CommError)[rank.rank]) as caught:
            rank.exchange.expand(rank.owned(1_000_000))
        return str(caught.value)

    texts, _ = on_devices(PAIR, body, shared=False)
    assert "cannot allocate 12.6 MB of device memory for rows" in texts[0]
    assert "holds 2.1 MB already" in texts[0]
    assert "out of memory: cannot allocate 12.6 MB" in texts[1]


def test_everything_is_given_back():
    def body(rank: Rank) -> torch.Tensor:
        both_verbs(rank, 50, torch.float32)
        return rank.exchange.expand(rank.owned(3))

    results, fakes = on_devices(LINE, body)
    time.sleep(0.1)
    assert fakes[0]._used > 0, "results are still held"
    assert all(torch.equal(out[: len(out)], out) for out in results), "results stay valid"
    del results
    end = time.monotonic() + 60
    while fakes[0]._used:
        assert time.monotonic() < end, f"{fakes[0]._used} bytes are never given back"
        time.sleep(0.01)


@pytest.mark.parametrize("name, kind", [("NVIDIA A100-SXM4-40GB", "GPU"), ("NVIDIA A100 MIG 1g.5gb", "MIG")])
def test_parts_of_gpus_are_named_as_such(name: str, kind: str):
    fake = FakeCuda(Memory(), uuid=1)
    fake.name = name
    assert open_fake(fake).name == f"{kind}-01000000-0000-0000-0000-000000000000"
    fake.stop()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("trees", ["direct", "line"])
def test_folds_of_16_bit_floats_stay_within_the_bound(trees: str, dtype: torch.dtype):
    world = random_world(4, 3, trees)

    def body(rank: Rank) -> float:
        generator = torch.Generator().manual_seed(rank.rank)
        rows = torch.randn(len(rank.local_ids), 9, generator=generator, dtype=torch.float64).to(dtype)
        found = rank.exchange.fold(rows)
        rank.wait()
        exact, sizes = (torch.zeros(world.graph.num_nodes, 9, dtype=torch.float64) for _ in range(2))
        for ids, theirs in rank.control.exchange((rank.local_ids, rows.double())):
            exact[ids] += theirs
            sizes[ids] += theirs.abs()
        bound = fold_bound(dtype, rank.program.num_stages, 3)
        owned = rank.program.owned_ids
        return bound.share(found, exact[owned], sizes[owned])

    shares, _ = on_devices(world, body)
    assert 0.0 < max(shares) <= 1.0


def test_a_call_is_not_captured_and_the_next_one_is_right():
    """A replay would take place without the other hosts, whatever it is ordered behind."""

    def body(rank: Rank):
        both_verbs(rank, 4, torch.float32, 1)
        rank.fake._streams[rank.stream].is_captured = True
        with pytest.raises(
            RuntimeError, match=f"rank {rank.rank}: a call cannot be captured into a CUDA graph"
        ):
            rank.exchange.expand(rank.owned(4))
        rank.fake._streams[rank.stream].is_captured = False
        both_verbs(rank, 4, torch.float32, 1)

    on_devices(PAIR, body, shared=False)


def test_a_driver_may_wait_for_kernels_wherever_it_likes():
    """To load, to allocate and to open: kernels that run then need no host, so they end."""

    def prepare(fakes: list[FakeCuda]):
        for fake in fakes:
            fake.dawdles = True

    def body(rank: Rank):
        results = []
        for width in (4, 300_000, 4, 900_000):  # new kinds of calls, in new memory
            if rank.rank == 1:
                time.sleep(0.05)  # its peer runs ahead as far as it can
            results.append((width, rank.exchange.expand(rank.owned(width))))
        rank.wait()
        assert len(rank.exchange.pool.file.segments) >= 2
        for width, out in results:
            assert torch.equal(out, rank.expanded(width))

    on_devices(PAIR, body, shared=False, prepare=prepare)
