"""Slices of rows as verbs: there and back, adjoints, and layers of PyG, DGL and torch that know nothing of slices.

Judged by the same layers on one device, on the columns, or heads, that a rank of a slice has.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.grid.grid import Grid
from dgcl.grid.grid_strategy import GridPlacement
from tests.support.aggregator import CASE_BY_NAME, EXACT, features
from tests.support.grid_aggregation import connect, size_of
from tests.support.ranks import said

GRAPHS = ["directed", "self-loops", "isolated-vertices", "fewer-vertices-than-ranks", "no-edges"]
GRIDS = ["1,1,4", "2,1,2", "2,1,4", "3,1,2", "4,1,1"]
HEADS, WIDTH = 8, 3


def there_and_back(name: str, grid: str) -> dict[str, Any]:
    comm = connect(CASE_BY_NAME[name], grid)
    case = CASE_BY_NAME[name]
    x = comm.dispatch_features(features(case.num_nodes, 8))
    h = comm.slices(x)
    graph = comm.slice_graph("csr")
    n, s, width = graph.num_owned, comm.grid.slice_of(comm.rank), 8 // comm.grid.slices
    whole = features(case.num_nodes, 8)[:, s * width : (s + 1) * width]
    ids = torch.from_numpy(comm.slice_neighbourhoods().local_ids)
    part = comm.grid.part_of(torch.from_numpy(case.part(comm.world_size)))
    other = torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank))
    sums = [(h[:n] * other).sum(), (x * comm.rows(other)).sum()]
    degrees = np.bincount(case.edges[1], minlength=case.num_nodes)
    return {
        "rows": torch.equal(h, whole[ids]),
        "halo": set(comm.halo_ids.tolist()) <= set(ids.tolist()),
        "part": torch.equal(ids[:n], torch.nonzero(part == comm.grid.part_of(comm.rank)).flatten()),
        "back": torch.equal(comm.rows(h), x) and torch.equal(comm.rows(h[:n]), x),
        "integers": torch.equal(comm.rows(comm.slices(x.long())), x.long()),
        "degrees": graph.in_degrees.tolist() == degrees[ids[:n].numpy()].tolist(),
        "products": [comm.all_reduce_sum(each).item() for each in sums],
    }


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("grid", GRIDS)
def test_there_and_back(grid: str, name: str):
    for found in dgcl.launch(there_and_back, size_of(grid), name, grid):
        first, second = found.pop("products")
        assert first == pytest.approx(
            second, rel=EXACT
        )  # rows is the adjoint of slices, on the rows of the part
        assert all(found.values()), found


def columns(x: Tensor, s: int, slices: int) -> Tensor:
    """The columns, or heads, of a slice."""
    return x.chunk(slices, 1)[s]


def pyg_sage(aggr: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        pyg = pytest.importorskip("torch_geometric.nn")
        return pyg.SAGEConv(HEADS // 4, 5, aggr=aggr)

    return make


def pyg_gat() -> nn.Module:
    pyg = pytest.importorskip("torch_geometric.nn")
    layer: nn.Module = pyg.GATConv(HEADS // 4 * WIDTH, WIDTH, heads=HEADS // 4, bias=False)
    return layer


def dgl_sage(aggregator: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        dgl = pytest.importorskip("dgl")
        layer: nn.Module = dgl.nn.SAGEConv(HEADS // 4, 5, aggregator)
        return layer

    return make


def dgl_gat() -> nn.Module:
    dgl = pytest.importorskip("dgl")
    layer: nn.Module = dgl.nn.GATConv(HEADS // 4 * WIDTH, WIDTH, HEADS // 4, bias=False)
    layer.set_allow_zero_in_degree(True)
    return layer


LAYERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "pyg-sage-mean": ("pyg", pyg_sage("mean")),
    "pyg-sage-max": ("pyg", pyg_sage("max")),
    "pyg-gat": ("pyg", pyg_gat),
    "dgl-sage-mean": ("dgl", dgl_sage("mean")),
    "dgl-sage-pool": ("dgl", dgl_sage("pool")),
    "dgl-gat": ("dgl", dgl_gat),
}


def layer_of(name: str, s: int) -> nn.Module:
    """The layer of a slice: each has its own parameters, the same on all of its ranks."""
    return with_parameters(LAYERS[name][1](), s)


def with_parameters(layer: nn.Module, seed: int) -> nn.Module:
    """The same wherever it is called, ranks that are threads included."""
    layer, generator = layer.double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
    return layer


def width_of(name: str) -> int:
    return HEADS * WIDTH if name.endswith("gat") else HEADS


def on_slices(name: str, case_name: str, grid: str) -> dict[str, Tensor | None]:
    case = CASE_BY_NAME[case_name]
    comm = connect(case, grid)
    x = comm.dispatch_features(features(case.num_nodes, width_of(name))).requires_grad_()
    layer = layer_of(name, comm.grid.slice_of(comm.rank))
    graph, h = comm.slice_graph(LAYERS[name][0]), comm.slices(x)
    if LAYERS[name][0] == "pyg":
        h = layer(graph.pair(h), graph.edge_index)
    else:
        h = layer(graph, (h, h[: graph.num_dst_nodes()])).flatten(1)
    y = comm.rows(h)
    (y * comm.dispatch_features(features(case.num_nodes, y.shape[1], seed=3))).sum().backward()
    assert x.grad is not None
    return {"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case_name", ["directed", "isolated-vertices", "fewer-vertices-than-ranks"])
@pytest.mark.parametrize("grid", ["1,1,4", "2,1,4"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_know_nothing_of_slices(name: str, grid: str, case_name: str):
    case = CASE_BY_NAME[case_name]
    x = features(case.num_nodes, width_of(name)).requires_grad_()
    found = []
    for s in range(4):
        layer, edges = layer_of(name, s), torch.from_numpy(case.edges)
        if LAYERS[name][0] == "pyg":
            found.append(layer(columns(x, s, 4), edges))
        else:
            dgl = pytest.importorskip("dgl")
            whole = dgl.graph((edges[0], edges[1]), num_nodes=case.num_nodes)
            found.append(layer(whole, columns(x, s, 4)).flatten(1))
    y = torch.cat(found, 1)
    (y * features(case.num_nodes, y.shape[1], seed=3)).sum().backward()
    for rank in dgcl.launch(on_slices, size_of(grid), name, case_name, grid):
        torch.testing.assert_close(rank["y"], y.detach(), rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(rank["x"], x.grad, rtol=EXACT, atol=EXACT)


def heads_there_and_back(grid: str) -> tuple[bool, Tensor]:
    """Of vertices that all belong to the last rank, first in inference mode."""
    num_ranks = size_of(grid)
    comm = dgcl.build_comm_info(
        CASE_BY_NAME["directed"].graph,
        "uniform",
        part=np.full(26, num_ranks - 1, np.int32),
        strategy=f"grid:{grid}",
    )
    x = comm.dispatch_features(features(26, HEADS, WIDTH))
    with torch.inference_mode():
        back = torch.equal(comm.rows(comm.slices(x)), x)
    x.requires_grad_()
    comm.rows(comm.slices(x) ** 2).sum().backward()
    assert x.grad is not None
    return back, comm.collect(x.grad, None)


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2"])
def test_heads_of_ranks_that_own_nothing_and_inference_before_training(grid: str):
    for back, gradient in dgcl.launch(heads_there_and_back, 4, grid):
        assert back
        torch.testing.assert_close(gradient, 2 * features(26, HEADS, WIDTH), rtol=EXACT, atol=EXACT)


def attention_with_eight_heads(grid: str) -> Tensor:
    """One GAT layer of 8 heads whose product is of whole rows and whose attention is of slices."""
    from torch_geometric.nn import GATConv

    case = CASE_BY_NAME["directed"]
    comm = connect(case, grid)
    whole = eight_heads()
    conv = GATConv(6, WIDTH, heads=HEADS // comm.grid.slices, bias=False).double()
    conv.lin = nn.Identity()
    s = comm.grid.slice_of(comm.rank)
    with torch.no_grad():
        conv.att_src.copy_(columns(whole.att_src, s, comm.grid.slices))
        conv.att_dst.copy_(columns(whole.att_dst, s, comm.grid.slices))
    x = whole.lin(comm.dispatch_features(features(case.num_nodes, 6))).unflatten(1, (HEADS, WIDTH))
    graph, h = comm.slice_graph("pyg"), comm.slices(x)
    out = conv(graph.pair(h.flatten(1)), graph.edge_index).unflatten(1, (-1, WIDTH))
    return comm.collect(comm.rows(out).flatten(1).detach(), None)


def eight_heads() -> Any:
    from torch_geometric.nn import GATConv

    return with_parameters(GATConv(6, WIDTH, heads=HEADS, bias=False), 4)


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2"])
def test_eight_heads_of_attention(grid: str):
    pytest.importorskip("torch_geometric.nn")
    case = CASE_BY_NAME["directed"]
    wanted = eight_heads()(features(case.num_nodes, 6), torch.from_numpy(case.edges)).detach()
    for found in dgcl.launch(attention_with_eight_heads, 4, grid):
        torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)


def refusals(grid: str) -> list[str]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, grid)
    x = comm.dispatch_features(features(case.num_nodes, 8))
    calls = [
        lambda: dgcl.graph_allgather(x),
        lambda: comm.local_graph("csr"),
        lambda: comm.dispatch_features(features(case.num_nodes, 8), halo=True),
        lambda: comm.slices(x),
        lambda: comm.rows(x),
        lambda: comm.slice_graph("pyg"),
        lambda: comm.aggregator("max"),
        lambda: comm.slices(x.view(len(x), 2, 4)[:, :1]),
        lambda: comm.slices(x[1:]),
        lambda: dgcl.nn.dropout(torch.ones(26, 2), comm=comm),
        lambda: dgcl.nn.BatchNorm(2, comm=comm).double()(torch.ones(26, 2)),
        lambda: dgcl.nn.loss(F.cross_entropy, comm=comm)(comm.slices(x), torch.zeros(26, dtype=torch.long)),
    ]
    return [said(call) for call in calls]


def test_what_cannot_be_is_refused_with_a_way_out():
    for texts in dgcl.launch(refusals, 4, "1,1,4"):
        for text, name in zip(texts, ("graph_allgather", "local_graph", "dispatch"), strict=False):
            assert text.startswith(f"{name}")
            assert "grid (1,1,4)" in text
            assert "comm.slice_graph()" in text
            assert text.endswith("or build the communicator without a grid")
        assert texts[3] == "nothing"
        assert texts[4].startswith("h must hold the 26 rows of this rank's part")
        assert texts[5:7] == ["nothing", "nothing"]
        assert texts[7].startswith("x has 1 heads, which 4 slices do not divide")
        assert texts[8].startswith("x must have shape (num_owned, C, ...)")
        assert "drop before comm.slices" in texts[9]
        assert "owned rows" in texts[10]
        assert texts[11].startswith("outputs must be whole rows")
        assert texts[11].endswith("bring them back with comm.rows first")
    for texts in dgcl.launch(refusals, 4, "1,2,2"):
        for text in texts[3:6]:
            assert "needs complete neighbourhoods of a slice, and on grid (1,2,2)" in text
        assert texts[6] == "nothing"


@pytest.mark.parametrize(
    "options, text",
    [
        ({"strategy": "grid:1,4,1"}, r"4 ranks, and there are 2.*\(1,1,2\) \(1,2,1\) \(2,1,1\)"),
        ({"strategy": "auto"}, "strategy='auto' needs model=, such as 'gcn:602,256,41'"),
        ({"strategy": "grid:1,1,2", "memory_limit": 9}, "model and memory_limit go with strategy='auto'"),
        ({"strategy": GridPlacement(Grid(1, 4, 1))}, "4 ranks, and there are 2"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], text: str):
    def build():
        with pytest.raises(ValueError, match=text):
            dgcl.build_comm_info(CASE_BY_NAME["directed"].graph, "uniform", **options)

    dgcl.launch(build, 2)
