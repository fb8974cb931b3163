"""docs/frameworks.md, "Several hops": layers of k hops as k exchanges are those of the whole graph."""

import pytest
import torch

import dgcl
from tests.dgcl.awkward import CASES

HOPS = 3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dgl_sgc(case):
    dgl = pytest.importorskip("dgl")
    x = torch.randn(case.num_nodes, 4, dtype=torch.float64)
    hop = dgl.nn.GraphConv(4, 4, weight=False, bias=False, norm="both", allow_zero_in_degree=True)
    whole = dgl.graph(tuple(torch.from_numpy(case.edges)), num_nodes=case.num_nodes)
    expected = x
    for _ in range(HOPS):
        expected = hop(whole, expected)

    def rank():
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(3))
        block, h = comm.local_graph("dgl"), comm.dispatch_features(x)
        for _ in range(HOPS):
            h = hop(block, dgcl.graph_allgather(h))
        return comm.collect(h, None)

    for found in dgcl.launch(rank, 3):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
