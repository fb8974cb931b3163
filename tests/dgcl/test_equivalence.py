"""Training on ranks gives the losses, logits, gradients and parameters of training on one device.

(DGL, PyG, plain torch) x (GCN, SAGE, GIN, GAT) x ranks x awkward graphs, five Adam steps in float64 at 1e-10:
with ranks as threads the whole matrix, with ranks as processes each model on every third graph. Every day each model
runs on every third graph of the first, and each model and each graph of the second; the rest is slow.
"""

import pytest

import dgcl
from tests.support.awkward import CASES
from tests.support.equivalence import (
    ARCHITECTURES,
    PRECISIONS,
    assert_equal_ranks,
    assert_same_bits,
    on_rank,
    reference,
)
from tests.support.samples import sampled

WORLD_SIZES = [1, 2, 3, 4, 8]
SHAPES = {1: "uniform", 2: "uniform", 3: "chain", 4: "uniform", 8: "chain"}
NAMES = [case.name for case in CASES]


@pytest.fixture(autouse=True)
def _framework_is_installed(request: pytest.FixtureRequest):
    framework = request.node.callspec.params["architecture"].split("-")[0]
    pytest.importorskip({"dgl": "dgl", "pyg": "torch_geometric", "torch": "torch"}[framework])


@pytest.mark.parametrize(
    "architecture, case, world_size",
    sampled(
        ARCHITECTURES, NAMES, WORLD_SIZES, keep=lambda row, column, size: (row + column) % 50 == 5 * size
    ),
)
def test_threads(architecture, case, world_size):
    runs = dgcl.launch(on_rank, world_size, architecture, case, world_size, SHAPES[world_size])
    assert_equal_ranks(runs, reference(architecture, case))


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", ["directed", "multi-edges"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_with_sgd(architecture, case):
    runs = dgcl.launch(on_rank, 4, architecture, case, 4, "uniform", "float32")
    assert_equal_ranks(runs, reference(architecture, case, "float32"), PRECISIONS["float32"].tolerance)


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES, keep=lambda row: row % 5 == 0))
def test_the_same_run_twice_is_bitwise_the_same(architecture):
    first, second = (dgcl.launch(on_rank, 3, architecture, "multi-edges", 3, "chain") for _ in range(2))
    assert_same_bits(first, second)


@pytest.mark.parametrize(
    "architecture, case",
    [
        pytest.param(a, c, marks=() if row % len(NAMES) == column and row % 4 == 0 else pytest.mark.slow)
        for row, a in enumerate(ARCHITECTURES)
        for column, c in enumerate(NAMES)
        if (row - column) % 3 == 0
    ],
)
def test_processes(architecture, case, rank_pool):
    """Every world size for every model and for every graph."""
    world_size = [2, 3, 4, 8][(list(ARCHITECTURES).index(architecture) + NAMES.index(case)) % 4]
    runs = rank_pool(world_size).run(on_rank, architecture, case, world_size, SHAPES[world_size])
    assert_equal_ranks(runs, reference(architecture, case))
