"""What :mod:`tests.dgcl.aggregation.test_aggregator` shares with other tests."""

import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import dgcl
import dgcl.nn
from tests.support.awkward import CASES, Case
from tests.support.exchanges import in_ranges, toy_24

PLACEMENTS = ["halo", "tail", "cover"]
CASE_BY_NAME = {case.name: case for case in CASES}
WIDTH = 5
EXACT = 1e-10


def connect(case: Case, world_size: int, edges: Any, **options: Any) -> dgcl.Communicator:
    return dgcl.build_comm_info(
        case.graph,
        "uniform",
        part=case.part(world_size),
        strategy=edges,
        **options,
    )


def features(num_rows: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num_rows, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def weights_of(case: Case) -> Tensor:
    return features(case.edges.shape[1], seed=7).abs() + 0.5


def dense(case: Case, reduce: str, weight: Tensor | None) -> Tensor:
    """(N, N): y = A x."""
    tails, heads = torch.from_numpy(case.edges)
    values = torch.ones(len(tails), dtype=torch.float64) if weight is None else weight
    matrix = torch.zeros(case.num_nodes, case.num_nodes, dtype=torch.float64)
    matrix = matrix.index_put((heads, tails), values, accumulate=True)
    if reduce == "mean":
        degrees = torch.bincount(heads, minlength=case.num_nodes).clamp(min=1)
        matrix = matrix / degrees[:, None]
    return matrix


Results = dict[str, Tensor]


@functools.cache
def expected(name: str, reduce: str, weighted: str) -> Results:
    """Of a scalar function of the aggregate, twice applied: values, and gradients of every input."""
    case = CASE_BY_NAME[name]
    x = features(case.num_nodes, WIDTH).requires_grad_()
    weight = weights_of(case).requires_grad_(weighted == "learned") if weighted else None
    matrix = dense(case, reduce, weight)
    y = matrix @ torch.tanh(matrix @ x)
    (y * features(case.num_nodes, WIDTH, seed=3)).sum().backward()
    assert x.grad is not None
    found = {"y": y.detach(), "x": x.grad}
    if weighted == "learned":
        assert weight is not None
        found["weight"] = weight.grad
    return found


SUMS = [(reduce, weighted) for reduce in ("sum", "mean") for weighted in ("", "constant", "learned")]


def aggregated(comm: dgcl.Communicator, case: Case, reduce: str, weighted: str, **options: Any) -> Results:
    x = comm.dispatch_features(features(case.num_nodes, WIDTH)).requires_grad_()
    weight = comm.dispatch_edges(weights_of(case)) if weighted else None
    if weighted == "learned":
        assert weight is not None
        weight = weight.requires_grad_()
    aggregate = comm.aggregator(reduce, edge_weight=weight, **options)  # type: ignore[arg-type]
    y = aggregate(torch.tanh(aggregate(x)))
    (y * comm.dispatch_features(features(case.num_nodes, WIDTH, seed=3))).sum().backward()
    found = {"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)}
    if weighted == "learned":
        assert weight is not None
        whole = torch.zeros(case.edges.shape[1], dtype=torch.float64)
        whole[torch.from_numpy(comm.local.edge_ids)] = weight.grad
        found["weight"] = comm.all_reduce_sum(whole)  # each edge is on one rank
    return found


def assert_close(found: Results, wanted: Results, tolerance: float = EXACT):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


TOY = {
    "loss": 1.3944259322658719,
    "log-probabilities": 13.5857034371071,
    "first gradient": 0.2283630622919505,
    "second gradient": 0.13446228987916187,
}


def train_the_toy(edges: str, world_size: int, **options: Any) -> dict[str, float]:
    part = in_ranges(24, world_size)
    return toy_figures(dgcl.build_comm_info(toy_24(), "uniform", part=part, strategy=edges), **options)


def toy_figures(comm: dgcl.Communicator, **options: Any) -> dict[str, float]:
    v, k = np.meshgrid(np.arange(24), np.arange(8), indexing="ij")
    h = comm.dispatch_features(torch.from_numpy(np.cos(0.1 * (v + 1) * (k + 1))))
    weights = []
    for layer, (rows, columns) in enumerate([(8, 6), (6, 4)]):
        i, j = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        weights.append(torch.from_numpy(np.sin(1 + i + 2 * j + 3 * layer) / np.sqrt(rows)).requires_grad_())
    aggregate = comm.aggregator("mean", **options)
    h = torch.relu(aggregate(h) @ weights[0])
    scores = torch.log_softmax(aggregate(h) @ weights[1], 1)
    own = comm.owned_ids
    loss = dgcl.nn.loss(F.nll_loss)(scores, own % 4, mask=own % 3 == 0)
    loss.backward()
    dgcl.nn.sync_gradients(weights)
    return {
        "loss": loss.item(),
        "log-probabilities": comm.collect(scores.detach(), None).norm().item(),
        "first gradient": weights[0].grad.norm().item(),
        "second gradient": weights[1].grad.norm().item(),
    }
