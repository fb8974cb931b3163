"""dgcl.frameworks.dgl_block: unmodified dgl.nn layers on a block give the rows of the whole graph."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from dgcl.frameworks import local_graph
from tests.support.awkward import CASES, Case
from tests.support.samples import named

dgl = pytest.importorskip("dgl")


class WithEdges(nn.Module):
    """A layer that takes rows of edges, which are those of their ends here."""

    def __init__(self, conv: nn.Module, width: int):
        super().__init__()
        self.conv, self.width = conv, width

    def forward(self, graph, x):
        return self.conv(graph, x, x[graph.edges()[0]][:, : self.width])


class WeightedMin(nn.Module):
    """A user's own aggregation: the least of weighted neighbours, and of the edges' own rows."""

    def forward(self, graph, x):
        fn = dgl.function
        with graph.local_scope():
            graph.srcdata["x"] = x
            graph.edata["w"] = x[graph.edges()[0]][:, :1]
            graph.update_all(fn.u_mul_e("x", "w", "m"), fn.min("m", "y"), lambda n: {"y": n.data["y"] + 1})
            graph.update_all(fn.copy_e("w", "m"), fn.max("m", "z"))
            return graph.dstdata["y"] + graph.dstdata["z"]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GraphConv-both": lambda: dgl.nn.GraphConv(5, 3, norm="both", allow_zero_in_degree=True),
    "GraphConv-right": lambda: dgl.nn.GraphConv(5, 3, norm="right", allow_zero_in_degree=True),
    "GraphConv-left": lambda: dgl.nn.GraphConv(5, 3, norm="left", allow_zero_in_degree=True),
    "SAGEConv-mean": lambda: dgl.nn.SAGEConv(5, 3, "mean"),
    "SAGEConv-gcn": lambda: dgl.nn.SAGEConv(5, 3, "gcn"),
    "SAGEConv-pool": lambda: dgl.nn.SAGEConv(5, 3, "pool"),
    "GINConv-sum": lambda: dgl.nn.GINConv(nn.Linear(5, 3), "sum", learn_eps=True),
    "GINConv-max": lambda: dgl.nn.GINConv(nn.Linear(5, 3), "max"),
    "GATConv": lambda: dgl.nn.GATConv(5, 3, 2, allow_zero_in_degree=True),
    "GATConv-residual": lambda: dgl.nn.GATConv(5, 3, 2, residual=True, allow_zero_in_degree=True),
    "EdgeConv": lambda: dgl.nn.EdgeConv(5, 3, allow_zero_in_degree=True),
    "NNConv-max": lambda: WithEdges(dgl.nn.NNConv(5, 3, nn.Linear(1, 15), "max"), 1),
    "GMMConv-max": lambda: WithEdges(dgl.nn.GMMConv(5, 3, 2, 2, "max", allow_zero_in_degree=True), 2),
    "weighted-min": lambda: WeightedMin(),
}


NEED_VERTICES = ("GATConv-residual",)  # DGL reshapes to (0, -1, 3) there, on any block without destinations


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def whole(case: Case):
    return dgl.graph(tuple(torch.from_numpy(case.edges)), num_nodes=case.num_nodes)


@pytest.mark.sample(8)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_layers_are_those_of_the_whole_graph(case, layer, world_size):
    torch.manual_seed(0)
    conv = LAYERS[layer]().double()
    x = torch.randn(case.num_nodes, 5, dtype=torch.float64)
    x.requires_grad_()
    # Two more vertices with an edge between them: DGL's own gradients of maxima are wrong on a graph without edges.
    edges = np.concatenate([case.edges, [[case.num_nodes], [case.num_nodes + 1]]], axis=1)
    beside = dgl.graph(tuple(torch.from_numpy(edges)), num_nodes=case.num_nodes + 2)
    expected = conv(beside, torch.cat([x, torch.randn(2, 5, dtype=torch.float64)]))[: case.num_nodes]
    upstream = torch.rand_like(expected)
    leaves = [x, *conv.parameters()]
    gradients = torch.autograd.grad(expected, leaves, upstream, allow_unused=True)
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    for local in case.local_graphs(world_size):
        if layer in NEED_VERTICES and local.num_owned == 0:
            continue
        rows = conv(local_graph("dgl", local), x[torch.from_numpy(local.local_ids)])
        owned = torch.from_numpy(local.owned_ids)
        torch.testing.assert_close(rows, expected[owned], rtol=1e-12, atol=1e-12)
        for total, part in zip(
            sums, torch.autograd.grad(rows, leaves, upstream[owned], allow_unused=True), strict=True
        ):
            total += 0 if part is None else part
    for total, gradient in zip(sums, gradients, strict=True):
        whole_gradient = torch.zeros_like(total) if gradient is None else gradient
        torch.testing.assert_close(total, whole_gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)  # DGL has other kernels for each
def test_edge_weights_in_the_order_of_the_block(case, dtype):
    torch.manual_seed(0)
    conv = dgl.nn.GraphConv(5, 3, norm="both", allow_zero_in_degree=True).to(dtype)
    x = torch.randn(case.num_nodes, 5, dtype=dtype)
    weight = torch.rand(case.edges.shape[1], dtype=dtype)
    expected = conv(whole(case), x, edge_weight=weight)
    for local in case.local_graphs(3):
        block = local_graph("dgl", local)
        rows = conv(block, x[block.srcdata[dgl.NID]], edge_weight=weight[block.edata[dgl.EID]])
        torch.testing.assert_close(rows, expected[block.dstdata[dgl.NID]])


WAYS = {
    "itself": lambda block: block,
    "to-torch-device": lambda block: block.int().to(torch.device("cpu")),
    "deepcopy": copy.deepcopy,
    "pickle": lambda block: pickle.loads(pickle.dumps(block)),
    "etype": lambda block: block["_E"],
    "all-of-it": lambda block: block.int().clone().formats("csc").local_var(),
}


@pytest.mark.parametrize("way", WAYS)
def test_degrees_survive(way):
    case = CASES[1]
    full = whole(case)
    for local in case.local_graphs(3):
        block = WAYS[way](local_graph("dgl", local))
        with block.local_scope():
            block.srcdata["h"] = torch.ones(local.num_local, 1)
            for degrees, expected, ids in (
                (block.out_degrees(), full.out_degrees(), local.local_ids),
                (block.in_degrees(), full.in_degrees(), local.owned_ids),
            ):
                assert degrees.tolist() == expected[ids].tolist()
                assert degrees.dtype == block.idtype
                assert degrees.device == block.device


def test_degrees_of_some_vertices():
    local = CASES[0].local_graphs(2)[0]
    block = local_graph("dgl", local)
    some = [3, 0, local.num_local - 1]
    assert block.out_degrees(some).tolist() == local.out_degrees[some].tolist()
    assert str(block.in_degrees(3)) == str(local.in_degrees[3])  # an integer, no tensor
    assert block.in_degrees(etype="_E").tolist() == local.in_degrees[: local.num_owned].tolist()


def test_degrees_of_no_vertex_are_refused():
    block = local_graph("dgl", CASES[0].local_graphs(2)[0])
    with pytest.raises(IndexError, match="out of range"):
        block.out_degrees(-1)


@named(
    "change, message",
    {
        "etype": (lambda block: block.in_degrees(etype="no"), "does not exist"),
        "etype of sources": (lambda block: block.out_degrees(etype="no"), "does not exist"),
        "add_edges": (lambda block: block.add_edges([0], [0]), "cannot gain or lose"),
        "add_nodes": (lambda block: block.add_nodes(1), "cannot gain or lose"),
        "add_self_loop": (dgl.add_self_loop, "cannot gain or lose"),
    },
)
def test_refuses(change, message):
    with pytest.raises(dgl.DGLError, match=message):
        change(local_graph("dgl", CASES[0].local_graphs(2)[0]))


@pytest.mark.parametrize("layer", ["GraphConv-right", "SAGEConv-mean", "GINConv-sum", "GATConv"])
def test_rows_that_were_not_exchanged_are_refused(layer):
    local = CASES[1].local_graphs(3)[0]
    assert local.num_owned < local.num_local
    with pytest.raises(dgl.DGLError, match=r"\[owned \| halo\], which dgcl\.graph_allgather returns"):
        LAYERS[layer]()(local_graph("dgl", local), torch.ones(local.num_owned, 5))
