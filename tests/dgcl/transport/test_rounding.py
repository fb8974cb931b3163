"""Rows rounded on their way: the bits of rounding by hand, every strategy, half the bytes, what is refused."""

import numpy as np
import pytest
import torch

import dgcl
from tests.support.samples import named
from tests.support.small_machines import line

EDGES = np.random.default_rng(0).integers(0, 60, (2, 400))
ROWS = torch.randn(60, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
PART = torch.arange(60)
HALF = torch.bfloat16


def built(world_size, topology="uniform", **options):
    return dgcl.build_comm_info(EDGES, topology, part=PART % world_size, **options)


def derivatives(x, *local):
    """A gradient and one of it, by operations whose bits do not depend on where an element is."""
    (first,) = torch.autograd.grad(sum(y.pow(3).sum() for y in local), x, create_graph=True)
    return first, torch.autograd.grad(first.pow(2).sum(), x)[0]


@pytest.mark.parametrize("channel", ["memory", "collective"])
@named(
    "dtype, wire, in_call",
    {
        "bfloat16": (torch.float32, HALF, None),
        "float16": (torch.float64, torch.float16, None),
        "float32-in-a-call": (torch.float64, HALF, torch.float32),
        "no-wider": (HALF, torch.float16, None),
    },
)
def test_the_bits_of_rounding_by_hand(dtype, wire, in_call, channel):
    """Values, gradients, second derivatives, where at most two ranks add to a row."""

    def run():
        comm = built(3, method="direct", channel=channel, wire=wire)
        mine, x = comm.dispatch_features(ROWS.to(dtype)).requires_grad_(), ROWS.to(dtype).requires_grad_()
        y = comm.expand(mine, wire=in_call)
        sent = x if dtype is HALF else x.to(in_call or wire)
        local = []
        for rank, ids in enumerate(comm.control.exchange(torch.cat([comm.owned_ids, comm.halo_ids]))):
            owned = PART[ids, None, None] % 3 == rank
            local.append(torch.where(owned, x[ids], sent.to(dtype)[ids]))
        assert torch.equal(y, local[comm.rank])
        for one, whole in zip(derivatives(mine, y), derivatives(x, *local), strict=True):
            assert torch.equal(one, whole[comm.owned_ids])

    dgcl.launch(run, 3)


def aggregated(strategy, windows, channel, wire):
    """Sums, derivatives and maxima; bytes of all but these."""
    comm = built(4, "dgx1", strategy=strategy, channel=channel, wire=wire)
    x = comm.dispatch_features(ROWS.float()).requires_grad_()
    sums = comm.aggregator(windows=windows)(x)
    results, sent = derivatives(x, sums), torch.cat([*comm.bytes_sent.values()])
    return torch.stack([sums, *results, comm.aggregator("max")(x)]).detach(), sent


@named("strategy, windows", {"windows": ("halo", 3), "tail": ("tail", None), "grid": ("grid:2,1,2", None)})
def test_strategies_send_half(strategy, windows):
    """Results are near those of exact rows, and have the same bits over both transports."""
    runs = [("memory", None), ("memory", HALF), ("collective", HALF)]
    ranks = [dgcl.launch(aggregated, 4, strategy, windows, *each) for each in runs]
    for (exact, sent), (rounded, half), (same, _) in zip(*ranks, strict=True):
        assert torch.equal(rounded, same)
        assert torch.equal(2 * half, sent)
        for one, other in zip(exact, rounded, strict=True):
            assert torch.dist(one, other) < 0.02 * one.norm()


def test_relays_pass_the_bits_on():
    def run():
        comm = built(4, line(4), wire=HALF)
        x, halo = comm.dispatch_features(ROWS.float()), ROWS.float()[comm.halo_ids]
        comm.expand(0 * x)
        assert torch.equal(comm.expand_async(x).wait(), halo.to(HALF).float())
        assert torch.equal(comm.expand(comm.owned_ids)[comm.num_owned :], comm.halo_ids)
        assert "rows travel as torch.bfloat16: a sample of the first call is off by 0.001" in comm.describe()
        return comm.exchanges["halo"].program.num_relay

    assert sum(dgcl.launch(run, 4)) > 0


def test_int8_has_a_scale_for_each_row():
    """Elements are off by half a 127th of their row's largest; gradients are those of bfloat16."""

    def run():
        comm = dgcl.build_comm_info(EDGES, part=PART.clamp(max=1))  # one row on rank 0, none on rank 2
        x = ROWS.float() * 10.0 ** torch.arange(-30, 30)[:, None, None]
        x[7] = 0
        mine, exact = comm.dispatch_features(x).requires_grad_(), x[comm.halo_ids]
        y, z = (comm.expand(mine, wire=wire, wire_gradients=True) for wire in (torch.int8, HALF))
        off = (y[comm.num_owned :] - exact).abs()
        assert (off <= 0.501 / 127 * exact.abs().amax((1, 2), True)).all()
        assert torch.equal(
            *[torch.autograd.grad(rows, mine, exact.new_ones(rows.shape) / 3)[0] for rows in (y, z)]
        )

    dgcl.launch(run, 3)


@named(
    "dtype, wire, text",
    {
        "integers": (torch.int64, HALF, "must be floating point .* torch.int64"),
        "float64-as-int8": (torch.float64, torch.int8, "at most 32 bits .*torch.float64"),
        "gradient": (torch.float32, torch.int8, "rows require a gradient.*wire_gradients=True"),
        "type": (torch.float32, torch.uint8, "wire must be one of torch.float32, .* torch.uint8"),
        "complex": (torch.complex64, None, "for real rows .*torch.complex64"),
    },
)
def test_refused(dtype, wire, text):
    def run():
        comm = built(1, wire=HALF)
        with pytest.raises((TypeError, ValueError), match=text):
            comm.expand(torch.ones(60, 2, dtype=dtype, requires_grad=dtype is torch.float32), wire=wire)
        with pytest.raises(ValueError, match="chunks travel as they are"):
            dgcl.Offload(comm, chunks=2)
        with pytest.raises(ValueError, match=r"torch\.int8 is for single calls"):
            built(1, wire=torch.int8)

    dgcl.launch(run, 1)
