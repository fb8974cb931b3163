"""``dispatch_features(x, halo=True)``: the exchange of layer 0 done once, with the same bits."""

import numpy as np
import pytest
import torch
from torch import Tensor

import dgcl
from tests.support.awkward import CASES, Case
from tests.support.ranks import local_ids, random_bits, same_bits


def _bits_arrive(case: Case, dtype: torch.dtype, shape: tuple[int, ...], everywhere: bool) -> bool:
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4))
    whole = random_bits((case.num_nodes, *shape), dtype)
    given = whole if everywhere or comm.rank == 0 else None
    found = dgcl.dispatch_features(given, halo=True)
    again = dgcl.dispatch_features(given)
    return same_bits(found, whole[local_ids(comm)]) and same_bits(again, whole[comm.owned_ids])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    "dtype, shape, everywhere",
    [
        (torch.float32, (7,), False),
        (torch.bool, (), False),
        (torch.float16, (2, 3), True),
        (torch.complex128, (3,), False),
    ],
)
def test_owned_and_halo_rows(case: Case, dtype: torch.dtype, shape: tuple[int, ...], everywhere: bool):
    assert all(dgcl.launch(_bits_arrive, 4, case, dtype, shape, everywhere))


def _train(case: Case, once: bool) -> tuple[list[Tensor], int]:
    """Three steps of two mean layers; the losses, and the bytes that this rank sent."""
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4))
    features = torch.randn(case.num_nodes, 5, generator=torch.Generator().manual_seed(2))
    graph = comm.local_graph("csr")
    layers = [torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)]
    for layer in layers:
        torch.nn.init.constant_(layer.weight, 0.3)
        torch.nn.init.constant_(layer.bias, 0.1)
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    x = comm.dispatch_features(features, halo=once)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        inputs = x if once else dgcl.graph_allgather(x)
        h = torch.tanh(layers[0](graph.mean(inputs)))
        loss = (layers[1](graph.mean(dgcl.graph_allgather(h))) ** 2).sum()
        loss.backward()
        dgcl.nn.sync_gradients(torch.nn.ModuleList(layers))
        optimizer.step()
        losses.append(comm.all_reduce_sum(loss.detach()))
    return losses, int(comm.bytes_sent["expand"].sum())


@pytest.mark.parametrize("case", [CASES[0], CASES[7]], ids=str)
def test_training_is_the_same_and_sends_less(case: Case):
    once, each_step = (dgcl.launch(_train, 4, case, how) for how in (True, False))
    for (losses, _), (expected, _) in zip(once, each_step, strict=True):
        assert all(same_bits(a, b) for a, b in zip(losses, expected, strict=True))
    sent, sent_each_step = (np.sum([count for _, count in runs]) for runs in (once, each_step))
    # Three exchanges of 4 columns in the second layer, and one or three of 5 columns in the first.
    assert sent_each_step * (3 * 4 + 5) == sent * (3 * 4 + 3 * 5)


def test_a_wrong_number_of_rows_is_refused():
    def refuse():
        comm = dgcl.build_comm_info(CASES[0].graph, "uniform", part=CASES[0].part(2))
        comm.dispatch_features(torch.zeros(3, 2), halo=True)

    with pytest.raises(ValueError, match="features must have one row for each of the 26 vertices"):
        dgcl.launch(refuse, 2)
