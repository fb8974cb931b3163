"""Two-layer models of every framework, trained on one device and on ranks: the oracle of test_equivalence.

The reference runs each framework's own layers on its own graph (plain torch: dense matrices), with torch's
loss, and knows nothing of dgcl. The distributed run takes the same parameters, this library's local graphs
and losses, and must arrive at the same numbers. Importable, because ranks that are processes need its
functions by name.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.topology import Topology
from tests.support.awkward import CASES, Case
from tests.support.small_machines import line

WIDTHS = [5, 8, 3]  # the first layer widens, the second narrows: both orders of transform and aggregation
HEADS = 2
STEPS = 5
CASE_BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Architecture:
    """One kind of layer in one framework.

    Attributes:
        layer: (in, out) -> a layer for ranks.
        whole: (layers, case, x) -> logits on one device.
        local: (layers, comm, x) -> this rank's logits.
        whole_layer: the layer for one device, if it is made otherwise; with the same parameters.
    """

    layer: Callable[[int, int], nn.Module]
    whole: Callable[[nn.ModuleList, Case, Tensor], Tensor]
    local: Callable[[nn.ModuleList, dgcl.Communicator, Tensor], Tensor]
    whole_layer: Callable[[int, int], nn.Module] | None = None


@dataclass(frozen=True)
class Precision:
    """A dtype, the optimizer that is fair to it, and how equal runs must be."""

    dtype: torch.dtype
    optimizer: Callable[[Any], torch.optim.Optimizer]
    tolerance: float


# Adam divides by the size of gradients, so float32's rounding errors would grow into steps; SGD does not.
PRECISIONS = {
    "float64": Precision(torch.float64, torch.optim.Adam, 1e-10),
    "float32": Precision(torch.float32, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1e-4),
}


@dataclass(frozen=True)
class Step:
    """What one training step computed."""

    loss: Tensor
    logits: Tensor  # (N, classes)
    gradients: list[Tensor | None]


@dataclass(frozen=True)
class Run:
    """All steps, the parameters they led to, and the gradient of the last step's input."""

    steps: list[Step]
    parameters: list[Tensor]
    x_gradient: Tensor


