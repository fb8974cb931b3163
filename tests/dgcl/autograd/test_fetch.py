"""Rows of any vertices: those of an index into the whole matrix, in value and in every derivative."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.communicator import Communicator
from tests.support.layer_ranks import NUM_NODES, on_ranks, rows

WORLD_SIZES = [1, 3, 4]


def ids_of(rank: int, round_: int) -> Tensor:
    """Other ids in each round, repeated ones among them; none on rank 1."""
    generator = torch.Generator().manual_seed(10 * rank + round_)
    return torch.randint(0, NUM_NODES, (0 if rank == 1 else 9 + rank,), generator=generator)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rows_and_derivatives_are_those_of_an_index(world_size: int):
    features, weights = rows(3), [rows(3, seed=1 + rank) for rank in range(world_size)]

    def run(comm: Communicator) -> list[Any]:
        x = dgcl.dispatch_features(features).requires_grad_()
        results = []
        for round_ in range(2):
            fetched = dgcl.fetch(x, ids_of(comm.rank, round_))
            part = (fetched.tanh() * weights[comm.rank][: len(fetched)]).sum()
            (grad,) = torch.autograd.grad(part, x, create_graph=True)
            (second,) = torch.autograd.grad(grad.pow(2).sum(), x)
            results.append([fetched.detach(), dgcl.collect(grad.detach(), None), dgcl.collect(second, None)])
        return results

    results = on_ranks(world_size, run)
    for round_ in range(2):
        x = features.clone().requires_grad_()
        fetched = [x[ids_of(rank, round_)] for rank in range(world_size)]
        parts = [(rows_.tanh() * weights[rank][: len(rows_)]).sum() for rank, rows_ in enumerate(fetched)]
        (grad,) = torch.autograd.grad(sum(parts), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), x)
        for rank in range(world_size):
            torch.testing.assert_close(
                results[rank][round_], [fetched[rank], grad, second], rtol=0, atol=1e-12, check_stride=False
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_rows_of_every_type_keep_their_bits(dtype: torch.dtype):
    features = (rows(2, 3) * 5).to(dtype)

    def run(comm: Communicator) -> Tensor:
        return dgcl.fetch(
            dgcl.dispatch_features(features), torch.arange(NUM_NODES, dtype=torch.int32).flip(0)
        )

    assert all(torch.equal(each, features.flip(0)) for each in on_ranks(2, run))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_sixteen_bits_are_rounded_once(dtype: torch.dtype):
    """Added in 16 bits, 900 times ten would be another number, or stop to grow."""

    def run(comm: Communicator) -> Tensor:
        x = dgcl.dispatch_features(rows(2).to(dtype)).requires_grad_()
        (dgcl.fetch(x, torch.full((300,), 5)) * 10).sum().backward()
        return dgcl.collect(x.grad, None)

    expected = torch.zeros(NUM_NODES, 2, dtype=dtype)
    expected[5] = 9000
    assert all(torch.equal(each, expected) for each in on_ranks(3, run))


def test_repeated_ids_are_added_in_a_fixed_order():
    def run(comm: Communicator) -> Tensor:
        x = dgcl.dispatch_features(rows(4).float()).requires_grad_()
        ids = torch.arange(500) * (comm.rank + 3) % 5
        weight = torch.randn(500, 4, generator=torch.Generator().manual_seed(comm.rank))
        (dgcl.fetch(x, ids) * weight).sum().backward()
        return x.grad

    first, again = on_ranks(3, run), on_ranks(3, run)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    "wrong, kind, words",
    [
        (lambda x: (x, torch.tensor([-1])), ValueError, r"ids must lie in \[0, 23\)"),
        (lambda x: (x, torch.tensor([2, NUM_NODES])), ValueError, r"\(got 2 to 23\)"),
        (lambda x: (x, torch.ones(3)), TypeError, r"ids must be \(n,\) int64 or int32.*rows\[mask\]"),
        (lambda x: (x, torch.zeros(2, 2).long()), TypeError, r"shape \(2, 2\)"),
        (lambda x: (x[1:], torch.tensor([1])), ValueError, "rows must have num_owned"),
        (
            lambda x: (x.float(), torch.tensor([1])),
            ValueError,
            "shape and dtype of rows must be the same on every rank",
        ),
    ],
)
def test_what_one_rank_gets_wrong_is_an_error_on_all(wrong: Any, kind: type[Exception], words: str):
    def run(comm: Communicator):
        x, ids = dgcl.dispatch_features(rows(2)), torch.tensor([1, 2])
        with pytest.raises(kind if comm.rank == 1 else ValueError, match=words):
            dgcl.fetch(*(wrong(x) if comm.rank == 1 else (x, ids)))
        assert len(dgcl.fetch(x, ids)) == 2  # and all go on

    on_ranks(2, run)


def test_who_owns_which_vertex():
    def run(comm: Communicator):
        assert (comm.part[comm.owned_ids] == comm.rank).all()
        assert comm.part.shape == (NUM_NODES,)

    on_ranks(3, run)


def test_rows_of_edges_come_back_in_the_order_of_the_edges():
    def run(comm: Communicator) -> Tensor | None:
        return comm.collect_edges(comm.dispatch_edges(rows(2)), dst=1)

    first, second = on_ranks(2, run)
    assert first is None
    assert torch.equal(second, rows(2))
