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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pyg_appnp(case):
    pyg = pytest.importorskip("torch_geometric.nn")
    from dgcl.distributed.degrees import gcn_norm

    x = torch.randn(case.num_nodes, 4, dtype=torch.float64)
    alpha = 0.2
    expected = pyg.APPNP(HOPS, alpha)(x, torch.from_numpy(case.edges))

    def rank():
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(3))
        g, own = comm.local_graph("pyg"), comm.dispatch_features(x)
        edge_index, weight = gcn_norm(g.edge_index, dtype=x.dtype)
        hop, h = pyg.LGConv(normalize=False), own
        for _ in range(HOPS):
            h = (1 - alpha) * hop(dgcl.graph_allgather(h), edge_index, weight)[: g.num_owned] + alpha * own
        return comm.collect(h, None)

    for found in dgcl.launch(rank, 3):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
