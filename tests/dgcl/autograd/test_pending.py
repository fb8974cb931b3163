"""Halo rows alone, started and finished apart: the same bits, the same sums, and errors instead of hangs."""

import os
import threading
from typing import Any

import pytest
import torch

import dgcl
from tests.support.awkward import CASES, Case
from tests.support.ranks import local_ids, random_bits, same_bits
from tests.support.small_machines import line

NAMES = {case.name: case for case in CASES}
late = threading.Event()  # set when the rank that starts first has done what the test is about


def build(case: str, world_size: int, channel: str = "auto") -> dgcl.Communicator:
    chosen = NAMES[case]
    part = chosen.part(world_size)
    return dgcl.build_comm_info(chosen.graph, line(world_size), part=part, channel=channel, timeout=60.0)


def expands(case: str, world_size: int) -> list[bool]:
    comm = build(case, world_size)
    right = []
    for seed, (dtype, shape) in enumerate(
        [(torch.float32, (5,)), (torch.int8, (3,)), (torch.float64, (2, 2)), (torch.float32, (0,))] * 2
    ):
        whole = random_bits((comm.num_nodes, *shape), dtype, seed)
        comm.transport.runtime.pool.fill_free(255)
        pending = dgcl.graph_allgather_async(whole[comm.owned_ids])
        right.append(same_bits(pending.wait(), whole[comm.halo_ids]))
        right.append(pending.wait() is pending.wait())
        right.append(same_bits(comm.expand(whole[comm.owned_ids]), whole[local_ids(comm)]))
    strided = random_bits((comm.num_nodes, 8), torch.float32)[:, ::2]
    right.append(same_bits(comm.expand_async(strided[comm.owned_ids]).wait(), strided[comm.halo_ids]))
    return right


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_halo_rows_are_the_owners_rows(case: Case, world_size: int):
    assert all(all(right) for right in dgcl.launch(expands, world_size, case.name, world_size))


def folds(case: str, world_size: int, dtype: torch.dtype) -> bool:
    comm = build(case, world_size)
    right = True
    for seed in range(3):
        generator = torch.Generator().manual_seed(10 * seed + comm.rank)
        halo = torch.randint(0, 20, (comm.num_halo, 3), generator=generator).to(dtype)
        own = torch.randint(0, 20, (comm.num_owned, 3), generator=generator).to(dtype)
        total = torch.zeros(comm.num_nodes, 3, dtype=dtype)
        for ids, theirs in comm.control.exchange((comm.halo_ids, halo)):
            total.index_add_(0, ids, theirs)
        expected = own + total[comm.owned_ids]
        comm.transport.runtime.pool.fill_free(255)
        into = own.clone()
        right &= comm.fold_halo(halo, into) is into and same_bits(into, expected)
    return right


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_gradients_are_added_in_place(case: Case, dtype: torch.dtype):
    assert all(dgcl.launch(folds, 3, case.name, 3, dtype))


def complex_gradients(how: str, channel: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    comm = build("directed", 3, channel)
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(comm.num_nodes, 3, dtype=torch.complex128, generator=generator)
    x = whole[comm.owned_ids].requires_grad_()
    given = x.conj() if how == "conjugate" else x
    halo = comm.expand_async(given).wait()
    (halo * halo).real.sum().backward()
    y = x.detach().clone().requires_grad_()
    expected = comm.expand(y.conj().resolve_conj() if how == "conjugate" else y)[comm.num_owned :]
    (expected * expected).real.sum().backward()
    assert torch.equal(halo, expected)
    assert torch.equal(halo, (whole.conj_physical() if how == "conjugate" else whole)[comm.halo_ids])
    return x.grad, y.grad


@pytest.mark.parametrize("channel", ["auto", "collective"])
@pytest.mark.parametrize("how", ["plain", "conjugate"])
def test_complex_rows_have_gradients(how: str, channel: str):
    for found, expected in dgcl.launch(complex_gradients, 3, how, channel):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected)


def in_inference_mode() -> bool:
    comm = build("directed", 3)
    whole = random_bits((comm.num_nodes, 4), torch.float32)
    with torch.inference_mode():
        mine = whole[comm.owned_ids] + 0
        found = comm.expand_async(mine).wait()
        return same_bits(found, (whole + 0)[comm.halo_ids])


def test_inference_mode():
    assert all(dgcl.launch(in_inference_mode, 3))


def abandons_a_fold():
    comm = build("directed", 3)
    if comm.rank == 0:
        comm.transport.begin_fold(torch.ones(comm.num_halo, 4))
    comm.fold(torch.ones(comm.num_local, 4))


def test_a_fold_that_is_dropped_is_an_error_on_peers():
    with pytest.raises(dgcl.CommError, match="dropped and nobody waited"):
        dgcl.launch(abandons_a_fold, 3)


