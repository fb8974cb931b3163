"""Algorithms as published train as one device does, and receive the words that the paper says.

======================  ============================================================================================
what                    judged by
======================  ============================================================================================
loss, gradients, Adam   autograd through a dense product, and Adam on it, in float64
softmax over slices     torch's log-softmax of whole rows
words                   golden numbers of a toy graph (specification of the strategies), counted by the runtime
======================  ============================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.bench.published import ReplicatedRows, SplitRows
from dgcl.bench.published import softmax as split_softmax
from dgcl.grid.grid import Grid, legal_grids
from dgcl.grid.published import published_words
from tests.dgcl.awkward import CASES, Case
from tests.dgcl.workers.test_exchanges import in_ranges, toy_24
from tests.samples import sampled

CASE_BY_NAME = {case.name: case for case in CASES}
GRIDS = [str(grid) for world_size in (1, 2, 4, 6) for grid in legal_grids(world_size)]
DAILY = ("1,1,4", "2,1,2", "2,1,3", "1,2,3")
WIDTHS = (7, 5, 3)
STEPS = 3
EXACT = 1e-10

Run = tuple[list[float], list[Tensor]]


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def initial() -> list[Tensor]:
    return [features(*sizes, seed=i).requires_grad_() for i, sizes in enumerate([(7, 5), (5, 3)], start=1)]


def train(rows: Any, case: Case, cross_entropy: Any) -> Run:
    weights = initial()
    optimizer = torch.optim.Adam(weights, 0.01)
    x, own, losses = rows.dispatch(features(case.num_nodes, WIDTHS[0])), rows.vertices, []
    x.requires_grad_()
    for _ in range(STEPS):
        logits = rows.convolve(torch.relu(rows.convolve(x, weights[0])), weights[1])
        loss = cross_entropy(logits, own % WIDTHS[-1], torch.from_numpy(case.train)[own])
        optimizer.zero_grad()
        loss.backward()
        dgcl.nn.sync_gradients(weights, comm=rows.comm)
        optimizer.step()
        losses.append(loss.item())
    assert x.grad is not None
    return losses, [
        *(weight.detach() for weight in weights),
        rows.collect(logits.detach(), WIDTHS[-1]),
        rows.collect(x.grad, WIDTHS[0]),
    ]


def split(name: str, grid: str, reduce: str) -> Run:
    case, shape = CASE_BY_NAME[name], Grid(*map(int, grid.split(",")))
    rows = SplitRows(case.graph, shape, case.part(shape.size), reduce=reduce)

    def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return split_softmax.cross_entropy(logits, rows, WIDTHS[-1], labels, mask)

    return train(rows, case, cross_entropy)


def replicated(name: str, grid: str, reduce: str) -> Run:
    case, shape = CASE_BY_NAME[name], Grid(*map(int, grid.split(",")))
    rows = ReplicatedRows(case.graph, shape, case.part(shape.size), reduce=reduce)
    return train(rows, case, rows.cross_entropy)


def on_one_device(name: str, reduce: str) -> Run:
    case = CASE_BY_NAME[name]
    tails, heads = case.edges
    matrix = torch.zeros(case.num_nodes, case.num_nodes, dtype=torch.float64)
    matrix.index_put_(
        (torch.from_numpy(heads), torch.from_numpy(tails)), torch.ones(len(heads), dtype=torch.float64), True
    )
    degree = matrix.sum(1, keepdim=True).clamp(min=1)
    matrix = {"sum": matrix, "mean": matrix / degree, "gcn": matrix / (degree * degree.T).sqrt()}[reduce]
    weights = initial()
    optimizer = torch.optim.Adam(weights, 0.01)
    x, ids, losses = features(case.num_nodes, WIDTHS[0]).requires_grad_(), torch.arange(case.num_nodes), []
    mask = torch.from_numpy(case.train)
    for _ in range(STEPS):
        logits = matrix @ torch.relu(matrix @ x @ weights[0]) @ weights[1]
        loss = torch.nn.functional.cross_entropy(logits[mask], (ids % WIDTHS[-1])[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert x.grad is not None
    return losses, [*(weight.detach() for weight in weights), logits.detach(), x.grad]


def cases(grids: list[str]) -> list[Any]:
    def keep(grid: int, name: int, reduce: int) -> bool:
        few = [*CASE_BY_NAME][name] == "fewer-vertices-than-ranks"  # ranks without rows
        return grids[grid] in DAILY and (
            few * (reduce == 0) or (DAILY.index(grids[grid]) + name + reduce) % 12 == 0
        )

    return sampled(grids, [*CASE_BY_NAME], ["mean", "gcn"], keep=keep)


def assert_equal_runs(found: list[Run], wanted: Run) -> None:
    for losses, tensors in found:
        assert losses == pytest.approx(wanted[0], rel=EXACT)
        for one, other in zip(tensors, wanted[1], strict=True):
            torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("grid", "name", "reduce"), cases(GRIDS))
def test_activations_that_stay_split(grid: str, name: str, reduce: str) -> None:
    size = int(np.prod([int(number) for number in grid.split(",")]))
    assert_equal_runs(dgcl.launch(split, size, name, grid, reduce), on_one_device(name, reduce))


@pytest.mark.parametrize("grid", ["1,2,1", "1,3,1", "2,2,1", "3,2,1", "2,3,1"])
def test_blocks_on_several_ranks(grid: str) -> None:
    size = int(np.prod([int(number) for number in grid.split(",")]))
    wanted = on_one_device("multi-edges", "mean")
    assert_equal_runs(dgcl.launch(replicated, size, "multi-edges", grid, "mean"), wanted)


def softmax_of(grid: str, num_classes: int) -> tuple[Tensor, Tensor]:
    case, shape = CASE_BY_NAME["directed"], Grid(*map(int, grid.split(",")))
    rows = SplitRows(case.graph, shape, case.part(shape.size))
    x = rows.dispatch(400 * features(case.num_nodes, num_classes)).requires_grad_()
    y = split_softmax.log_softmax(x, rows, num_classes)
    own = rows.columns(num_classes)
    kept = y[:, : own.stop - own.start]
    (kept * features(case.num_nodes, num_classes, seed=1)[rows.vertices][:, own]).sum().backward()
    assert x.grad is not None
    return rows.collect(y.detach(), num_classes), rows.collect(x.grad, num_classes)


@pytest.mark.parametrize("num_classes", [1, 3, 7, 8])
@pytest.mark.parametrize("grid", ["1,1,4", "2,2,2"])
def test_softmax_over_slices_with_large_elements_and_empty_slices(grid: str, num_classes: int) -> None:
    case = CASE_BY_NAME["directed"]
    x = (400 * features(case.num_nodes, num_classes)).requires_grad_()
    y = torch.log_softmax(x, 1)
    (y * features(case.num_nodes, num_classes, seed=1)).sum().backward()
    size = int(np.prod([int(number) for number in grid.split(",")]))
    for found, gradient in dgcl.launch(softmax_of, size, grid, num_classes):
        torch.testing.assert_close(found, y.detach(), rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(gradient, x.grad, rtol=EXACT, atol=EXACT)


def received(comm: dgcl.Communicator, call: Any) -> dict[str, list[int]]:
    """Bytes of a call that every rank receives, by exchange and verb."""
    before = comm.transport.bytes_sent.copy()
    call()
    sent = sum(comm.control.exchange(comm.transport.bytes_sent - before))
    names = [f"{name} {verb}" for name in comm.exchanges for verb in ("expand", "fold")]
    return {
        name: row.tolist() for name, row in zip(names, sent.reshape(len(names), -1), strict=True) if row.any()
    }


def words_of_the_toy(kind: type, grid: tuple[int, int, int]) -> list[dict[str, list[int]]]:
    """Bytes of a layer's forward and backward, and of the loss there and back."""
    size = int(np.prod(grid))
    rows = kind(toy_24(), grid, in_ranges(24, size), reduce="mean")
    x, weight = (
        rows.dispatch(features(24, 8).float()).requires_grad_(),
        features(8, 6).float().requires_grad_(),
    )
    found = []
    out: list[Tensor] = []
    found.append(received(rows.comm, lambda: out.append(rows.convolve(x, weight))))
    if kind is SplitRows:
        scores = out[0].detach().requires_grad_()
        loss: list[Tensor] = []
        softmax = lambda: loss.append(split_softmax.log_softmax(scores, rows, 6))  # noqa: E731
        found += [received(rows.comm, softmax), received(rows.comm, lambda: loss[0].sum().backward())]
    found.append(received(rows.comm, lambda: out[0].sum().backward()))
    return found


