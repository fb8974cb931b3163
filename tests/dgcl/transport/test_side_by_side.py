"""Communicators beside each other, threads on one, and thousands of calls: nothing is mixed up, nothing grows."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from tests.support.plans import make_world, random_world
from tests.support.ranks import folded, join, local_ids, on_threads
from tests.support.samples import slow

PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
LINE = random_world(81, 3, "line")
OTHER = random_world(82, 3, "random-1", num_nodes=45)


def test_a_second_thread_is_refused_and_the_first_not_disturbed():
    under_way, refused = threading.Event(), threading.Event()

    def run(comm: Communicator):
        if comm.rank == 1:
            refused.wait(60)
            comm.expand(comm.owned_ids)
            return
        said: list[str] = []

        def second():
            under_way.wait(60)
            for call in (
                lambda: comm.expand(comm.owned_ids),
                lambda: comm.fold(torch.zeros(comm.num_local)),
                lambda: comm.expand_async(comm.owned_ids),
            ):
                try:
                    call()
                except ValueError as error:
                    said.append(str(error))
            refused.set()

        look = comm.transport.runtime._check_failures

        def looked(*rest: object):
            under_way.set()  # the first thread waits for rank 1
            look(*rest)  # type: ignore[arg-type]

        comm.transport.runtime._check_failures = looked  # type: ignore[method-assign]
        thread = threading.Thread(target=second)
        thread.start()
        assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm))
        thread.join()
        assert len(said) == 3
        assert all("is not finished" in text or "another thread is in a call" in text for text in said)

    on_threads(PAIR, run)


def test_threads_one_after_the_other_may_share_a_communicator():
    def run(comm: Communicator):
        for _ in range(3):
            results: list[torch.Tensor] = []
            thread = threading.Thread(
                target=lambda results=results: results.append(comm.expand(comm.owned_ids))
            )
            thread.start()
            thread.join()
            assert torch.equal(results[0], local_ids(comm))
            assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm))

    on_threads(PAIR, run)


def test_ids_are_copies():
    def run(comm: Communicator):
        owned, halo = comm.owned_ids.clone(), comm.halo_ids.clone()
        rows = comm.owned_ids.double()
        comm.owned_ids.zero_()
        comm.halo_ids.fill_(-1)
        assert torch.equal(comm.owned_ids, owned)
        assert torch.equal(comm.halo_ids, halo)
        assert torch.equal(comm.expand(rows), torch.cat([owned, halo]).double())
        assert torch.equal(comm.collect(rows, None), torch.arange(comm.num_nodes).double())

    on_threads(LINE, run)


def test_two_communicators_train_and_infer_side_by_side():
    """Calls of one between forward and backward of the other, some without gradients."""
    shares, others = LINE.shares(), OTHER.shares()

    def run():
        train, infer = join(shares), join(others)
        for step in range(6):
            x = torch.full((train.num_owned, 2 + step), 1.5, requires_grad=True)
            y = torch.arange(float(infer.num_owned)).requires_grad_()
            rows = dgcl.graph_allgather(x, comm=train)
            with torch.no_grad():
                seen = infer.expand(infer.owned_ids.double()[:, None] + step)
            assert not seen.requires_grad
            assert torch.equal(seen[:, 0], local_ids(infer).double() + step)
            also = dgcl.graph_allgather(y, comm=infer)
            with torch.inference_mode():
                assert torch.equal(train.expand(train.owned_ids), local_ids(train))
            rows.square().sum().backward()
            also.sum().backward()
            assert x.grad is not None
            assert y.grad is not None
            wanted = folded(train, torch.full((train.num_local, 2 + step), 3.0))
            assert torch.equal(x.grad, wanted)
            assert torch.equal(y.grad, folded(infer, torch.ones(infer.num_local)))
            assert torch.equal(seen[:, 0], local_ids(infer).double() + step), "a result was overwritten"

    dgcl.launch(run, 3)


@pytest.mark.parametrize("seed", [0, slow(1)])
def test_a_thousand_calls_of_any_width_hold_no_more_memory_than_the_first_hundreds(seed: int):
    """Peers of small segments would do for all; mappings and buffers must stop growing."""

    def run(comm: Communicator) -> tuple[int, int, int]:
        generator = np.random.default_rng(seed)  # the same on all ranks
        held: list[int] = []
        kept: list[torch.Tensor] = []
        for call in range(1500):
            width = int(generator.integers(1, 4000))
            dtype = (torch.float32, torch.float64, torch.int16)[int(generator.integers(3))]
            rows = comm.expand(torch.ones(comm.num_owned, width).to(dtype))
            if dtype.is_floating_point:
                comm.fold(rows)
            kept = [*kept[-int(generator.integers(4)) :], rows] if call % 5 else []
            held.append(comm.transport.runtime.pool.bytes_allocated)
        return held[400], held[-1], comm.transport.runtime.pool.bytes_in_use

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:dgcl")

    before = mappings()
    for early, late, in_use in on_threads(PAIR, run):
        assert late <= early + (1 << 20), "memory grew from call 400 to call 1500"
        assert in_use <= early
    assert mappings() <= before + 60
