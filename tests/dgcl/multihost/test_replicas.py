"""Replicas across hosts that share no memory: training is that of one device, and cards carry no rows."""

import numpy as np
import pytest
import torch

import dgcl
from dgcl.graph import as_graph
from tests.dgcl.equivalence import assert_equal_runs, reference
from tests.dgcl.multihost.conftest import PoolMaker
from tests.dgcl.multihost.hosts import read_counter
from tests.dgcl.replication.training import LAYERS, on_rank
from tests.samples import slow

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("hosts")]

WORLDS = {"2 hosts of 2": [2, 2], "4 hosts of 1 or 2": [2, 1, 1, 2]}
CALLS, WIDTH = 20, 1024


@pytest.mark.parametrize(
    "ranks, architecture",
    [
        (WORLDS["2 hosts of 2"], "torch-sage"),
        slow(WORLDS["4 hosts of 1 or 2"], "torch-gcn"),
    ],
    ids=WORLDS,
)
def test_training_on_hosts_that_are_found_out(ranks: list[int], architecture: str, host_pool: PoolMaker):
    expected = reference(architecture, "directed")
    runs = host_pool(ranks).run(on_rank, architecture, "directed", "auto", sum(ranks), LAYERS)
    for run in runs:
        assert_equal_runs(run, expected)


def exchange_and_count() -> tuple[int, int, str]:
    """Bytes that this rank sent, what its host's card counted meanwhile, and what the communicator says."""
    graph = as_graph(np.random.default_rng(0).integers(0, 400, (2, 1200)), num_nodes=400)
    comm = dgcl.build_comm_info(graph, strategy="replicas:2", timeout=60.0)
    rows = dgcl.dispatch_features(torch.ones(400, WIDTH))
    comm.control.barrier()
    before = read_counter()
    for _ in range(CALLS):
        comm.fold(comm.expand(rows))
    comm.control.barrier()
    counted = read_counter() - before
    sent, said = int(sum(each.sum() for each in comm.bytes_sent.values())), comm.describe()
    comm.close()
    return sent, counted, said


def test_cards_carry_no_rows(host_pool: PoolMaker):
    """Control messages only: barriers, and what keeps connections alive."""
    for sent, counted, said in host_pool(WORLDS["2 hosts of 2"]).run(exchange_and_count):
        assert sent > CALLS * 100 * WIDTH * 4
        assert counted < sent / 20
        assert said.count("nothing travels: it is on another machine") == 2
