"""Every way to exchange rows brings the owners' bits and adds exactly, on awkward graphs, again and again."""

from __future__ import annotations

import pytest
import torch

import dgcl
from dgcl.bench.methods import BASELINES, build_comm_info, check_method
from tests.dgcl.awkward import CASES
from tests.dgcl.bench.ranks import both_ways, gradients
from tests.samples import sampled

NAMES = [case.name for case in CASES]
IN_THREADS = ["spst-sum", "swap-sum", "padded-sum", "auto-atomic", "ring-substages"]
IN_PROCESSES = ["gloo-sum", "padded-substages", "direct-atomic", "swap-sum"]
WORLD_SIZES = {name: (2, 3, 4, 8)[i % 4] for i, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("way", "case"), sampled(IN_THREADS, NAMES, keep=lambda way, case: (way + case) % 3 == 0)
)
def test_exact_in_threads(way: str, case: str) -> None:
    method, fold = way.split("-")
    assert dgcl.launch(both_ways, WORLD_SIZES[case], case, method, fold) == [[]] * WORLD_SIZES[case]


@pytest.mark.parametrize("method", ["swap", "padded"])
def test_exact_alone(method: str) -> None:
    assert dgcl.launch(both_ways, 1, "directed", method) == [[]]


@pytest.mark.parametrize(
    ("way", "case"), sampled(IN_PROCESSES, NAMES, keep=lambda way, case: (way + case) % 4 == 0)
)
def test_exact_in_processes(way: str, case: str, rank_pool) -> None:
    method, fold = way.split("-")
    assert rank_pool(3).run(both_ways, case, method, fold) == [[]] * 3


@pytest.mark.parametrize("method", [name for name in BASELINES if name != "replication"])
@pytest.mark.parametrize("fold", ["sum", "atomic", "substages"])
def test_gradients_are_those_of_the_plan(method: str, fold: str, rank_pool) -> None:
    expected_loss, expected = rank_pool(3).run(gradients, "directed", "direct")[0]
    for loss, gradient in rank_pool(3).run(gradients, "directed", method, fold):
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_gloo_between_threads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gloo.*processes of one torch\.distributed group"):
        dgcl.launch(both_ways, 2, "directed", "gloo")


def _float16_atomics() -> None:
    from tests.dgcl.bench.ranks import build

    comm = build("directed", "direct", "atomic")
    comm.fold(torch.ones(comm.num_local, 2, dtype=torch.float16))


def test_folds_that_add_in_place_refuse_other_types() -> None:
    with pytest.raises(TypeError, match=r"add float32 and float64 \(got torch\.float16"):
        dgcl.launch(_float16_atomics, 2)


@pytest.mark.parametrize(
    ("method", "fold", "message"),
    [
        ("swop", "sum", "method must be one of auto, .*gloo.*did you mean 'swap'"),
        ("auto", "atom", "fold must be one of sum, atomic, substages .got 'atom'"),
        ("replication", "atomic", "does not go with method 'replication'"),
    ],
)
def test_unknown_names_are_refused(method: str, fold: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_method(method, fold)


def _no_graph() -> None:
    build_comm_info(None, method="padded")


def test_a_missing_graph_is_an_error_on_every_rank() -> None:
    with pytest.raises(ValueError, match="graph must be given on rank 0"):
        dgcl.launch(_no_graph, 2)
