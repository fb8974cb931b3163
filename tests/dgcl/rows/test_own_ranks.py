"""What each rank gives of its own: rows of graphs that nobody holds, leaves, models that look at one rank."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg

import dgcl
from tests.dgcl.rows.programs import WIDTH, graph
from tests.support.rows_harness import differences, doubles, plain, seeded


def test_rows_of_a_local_build():
    """A communicator that each rank made of its own edges, and one that was rewired from it."""

    def rank():
        dgcl.init()
        data, me = graph(), dgcl.rank()
        mine = torch.arange(me, data.num_nodes, 3)
        edges = data.edge_index[:, data.edge_index[1] % 3 == me]
        comm = dgcl.build_from_local(mine, tuple(edges))
        out = []
        for _ in range(2):
            x = dgcl.as_rows(data.x[mine], comm)
            model = dgcl.distribute(copy.deepcopy(layer), comm)
            h = model(x, dgcl.as_rows(comm.local_graph("pyg").edge_index, comm))
            h.square().mean().backward()
            out.append([h, model.lin_l.weight.grad])
            comm = comm.rewire(tuple(edges.flip(1)))
        return {"out": plain(out)}

    with doubles():
        layer, data = seeded(pyg.SAGEConv, WIDTH, 3), graph()
        alone = copy.deepcopy(layer)
        h = alone(data.x, data.edge_index)
        h.square().mean().backward()
        expected = {"out": plain([[h, alone.lin_l.weight.grad]] * 2)}
        assert differences(dgcl.launch(rank, 3), expected) == []


def test_a_sparse_matrix_stands_for_edges():
    transform = pytest.importorskip("torch_geometric.transforms").ToSparseTensor(layout=torch.sparse_csr)

    def run(layer, data):
        h = layer(data.x, data.adj_t)
        h.square().mean().backward()
        return plain([h, layer.lin.weight.grad])

    with doubles():
        layer, data = seeded(pyg.GCNConv, WIDTH, 3), graph()
        data.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
        data = transform(data)
        expected = {"out": run(copy.deepcopy(layer), data)}

        def rank():
            own = dgcl.dispatch(data)
            return {"out": run(dgcl.distribute(copy.deepcopy(layer)), own)}

        assert differences(dgcl.launch(rank, 3), expected) == []


class OfOneRank(torch.nn.Module):
    def forward(self, x):
        return dgcl.local(x).mean(0)


def test_the_first_call_is_compared_with_one_device():
    def rank(check):
        x = dgcl.dispatch(graph()).x
        model = dgcl.distribute(OfOneRank().eval(), check=check)
        model(x)
        model(x)

    with pytest.raises(AssertionError, match="OfOneRank does not give on ranks what it gives on one device"):
        dgcl.launch(rank, 2, None)
    dgcl.launch(rank, 2, False)


class OfASet(torch.nn.Module):
    """Its results are in an order that each process draws, as are the words of a set."""

    def forward(self, x):
        names = ["a", "bc"][:: 1 - 2 * dgcl.rank()]
        return {name: x[:, : len(name)] for name in names}


def test_results_in_another_order_on_each_rank_are_compared_by_name():
    def rank():
        x = dgcl.dispatch(graph()).x
        return plain(dgcl.distribute(OfASet().eval())(x)["bc"])

    for result in dgcl.launch(rank, 2):
        torch.testing.assert_close(result, graph().x[:, :2])


def test_parameters_that_ranks_made_for_themselves_are_named():
    def rank():
        data = dgcl.dispatch(graph())
        own = torch.nn.Linear(WIDTH, 1)
        with torch.no_grad():
            own.weight.fill_(dgcl.rank())
        own(data.x).sum().backward()

    with pytest.raises(
        dgcl.DisagreementError, match=r"a leaf of shape \(1, 6\) is not the same on all ranks"
    ):
        dgcl.launch(rank, 2)


def test_a_model_is_loaded_where_there_are_no_ranks():
    def rank():
        dgcl.dispatch(graph())
        return pickle.dumps(dgcl.distribute(copy.deepcopy(model)))

    model, data = pyg.GCN(WIDTH, 4, 2, 3), graph()
    loaded = pickle.loads(dgcl.launch(rank, 2)[1])  # of rank 1, with the parameters of rank 0
    assert torch.equal(loaded(data.x, data.edge_index), model(data.x, data.edge_index))


def test_a_line_of_one_rank_says_what_to_do():
    def rank():
        data = dgcl.dispatch(graph())
        if dgcl.rank() == 0:
            data.x.mean()
        return data.x.sum()

    with pytest.raises(dgcl.CommError) as raised:
        dgcl.launch(rank, 2)
    assert any("move it out of if dgcl.rank() == 0" in note for note in raised.value.__notes__)


def test_distribute_wants_rows():
    def rank():
        dgcl.build_comm_info(graph())
        with pytest.raises(ValueError, match=r"distribute takes the data of dgcl\.dispatch"):
            dgcl.distribute(torch.nn.Linear(1, 1))

    dgcl.launch(rank, 2)
