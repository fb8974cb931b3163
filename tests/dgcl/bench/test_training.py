"""Models train with the plain all-to-all as on one device: losses, logits, gradients, parameters."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.bench import BASELINES, build_comm_info
from tests.dgcl.equivalence import (
    ARCHITECTURES,
    CASE_BY_NAME,
    STEPS,
    build_layers,
    inputs,
    reference,
)

close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def train(architecture: str, case: str, method: str) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Losses of all steps, the last logits, and the parameters that training led to."""
    kind, chosen = ARCHITECTURES[architecture], CASE_BY_NAME[case]
    world_size = dgcl.ranks.context.context.require_control().world_size
    part = chosen.part(world_size)
    comm = build_comm_info(chosen.graph, part=part, method=method, timeout=60.0)
    layers = build_layers(kind.layer, torch.float64)
    x, labels, mask = inputs(chosen, torch.float64)
    x = comm.dispatch_features(x)
    labels, mask = comm.dispatch_features(labels), comm.dispatch_features(mask)
    optimizer = torch.optim.Adam(layers.parameters())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = kind.local(layers, comm, x)[: comm.num_owned]
        loss = dgcl.nn.cross_entropy(logits, labels, mask)
        loss.backward()
        dgcl.nn.sync_gradients(layers)
        losses.append(loss.detach())
        optimizer.step()
    collected = comm.collect(logits.detach(), None)
    comm.close()
    assert collected is not None
    return losses, collected, [p.detach() for p in layers.parameters()]


def assert_trained(runs: list[tuple[list[Tensor], Tensor, list[Tensor]]], architecture: str, case: str):
    expected = reference(architecture, case)
    for losses, logits, parameters in runs:
        for loss, step in zip(losses, expected.steps, strict=True):
            close(loss, step.loss)
        close(logits, expected.steps[-1].logits)
        for found, wanted in zip(parameters, expected.parameters, strict=True):
            close(found, wanted)


@pytest.mark.parametrize("method", BASELINES)
def test_training(method: str, rank_pool) -> None:
    assert_trained(rank_pool(3).run(train, "torch-gcn", "self-loops", method), "torch-gcn", "self-loops")
