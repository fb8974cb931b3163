"""On communicators whose ranks lack in-edges what is no sum of rows is refused by name; sums are in the zoos."""

import pytest
from torch import nn

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
from tests.dgcl.distributed.pyg_zoo import WIDTH, graph


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
