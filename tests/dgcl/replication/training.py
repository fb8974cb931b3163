"""The runs of :mod:`tests.dgcl.equivalence` with replicas; importable, because ranks that are processes need it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.replication import METHOD
from dgcl.topology import Topology
from tests.dgcl.equivalence import (
    ARCHITECTURES,
    CASE_BY_NAME,
    STEPS,
    WIDTHS,
    Run,
    Step,
    build_layers,
    inputs,
)

LAYERS = len(WIDTHS) - 1


def on_rank(
    architecture: str,
    case_name: str,
    topology: str | Topology,
    world_size: int,
    hops: int,
    poison: float | None = None,
) -> Run:
    """The run of one rank, as :func:`tests.dgcl.equivalence.on_rank` has it, with replicas.

    ``poison``: what replaces the outputs of the first layer on the last ring, in the forward pass; of plain torch's
    layers.
    """
    kind, case = ARCHITECTURES[architecture], CASE_BY_NAME[case_name]
    comm = dgcl.build_comm_info(
        case.graph, topology, part=case.part(world_size), method=METHOD, hops=hops, timeout=60.0
    )
    layers = build_layers(kind.layer, torch.float64)
    if poison is not None:
        layers[0].own.register_forward_hook(Poison(comm, poison))
    x, labels, train = (dgcl.dispatch_features(each) for each in inputs(case, torch.float64))
    x.requires_grad_()
    optimizer = torch.optim.Adam(layers.parameters())
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x.grad = None
        logits = kind.local(layers, comm, x)
        loss = dgcl.nn.cross_entropy(logits, labels, train)
        loss.backward()
        dgcl.nn.sync_gradients(layers)
        gradients = [None if p.grad is None else p.grad.clone() for p in layers.parameters()]
        steps.append(Step(loss.detach(), dgcl.collect(logits, None), gradients))
        optimizer.step()
    x_gradient = dgcl.collect(dgcl.nn.sum_copies(x.grad), None)
    comm.close()
    return Run(steps, [p.detach() for p in layers.parameters()], x_gradient)


class Poison:
    """A forward hook that spoils the rows of ring K, which have none of their in-edges here."""

    def __init__(self, comm: dgcl.Communicator, value: float) -> None:
        self._value = value
        cut_off = (np.diff(comm.local.indptr) == 0) & (comm.local.in_degrees[: comm.num_owned] > 0)
        assert not cut_off[: comm.num_core].any()
        self._rows = torch.from_numpy(cut_off)
        assert comm.all_reduce_sum(self._rows.sum()) > 0

    def __call__(self, layer: Any, given: Any, out: Tensor) -> Tensor:
        return torch.where(self._rows.view(-1, *[1] * (out.dim() - 1)), self._value, out)
