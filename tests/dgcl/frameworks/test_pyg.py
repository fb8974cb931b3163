"""dgcl.frameworks.pyg: unmodified PyG layers on a rank's edges give the rows they give on the whole graph."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dgcl
from dgcl.distributed.degrees import gcn_norm
from dgcl.frameworks import local_graph
from tests.support.awkward import CASES, Case
from tests.support.samples import named

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


def test_tensors(case):
    for local in case.local_graphs(3):
        graph = local_graph("pyg", local, device="cpu")
        assert graph.size == (graph.num_local, graph.num_owned) == (local.num_local, local.num_owned)
        assert graph.edge_index.dtype == torch.int64
        edges = np.stack(
            [local.local_ids[graph.edge_index[0].numpy()], local.owned_ids[graph.edge_index[1].numpy()]]
        )
        np.testing.assert_array_equal(edges, case.edges[:, graph.edge_ids.numpy()])


WEIGHTS = ["unweighted", "weighted"]


def weights_of(case: Case, kind: str) -> Tensor | None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(case.edges.shape[1], dtype=torch.float64, generator=generator) + 0.1
    return None if kind == "unweighted" else weight


def distinct_loops(case: Case):
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


def test_refuses():
    with pytest.raises(ValueError, match=r"x_all must hold the \d+ rows"):
        local_graph("pyg", CASES[0].local_graphs(2)[0]).pair(torch.zeros(2, 3))
