"""Makes PyG's layers normalise by degrees of the whole graph, not of a rank's part.

GCNConv, ChebConv and others call PyG's ``gcn_norm`` or ``get_laplacian``. The subclasses that ``message_passing`` makes
get copies of their methods that call ours; PyG's own functions and classes stay as they are.
Called by `message_passing`. Free to change while signatures are PyG's and results those on one device
(`tests/dgcl/frameworks/test_pyg.py`: gcn_norm; `tests/dgcl/rows/test_layers.py`: whole layers).
"""

from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

from dgcl.aggregation.edge_sets import EdgeSet, edge_set_of, remember
from dgcl.distributed.summing_layers import spmm
from dgcl.nn.convolutions import Normalised
from dgcl.ranks.tensors import beside_the_graph


def gcn_norm(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """PyG's ``gcn_norm`` of this rank's edges; kept for edges without weights that are a rank's own."""
    edges = _edges_of(edge_index)
    if edges.comm.sums_elsewhere:
        return _summed(edge_index, edge_weight, add_self_loops)
    how = (improved, add_self_loops, dtype)
    keeps = edge_weight is None
    if keeps and how in edges.norms:
        kept, weight = edges.norms[how]
        return edge_index if kept is None else kept, weight
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(torch.is_grad_enabled() and not keeps),
    ):
        loops = edge_index, edge_weight
        if add_self_loops:  # row i of the heads is the same vertex as a source and as a head
            loops = add_remaining_self_loops(
                edge_index, edge_weight, 2.0 if improved else 1.0, edges.num_owned
            )
        result = normalised(*loops, edges, dtype)
    if keeps:  # the edges themselves, which the set belongs to, would keep each other alive
        edges.norms[how] = result if add_self_loops else (None, result[1])
    return result


@beside_the_graph
def _summed(edge_index: Tensor, edge_weight: Tensor | None, add_self_loops: bool) -> tuple[Tensor, None]:
    """Edges over which the aggregator sums with the weights of ``gcn_norm``. Collective."""
    edges = edge_set_of(edge_index)
    if edges is None or edge_weight is not None:
        raise ValueError(
            "gcn_norm takes the edges that dgcl.dispatch gave, as they came and without edge_weight, where the strategy"
            " is not halo: dispatch normalised weights, and give the layer normalize=False, or build the communicator"
            " with strategy='halo'"
        )
    if ("summed", add_self_loops) not in edges.norms:
        sums = Normalised(edges.comm, add_self_loops)
        copy = remember(edge_index.clone(), replace(edges, norms={}, sums=sums))
        edges.norms["summed", add_self_loops] = copy, None
    return edges.norms["summed", add_self_loops]  # type: ignore[return-value]


def normalised(
    edge_index: Tensor, edge_weight: Tensor | None, edges: EdgeSet, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Edges and their weights over the roots of the degrees of both ends. Collective."""
    weight = _weights(edge_index, edge_weight, dtype)
    sources, heads = edge_index
    degree = weight.new_zeros(edges.num_owned).index_add(0, heads, weight)
    scale = _expanded(edges, _inverse(degree, -0.5))
    return edge_index, scale[sources] * weight * scale[heads]


def get_laplacian(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    normalization: str | None = None,
    dtype: torch.dtype | None = None,
    num_nodes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """PyG's ``get_laplacian`` of this rank's edges. Collective."""
    edges = _edges_of(edge_index)
    edges.comm.require_neighbourhoods("get_laplacian")
    edge_index, edge_weight = remove_self_loops(edge_index, edge_weight)
    weight = _weights(edge_index, edge_weight, dtype)
    sources, heads = edge_index
    # It counts out-edges, which are on the ranks of their heads.
    degree = edges.comm.fold(
        weight.new_zeros(edges.num_sources).index_add(0, sources, weight), edges.exchange
    )
    if normalization is None:
        return add_self_loops(edge_index, num_nodes=edges.num_owned)[0], torch.cat([-weight, degree])
    scale = _expanded(edges, _inverse(degree, -0.5 if normalization == "sym" else -1.0))
    weight = scale[sources] * weight * (scale[heads] if normalization == "sym" else 1.0)
    return add_self_loops(edge_index, -weight, fill_value=1.0, num_nodes=edges.num_owned)


def _expanded(edges: EdgeSet, scale: Tensor) -> Tensor:
    """Scales of this rank's rows and those that it reads; a wire type rounds no integers, so learned ones alone."""
    if scale.requires_grad:
        return edges.expand(scale)
    return edges.expand(scale.view(getattr(torch, f"int{8 * scale.itemsize}"))).view(scale.dtype)


def _edges_of(edge_index: Tensor) -> EdgeSet:
    edges = edge_set_of(edge_index)
    if edges is None:
        raise ValueError(
            "edge_index must be what the layer was given, to be normalised (got edges made of it)"
        )
    return edges


def _weights(edge_index: Tensor, edge_weight: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    if edge_weight is not None:
        return edge_weight
    return torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)


def _inverse(degree: Tensor, power: float) -> Tensor:
    return degree.pow(power).masked_fill(degree == 0, 0.0)


_REPLACED = {"gcn_norm": gcn_norm, "get_laplacian": get_laplacian, "spmm": spmm}


def by_whole_degrees(base: type) -> dict[str, Any]:
    """Copies of the functions of a class that call one of PyG's normalisations, with ours in its place."""
    members: dict[str, Any] = {}
    for kind in reversed(base.__mro__):
        for name, value in vars(kind).items():
            members.pop(name, None)
            if isinstance(value, FunctionType) and _REPLACED.keys() & {*value.__code__.co_names}:
                members[name] = _copy(value)
    return members


def _copy(function: FunctionType) -> FunctionType:
    """The function with other names of globals, which its module gets; so it sees what else changes there."""
    for name, ours in _REPLACED.items():
        function.__globals__.setdefault(f"_dgcl_{name}", ours)
    code = function.__code__
    names = tuple(f"_dgcl_{name}" if name in _REPLACED else name for name in code.co_names)
    copied = FunctionType(
        code.replace(co_names=names),
        function.__globals__,
        argdefs=function.__defaults__,
        closure=function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
