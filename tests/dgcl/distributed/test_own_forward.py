"""What a user writes in a forward of his own is right on ranks, or is said with the cure."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter

import dgcl
import dgcl.nn
from dgcl.errors import InexactWarning
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, WIDTH, graph
from tests.dgcl.distributed.test_pyg_zoo import check


class Tutorial(pyg.MessagePassing):
    """The layer that PyG's tutorial on message passing writes, sizes left out where they can be, in a method."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x, edge_index):
        return self.encode(x, edge_index)

    def encode(self, x, edge_index):
        edge_index, _ = add_self_loops(remove_self_loops(edge_index)[0])
        row, col = edge_index
        scale = degree(col, dtype=x.dtype).pow(-0.5)
        scale[scale == float("inf")] = 0
        return self.propagate(edge_index, x=self.lin(x), norm=scale[row] * scale[col])

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Own(nn.Module):
    """A forward of the user's, around a layer of PyG."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GraphConv(WIDTH, 4)
        self.table = nn.Embedding(NUM_NODES, WIDTH)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.series = nn.GRU(4, 4, batch_first=True)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Ids(Own):
    """Numbers of rows that are made here, and those that torch is not seen to make."""

    def forward(self, x, edge_index):
        given = self.table(torch.tensor(range(len(x)))).index_select(0, torch.arange(len(x)))
        return self.conv(x + self.table(torch.arange(x.size(0))) * given, edge_index)


class Norm(Own):
    def forward(self, x, edge_index):
        return self.conv(x, *gcn_norm(edge_index))


class Differentiated(Own):
    """Forces of an energy, of which a rank needs its own part alone."""

    def forward(self, x, edge_index):
        energy = self.conv(x.requires_grad_(), edge_index).tanh().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


class Scattered(Own):
    """No layer: rows, and a table of all vertices, are gathered and summed by hand, in a method that scripts call."""

    def encode(self, x, edge_index):
        row, col = edge_index.T[edge_index[0] != edge_index[1]].t()
        both = torch.cat([*x[edge_index], self.table(edge_index[0])], 1)
        sums = (
            scatter(x.index_select(0, row), col, 0, len(x)) + scatter(both, edge_index[1], 0, len(x))[:, 3:7]
        )
        rows = torch.gather(index=row[:, None].expand(-1, WIDTH), input=x, dim=0) * functional.embedding(
            row.int(), x
        )
        sums = sums.index_add(0, col, rows * torch.take_along_dim(input=x, indices=row[:, None], dim=0))
        return sums + x[row].new_zeros(len(x), 1).index_add(0, col, x.t()[:1, row].t())

    def forward(self, x, edge_index):
        return self.encode(x, edge_index)


class Part(nn.Module):
    """A module that scripts call by itself."""

    def __init__(self):
        super().__init__()
        self.encode = Scattered()

    def forward(self, x, edge_index):
        return self.encode(x, edge_index)


class AlongOthers(Own):
    """Dimensions that are not that of vertices are nobody's business."""

    def forward(self, x, edge_index):
        rows = self.conv(x, edge_index).softmax(-1)
        times = rows.unsqueeze(1).expand(-1, 3, -1)
        rows = rows + self.attention(times, times, times)[0].sum(1) + self.table(torch.arange(2)).sum(0)
        rows = rows + functional.scaled_dot_product_attention(query=times, key=times, value=times).sum(1)
        rows = rows + self.series(times)[0].sum(1) + self.series(times.flatten(1)[:, None, :4])[1][0]
        return functional.normalize(rows.sort().values @ torch.ones(4, 4, dtype=x.dtype))


