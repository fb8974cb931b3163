"""Training and the two verbs on ranks of several hosts give what one device gives.

The matrix of tests/dgcl/test_equivalence.py, (DGL, PyG, plain torch) x (GCN, SAGE, GIN, GAT) x awkward graphs, five
Adam steps in float64 at 1e-10, on ranks of several hosts: each model
on every third graph and each graph with every third model, since the whole matrix runs on threads. Half of it runs on
plans for the hosts (a row crosses once, and is passed on inside), half on a chain of ranks, where rows are relayed.
Every other graph goes to the second world. One standing set of processes serves each world.
"""

import pytest

from dgcl.topology import Topology
from tests.dgcl.multihost import verb_checks
from tests.dgcl.multihost.conftest import PoolMaker
from tests.dgcl.multihost.rank_main import limited_topology
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

# Every day tests/dgcl/transport/test_several_exchanges.py trains between hosts.
pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("hosts")]

WORLDS = {"2 hosts of 2": [2, 2], "4 hosts of 1 or 2": [2, 1, 1, 2]}
NAMES = [case.name for case in CASES]
MATRIX = [(a, c) for i, a in enumerate(ARCHITECTURES) for j, c in enumerate(NAMES) if (i - j) % 3 == 0]
# Each model once and each graph at least once.
COVER = [(a, NAMES[row % len(NAMES)]) for row, a in enumerate(ARCHITECTURES)]
TREES = ["random-1", "random-2", "line"]

world = pytest.mark.parametrize(
    "ranks", sampled(WORLDS.values(), keep=lambda world: world == 0), ids=WORLDS.keys()
)
trees = pytest.mark.parametrize("trees", TREES)


def topology(architecture: str, case: str, ranks: list[int]) -> str | Topology:
    """What one of the matrix is planned for in a world."""
    on_hosts = (list(ARCHITECTURES).index(architecture) + NAMES.index(case)) % 2 == 0
    hosts = [host for host, count in enumerate(ranks) for _ in range(count)]
    return limited_topology(hosts, 100.0) if on_hosts else "chain"


def train_and_compare(
    pools: PoolMaker, ranks: list[int], architecture: str, case: str, precision: str = "float64"
):
    pytest.importorskip({"dgl": "dgl", "pyg": "torch_geometric"}.get(architecture.split("-")[0], "torch"))
    shape = topology(architecture, case, ranks)
    runs = pools(ranks).run(on_rank, architecture, case, sum(ranks), shape, precision)
    expected = reference(architecture, case, precision)
    assert_equal_ranks(runs, expected, PRECISIONS[precision].tolerance)


@pytest.mark.parametrize("architecture, case", COVER)
def test_every_model_and_every_graph(architecture: str, case: str, host_pool: PoolMaker):
    train_and_compare(host_pool, WORLDS["2 hosts of 2"], architecture, case)


@pytest.mark.slow
@pytest.mark.parametrize("architecture, case", MATRIX)
def test_models_and_graphs_on_plans_and_chains(architecture: str, case: str, host_pool: PoolMaker):
    ranks = list(WORLDS.values())[NAMES.index(case) % len(WORLDS)]
    train_and_compare(host_pool, ranks, architecture, case)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name.startswith("torch-")])
def test_float32_with_sgd(architecture: str, host_pool: PoolMaker):
    train_and_compare(host_pool, WORLDS["2 hosts of 2"], architecture, "multi-edges", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name.startswith("torch-")])
def test_the_same_run_twice_is_bitwise_the_same(architecture: str, host_pool: PoolMaker):
    ranks = WORLDS["4 hosts of 1 or 2"]
    shape = topology(architecture, "directed", ranks)
    first, second = (
        host_pool(ranks).run(on_rank, architecture, "directed", sum(ranks), shape) for _ in range(2)
    )
    assert_same_bits(first, second)


@world
def test_channels_are_those_of_the_hosts(ranks: list[int], host_pool: PoolMaker):
    pool = host_pool(ranks)
    for rank, lines in enumerate(pool.run(verb_checks.describe_channels)):
        others = [peer for peer in range(sum(ranks)) if peer != rank]
        for peer, line in zip(others, lines, strict=True):
            assert line.startswith(f"  rank {peer}: collective, messages of gloo: rank "), line
            assert " share no memory" in line, line


@world
@trees
def test_expand_is_bitwise(trees: str, ranks: list[int], host_pool: PoolMaker):
    compared = host_pool(ranks).run(verb_checks.expand_is_bitwise, trees)
    assert compared == [len(verb_checks.DTYPES) * len(verb_checks.SHAPES)] * sum(ranks)


@world
@trees
def test_fold_adds_up(trees: str, ranks: list[int], host_pool: PoolMaker):
    compared = host_pool(ranks).run(verb_checks.fold_adds_up, trees)
    expected = len(verb_checks.EXACT) * len(verb_checks.SHAPES) + len(verb_checks.UNITS)
    assert compared == [expected] * sum(ranks)


@world
@trees
def test_bytes_executed_are_bytes_planned(trees: str, ranks: list[int], host_pool: PoolMaker):
    assert all(host_pool(ranks).run(verb_checks.bytes_are_those_planned, trees))


@world
@trees
def test_calls_leave_nothing_behind(trees: str, ranks: list[int], host_pool: PoolMaker):
    assert all(host_pool(ranks).run(verb_checks.calls_leave_nothing_behind, trees))
