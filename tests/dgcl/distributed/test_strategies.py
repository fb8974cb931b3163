"""A distributed model whose layers sum runs on communicators of every strategy; others are refused by name."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
import dgcl.nn
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, WIDTH, graph


class Sums(nn.Module):
    """Layers of each kind, and a model of several; sums weighted by edges, and learned weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gcn = pyg.GCNConv(WIDTH, 5)
        self.sage = pyg.GraphSAGE(5, 6, 2, project=True)
        self.gin = pyg.GINConv(nn.Linear(6, 5), train_eps=True)
        self.weighted = pyg.GraphConv(5, 4, aggr="mean")
        self.hops, self.arma = pyg.TAGConv(4, 3, K=2), pyg.ARMAConv(3, 3, num_stacks=2)
        self.scale = nn.Linear(1, 1)

    def forward(self, x, edge_index, weight):
        x = self.gin(self.sage(self.gcn(x, edge_index).tanh(), edge_index), edge_index)
        weight = self.scale(weight.view(-1, 1)).view(-1)
        return self.arma(self.hops(self.weighted(x, edge_index, weight), edge_index), edge_index)


def step(model, data, sync):
    out = model(data.x.requires_grad_(), data.edge_index, data.weight)
    (out * torch.arange(out.shape[1]).cos()).sum().backward()
    sync(model)
    return [out.detach(), data.x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.filterwarnings("ignore::dgcl.InexactWarning")
@pytest.mark.parametrize(
    "strategy", ["halo", "cover", "tail", "windows:3", "grid:1,2,2", "grid:2,2,1", "grid:2,1,2"]
)
def test_sums_are_those_of_one_device(strategy):
    torch.manual_seed(0)
    model = Sums().double()

    def rank():
        data = dgcl.dispatch(
            graph(), topology="uniform", part=torch.arange(NUM_NODES) % 5 % 4, strategy=strategy
        )
        comm = dgcl.current_communicator()
        if comm.edges != "head":
            assert torch.equal(data.edge_index, graph().edge_index[:, comm.local.edge_ids])
        assert (comm.windows is not None) == ("windows" in strategy)
        out, x_grad, *rest = step(dgcl.distribute(copy.deepcopy(model)), data, dgcl.nn.sync_gradients)
        return [dgcl.collect(out), dgcl.collect(x_grad), *rest]

    for one, other in zip(dgcl.launch(rank, 4)[0], step(model, graph(), lambda _: None), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


class Rows(nn.Module):
    def forward(self, x, edge_index):
        return x[edge_index[0]]


REFUSED = {
    "GATConv needs all in-edges": (lambda: pyg.GATConv(WIDTH, 2), lambda data: [data.edge_index]),
    "get_laplacian needs all in-edges": (lambda: pyg.ChebConv(WIDTH, 2, 2), lambda data: [data.edge_index]),
    "EGConv needs all in-edges": (lambda: pyg.EGConv(WIDTH, 8), lambda data: [data.edge_index]),
    "gcn_norm takes the edges": (lambda: pyg.GCNConv(WIDTH, 2), lambda data: [data.edge_index, data.weight]),
    "edge_index must be that of dgcl.dispatch": (
        lambda: pyg.SAGEConv(WIDTH, 2), lambda data: [data.edge_index[:, 1:]]
    ),
    "__getitem__ by the sources of edges needs": (Rows, lambda data: [data.edge_index]),
    "scatter_add_ by the heads of edges needs": (lambda: pyg.MFConv(WIDTH, 2), lambda data: [data.edge_index]),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_sum_is_refused_by_name(message):
    make, rest = REFUSED[message]

    def rank():
        data = dgcl.dispatch(graph(), topology="uniform", strategy="cover")
        with pytest.raises(ValueError, match=message):
            dgcl.distribute(make().double())(data.x, *rest(data))

    dgcl.launch(rank, 2)