def test_words_of_two_by_two() -> None:
    """48 of blocks, 48 of gathers, 7, 29, 29, 7 nonzeros of 2 words, and 12 each of maxima, sums and gradients."""
    for forward, softmax, back, backward in dgcl.launch(words_of_the_toy, 4, SplitRows, (2, 1, 2)):
        tiles = [8 * edges for edges in (7, 29, 29, 7)]
        assert forward == {"halo expand": [4 * 48] * 4, "gather expand": [4 * 48] * 4, "tiles expand": tiles}
        assert softmax == {"gather expand": [4 * (12 + 12)] * 4}
        assert back == {"gather expand": [4 * 12] * 4}
        # 6 columns: blocks of 3, and one gather for both gradients.
        assert backward == {"halo fold": [4 * 36] * 4, "gather expand": [4 * 36] * 4, "tiles expand": tiles}


def test_words_of_blocks_on_two_ranks() -> None:
    """0, 96, 96, 0 of broadcasts, and an all-reduce of 96: what a rank's share of sums brings, and the sums."""
    for forward, backward in dgcl.launch(words_of_the_toy, 4, ReplicatedRows, (2, 2, 1)):
        assert forward["halo expand"] == [0, 4 * 96, 4 * 96, 0]
        total = np.array(forward["reduce fold"]) + forward["reduce expand"]
        assert (total == 4 * 96).all()
        assert backward == forward  # the gradient of what was aggregated is as wide


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2", "2,2,2", "3,1,2", "2,2,1", "3,2,1"])
def test_words_are_those_of_the_formulas(grid: str) -> None:
    shape = Grid(*map(int, grid.split(",")))
    sizes = (shape.parts, shape.depth, shape.slices)
    kind = ReplicatedRows if shape.slices == 1 else SplitRows
    forward = dgcl.launch(words_of_the_toy, shape.size, kind, sizes)[0][0]
    owner = in_ranges(24, shape.size).astype(np.int32)
    wanted = 4 * published_words(toy_24(), owner, shape, 8)
    assert sum(np.array(each) for each in forward.values()) == pytest.approx(wanted)
