"""dgcl.nn.vertex_dropout: the same elements for any number of ranks, and as random as it should be."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dgcl.nn
from dgcl.nn.vertex_dropout import keep_mask
from tests.support.layer_ranks import NUM_NODES, WORLD_SIZES, on_ranks, rows


def one_rank(*args, **kwargs):
    return on_ranks(1, lambda comm: dgcl.nn.dropout(*args, **kwargs))[0]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("trailing", [(), (1,), (7,), (3, 5), (0,)], ids=str)
def test_the_same_for_any_number_of_ranks(world_size, trailing):
    x = rows(*trailing)

    def rank(comm):
        drop = dgcl.nn.Dropout(0.4, seed=11)
        owned, halo = comm.owned_ids, torch.cat([comm.owned_ids, comm.halo_ids])
        return [
            (owned, drop(x[owned])),
            (halo, drop(x[halo])),
            (owned, dgcl.nn.dropout(x[owned], 0.4, seed=11)),
        ]

    expected = [x for _, x in on_ranks(1, rank)[0]]
    for results in on_ranks(world_size, rank):
        for (ids, found), alone in zip(results, expected, strict=True):
            assert found.equal(alone[ids])


def test_a_known_mask():
    """By hand: SplitMix64 in arbitrary-precision integers. Changing it would change the users' runs."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden, seed, call, p = 0x9E3779B97F4A7C15, -5, 12, 0.3
    stream = mix((mix(seed % 2**64) + call * golden) % 2**64)
    expected = []
    for vertex in (0, 1, 2**40):
        key = mix((stream + vertex * golden) % 2**64)
        words = [mix((key + word * golden) % 2**64) for word in range(3)]
        expected.append([bits >= round(p * 2**32) for w in words for bits in (w >> 32, w % 2**32)][:5])
    found = keep_mask(torch.tensor([0, 1, 2**40]), 5, p, seed=seed, call=call)
    assert found.tolist() == expected


def test_blocks_make_no_difference(monkeypatch):
    ids = torch.arange(50)
    expected = keep_mask(ids, 9, 0.5, seed=1, call=2)
    monkeypatch.setattr("dgcl.nn.vertex_dropout.BLOCK", 12)
    assert keep_mask(ids, 9, 0.5, seed=1, call=2).equal(expected)


def test_scale_and_gradient():
    x = rows(6).requires_grad_()
    y = one_rank(x, 0.25)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, x / 0.75, 0.0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept.double() / 0.75)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtype_does_not_change_the_mask(dtype):
    y = one_rank(torch.ones(NUM_NODES, 6, dtype=dtype), 0.5)
    assert y.dtype == dtype
    assert (y != 0).equal(one_rank(torch.ones(NUM_NODES, 6), 0.5) != 0)


def test_nothing_dropped_or_everything():
    x = rows(3)
    assert one_rank(x, 0.0) is x
    assert one_rank(x, 0.5, False) is x
    assert (one_rank(x, 1.0) == 0).all()


def test_calls_differ_and_can_be_named():
    def rank(comm):
        drop = dgcl.nn.Dropout()
        x = torch.ones(comm.num_owned, 40)
        return drop(x), drop(x), drop.eval()(x), drop.train()(x), drop(x, call=0), drop(x, call=2)

    first, second, _, third, again, third_again = on_ranks(1, rank)[0]
    assert not first.equal(second)
    assert not second.equal(third)
    assert again.equal(first)
    assert third_again.equal(third)  # evaluation is not counted


def test_activation_checkpointing_drops_what_the_forward_dropped():
    def rank(comm, **call):
        x = rows(4)[comm.owned_ids].requires_grad_()
        y = checkpoint(lambda x: dgcl.nn.dropout(x, 0.5, **call).square(), x, use_reentrant=False)
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.where(y > 0, 8 * x, 0.0))

    on_ranks(1, rank)
    on_ranks(2, lambda comm: rank(comm, call=7))
    with pytest.raises(RuntimeError, match="pass call="):  # threads share torch's generator
        on_ranks(2, rank)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="p must be a probability"):
        dgcl.nn.Dropout(p)
    with pytest.raises(ValueError, match="p must be a probability"):
        dgcl.nn.dropout(torch.zeros(1), p)


def test_refuses_other_rows():
    with pytest.raises(ValueError, match=r"x must have 23 rows \(owned\)"):
        one_rank(torch.zeros(5, 2))


def test_all_bits_of_a_seed_count():
    ids = torch.arange(200)
    masks = [keep_mask(ids, 4, 0.5, seed=seed, call=0) for seed in (5, 2**32 + 5, 2**63 + 5, -5)]
    assert len({mask.numpy().tobytes() for mask in masks}) == len(masks)
