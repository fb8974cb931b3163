"""Aggregations on grids equal those of one device: values, gradients, training; and move what the relation counts.

=====================  ==============================================================================================
what                   judged by
=====================  ==============================================================================================
sums, means, weights   ``A @ x`` in float64, A dense, and autograd through it
layers, Adam, dropout  PyG's layers on one device; a dense product with the masks of each vertex and column
a toy graph            loss and norms that an independent program found (specification of the strategies)
maxima and minima      loops over in-neighbours
bytes                  the counts of the relation, which brute force confirms (``test_items.py``)
=====================  ==============================================================================================
"""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.bench.transports import Baseline
from dgcl.graph import Graph, as_graph
from dgcl.grid.grid import Grid, legal_grids
from dgcl.grid.needs import find_needs
from dgcl.program.exchange import HALO, PARTIAL
from tests.support.aggregator import (
    CASE_BY_NAME,
    EXACT,
    SUMS,
    TOY,
    aggregated,
    assert_close,
    dense,
    expected,
    features,
)
from tests.support.awkward import Case
from tests.support.extreme_sums import assert_expected
from tests.support.extreme_sums import on_rank as extremes_on_rank
from tests.support.grid_aggregation import GRIDS, connect, on_rank, size_of, some, train_the_toy
from tests.support.grid_items import received as items_received


@pytest.mark.parametrize("grid, name", some(GRIDS, 6, CASE_BY_NAME))
def test_equals_the_dense_product(grid: str, name: str):
    for found in dgcl.launch(on_rank, size_of(grid), name, grid):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected(name, reduce, weighted))


@pytest.mark.parametrize("grid", ["1,3,1", "1,1,3"])
def test_between_processes(grid: str, rank_pool: Any):
    for found in rank_pool(3).run(on_rank, "multi-edges", grid):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected("multi-edges", reduce, weighted))


@pytest.mark.parametrize("grid", [*some([*GRIDS, "2,5,3"], 3), "30,1,1"])
def test_the_toy_graph(grid: str):
    """On up to 30 ranks, of which some own no vertex, and with more slices than columns."""
    for found in dgcl.launch(train_the_toy, size_of(grid), grid):
        assert found == pytest.approx(TOY, rel=1e-12)


def count_bytes(grid: str, width: int) -> dict[str, Tensor]:
    case = CASE_BY_NAME["multi-edges"]
    comm = connect(case, grid, method="direct")
    x = comm.dispatch_features(features(case.num_nodes, width)).requires_grad_()
    comm.aggregator()(x).sum().backward()
    return {
        f"{name} {verb}": sent for name in comm.exchanges for verb, sent in comm.bytes_sent_by(name).items()
    }


@pytest.mark.parametrize(
    "grid",
    some([str(grid) for world_size in range(2, 17) for grid in legal_grids(world_size)], 3),
)
def test_bytes_are_those_of_the_relation(grid: str):
    """Sent directly, of 7 columns every rank receives what is counted, there and back."""
    case, shape = CASE_BY_NAME["multi-edges"], Grid(*map(int, grid.split(",")))
    owner = case.part(shape.size).astype(np.int32)
    expanded, folded = items_received(find_needs(case.graph, owner, shape))
    found = dgcl.launch(count_bytes, shape.size, grid, 7)
    received = {key: torch.stack([sent[key] for sent in found]).sum(0).numpy() for key in found[0]}
    item_bytes = shape.slice_width(7) * 8
    assert (received[f"{HALO} expand"] == expanded * item_bytes).all()
    assert received[f"{HALO} fold"].sum() == expanded.sum() * item_bytes
    if PARTIAL in {key.split()[0] for key in received}:
        assert (received[f"{PARTIAL} fold"] == folded * item_bytes).all()
        assert received[f"{PARTIAL} expand"].sum() == folded.sum() * item_bytes
    else:
        assert not folded.any()


@pytest.mark.parametrize("grid, name", some(GRIDS, 5, CASE_BY_NAME))
def test_extremes_go_to_the_smallest_id_among_equals(grid: str, name: str):
    world_size = size_of(grid)
    found = dgcl.launch(extremes_on_rank, world_size, name, world_size, f"grid:{grid}")
    assert_expected(found, name)


STEPS, DROPPED = 3, 0.4


def train_with_dropout(grid: str) -> tuple[list[float], list[Tensor]]:
    """Two layers with dropout, batch normalisation and Adam, on a prime number of vertices."""
    graph = as_graph(np.random.default_rng(2).integers(0, 23, (2, 90)), 23)
    comm = dgcl.build_comm_info(graph, "uniform", part=np.arange(23) % size_of(grid), strategy=f"grid:{grid}")
    weights = initial()
    norm = dgcl.nn.BatchNorm(6).double()
    optimizer = torch.optim.Adam([*weights, *norm.parameters()], 0.01)
    x, own = comm.dispatch_features(features(23, 7)), comm.owned_ids
    aggregate, losses = comm.aggregator("mean"), []
    for _ in range(STEPS):
        h = dgcl.nn.dropout(torch.relu(norm(aggregate(x) @ weights[0])), DROPPED, seed=5)
        loss = dgcl.nn.loss(F.cross_entropy)(aggregate(h @ weights[1]), own % 3, own % 2 == 0)
        optimizer.zero_grad()
        loss.backward()
        dgcl.nn.sync_gradients([*weights, *norm.parameters()])
        optimizer.step()
        losses.append(loss.item())
    return losses, [each.detach() for each in (*weights, *norm.parameters())]


