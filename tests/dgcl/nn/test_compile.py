"""A compiled model computes what the eager one does: one graph, dropout and sums over edges included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dgcl
import dgcl.nn
from tests.dgcl.awkward import CASES


class Model(nn.Module):
    """Attention between two exchanges, with dropout."""

    def __init__(self, graph) -> None:
        super().__init__()
        self.graph = graph
        self.first, self.second, self.scores = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)
        self.drop = dgcl.nn.Dropout(0.3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.first(self.graph.mean(dgcl.graph_allgather(x)))))
        rows = dgcl.graph_allgather(h)
        shares = self.graph.softmax(self.graph.at_sources(self.scores(rows).squeeze(1)))
        return self.second(self.graph.sum(rows, shares))


@pytest.mark.slow
def test_one_graph_with_the_numbers_of_the_eager_model() -> None:
    case = CASES[2]

    def rank(compiled: bool) -> list[Tensor]:
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(1))
        model = Model(comm.local_graph("csr")).double()
        run = torch.compile(model, fullgraph=True) if compiled else model
        x = torch.randn(case.num_nodes, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        found = []
        for _ in range(3):  # each with a mask of its own
            model.zero_grad()
            logits = run(x)
            logits.square().sum().backward()
            found += [logits.detach(), *(p.grad.clone() for p in model.parameters())]
        return found

    (expected,), (found,) = (dgcl.launch(rank, 1, compiled) for compiled in (False, True))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def compiled_layer(aggr: str) -> bool:
    """The layer's first call, which connects ranks, is a compiled one."""
    case = CASES[2]
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(2), edges="cover")
    conv = dgcl.nn.SAGEConv(4, 3, aggr=aggr)  # type: ignore[arg-type]
    x = comm.dispatch_features(torch.linspace(-1, 1, 4 * case.num_nodes).view(-1, 4))
    return torch.equal(torch.compile(conv, backend="eager")(x), conv(x))


@pytest.mark.slow
@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_layers_that_connect_ranks_in_a_compiled_call(aggr, rank_pool) -> None:
    assert all(rank_pool(2).run(compiled_layer, aggr))
