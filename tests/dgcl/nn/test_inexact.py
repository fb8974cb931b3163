"""dgcl.check_model: it names exactly the modules whose results on ranks are not those of one device."""

import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import dgcl
import dgcl.nn
from tests.support.awkward import CASES
from tests.support.layer_ranks import drawn, on_ranks
from tests.support.samples import named

pyg = pytest.importorskip("torch_geometric.nn")
CASE = CASES[0]
WIDTH = 4


def seeded(make):
    """A float64 module with the same parameters wherever it is made, and no dropout."""
    return drawn(make().double(), 5)


def of_pyg(names, *args, takes_edges=True):
    return {name: (partial(getattr(pyg, name), *args), takes_edges) for name in names.split()}


#: By name: what makes it, and whether it takes edges.
MODULES = {
    **of_pyg("SAGEConv GATConv GraphConv GCNConv SGConv TAGConv ARMAConv MixHopConv", WIDTH, WIDTH),
    **of_pyg("BatchNorm GraphNorm InstanceNorm LayerNorm", WIDTH, takes_edges=False),
    **of_pyg("PairNorm MeanSubtractionNorm GraphSizeNorm", takes_edges=False),
    **of_pyg("AntiSymmetricConv", WIDTH),
    **of_pyg("LGConv"),
    "gin-with-batch-norm": (
        lambda: pyg.GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))), True
    ),
    "gcn-not-normalised": (lambda: pyg.GCNConv(WIDTH, WIDTH, normalize=False), True),
    "lg-not-normalised": (lambda: pyg.LGConv(normalize=False), True),
    "appnp": (lambda: pyg.APPNP(3, 0.1), True),
    "ssg": (lambda: pyg.SSGConv(WIDTH, WIDTH, 0.1, 2), True),
    "cheb": (lambda: pyg.ChebConv(WIDTH, WIDTH, 3), True),
    "gated": (lambda: pyg.GatedGraphConv(WIDTH, 2), True),
    "eg": (lambda: pyg.EGConv(WIDTH, WIDTH, num_heads=2), True),
    "batch-norm": (lambda: nn.BatchNorm1d(WIDTH), False),
    "batch-norm-in-evaluation": (lambda: nn.BatchNorm1d(WIDTH).eval(), False),
    "batch-norm-of-ours": (lambda: dgcl.nn.BatchNorm(WIDTH), False),
    "layer-norm-of-node": (lambda: pyg.LayerNorm(WIDTH, mode="node"), False),
    "layer-norm": (lambda: nn.LayerNorm(WIDTH), False),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    """For each module: what was found on a rank, and how far its results on ranks are from those of one device."""
    x = torch.randn(CASE.num_nodes, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole_edges = torch.from_numpy(CASE.edges)

    def rank():
        comm = dgcl.build_comm_info(CASE.graph, "uniform", part=CASE.part(3))
        g, rows = comm.local_graph("pyg"), x[comm.owned_ids]
        found, results = {}, {}
        for name, (_, takes_edges) in MODULES.items():
            module = models[name][comm.rank]
            found[name] = dgcl.check_model(module)
            if takes_edges:
                every = dgcl.graph_allgather(rows)
                out = module(every, g.edge_index)[: comm.num_owned]
            else:
                out = module(rows)
            results[name] = dgcl.collect(out.detach())
        return found, results

    models = {name: [seeded(make) for _ in range(3)] for name, (make, _) in MODULES.items()}
    found, results = dgcl.launch(rank, 3)[0]
    distances = {}

    def one_rank():
        dgcl.build_comm_info(CASE.graph, "uniform")
        assert not any(dgcl.check_model(seeded(make)) for make, _ in MODULES.values())
        for name, (make, takes_edges) in MODULES.items():
            module = seeded(make)
            alone = module(x, whole_edges) if takes_edges else module(x)
            distances[name] = (alone.detach() - results[name]).abs().max().item()

    dgcl.launch(one_rank, 1)
    return found, distances


@pytest.mark.parametrize("name", MODULES)
def test_what_is_found_is_what_is_wrong(name, outcomes):
    found, distances = outcomes
    assert (distances[name] > 1e-9) == bool(found[name]), (distances[name], found[name])


@named(
    "make, words",
    {
        "batch-norm": (
            lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)),
            r"1 \(torch.nn.BatchNorm1d\).*dgcl.distribute",
        ),
        "gcn": (lambda: pyg.GCNConv(2, 2), r"the model \(torch_geometric.nn.GCNConv\).*dgcl.distribute"),
        "appnp": (lambda: pyg.APPNP(2, 0.1), "several hops"),
        "graph-norm": (
            lambda: nn.ModuleDict({"a": pyg.GraphNorm(2)}),
            r"  a \(torch_geometric.nn.GraphNorm\)",
        ),
    },
)
@pytest.mark.parametrize("how", ["warn", "raise", "ignore"])
def test_broadcast_parameters_says_so(make, words, how):
    """One warning, on rank 0; or an error on every rank; or nothing."""
    models = [make() for _ in range(2)]

    def rank(comm):
        if how == "raise":
            with pytest.raises(ValueError, match=words):
                dgcl.nn.broadcast_parameters(models[comm.rank], inexact=how)
        else:
            dgcl.nn.broadcast_parameters(models[comm.rank], inexact=how)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        on_ranks(2, rank)
    mine = [str(each.message) for each in told if each.category is dgcl.InexactWarning]
    assert len(mine) == (how == "warn")
    if mine:
        assert re.search(words, mine[0], re.DOTALL)
        assert "inexact='ignore'" in mine[0]


def test_random_is_told_apart_and_subclasses_count():
    class Mine(nn.BatchNorm1d):
        pass

    def rank(comm):
        return dgcl.check_model(
            nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0), Mine(2), dgcl.nn.BatchNorm(2))
        )

    dropout, norm = on_ranks(2, rank)[0]
    assert (dropout.name, dropout.random) == ("0", True)
    assert (norm.name, norm.random) == ("2", False)
    assert "dgcl.distribute" in str(dropout)
    with pytest.raises(ValueError, match="inexact must be one of warn, raise, ignore"):
        on_ranks(1, lambda comm: dgcl.nn.broadcast_parameters(nn.Linear(1, 1), inexact="no"))


@named(
    "make",
    {
        "gat": lambda p: pyg.GATConv(2, 2, dropout=p),
        "transformer": lambda p: pyg.TransformerConv(2, 2, dropout=p),
        "mlp": lambda p: pyg.MLP([2, 2, 2], norm=None, dropout=p),
        "gat-of-layers": lambda p: pyg.GAT(2, 2, 1, dropout=p),
        "dropout": lambda p: nn.Dropout(p),
    },
)
def test_dropout_inside_a_layer_is_random_where_it_draws(make):
    def rank(comm):
        results = [dgcl.check_model(model) for model in (make(0.5), make(0.0), make(0.5).eval())]
        return [[each.random for each in found] for found in results]

    drawing, without, evaluated = on_ranks(2, rank)[0]
    assert drawing
    assert all(drawing)
    assert (without, evaluated) == ([], [])