def inputs(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and training mask of all vertices."""
    generator = torch.Generator().manual_seed(len(case.name))
    x = torch.randn(case.num_nodes, WIDTHS[0], dtype=torch.float64, generator=generator).to(dtype)
    labels = torch.randint(0, WIDTHS[-1], (case.num_nodes,), generator=generator)
    return x, labels, torch.from_numpy(case.train)


def build_layers(make: Callable[[int, int], nn.Module], dtype: torch.dtype) -> nn.ModuleList:
    """The layers with the same parameters wherever it is called, ranks that are threads included."""
    layers = nn.ModuleList(make(*pair) for pair in itertools.pairwise(WIDTHS)).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
    return layers


def steps(
    layers: nn.ModuleList,
    given: tuple[Tensor, Tensor, Tensor],
    forward: Callable[[Tensor], Tensor],
    loss_of: Callable[..., Tensor],
    precision: str = "float64",
    ranks: Any = None,
) -> Run:
    """The training of every run, on one device or, given a communicator or Offload, on ranks."""
    x, *judged = given if ranks is None else map(ranks.dispatch_features, given)
    collect = torch.detach if ranks is None else functools.partial(dgcl.collect, dst=None)
    x.requires_grad_()
    optimizer = PRECISIONS[precision].optimizer(layers.parameters())
    taken = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x.grad = None
        logits = forward(x)
        loss = loss_of(logits, *judged)
        loss.backward()
        if ranks is not None:
            dgcl.nn.sync_gradients(layers)
        gradients = [None if p.grad is None else p.grad.clone() for p in layers.parameters()]
        taken.append(Step(loss.detach(), collect(logits), gradients))
        optimizer.step()
    return Run(taken, [p.detach() for p in layers.parameters()], collect(x.grad))


@functools.cache
def reference(architecture: str, case_name: str, precision: str = "float64") -> Run:
    """The run on one device."""
    kind, case, dtype = ARCHITECTURES[architecture], CASE_BY_NAME[case_name], PRECISIONS[precision].dtype
    layers = build_layers(kind.whole_layer or kind.layer, dtype)
    return steps(
        layers,
        inputs(case, dtype),
        lambda x: kind.whole(layers, case, x),
        lambda logits, labels, train: F.cross_entropy(logits[train], labels[train]),
        precision,
    )


def on_rank(
    architecture: str,
    case_name: str,
    world_size: int,
    shape: str | Topology,
    precision: str = "float64",
    channel: str = "auto",
) -> Run:
    """The run of one rank; logits and the input's gradient are collected from all."""
    case = CASE_BY_NAME[case_name]
    topology = TOPOLOGIES[shape](world_size) if isinstance(shape, str) else shape
    comm = dgcl.build_comm_info(case.graph, topology, part=case.part(world_size), channel=channel)
    kind, dtype = ARCHITECTURES[architecture], PRECISIONS[precision].dtype
    layers = build_layers(kind.layer, dtype)
    run = steps(
        layers,
        inputs(case, dtype),
        lambda x: kind.local(layers, comm, x),
        dgcl.nn.loss(F.cross_entropy),
        precision,
        comm,
    )
    comm.close()
    return run


def assert_equal_runs(found: Run, expected: Run, tolerance: float = 1e-10):
    """Every loss, logit, gradient and parameter."""
    close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for number, (step, wanted) in enumerate(zip(found.steps, expected.steps, strict=True)):
        close(step.loss, wanted.loss, msg=lambda text, n=number: f"loss of step {n}: {text}")
        close(step.logits, wanted.logits, msg=lambda text, n=number: f"logits of step {n}: {text}")
        for index, pair in enumerate(zip(step.gradients, wanted.gradients, strict=True)):
            if pair == (None, None):
                continue  # a parameter that this kind of layer does not use
            close(*pair, msg=lambda text, n=number, i=index: f"gradient {i} of step {n}: {text}")
    close(found.x_gradient, expected.x_gradient, msg=lambda text: f"gradient of the input: {text}")
    for index, pair in enumerate(zip(found.parameters, expected.parameters, strict=True)):
        close(*pair, msg=lambda text, i=index: f"parameter {i}: {text}")


def assert_equal_ranks(runs: list[Run], expected: Run, tolerance: float = 1e-10):
    """Every rank's run is the expected one, and all ranks have the same bits of parameters."""
    for run in runs:
        assert_equal_runs(run, expected, tolerance)
        assert all(map(torch.equal, run.parameters, runs[0].parameters))


def assert_same_bits(first: list[Run], second: list[Run]):
    """Two runs on ranks, step by step."""
    for one, other in zip(first, second, strict=True):
        for step, again in zip(one.steps, other.steps, strict=True):
            assert step.loss.equal(again.loss)
            assert step.logits.equal(again.logits)
        assert one.x_gradient.equal(other.x_gradient)
        assert all(map(torch.equal, one.parameters, other.parameters))


TOPOLOGIES: dict[str, Callable[[int], Any]] = {"uniform": lambda world_size: "uniform", "chain": line}


# DGL


def _dgl_whole(layers: nn.ModuleList, case: Case, x: Tensor) -> Tensor:
    import dgl

    graph = dgl.graph(tuple(torch.from_numpy(case.edges)), num_nodes=case.num_nodes)
    return _stack(layers, x, lambda layer, h: layer(graph, h))


def _dgl_local(layers: nn.ModuleList, comm: dgcl.Communicator, x: Tensor) -> Tensor:
    block = comm.local_graph("dgl")
    return _stack(layers, x, lambda layer, h: layer(block, dgcl.graph_allgather(h)))


def _dgl(name: str, *args: Any, **options: Any) -> Callable[[int, int], nn.Module]:
    def make(width_in: int, width_out: int) -> nn.Module:
        import dgl

        layer: nn.Module = getattr(dgl.nn, name)(width_in, width_out, *args, **options)
        return layer

    return make


def _dgl_gin(width_in: int, width_out: int) -> nn.Module:
    import dgl

    layer: nn.Module = dgl.nn.GINConv(nn.Linear(width_in, width_out), "sum", learn_eps=True)
    return layer


# PyG


def _pyg_whole(layers: nn.ModuleList, case: Case, x: Tensor) -> Tensor:
    edge_index = torch.from_numpy(case.edges)
    return _stack(layers, x, lambda layer, h: layer(h, edge_index))


def _pyg_local(layers: nn.ModuleList, comm: dgcl.Communicator, x: Tensor) -> Tensor:
    graph = comm.local_graph("pyg")
    return _stack(layers, x, lambda layer, h: layer(graph.pair(dgcl.graph_allgather(h)), graph.edge_index))


def _pyg_local_gcn(layers: nn.ModuleList, comm: dgcl.Communicator, x: Tensor) -> Tensor:
    from dgcl.distributed.degrees import gcn_norm

    graph = comm.local_graph("pyg")
    edge_index, weight = gcn_norm(graph.edge_index, dtype=x.dtype)
    return _stack(
        layers, x, lambda layer, h: layer(dgcl.graph_allgather(h), edge_index, weight)[: graph.num_owned]
    )


def _pyg(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    def make(width_in: int, width_out: int) -> nn.Module:
        import torch_geometric.nn

        layer: nn.Module = getattr(torch_geometric.nn, name)(width_in, width_out, **options)
        return layer

    return make


def _pyg_gin(width_in: int, width_out: int) -> nn.Module:
    import torch_geometric.nn

    return torch_geometric.nn.GINConv(nn.Linear(width_in, width_out), train_eps=True)


def _stack(layers: nn.ModuleList, x: Tensor, apply: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
    """Layer by layer with tanh between them; heads of attention are averaged."""
    for position, layer in enumerate(layers):
        x = apply(layer, x.tanh() if position else x)
        x = x.mean(1) if x.dim() == 3 else x
    return x


# Plain torch: the whole graph as a dense matrix of edge counts, a rank's as CSR.


class TorchLayer(nn.Module):
    """Parameters that all plain layers share; each uses what it needs."""

    def __init__(self, width_in: int, width_out: int, heads: int = 1):
        super().__init__()
        self.heads = heads
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out * heads, bias=False)
        self.attention = nn.Parameter(torch.empty(2, heads, width_out))


def _torch_whole(kind: str) -> Callable[[nn.ModuleList, Case, Tensor], Tensor]:
    def run(layers: nn.ModuleList, case: Case, x: Tensor) -> Tensor:
        counts = np.zeros((case.num_nodes, case.num_nodes))
        np.add.at(counts, (case.edges[1], case.edges[0]), 1.0)  # row v holds v's in-edges
        adjacency = torch.from_numpy(counts).to(x.dtype)
        return _stack(layers, x, lambda layer, h: _dense_layer(kind, layer, adjacency, h))

    return run


def _dense_layer(kind: str, layer: TorchLayer, adjacency: Tensor, x: Tensor) -> Tensor:
    in_degrees, out_degrees = adjacency.sum(1), adjacency.sum(0)
    if kind == "gcn":
        scaled = adjacency / (in_degrees.clamp(min=1)[:, None] * out_degrees.clamp(min=1)[None, :]).sqrt()
        return layer.own(scaled @ x)
    if kind == "sage":
        return layer.own(x) + layer.neighbours(adjacency @ x / in_degrees.clamp(min=1)[:, None])
    if kind == "gin":
        return layer.own((1.5 * x) + adjacency @ x)
    h = layer.neighbours(x).view(len(x), layer.heads, -1)
    scores = F.leaky_relu(
        (h * layer.attention[0]).sum(-1)[None, :] + (h * layer.attention[1]).sum(-1)[:, None], 0.2
    )
    powers = adjacency[:, :, None] * (scores - scores.max()).exp()
    shares = powers / powers.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.einsum("vuh,uhf->vhf", shares, h)


def _torch_local(kind: str) -> Callable[[nn.ModuleList, dgcl.Communicator, Tensor], Tensor]:
    def run(layers: nn.ModuleList, comm: dgcl.Communicator, x: Tensor) -> Tensor:
        graph = comm.local_graph("csr")
        return _stack(layers, x, lambda layer, h: _csr_layer(kind, layer, graph, h))

    return run


def _csr_layer(kind: str, layer: TorchLayer, graph: Any, x: Tensor) -> Tensor:
    if kind == "gcn":
        out_degrees = graph.out_degrees[: graph.num_owned].clamp(min=1).to(x.dtype)
        in_degrees = graph.in_degrees.clamp(min=1).to(x.dtype)
        h = graph.sum(dgcl.graph_allgather(x / out_degrees[:, None].sqrt()))
        return layer.own(h / in_degrees[:, None].sqrt())
    if kind == "sage":
        return layer.own(x) + layer.neighbours(graph.mean(dgcl.graph_allgather(x)))
    if kind == "gin":
        return layer.own((1.5 * x) + graph.sum(dgcl.graph_allgather(x)))
    h = dgcl.graph_allgather(layer.neighbours(x).unflatten(1, (layer.heads, -1)))
    read, write = (h * layer.attention[0]).sum(-1), (h[: graph.num_owned] * layer.attention[1]).sum(-1)
    scores = F.leaky_relu(graph.at_sources(read) + graph.at_heads(write), 0.2)
    return graph.sum(h, graph.softmax(scores))


ARCHITECTURES: dict[str, Architecture] = {
    "dgl-gcn": Architecture(
        _dgl("GraphConv", norm="both", allow_zero_in_degree=True), _dgl_whole, _dgl_local
    ),
    "dgl-sage": Architecture(_dgl("SAGEConv", "mean"), _dgl_whole, _dgl_local),
    "dgl-gin": Architecture(_dgl_gin, _dgl_whole, _dgl_local),
    "dgl-gat": Architecture(_dgl("GATConv", HEADS, allow_zero_in_degree=True), _dgl_whole, _dgl_local),
    "pyg-gcn": Architecture(
        _pyg("GCNConv", normalize=False), _pyg_whole, _pyg_local_gcn, whole_layer=_pyg("GCNConv")
    ),
    "pyg-sage": Architecture(_pyg("SAGEConv"), _pyg_whole, _pyg_local),
    "pyg-gin": Architecture(_pyg_gin, _pyg_whole, _pyg_local),
    "pyg-gat": Architecture(_pyg("GATConv", heads=HEADS, concat=False), _pyg_whole, _pyg_local),
    **{
        f"torch-{kind}": Architecture(
            functools.partial(TorchLayer, heads=HEADS if kind == "gat" else 1),
            _torch_whole(kind),
            _torch_local(kind),
        )
        for kind in ("gcn", "sage", "gin", "gat")
    },
}
