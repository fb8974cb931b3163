"""dgcl.nn.accuracy: counted over all ranks' vertices."""

from __future__ import annotations

import pytest
import torch

import dgcl.nn
from tests.dgcl.nn.ranks import NUM_NODES, WORLD_SIZES, on_ranks, rows

LABELS = torch.arange(NUM_NODES) % 4


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "mask",
    [None, torch.arange(NUM_NODES) % 3 == 0, torch.arange(NUM_NODES) < 4],
    ids=["all", "some", "rank-0"],
)
def test_counts_all_ranks(world_size, mask) -> None:
    logits = rows(4)
    right = logits.argmax(1) == LABELS
    expected = right.double().mean() if mask is None else right[mask].double().mean()

    def rank(comm):
        own = comm.owned_ids
        return dgcl.nn.accuracy(logits[own], LABELS[own], None if mask is None else mask[own])

    for found in on_ranks(world_size, rank):
        assert found == expected


def test_nothing_to_count_is_nan() -> None:
    nothing = on_ranks(
        2,
        lambda comm: dgcl.nn.accuracy(
            rows(4)[comm.owned_ids], LABELS[comm.owned_ids], torch.zeros(comm.num_owned, dtype=torch.bool)
        ),
    )
    assert all(value.isnan() for value in nothing)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param((rows(4), LABELS[:2]), r"labels \(num_owned,\)", id="labels"),
        pytest.param((rows(), LABELS), r"logits must be \(num_owned, num_classes\)", id="logits"),
        pytest.param((rows(4), LABELS, LABELS), "mask must be bool", id="mask"),
    ],
)
def test_refuses(args, message) -> None:
    with pytest.raises(ValueError, match=message):
        dgcl.nn.accuracy(*args)