@pytest.mark.parametrize("kind", [Tutorial, Ids, Norm, Differentiated, Scattered, Part, AlongOthers])
def test_it_is_that_of_one_device(kind):
    torch.manual_seed(0)
    model = kind().double()

    def rank() -> tuple[Tensor, list[Tensor | None]]:
        data = dgcl.dispatch(graph(), topology="uniform", part=torch.arange(NUM_NODES) % 5 % 3)
        own = dgcl.distribute(copy.deepcopy(model))
        assert own.eval()(data.x, data.edge_index).shape == own.train()(data.x, data.edge_index).shape
        out = getattr(own, "encode", own)(data.x.requires_grad_(), data.edge_index)
        dgcl.nn.loss(functional.mse_loss)(out, out.detach().cos()).backward()
        dgcl.nn.sync_gradients(own)
        return dgcl.collect(out.detach()), dgcl.collect(data.x.grad), [p.grad for p in own.parameters()]

    whole = graph()
    expected = model(whole.x.requires_grad_(), whole.edge_index)
    functional.mse_loss(expected, expected.detach().cos()).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", InexactWarning)
        out, x_grad, gradients = dgcl.launch(rank, 3)[0]
    check([out, x_grad, *gradients], [expected, whole.x.grad, *(p.grad for p in model.parameters())])


#: What a forward makes of its rows, edges and model, and what is said of it.
WARNED: dict[str, Any] = {
    "normalize": lambda x, edges: functional.normalize(x, dim=0),
    "instance_norm": lambda x, edges: functional.instance_norm(x.t()[None]),
    "norm": lambda x, edges: x / x.norm(dim=0),
    "batch_norm": lambda x, edges: functional.batch_norm(x, None, None, training=True),
    "multi_head_attention_forward": lambda x, edges: nn.MultiheadAttention(4, 2).double()(x, x, x)[0],
    "scaled_dot_product_attention": lambda x, edges: functional.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x, edges: x[edges[0]].softmax(0),
    "lstm": lambda x, edges: nn.LSTM(4, 4).double()(x)[0],
    "gru": lambda x, edges: nn.GRU(4, 4, batch_first=True).double()(x[None])[0],
    "the numbers of": lambda x, edges: x * torch.arange(len(x)).double()[:, None],
    "numbers of": lambda x, edges: x + torch.eye(len(x), 4, dtype=x.dtype),
    "divides by": lambda x, edges: x / len(x),
    "flip": lambda x, edges: x.flip(0),
    "rows 0": lambda x, edges: x - x[0],
    "products with all rows": lambda x, edges: (x @ x.t()).sum(1, keepdim=True),
}
REFUSED: dict[str, Any] = {
    "scatter_add_ by the sources": lambda x, edges: x * degree(edges[0], len(x)).view(-1, 1),
    "__setitem__ by the sources": lambda x, edges: x.clone().__setitem__(edges[0], 1.0),
    "cat of the sources of edges": lambda x, edges: x[torch.cat([edges[1], edges[0]])],
    "lt of the sources": lambda x, edges: edges[0] < edges[1],
    "mul of the sources": lambda x, edges: edges[0] * 2,
    "sparse_coo_tensor of the ends": lambda x, edges: torch.sparse_coo_tensor(
        edges, x.new_ones(edges.shape[1])
    ),
    "rows that sources of edges index": lambda x, edges: x.new_ones(1)[edges[0]],
}


@pytest.mark.parametrize("words, act", [*WARNED.items(), *REFUSED.items()])
def test_it_is_said(words, act):
    def forward(self, x, edge_index):
        return act(self.conv(x, edge_index), edge_index)

    kind = type("Kind", (Own,), {"forward": forward})

    def rank():
        data = dgcl.dispatch(graph(), topology="uniform")
        own = dgcl.distribute(kind().double()).eval()
        if words in REFUSED:
            with pytest.raises(ValueError, match=words):
                own(data.x, data.edge_index)
        else:
            own(data.x, data.edge_index)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dgcl.launch(rank, 2)
    said = [str(each.message) for each in caught if issubclass(each.category, InexactWarning)]
    assert len(said) == (words in WARNED), said
    assert all(words in each for each in said)


def test_what_cannot_be_trained_is_refused_when_it_is():
    def rank():
        data = dgcl.dispatch(graph(), topology="uniform")
        own = dgcl.distribute(nn.Sequential(nn.Linear(WIDTH, 4), nn.AlphaDropout(0.5)).double().eval())
        assert own(data.x).shape == (len(data.x), 4)
        with pytest.raises(
            ValueError, match=r"1 \(torch.nn.AlphaDropout\) draws other.*; take torch.nn.Dropout"
        ):
            own.train()(data.x)

    dgcl.launch(rank, 2)