def test_autograd_knows_what_was_added():
    def act():
        comm = build("directed", 1)
        z = torch.ones(comm.num_owned, 2, requires_grad=True)
        into = torch.exp(z)  # saved for its backward
        comm.fold_halo(torch.ones(comm.num_halo, 2), into.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            into.sum().backward()

    dgcl.launch(act, 1)


def layers(case: str, world_size: int, how: str, weighted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Two layers of sums: outputs and the gradient of the input, by vertex."""
    comm = build(case, world_size)
    generator = torch.Generator().manual_seed(4)
    whole = torch.randn(comm.num_nodes, 4, dtype=torch.float64, generator=generator)
    weights = torch.rand(comm.num_edges, dtype=torch.float64, generator=generator)
    weight = comm.dispatch_edges(weights) if weighted else None
    x = whole[comm.owned_ids].requires_grad_()
    graph = comm.local_graph("csr")

    def total(h: torch.Tensor) -> torch.Tensor:
        if how == "halo":
            return graph.sum(torch.cat([h, dgcl.graph_allgather_async(h).wait()]), weight)
        return graph.sum(dgcl.graph_allgather(h), weight)

    out = total(torch.tanh(total(x)))
    (out**2).sum().backward()
    assert x.grad is not None
    collected, gradient = comm.collect(out.detach(), None), comm.collect(x.grad, None)
    assert collected is not None
    assert gradient is not None
    return collected, gradient


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_layers_of_halo_rows_are_whole_layers(case: Case, weighted: bool):
    expected = dgcl.launch(layers, 3, case.name, 3, "whole", weighted)[0]
    for found in dgcl.launch(layers, 3, case.name, 3, "halo", weighted):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_same_bits_every_time():
    one, two = (dgcl.launch(layers, 4, "directed", 4, "halo", True)[0] for _ in range(2))
    assert all(same_bits(a, b) for a, b in zip(one, two, strict=True))


# Misuse


def _changed(channel: str, verb: str):
    comm = build("directed", 2, channel)
    owned, halo = torch.zeros(comm.num_owned, 2), torch.zeros(comm.num_halo, 2)
    rows, into = (halo, [owned]) if verb == "fold" else (owned, [])
    pending = getattr(comm.transport, f"begin_{verb}")(rows)
    rows += 1
    pending.wait(*into)


@pytest.mark.parametrize(
    "channel, verb", [("auto", "expand"), ("collective", "expand"), ("collective", "fold")]
)
def test_rows_that_change_are_noticed(channel: str, verb: str):
    with pytest.raises(RuntimeError, match="rows were changed in place between the start"):
        dgcl.launch(_changed, 2, channel, verb)


def _second_call(what: str) -> str:
    """Rank 0 makes another call while its exchange is under way; rank 1 starts late, so it surely is."""
    comm = build("directed", 2)
    rows = torch.zeros(comm.num_owned, 2)
    if comm.rank == 1:
        late.wait(60)
        comm.expand_async(rows).wait()
        return ""
    pending = comm.expand_async(rows)
    try:
        comm.expand(rows) if what == "expand" else comm.expand_async(rows)
    except ValueError as error:
        return str(error)
    finally:
        late.set()
        pending.wait()
    return "no error"


@pytest.mark.parametrize("what", ["expand", "start"])
def test_one_call_at_a_time(what: str):
    late.clear()
    message, _ = dgcl.launch(_second_call, 2, what)
    assert "expand 1 was started and is not finished; call wait() on its result first" in message


@pytest.mark.parametrize(
    "act, error, message",
    [
        (lambda c: c.expand_async(torch.zeros(3, 2)), ValueError, "rows must have num_owned"),
        (lambda c: c.fold_halo(torch.zeros(99, 2), torch.zeros(c.num_owned, 2)), ValueError, "num_halo"),
        (
            lambda c: c.fold_halo(torch.zeros(c.num_halo, 2), torch.zeros(c.num_owned, 2).bool()),
            TypeError,
            "into must be",
        ),
        (
            lambda c: c.fold_halo(torch.zeros(c.num_halo, 2), torch.zeros(c.num_owned, 3)),
            ValueError,
            "into must have rows of the shape of halo_rows",
        ),
        (
            lambda c: c.fold_halo(torch.zeros(c.num_halo, 2), torch.zeros(c.num_owned - 1, 2)),
            ValueError,
            "rows must have num_owned = 26",
        ),
    ],
)
def test_bad_arguments(act: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        dgcl.launch(lambda: act(build("directed", 1)), 1)


def in_a_fork(carry_on: Any) -> int:
    """How a fork of this process ends that carries a call on: 2 if it is told that it may not."""
    pid = os.fork()
    if pid == 0:
        try:
            carry_on()
        except ValueError as error:
            os._exit(2 if "a fork of the rank's process" in str(error) else 3)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("world_size", [1, 2])  # alone: nothing was left to be done when the process forked
def test_a_fork_does_not_carry_on_what_its_rank_has_started(world_size: int):
    def act():
        comm = build("directed", world_size)
        rows = random_bits((comm.num_nodes, 4), torch.int64)
        into = torch.ones(comm.num_owned)
        if comm.rank == 0:
            pending = comm.expand_async(rows[comm.owned_ids])
            assert in_a_fork(pending.wait) == 2
            comm.control.barrier()
            assert same_bits(pending.wait(), rows[comm.halo_ids])
            fold = comm.transport.begin_fold(torch.ones(comm.num_halo))
            assert in_a_fork(lambda: fold.wait(into)) == 2
            comm.control.barrier()
            fold.wait(into)
        else:  # begins when the fork is over
            comm.control.barrier()
            comm.expand(rows[comm.owned_ids])
            comm.control.barrier()
            comm.fold_halo(torch.ones(comm.num_halo), into)
        total = torch.zeros(comm.num_nodes)
        for ids in comm.control.exchange(comm.halo_ids):
            total.index_add_(0, ids, torch.ones(len(ids)))
        assert torch.equal(into, 1 + total[comm.owned_ids])

    dgcl.launch(act, world_size)


@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_are_not_waited_for_once_the_communicator_is_closed(world_size: int):
    def act():
        comm = build("directed", world_size)
        whole = random_bits((comm.num_nodes, 4), torch.int64)
        before = comm.expand_async(whole[comm.owned_ids])
        before.wait()
        comm.control.barrier()
        pending = comm.expand_async(whole[comm.owned_ids]) if comm.rank == 0 else None
        comm.close()
        if pending is not None:
            with pytest.raises(ValueError, match="this communicator is closed"):
                pending.wait()
        assert same_bits(before.wait(), whole[comm.halo_ids])
        comm.control.barrier()

    dgcl.launch(act, world_size)
