"""Ranks that train different models are told so, once; ranks that train the same one hear nothing."""

import warnings
from threading import get_ident

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dgcl
import dgcl.nn
from tests.dgcl.nn.ranks import drawn, on_ranks, rows
from tests.samples import named


def train(broadcast: bool, sync: bool, steps: int = 5, frozen_rows: bool = False):
    """What two ranks are warned of; every rank draws its own parameters, unless one of them is broadcast."""

    def rank(comm):
        model = drawn(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double(), comm.rank)
        own = nn.Parameter(torch.full((comm.num_owned, 3), float(comm.rank), dtype=torch.float64))
        if broadcast:
            dgcl.nn.broadcast_parameters(model)
        x, y = rows(3)[comm.owned_ids], rows(2, seed=1)[comm.owned_ids]
        optimizer = torch.optim.SGD([*model.parameters(), own], lr=0.1)
        for _ in range(steps):
            local = comm.local  # calls are counted across wirings
            comm = comm.rewire((local.local_ids[local.indices], local.owned_ids[local.heads]))
            optimizer.zero_grad()
            dgcl.nn.loss(F.mse_loss)(model(x + own if frozen_rows else x), y).backward()
            if sync:
                dgcl.nn.sync_gradients(model)
            optimizer.step()
        with torch.no_grad():
            dgcl.nn.loss(F.mse_loss)(model(x), y)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        on_ranks(2, rank)
    return [str(each.message) for each in told if each.category is dgcl.InexactWarning]


@named("rows_too", {"plain": False, "rows-of-vertices-too": True})
def test_nothing_is_said_of_ranks_that_agree(rows_too):
    assert train(True, True, frozen_rows=rows_too) == []


def test_no_broadcast():
    (told,) = train(False, True)
    assert "shape (4, 3) is not the same on all ranks: rank 1 differs from rank 0, at call 1" in told
    assert "dgcl.nn.broadcast_parameters(model)" in told


def test_no_sync():
    (told,) = train(True, False)
    assert told.startswith(
        "0.weight of shape (4, 3) is not the same on all ranks: rank 1 differs from rank 0, at call 2"
    )
    assert "dgcl.nn.sync_gradients(model)" in told


def test_a_loss_without_gradients_compares_what_the_last_one_had():
    """Call 2 is the validation loss."""
    (told,) = train(True, False, steps=1)
    assert "at call 2 of a loss" in told


def test_only_calls_that_are_powers_of_two_compare(monkeypatch):
    """By the checksums that are taken: two of a linear layer, and that of dropouts."""
    counts = []
    monkeypatch.setattr("dgcl.nn.drift.zlib.crc32", lambda *_: counts.append(get_ident()) or 0)

    def rank(comm):
        model = nn.Linear(3, 2).double()
        x, y = rows(3)[comm.owned_ids], rows(2, seed=1)[comm.owned_ids]
        taken = []
        for _ in range(9):
            before = counts.count(get_ident())
            dgcl.nn.loss(F.mse_loss)(model(x), y)
            taken.append(counts.count(get_ident()) - before)
        return taken

    assert on_ranks(2, rank)[1] == [3, 3, 0, 3, 0, 0, 0, 3, 0]
    assert on_ranks(1, rank)[0] == [0] * 9


def test_check_equal_names_the_first_tensor():
    def rank(comm, what):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + (what == "shape") * comm.rank))
        dgcl.nn.broadcast_parameters(model) if what != "shape" else None
        model(torch.ones(1, 2)).sum().backward()
        dgcl.nn.check_equal(model, gradients=True)
        with torch.no_grad():
            if what == "parameter" and comm.rank == 2:
                model[1].bias[0] += 1e-7
            if what == "gradient" and comm.rank > 0:
                model[0].weight.grad[1, 1] += 1.0
        dgcl.nn.check_equal(model, gradients=what == "gradient")

    on_ranks(3, rank, "nothing")
    with pytest.raises(dgcl.DisagreementError, match=r"1.bias of shape \(2,\).*rank 2 differs from rank 0"):
        on_ranks(3, rank, "parameter")
    with pytest.raises(dgcl.DisagreementError, match=r"gradient of 0.weight .*ranks 1, 2 differ from rank 0"):
        on_ranks(3, rank, "gradient")
    with pytest.raises(dgcl.DisagreementError, match="model must have the same parameters on every rank"):
        on_ranks(2, rank, "shape")


@pytest.mark.parametrize("shape", [(5,), (), (3, 2), (0,)], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str
)
def test_features_that_ranks_make_themselves_must_be_the_same(shape, dtype):
    def rank(comm, same):
        features = rows(*shape, seed=0 if same else comm.rank).to(dtype)
        return dgcl.dispatch_features(features).equal(features[comm.owned_ids])

    assert on_ranks(2, rank, True) == [True, True]
    different = 0 not in shape and dtype != torch.bool
    if different:
        with pytest.raises(
            ValueError, match=r"features must be the same on every rank .*those of rank 1 differ"
        ):
            on_ranks(2, rank, False)
