"""dgcl.nn.accuracy: counted over all ranks' vertices."""

import pytest
import torch

import dgcl.nn
from tests.support.layer_ranks import NUM_NODES, WORLD_SIZES, on_ranks, rows
from tests.support.samples import named

LABELS = torch.arange(NUM_NODES) % 4


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@named(
    "mask",
    {"all": None, "some": torch.arange(NUM_NODES) % 3 == 0, "rank-0": torch.arange(NUM_NODES) < 4},
)
def test_counts_all_ranks(world_size, mask):
    logits = rows(4)
    right = logits.argmax(1) == LABELS
    expected = right.double().mean() if mask is None else right[mask].double().mean()

    def rank(comm):
        own = comm.owned_ids
        return dgcl.nn.accuracy(logits[own], LABELS[own], None if mask is None else mask[own])

    for found in on_ranks(world_size, rank):
        assert found == expected


def test_nothing_to_count_is_nan():
    nothing = on_ranks(
        2,
        lambda comm: dgcl.nn.accuracy(
            rows(4)[comm.owned_ids], LABELS[comm.owned_ids], torch.zeros(comm.num_owned, dtype=torch.bool)
        ),
    )
    assert all(value.isnan() for value in nothing)


@named(
    "args, message",
    {
        "labels": ((rows(4), LABELS[:2]), r"logits must be \(num_owned, num_classes\)"),
        "logits": ((rows(), LABELS), r"logits must be \(num_owned, num_classes\)"),
        "mask": ((rows(4), LABELS, LABELS), "mask must be bool"),
    },
)
def test_refuses(args, message):
    with pytest.raises(ValueError, match=message):
        dgcl.nn.accuracy(*args)
