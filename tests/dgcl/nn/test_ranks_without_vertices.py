"""More ranks than vertices: those that own none take part in everything, and change nothing."""

import torch
import torch.nn.functional as F
from torch import nn

import dgcl.nn
from tests.support.layer_ranks import NUM_NODES, drawn, on_ranks, rows

LABELS = torch.arange(NUM_NODES) % 3


def train(comm):
    layers = nn.Linear(4, 6), dgcl.nn.BatchNorm(6), nn.ReLU(), dgcl.nn.Dropout(0.3), nn.Linear(6, 3)
    model = drawn(nn.Sequential(*layers).double())
    dgcl.nn.broadcast_parameters(model)
    x, labels = rows(4)[comm.owned_ids], LABELS[comm.owned_ids]
    graph = comm.local_graph("csr")
    optimizer = torch.optim.Adam(model.parameters())
    numbers = []
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(graph.mean(dgcl.graph_allgather(x)))
        loss = dgcl.nn.loss(F.cross_entropy)(logits, labels)
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        numbers += [loss.detach(), dgcl.nn.accuracy(logits, labels)]
    return comm.num_owned, numbers, [p.detach() for p in model.parameters()]


def test_everything_takes_part():
    ((_, numbers, parameters),) = on_ranks(1, train)
    results = on_ranks(NUM_NODES + 3, train)
    assert min(num_owned for num_owned, _, _ in results) == 0
    for _, found_numbers, found in results:
        torch.testing.assert_close(found_numbers, numbers, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found, parameters, rtol=1e-10, atol=1e-10)
