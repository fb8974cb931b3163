"""The two-layer models of tests/support/equivalence.py as chunked layers, and their training on ranks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
from tests.support.awkward import Case
from tests.support.equivalence import (
    ARCHITECTURES,
    CASE_BY_NAME,
    Run,
    build_layers,
    inputs,
    steps,
)

#: Architectures whose aggregation can be kept, and how.
KEPT = {
    "torch-gcn": {"aggregate": "sum", "keep": True},
    "torch-sage": {"aggregate": "mean", "own_rows": True, "keep": True},
    "torch-gin": {"aggregate": "sum", "own_rows": True, "keep": True},
}


class Chunked(nn.Module):
    """One layer of an architecture, as it is called for a chunk, with what follows it."""

    def __init__(self, architecture: str, layer: Any, is_last: bool):
        super().__init__()
        self.framework, self.model = architecture.split("-")
        self.layer, self.is_last = layer, is_last

    def forward(self, g: Any, src: Any, dst: Any) -> Tensor:
        if self.framework == "torch":
            out = self._torch(g, src, dst)
        elif self.framework == "dgl":
            out = self.layer(g, src if self.model == "gcn" else (src, dst))
        elif self.model == "gcn":
            out = self._pyg_gcn(g, *src)
        else:
            out = self.layer((src, dst), g.edge_index)
        out = out.mean(1) if out.dim() == 3 else out
        return out if self.is_last else out.tanh()

    def _torch(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        layer = self.layer
        if self.model == "gcn":
            scaled = src / g.out_degrees.clamp(min=1).to(src.dtype)[:, None].sqrt()
            out: Tensor = layer.own(g.sum(scaled) / g.in_degrees.clamp(min=1).to(src.dtype)[:, None].sqrt())
            return out
        if self.model == "sage":
            out = layer.own(dst) + layer.neighbours(g.mean(src))
            return out
        if self.model == "gin":
            out = layer.own(1.5 * dst + g.sum(src))
            return out
        h = layer.neighbours(src).unflatten(1, (layer.heads, -1))
        read, write = (h * layer.attention[0]).sum(-1), (h[: len(dst)] * layer.attention[1]).sum(-1)
        out = g.sum(h, g.softmax(F.leaky_relu(g.at_sources(read) + g.at_heads(write), 0.2)))
        return out

    def _pyg_gcn(self, g: Any, x: Tensor, scale: Tensor) -> Tensor:
        """GCN with a vertex's scale as rows beside its features; self loops are added to the chunk's own rows."""
        from torch_geometric.utils import add_remaining_self_loops

        weight = torch.ones(g.edge_index.size(1), dtype=x.dtype)
        edge_index, weight = add_remaining_self_loops(g.edge_index, weight, 1.0, g.num_owned)
        weight = scale[edge_index[0], 0] * weight * scale[edge_index[1], 0]
        h = self.layer.lin(x)
        out: Tensor = self.layer.propagate(
            edge_index, x=(h, h[: g.num_owned]), edge_weight=weight, size=(len(h), g.num_owned)
        )
        return out + self.layer.bias


class OfAggregate(nn.Module):
    """The same layer, given its aggregate."""

    def __init__(self, architecture: str, layer: Any, is_last: bool):
        super().__init__()
        self.model, self.layer, self.is_last = architecture.split("-")[1], layer, is_last

    def forward(self, aggregate: Tensor, own: Tensor | None = None) -> Tensor:
        if self.model == "gcn":
            out = self.layer.own(aggregate)
        elif self.model == "sage":
            out = self.layer.own(own) + self.layer.neighbours(aggregate)
        else:
            assert own is not None
            out = self.layer.own(1.5 * own + aggregate)
        return out if self.is_last else out.tanh()


def on_rank(architecture: str, case_name: str, world_size: int, kept: bool = False, **options: Any) -> Run:
    """The run of one rank."""
    case = CASE_BY_NAME[case_name]
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(world_size), method="direct")
    kind = {"torch": "csr"}.get(architecture.split("-")[0], architecture.split("-")[0])
    off = dgcl.Offload(comm, kind=kind, method="direct", **options)
    run = train(comm, off, architecture, case, kept)
    off.close()
    comm.close()
    return run


def train(comm: dgcl.Communicator, off: dgcl.Offload, architecture: str, case: Case, kept: bool) -> Run:
    dtype = torch.float64
    layers = build_layers(ARCHITECTURES[architecture].layer, dtype)
    wrapper: Any = OfAggregate if kept else Chunked
    modules = [wrapper(architecture, layer, is_last=k == 1) for k, layer in enumerate(layers)]
    options: dict[str, Any] = dict(KEPT[architecture]) if kept else {}
    if kept and architecture == "torch-gcn":
        options["edge_weight"] = comm.dispatch_edges(gcn_weights(case))
    scale = off.dispatch_features(gcn_scale(case)[:, None])

    def forward(h: Tensor) -> Tensor:
        for module in modules:
            h = off.layer(module, (h, scale) if architecture == "pyg-gcn" else h, **options)
        return h

    return steps(layers, inputs(case, dtype), forward, off.cross_entropy, ranks=off)


def gcn_weights(case: Case) -> Tensor:
    """Of each edge 1 / sqrt(in-degree of its head, out-degree of its tail)."""
    source, head = torch.from_numpy(case.edges)
    outs, ins = (torch.bincount(ends, minlength=case.num_nodes).double() for ends in (source, head))
    return 1 / (ins[head] * outs[source]).sqrt()


def gcn_scale(case: Case) -> Tensor:
    """Of each vertex 1 / sqrt(in-edges from others and one self loop)."""
    source, head = torch.from_numpy(case.edges)
    return 1 / (1 + torch.bincount(head[source != head], minlength=case.num_nodes).double()).sqrt()
