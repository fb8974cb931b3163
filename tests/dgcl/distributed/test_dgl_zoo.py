"""Each layer of DGL gives on ranks what it gives on one device, or is refused by name."""

import copy

import pytest
import torch

import dgcl
import dgcl.nn
from tests.dgcl.distributed import dgl_zoo
from tests.dgcl.distributed.dgl_zoo import NUM_NODES, REFUSED, ZOO, dgl, graph
from tests.dgcl.distributed.test_pyg_zoo import ROOT, check_ranks, seeded, table


@pytest.fixture(autouse=True)
def double():
    """Some layers make weights of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


SUMS = [
    (name, s)
    for name in ("GINConv", "GraphConv", "SAGEConv gcn")
    for s in ("cover", "grid:1,1,3", "windows:2")
]


@pytest.mark.sample(3, whole=True)
@pytest.mark.parametrize(
    "name, strategy", [*((name, "halo") for name in sorted(ZOO.keys() - REFUSED)), *SUMS]
)
def test_ranks_give_what_one_device_gives(name, strategy):
    check_ranks(dgl_zoo, name, strategy)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_exact_is_refused_by_name(name):
    def refused():
        dgcl.build_comm_info(graph(), "uniform", part=torch.arange(NUM_NODES) % 3)
        with pytest.raises(ValueError, match=r"cannot be distributed as it is:\n.*\(dgl\.nn\.\w+\) .*; "):
            dgcl.distribute(ZOO[name][0]())

    dgcl.launch(refused, 3)


def test_what_a_graph_of_a_rank_refuses():
    def rank():
        g = dgcl.dispatch(graph(), topology="uniform", part=torch.arange(NUM_NODES) % 2)
        rows = torch.ones(g.num_nodes() + 1, 2)
        with pytest.raises(dgl.DGLError, match=r"features to match number of nodes"):
            g.ndata["h"] = rows
        with pytest.raises(dgl.DGLError) as raised:
            dgcl.distribute(dgl.nn.GINConv())(graph(), g.ndata["x"])
        assert "dgcl.dispatch, and so do other graphs" in raised.value.__notes__[0]
        with pytest.raises(dgl.DGLError, match="edges must be all edges on a rank's graph"):
            g.apply_edges(lambda edges: {}, edges=torch.arange(2))
        with pytest.raises(AttributeError, match="a rank's graph has no 'batch_num_nodes'"):
            dgl.sum_nodes(g, "x")
        with pytest.raises(TypeError, match="must read rows of vertices by name"):
            g.apply_edges(lambda edges: dict(edges.src))
        back, whole = dgcl.collect(g, None), graph()
        assert torch.equal(torch.stack(back.edges()), torch.stack(whole.edges()))
        for rows, expected in ((back.edata, whole.edata), (back.ndata, whole.ndata)):
            assert all(torch.equal(rows[name], expected[name]) for name in expected)

    dgcl.launch(rank, 2)


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "distribute.md").read_text().splitlines()
    assert all(row in page for row in table("DGL", ZOO, REFUSED))


def test_attention_drops_by_edge_and_sums_over_out_edges_are_refused():
    columns = graph().ndata["x"].shape[1]
    attention = seeded(lambda: dgl.nn.GATConv(columns, 4, 2, 0.3, 0.5, allow_zero_in_degree=True))

    def run() -> torch.Tensor | None:
        g = dgcl.dispatch(graph(), topology="uniform")
        module, x = dgcl.distribute(copy.deepcopy(attention)), g.ndata["x"]
        with pytest.raises(ValueError, match=r"takes edge_softmax with norm_by=.dst."):
            dgl.nn.functional.edge_softmax(g, x.new_ones(g.num_edges(), 1), norm_by="src")
        return dgcl.collect(module(g, x).detach())

    one, several = (dgcl.launch(run, ranks)[0] for ranks in (1, 3))
    assert one is not None
    torch.testing.assert_close(several, one, rtol=1e-10, atol=1e-10)
