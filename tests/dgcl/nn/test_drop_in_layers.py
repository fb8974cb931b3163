"""Edge dropout and resumed runs on ranks, and what layers refuse."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dgcl
import dgcl.nn
from tests.support.awkward import CASES
from tests.support.layer_ranks import drawn

WIDTH = 4


def features(case):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(case.num_nodes, WIDTH, dtype=torch.float64, generator=generator)


def with_parameters(layer):
    return drawn(layer.double(), 4)


def test_what_is_refused():
    def rank():
        dgcl.build_comm_info(CASES[0].graph, "uniform")
        for call, words in (
            (lambda: dgcl.nn.BatchNorm("3"), r"num_features must be an integer >= 0 .got '3'"),
            (
                lambda: dgcl.nn.dropout(torch.ones(7, 2), ids=torch.arange(6)),
                "ids must be .7,. int64, one for each row of x",
            ),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                call()
        for call, words in (
            (lambda: dgcl.nn.GINConv(None), r"nn must be a torch.nn.Module .got NoneType"),
            (
                lambda: dgcl.nn.GCNConv(3, 3)(torch.ones(26, 3), 3),
                "comm must be a dgcl.Communicator, or None",
            ),
            (lambda: dgcl.nn.dropout([1.0]), r"x must be a torch tensor .got list"),
            (lambda: dgcl.nn.Dropout(seed=1.5), r"seed must be an integer .got 1.5"),
        ):
            with pytest.raises(TypeError, match=words):
                call()

    dgcl.launch(rank, 1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_edges_are_dropped_on_any_number_of_ranks(world_size):
    case = CASES[2]  # with edges that occur twice

    def rank(size):
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(size))
        drop = dgcl.nn.Dropout(0.4, seed=3)
        ids = comm.local_graph("csr").edge_ids
        scores = torch.ones(len(ids), 2)
        return ids, drop(scores, ids=ids), drop(scores, ids=ids)

    def in_order(results):
        both = torch.zeros(2, case.edges.shape[1], 2)
        for ids, first, second in results:
            both[0, ids], both[1, ids] = first, second
        return both

    found, alone = in_order(dgcl.launch(rank, world_size, world_size)), in_order(dgcl.launch(rank, 1, 1))
    assert found.equal(alone)
    assert not found[0].equal(found[1])
    assert 0.2 < (found == 0).double().mean() < 0.6
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}


class Attention(nn.Module):
    """A GAT layer with dropout of rows and of attention, after a linear layer."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.linear, self.scores, self.last = nn.Linear(WIDTH, 6), nn.Linear(6, 2), nn.Linear(12, 3)
        self.drop, self.drop_edges = dgcl.nn.Dropout(0.3), dgcl.nn.Dropout(0.3)

    def forward(self, x):
        rows = dgcl.graph_allgather(self.drop(self.linear(x)))
        shares = self.graph.softmax(self.graph.at_sources(self.scores(rows)))
        shares = self.drop_edges(shares, ids=self.graph.edge_ids)
        messages = self.graph.at_sources(rows).unsqueeze(1) * shares.unsqueeze(2)
        return self.last(self.graph.sum_edges(messages).flatten(1))


def run(world_size, steps, saved=None):
    """Some steps from a file's contents or from the beginning; the losses, and a file's contents."""
    case = CASES[0]

    def rank():
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(world_size))
        model = with_parameters(Attention(comm.local_graph("csr")))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        if saved is not None:
            state = torch.load(io.BytesIO(saved))
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            comm.load_state_dict(state["dgcl"])
        x, y = features(case)[comm.owned_ids], (comm.owned_ids % 3)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = dgcl.nn.loss(F.cross_entropy)(model(x), y)
            loss.backward()
            dgcl.nn.sync_gradients(model)
            optimizer.step()
            losses.append(loss.item())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dgcl": comm.state_dict()}
        file = io.BytesIO()
        torch.save(state, file)
        return losses, file.getvalue()

    return dgcl.launch(rank, world_size)[0]


def test_a_run_is_resumed_on_another_number_of_ranks():
    """Two steps on two ranks, two on three, two on one: the losses of six on one rank, dropout included."""
    expected, _ = run(1, 6)
    losses, saved = run(2, 2)
    for world_size in (3, 1):
        more, saved = run(world_size, 2, saved)
        losses += more
    assert losses == pytest.approx(expected, rel=1e-10)
