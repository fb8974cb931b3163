"""Training with replicas gives the losses, logits, gradients and parameters of one device.

(DGL, PyG, plain torch) x layers x awkward graphs x machines of equal and unequal size: five Adam steps in float64
at 1e-10. The input's gradient too, summed over the copies of each vertex.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.replication import METHOD
from tests.dgcl.equivalence import (
    ARCHITECTURES,
    CASE_BY_NAME,
    STEPS,
    WIDTHS,
    Run,
    Step,
    assert_equal_runs,
    build_layers,
    inputs,
    reference,
)
from tests.dgcl.replication.machines import LAYOUTS, machines

LAYERS = len(WIDTHS) - 1


def on_rank(architecture: str, case_name: str, layout: str, hops: int, poison: float | None = None) -> Run:
    """The run of one rank, as :func:`tests.dgcl.equivalence.on_rank` has it, with replicas.

    ``poison``: what the last ring's outputs of the first layer are replaced by in the forward pass.
    """
    kind, case = ARCHITECTURES[architecture], CASE_BY_NAME[case_name]
    topology = machines(LAYOUTS[layout])
    world_size = topology.num_devices
    comm = dgcl.build_comm_info(
        case.graph, topology, part=case.part(world_size), method=METHOD, hops=hops, timeout=60.0
    )
    layers = build_layers(kind.layer, torch.float64)
    if poison is not None:
        layers[0].register_forward_hook(Poison(comm, poison))
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

    def __call__(self, layer: Any, given: Any, out: Tensor) -> Tensor:
        return torch.where(self._rows.view(-1, *[1] * (out.dim() - 1)), self._value, out)


def _require(architecture: str) -> None:
    name = {"dgl": "dgl", "pyg": "torch_geometric", "torch": "torch"}[architecture.split("-")[0]]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def hops_of(architecture: str) -> int:
    """The layers; PyG's GCN exchanges once more before, for the degrees in its weights."""
    return LAYERS + (architecture == "pyg-gcn")


# Every kind of layer on every layout, and every graph on every layout; all pairs would take minutes.
NAMES = list(CASE_BY_NAME)
COVER = [
    (architecture, NAMES[(row + 4 * column) % len(NAMES)], layout)
    for row, architecture in enumerate(ARCHITECTURES)
    for column, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize(("architecture", "case", "layout"), COVER)
def test_threads(architecture: str, case: str, layout: str) -> None:
    _require(architecture)
    expected = reference(architecture, case)
    runs = dgcl.launch(on_rank, len(LAYOUTS[layout]), architecture, case, layout, hops_of(architecture))
    for run in runs:
        assert_equal_runs(run, expected)
    for run in runs[1:]:
        assert all(mine.equal(first) for mine, first in zip(run.parameters, runs[0].parameters, strict=True))


@pytest.mark.slow
def test_processes(rank_pool) -> None:
    expected = reference("torch-sage", "directed")
    for run in rank_pool(4).run(on_rank, "torch-sage", "directed", "two-of-two", LAYERS):
        assert_equal_runs(run, expected)


@pytest.mark.parametrize("poison", [1e6, -1e150])
@pytest.mark.parametrize("architecture", ["torch-gcn", "torch-sage"])
def test_what_the_last_ring_computes_reaches_nobody(architecture: str, poison: float) -> None:
    """Not losses, logits, gradients or parameters, however wrong it is, as long as it is finite."""
    expected = reference(architecture, "directed")
    for run in dgcl.launch(on_rank, 4, architecture, "directed", "two-of-two", LAYERS, poison):
        assert_equal_runs(run, expected)


def test_too_few_hops_are_felt() -> None:
    """So the tests above would see a ring that is missing."""
    expected = reference("torch-sage", "directed")
    run = dgcl.launch(on_rank, 4, "torch-sage", "directed", "two-of-two", LAYERS - 1)[0]
    with pytest.raises(AssertionError, match="loss of step 0"):
        assert_equal_runs(run, expected)


def test_more_hops_than_layers_are_right_too() -> None:
    expected = reference("torch-gcn", "multi-edges")
    for run in dgcl.launch(on_rank, 4, "torch-gcn", "multi-edges", "in-turns", LAYERS + 2):
        assert_equal_runs(run, expected)
