"""dgcl.frameworks.pyg: unmodified PyG layers on a rank's edges give the rows they give on the whole graph."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dgcl
from dgcl.distributed.degrees import gcn_norm
from dgcl.frameworks import local_graph
from tests.dgcl.awkward import CASES, Case
from tests.samples import named

pyg = pytest.importorskip("torch_geometric.nn")

PAIR_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "SAGEConv-mean": lambda: pyg.SAGEConv(5, 3),
    "SAGEConv-project": lambda: pyg.SAGEConv(5, 3, project=True, normalize=True),
    "GINConv": lambda: pyg.GINConv(nn.Linear(5, 3), train_eps=True),
    "GATConv": lambda: pyg.GATConv(5, 3, heads=2),
    "GATConv-no-loops": lambda: pyg.GATConv(5, 3, heads=2, add_self_loops=False),
    "GraphConv": lambda: pyg.GraphConv(5, 3),
    "TransformerConv": lambda: pyg.TransformerConv(5, 3, heads=2),
    "SimpleConv": lambda: pyg.SimpleConv(),
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.mark.sample(8)
@pytest.mark.parametrize("layer", PAIR_LAYERS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_pair_layers_are_those_of_the_whole_graph(case, layer, world_size):
    torch.manual_seed(0)
    conv = PAIR_LAYERS[layer]().double()
    x = torch.randn(case.num_nodes, 5, dtype=torch.float64)
    expected = conv(x, torch.from_numpy(case.edges))
    for local in case.local_graphs(world_size):
        graph = local_graph("pyg", local)
        rows = conv(graph.pair(x[torch.from_numpy(local.local_ids)]), graph.edge_index)
        torch.testing.assert_close(rows, expected[torch.from_numpy(local.owned_ids)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", ["SAGEConv-mean", "GINConv", "GATConv"])
def test_layers_may_be_told_the_size(case, layer):
    conv = PAIR_LAYERS[layer]().double()
    for local in case.local_graphs(2):
        graph = local_graph("pyg", local)
        pair = graph.pair(torch.randn(local.num_local, 5, dtype=torch.float64))
        assert conv(pair, graph.edge_index, size=graph.size).equal(conv(pair, graph.edge_index))


def test_edge_weights_in_local_order(case):
    torch.manual_seed(0)
    conv = pyg.GraphConv(5, 3).double()
    x = torch.randn(case.num_nodes, 5, dtype=torch.float64)
    weight = torch.rand(case.edges.shape[1], dtype=torch.float64)
    expected = conv(x, torch.from_numpy(case.edges), weight)
    for local in case.local_graphs(3):
        graph = local_graph("pyg", local)
        pair = graph.pair(x[torch.from_numpy(local.local_ids)])
        rows = conv(pair, graph.edge_index, weight[graph.edge_ids])
        torch.testing.assert_close(rows, expected[torch.from_numpy(local.owned_ids)], rtol=1e-12, atol=1e-12)


def test_tensors(case):
    for local in case.local_graphs(3):
        graph = local_graph("pyg", local, device="cpu")
        assert graph.size == (graph.num_local, graph.num_owned) == (local.num_local, local.num_owned)
        assert graph.edge_index.dtype == torch.int64
        edges = np.stack(
            [local.local_ids[graph.edge_index[0].numpy()], local.owned_ids[graph.edge_index[1].numpy()]]
        )
        np.testing.assert_array_equal(edges, case.edges[:, graph.edge_ids.numpy()])
        assert graph.in_degrees.tolist() == np.bincount(case.edges[1], minlength=26)[local.owned_ids].tolist()
        assert (
            graph.out_degrees.tolist() == np.bincount(case.edges[0], minlength=26)[local.local_ids].tolist()
        )


WEIGHTS = ["unweighted", "weighted"]


def weights_of(case: Case, kind: str) -> Tensor | None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(case.edges.shape[1], dtype=torch.float64, generator=generator) + 0.1
    return None if kind == "unweighted" else weight


def distinct_loops(case: Case) -> None:
    loops = case.edges[0][case.edges[0] == case.edges[1]]
    if len(np.unique(loops)) < len(loops):
        pytest.skip("PyG keeps one of several weights of a self loop, and does not say which")


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", WEIGHTS)
@named(
    "options",
    {"plain": {}, "improved": {"improved": True}, "no-loops": {"add_self_loops": False}},
)
def test_gcn_norm_is_that_of_the_whole_graph(case, kind, options):
    weight = weights_of(case, kind)
    if weight is not None:
        distinct_loops(case)
    edges, expected = pyg.conv.gcn_conv.gcn_norm(
        torch.from_numpy(case.edges), weight, case.num_nodes, dtype=torch.float64, **options
    )

    def rank() -> list[tuple[int, int, float]]:
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(comm_size), wire=torch.bfloat16)
        graph = comm.local_graph("pyg")
        local_weight = None if weight is None else comm.dispatch_edges(weight)
        edge_index, weights = gcn_norm(graph.edge_index, local_weight, dtype=torch.float64, **options)
        ids = torch.cat([comm.owned_ids, comm.halo_ids])
        return list(zip(*ids[edge_index].tolist(), weights.tolist(), strict=True))

    comm_size = 3
    found = sorted(edge for part in dgcl.launch(rank, comm_size) for edge in part)
    wanted = sorted(zip(*edges.tolist(), expected.tolist(), strict=True))
    assert [edge[:2] for edge in found] == [edge[:2] for edge in wanted]
    np.testing.assert_allclose([edge[2] for edge in found], [edge[2] for edge in wanted], rtol=1e-13)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_distributed_gcn_and_its_gradients(case, kind):
    if kind == "weighted":
        distinct_loops(case)
    torch.manual_seed(0)
    conv = pyg.GCNConv(5, 3).double()
    with torch.no_grad():
        conv.bias.copy_(torch.arange(3.0))
    state = conv.state_dict()
    x = torch.randn(case.num_nodes, 5, dtype=torch.float64)
    weight = weights_of(case, kind)
    x_alone = x.clone().requires_grad_()
    weight_alone = None if weight is None else weight.clone().requires_grad_()
    expected = conv(x_alone, torch.from_numpy(case.edges), weight_alone)
    expected.square().sum().backward()

    def rank():
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4))
        own = pyg.GCNConv(5, 3).double()
        own.load_state_dict(state)
        graph = comm.local_graph("pyg")
        x_owned = comm.dispatch_features(x).requires_grad_()
        weight_owned = None if weight is None else comm.dispatch_edges(weight).requires_grad_()
        out = dgcl.distribute(own)(x_owned, graph.edge_index, weight_owned)
        out.square().sum().backward()
        dgcl.nn.sync_gradients(own)
        weight_grad = None if weight_owned is None else weight_owned.grad
        return (
            comm.collect(out, None),
            comm.collect(x_owned.grad, None),
            own.lin.weight.grad,
            weight_grad,
            graph.edge_ids,
        )

    for out, x_grad, lin_grad, weight_grad, edge_ids in dgcl.launch(rank, 4):
        torch.testing.assert_close(out, expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(x_grad, x_alone.grad, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lin_grad, conv.lin.weight.grad, rtol=1e-12, atol=1e-12)
        if weight_alone is not None:
            torch.testing.assert_close(weight_grad, weight_alone.grad[edge_ids], rtol=1e-10, atol=1e-10)


@named(
    "call, message",
    {
        "pair": (lambda graph: graph.pair(torch.zeros(2, 3)), r"x_all must hold the \d+ rows"),
    },
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(local_graph("pyg", CASES[0].local_graphs(2)[0]))