def initial() -> list[Tensor]:
    return [features(7, 6, seed=1).requires_grad_(), features(6, 3, seed=2).requires_grad_()]


def with_dropout_on_one_device() -> tuple[list[float], list[Tensor]]:
    edges = np.random.default_rng(2).integers(0, 23, (2, 90))
    matrix = dense(Case("", edges, 23, np.ones(23, bool)), "mean", None)
    weights = initial()
    norm = nn.BatchNorm1d(6).double()
    optimizer = torch.optim.Adam([*weights, *norm.parameters()], 0.01)
    x, ids, losses = features(23, 7), torch.arange(23), []
    for step in range(STEPS):
        h = torch.relu(norm(matrix @ x @ weights[0]))
        kept = dgcl.nn.vertex_dropout.keep_mask(ids, 6, DROPPED, seed=5, call=step)
        logits = matrix @ ((h * kept / (1 - DROPPED)) @ weights[1])
        loss = nn.functional.cross_entropy(logits[::2], (ids % 3)[::2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [each.detach() for each in (*weights, *norm.parameters())]


@pytest.mark.parametrize("grid", some(GRIDS, 3))
def test_training_with_dropout_and_norms(grid: str):
    losses, parameters = with_dropout_on_one_device()
    for found, theirs in dgcl.launch(train_with_dropout, size_of(grid), grid):
        assert found == pytest.approx(losses, rel=EXACT)
        for one, other in zip(theirs, parameters, strict=True):
            torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def in_memory_of_nan(name: str, grid: str, windows: int | None) -> dict[str, Tensor]:
    """Both ways, where memory that nobody wrote holds NaN."""
    case = CASE_BY_NAME[name]
    comm = connect(case, grid)
    operation = comm.aggregator("mean").operation
    empty = operation.memory.empty
    operation.memory.empty = lambda *sizes: empty(*sizes).fill_(torch.nan)
    return aggregated(comm, case, "mean", "", windows=windows)


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2", "1,2,2", "4,1,1"])
@pytest.mark.parametrize("windows", [None, 3])
def test_memory_that_nobody_wrote_is_not_read(grid: str, windows: int | None):
    for sums in dgcl.launch(in_memory_of_nan, 4, "multi-edges", grid, windows):
        assert_close(sums, expected("multi-edges", "mean", ""))


def through_a_baseline(grid: str) -> dict[str, Tensor]:
    case = CASE_BY_NAME["multi-edges"]
    comm = connect(case, grid)
    comm.use_transport(Baseline(comm))
    return aggregated(comm, case, "sum", "")


def test_a_transport_that_only_adds_has_zeros_to_add_to():
    for found in dgcl.launch(through_a_baseline, 4, "1,1,4"):
        assert_close(found, expected("multi-edges", "sum", ""))


def from_csr(grid: str) -> dict[str, Tensor]:
    """The user's edges in the order of the whole CSR: ranks know their places without a list of them."""
    graph = CASE_BY_NAME["multi-edges"].graph
    graph = Graph(26, graph.indptr, graph.indices, None)
    comm = dgcl.build_comm_info(graph, "uniform", part=np.arange(26) % size_of(grid), strategy=f"grid:{grid}")
    weight = comm.dispatch_edges(torch.arange(graph.num_edges, dtype=torch.float64)).requires_grad_()
    y = comm.aggregator(edge_weight=weight)(comm.dispatch_features(features(26, 5)))
    (y * comm.dispatch_features(features(26, 5, seed=3))).sum().backward()
    whole = torch.zeros(graph.num_edges, dtype=torch.float64)
    whole[torch.from_numpy(comm.local.edge_ids)] = weight.grad
    return {"y": comm.collect(y.detach(), None), "weight": comm.all_reduce_sum(whole)}


@pytest.mark.parametrize("grid", ["1,1,3", "2,1,2", "1,3,1", "2,2,2"])
def test_edges_in_the_order_of_the_csr(grid: str):
    graph = CASE_BY_NAME["multi-edges"].graph
    tails = torch.from_numpy(graph.indices.astype(np.int64))
    heads = torch.from_numpy(np.repeat(np.arange(26), graph.in_degrees()))
    x, weight = features(26, 5), torch.arange(graph.num_edges, dtype=torch.float64)
    y = torch.zeros(26, 5, dtype=torch.float64).index_add(0, heads, weight[:, None] * x[tails])
    gradient = (x[tails] * features(26, 5, seed=3)[heads]).sum(1)
    for found in dgcl.launch(from_csr, size_of(grid), grid):
        assert_close(found, {"y": y, "weight": gradient})
