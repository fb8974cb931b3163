"""The ways to sum over edges that ``local_sum.py`` compares: each a function of rows that autograd differentiates."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.sparse import gathered_dots
from dgcl.frameworks.csr_ops import build_adjacency, weighted_sum

Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Edges:
    """Edges in the order of their heads, int32."""

    heads: np.ndarray
    tails: np.ndarray
    num_heads: int
    num_tails: int

    @property
    def indptr(self) -> Tensor:
        """(num_heads + 1,) int32."""
        counts = np.bincount(self.heads, minlength=self.num_heads)
        return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def ours(edges: Edges, weight: Tensor | None) -> Sum:
    """What ``CSRLocalGraph.sum`` calls."""
    adjacency = build_adjacency(edges.indptr, torch.from_numpy(edges.tails), edges.num_tails)
    return lambda x: weighted_sum(x, weight, adjacency)


class _SparseSum(torch.autograd.Function):
    """Our sum before there was a kernel: sparse products of torch's, matrices made in each call, rows kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, adjacency: Any) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(x, weight)
        return torch.mm(adjacency.matrix(weight, x.dtype), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[override]
        (x, weight), adjacency = ctx.saved_tensors, ctx.adjacency
        grad_x = torch.mm(adjacency.transposed.matrix(weight, grad.dtype), grad)
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None
        return grad_x, gathered_dots(grad, x, adjacency.heads.rows, adjacency.tails.rows), None


def before(edges: Edges, weight: Tensor | None) -> Sum:
    """``CSRLocalGraph.sum`` of the version before."""
    adjacency = build_adjacency(edges.indptr, torch.from_numpy(edges.tails), edges.num_tails)
    return lambda x: _SparseSum.apply(x, weight, adjacency)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return torch.mm(matrix, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return torch.mm(ctx.transposed, grad), None, None


def torch_sparse(edges: Edges, weight: Tensor | None) -> Sum | None:
    """Products of torch with both CSR matrices, made beforehand."""
    if weight is not None and weight.requires_grad:
        return None
    adjacency = build_adjacency(edges.indptr, torch.from_numpy(edges.tails), edges.num_tails)
    matrix, back = (each.matrix(weight, torch.float32) for each in (adjacency, adjacency.transposed))
    return lambda x: _Products.apply(x, matrix, back)


def dgl_sum(edges: Edges, weight: Tensor | None) -> Sum | None:
    """DGL's kernels on a block, as its layers call them."""
    if importlib.util.find_spec("dgl") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl

    ends = torch.from_numpy(edges.tails), torch.from_numpy(edges.heads)
    block = dgl.create_block(ends, num_src_nodes=edges.num_tails, num_dst_nodes=edges.num_heads)
    block.create_formats_()
    if weight is None:
        return lambda x: dgl.ops.copy_u_sum(block, x)
    return lambda x: dgl.ops.u_mul_e_sum(block, x, weight.unsqueeze(1))


def pyg_messages(edges: Edges, weight: Tensor | None) -> Sum | None:
    """PyG's ``propagate``: rows gathered at edges, then scattered; what its layers do without ``torch_sparse``."""
    if importlib.util.find_spec("torch_geometric") is None:
        return None
    from torch_geometric.nn import MessagePassing

    class Layer(MessagePassing):
        def forward(self, x: Tensor, index: Tensor, size: tuple[int, int]) -> Tensor:
            return self.propagate(index, x=(x, None), size=size)

        def message(self, x_j: Tensor) -> Tensor:
            return x_j if weight is None else weight.unsqueeze(1) * x_j

    index = torch.from_numpy(np.stack([edges.tails, edges.heads]).astype(np.int64))
    layer, size = Layer(aggr="sum"), (edges.num_tails, edges.num_heads)
    return lambda x: layer(x, index, size)


def pyg_edge_index(edges: Edges, weight: Tensor | None) -> Sum | None:
    """PyG's ``EdgeIndex``, which knows that it is sorted and remembers its CSR both ways round."""
    if importlib.util.find_spec("torch_geometric") is None or (weight is not None and weight.requires_grad):
        return None
    from torch_geometric import EdgeIndex

    index = EdgeIndex(
        torch.from_numpy(np.stack([edges.heads, edges.tails]).astype(np.int64)),
        sparse_size=(edges.num_heads, edges.num_tails),
        sort_order="row",
    ).fill_cache_()
    return lambda x: index.matmul(x, input_value=weight)


METHODS: dict[str, Callable[[Edges, Tensor | None], Sum | None]] = {
    "dgcl": ours,
    "dgcl, before": before,
    "torch.sparse": torch_sparse,
    "DGL": dgl_sum,
    "PyG propagate": pyg_messages,
    "PyG EdgeIndex": pyg_edge_index,
}
