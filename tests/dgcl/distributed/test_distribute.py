"""A distributed model survives what models go through, and what would be wrong in it is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
import dgcl.nn
from dgcl.rows.edge_sets import EdgeSet
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, WIDTH, graph
from tests.dgcl.distributed.test_pyg_zoo import check

PART = torch.arange(NUM_NODES) % 5 % 3


class Model(nn.Module):
    """Dropout as a function and as a module, attention that drops, layers of several kinds."""

    def __init__(self, p: float = 0.0, width: int = WIDTH):
        super().__init__()
        self.p = p
        self.first = pyg.GATConv(width, 4, heads=2, dropout=p)
        self.second = pyg.GCNConv(8, 4)
        self.norm, self.drop = pyg.BatchNorm(8), nn.Dropout(p)

    def block(self, x, edge_index):
        return functional.dropout(self.norm(self.first(x, edge_index)).relu(), self.p, self.training)

    def forward(self, x, edge_index):
        return self.drop(self.second(self.block(x, edge_index), edge_index))


class Checkpointed(Model):
    reentrant = False

    def forward(self, x, edge_index):
        x = checkpoint(self.block, x, edge_index, use_reentrant=self.reentrant)
        return self.drop(checkpoint(self.second, x, edge_index, use_reentrant=self.reentrant))


class Reentrant(Checkpointed):
    reentrant = True


def rank_data(comm=None):
    comm = comm or dgcl.build_comm_info(graph(), "uniform", part=PART % comm_size())
    whole = graph()
    return whole.x[comm.owned_ids].requires_grad_(), comm.local_graph("pyg").edge_index, comm


def comm_size() -> int:
    from dgcl.ranks.context import context

    return context.require_control().world_size


def step(model, x, edge_index):
    """Output and gradients, on rank 0."""
    out = model(x, edge_index)
    model.zero_grad()
    (out * torch.arange(out.shape[1]).cos()).sum().backward()
    dgcl.nn.sync_gradients(model)
    return [dgcl.collect(out.detach()), *(p.grad.clone() for p in model.parameters())]


def one_device(model):
    """The numbers of a model that knows nothing of ranks."""
    whole = graph()
    out = model(whole.x, whole.edge_index)
    (out * torch.arange(out.shape[1]).cos()).sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


def pickled(model, x, edge_index):
    return pickle.loads(pickle.dumps(model))


def explained(model, x, edge_index):
    for module in model.modules():
        if isinstance(module, pyg.MessagePassing):
            module.explain = True
            module._edge_mask, module._apply_sigmoid = torch.ones(edge_index.shape[1] + len(x)), False
            module.explain_message = lambda inputs, dim_size: inputs
    return model


def explained_and_back(model, x, edge_index):
    explained(model, x, edge_index)
    for module in model.modules():
        if isinstance(module, pyg.MessagePassing):
            module.explain = False
    return model


def decomposed(model, x, edge_index):
    model.second.decomposed_layers = 2
    return model


def distributed_again(model, x, edge_index):
    return dgcl.distribute(model)


def run_before(model, x, edge_index):
    step(model.eval(), x, edge_index)
    return model.train()


def copied(model, x, edge_index):
    return copy.deepcopy(model)


def hooked(model, x, edge_index):
    model.second.register_full_backward_hook(lambda *_: None)
    return model


WAYS = [
    copied, hooked, pickled, explained, explained_and_back, decomposed, distributed_again, run_before
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_a_model_goes_through(way):
    model = Model().double()

    def rank():
        x, edge_index, comm = rank_data()
        return step(way(dgcl.distribute(copy.deepcopy(model)), x, edge_index), x, edge_index), comm

    expected = one_device(copy.deepcopy(model))
    check(dgcl.launch(rank, 3)[0][0], expected)


def test_an_optimizer_made_before_and_a_checkpoint_fit():
    def rank():
        rank_data()
        plain = Model().double()
        names, before = list(plain.state_dict()), list(plain.parameters())
        model = dgcl.distribute(plain)
        assert model is plain
        assert list(model.state_dict()) == names
        assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
        Model().double().load_state_dict(model.state_dict())
        assert isinstance(model.first, pyg.GATConv)

    dgcl.launch(rank, 2)


class OfAFunction(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GINConv(functional.dropout), pyg.SAGEConv(WIDTH, 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index), edge_index)


@pytest.mark.parametrize("make", [lambda: Model(0.4), OfAFunction])
def test_dropout_of_every_kind_is_that_of_any_number_of_ranks(make):
    model = make().double()

    def rank():
        x, edge_index, _comm = rank_data()
        own = dgcl.distribute(copy.deepcopy(model))
        return [*step(own, x, edge_index), *step(own, x, edge_index)]

    one, many = dgcl.launch(rank, 1)[0], dgcl.launch(rank, 3)[0]
    check(many, one)
    assert not torch.equal(one[0], one[len(one) // 2]), "both steps drop the same"


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_a_recomputed_layer_drops_what_it_dropped(kind, rank_pool):
    torch.manual_seed(7)
    state = Model(0.4).double().state_dict()
    plain, recomputed = (rank_pool(2).run(steps_of, each, state) for each in (Model, kind))
    check(recomputed[0], plain[0])


def steps_of(kind, state):
    x, edge_index, _comm = rank_data()
    model = kind(0.4).double()
    model.load_state_dict(state)
    model = dgcl.distribute(model)
    return [*step(model, x, edge_index), *step(model, x, edge_index)]


def test_lazy_parameters_are_those_of_rank_0():
    def rank():
        x, edge_index, _comm = rank_data()
        model = dgcl.distribute(Model(width=-1).double())
        model(x, edge_index)
        dgcl.nn.check_equal(model)

    dgcl.launch(rank, 3)


def test_one_model_with_two_graphs():
    """The edges say which communicator it is, whichever was built last."""
    model = Model().double()

    def rank():
        first = dgcl.build_comm_info(graph(), "uniform", part=PART)
        dgcl.build_comm_info(graph(), "uniform", part=(PART + 1) % 3 * (torch.arange(NUM_NODES) > 9))
        own = dgcl.distribute(copy.deepcopy(model))
        results = []
        for comm in (first, dgcl.current_communicator(), first):
            x, edge_index, _ = rank_data(comm)
            out = own(x, edge_index)
            results.append(dgcl.collect(out.detach(), comm=comm))
        return results

    expected = one_device(copy.deepcopy(model))[0]
    check(dgcl.launch(rank, 3)[0], [expected] * 3)


def test_a_model_goes_on_when_its_graph_is_rewired():
    """Also by edges that are made of the new ones, and of which nothing is remembered."""
    model = Model().double()

    def rank():
        x, before, comm = rank_data()
        own = dgcl.distribute(copy.deepcopy(model))
        own(x, before)
        edges = graph().edge_index.flip(0)[:, graph().edge_index[0] % 2 == 0]
        mine = torch.isin(edges[1], comm.owned_ids)
        comm = comm.rewire((edges[0][mine], edges[1][mine]))
        after = comm.local_graph("pyg").edge_index
        return [dgcl.collect(own(x, each).detach()) for each in (after, after.clone())]

    whole = graph()
    whole.edge_index = whole.edge_index.flip(0)[:, whole.edge_index[0] % 2 == 0]
    check(dgcl.launch(rank, 3)[0], [model(whole.x, whole.edge_index)] * 2)


class Twice(pyg.MessagePassing):
    """Its scores and messages read the same rows, which change between them."""

    def forward(self, x, edge_index):
        x = x.clone()
        score = self.edge_updater(edge_index, x=x)
        x += 1
        return self.propagate(edge_index, x=x, score=score)

    def edge_update(self, x_j):
        return x_j.sin()

    def message(self, x_j, score):
        return x_j * score


@pytest.mark.parametrize("conv, count", [(pyg.GATv2Conv(WIDTH, 3).double(), 1), (Twice(), 2)])
def test_a_layer_exchanges_the_same_rows_once(conv, count, monkeypatch):
    calls, expand = [], EdgeSet.expand
    monkeypatch.setattr(EdgeSet, "expand", lambda *each: calls.append(each) or expand(*each))

    def rank():
        x, edge_index, _comm = rank_data()
        return dgcl.distribute(copy.deepcopy(conv))(x, edge_index)

    check(dgcl.launch(rank, 1), [conv(graph().x, graph().edge_index)])
    assert len(calls) == count


class Counts(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, edge_index, size):
        return x_j / torch.bincount(edge_index[0], minlength=size[0])[edge_index[0]].view(-1, 1)


class Drops(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, self.training)


class Mine(nn.BatchNorm1d):
    pass


OF_A_NORM = r"cannot be distributed as it is:\n  the model \(torch.nn.\w+\)"
#: Models, and what is said of them.
INEXACT = [
    (
        lambda: nn.ModuleList([Counts()]),
        r"0 \(Counts\) reads edge_index, size in messages, which are a rank's",
    ),
    (
        lambda: torch.fx.symbolic_trace(Drops()),
        r"torch.fx.GraphModule\) calls dropout as a function; take torch.nn.Drop",
    ),
    (lambda: Mine(3), OF_A_NORM),
    (lambda: nn.modules.batchnorm._BatchNorm(3), OF_A_NORM),
    (lambda: nn.SyncBatchNorm(3), OF_A_NORM),
    (lambda: nn.BatchNorm2d(3), OF_A_NORM),
]


@pytest.mark.parametrize("make, message", INEXACT)
def test_models_that_cannot_be_exact_are_refused(make, message):
    model = make()  # torch traces in one thread at a time

    def rank():
        rank_data()
        with pytest.raises(ValueError, match=message):
            dgcl.distribute(model)

    dgcl.launch(rank, 2)


def turned(conv, x, edge_index, comm):
    return conv(x, edge_index.flip(0))


def sparse(conv, x, edge_index, comm):
    return conv(x, torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.shape[1])))


def of_sources(conv, x, edge_index, comm):
    conv.flow = "target_to_source"
    return conv(x, edge_index)


def exchanged_by_hand(conv, x, edge_index, comm):
    return conv(dgcl.graph_allgather(x), edge_index)


REFUSED = {
    turned: r"edge_index must hold edges of this rank.*second type \(HeteroData\)",
    sparse: r"edge_index must be a \(2, E\) tensor in a distributed model",
    of_sources: "flow must be 'source_to_target' in a distributed model",
    exchanged_by_hand: "rows must",
}


@pytest.mark.parametrize("call, message", REFUSED.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_what_would_be_wrong_is_refused(call, message):
    def rank():
        x, edge_index, comm = rank_data()
        conv = dgcl.distribute(pyg.SAGEConv(WIDTH, 3).double())
        with pytest.raises(ValueError, match=message):
            call(conv, x, edge_index, comm)

    dgcl.launch(rank, 2)


def test_torch_jit_is_refused():
    def rank():
        x, edge_index, comm = rank_data()
        model = dgcl.distribute(Model(), comm)
        for run in (torch.jit.script, lambda model: torch.jit.trace(model, (x, edge_index))):
            with pytest.raises(ValueError, match=r"torch\.jit cannot trace or script"):
                run(model)

    dgcl.launch(rank, 2)
