"""Sums over the edges of one rank, forward and backward, on one core: ours, DGL's, PyG's and torch's. Ten minutes.

Methods take turns on rows of 128 float32; times are CPU time of the process, medians over rounds. Graphs are made
symmetric with self loops and cut in two by METIS; the first part's in-edges are summed. Every result is compared with
a float64 computation by scipy.

    weights       none: a plain sum; constant: times an edge's weight; learned: with gradients of the weights, too
    there, back   ms of the forward and of the backward
    as fast       there and back of this method / ours
    GB/s          bytes that the forward must read and write (each edge's row, its ids and weight, each result) / time
    of read rate  that, over the rate at which rows are read in sequence from 256 MB, by the same kernel in the same run
    kept          MB that autograd keeps for the backward
    error         the largest of all elements of all results, over the largest element
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.bench.turns import PROCESS, in_turns
from dgcl.frameworks.csr_ops import build_adjacency, weighted_sum
from dgcl.graph import Graph
from dgcl.partition import partition_graph
from docs.figures.framework import Figure, Run, both_ways, machine

PAGE = "performance.md"
GRAPHS, WEIGHTS, WIDTH = (
    ("ogbn_arxiv", "web_google_scc"),
    ("none", "constant", "learned"),
    128,
)
Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Edges:
    """Edges in the order of their heads, int32."""

    heads: np.ndarray
    tails: np.ndarray
    num_heads: int
    num_tails: int

    def matrix(self, values: np.ndarray) -> sp.csr_matrix:
        """A value for each edge as a sparse matrix."""
        return sp.csr_matrix((values, (self.heads, self.tails)), (self.num_heads, self.num_tails))


def ours(edges: Edges, weight: Tensor | None) -> Sum:
    """The sum of ``CSRLocalGraph``."""
    counts = np.bincount(edges.heads, minlength=edges.num_heads)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    adjacency = build_adjacency(indptr, torch.from_numpy(edges.tails), edges.num_tails)
    return lambda x: weighted_sum(x, weight, adjacency)


def dgl_sum(edges: Edges, weight: Tensor | None) -> Sum:
    """DGL's kernels on a block, as its layers call them."""
    import dgl

    ends = torch.from_numpy(edges.tails), torch.from_numpy(edges.heads)
    block = dgl.create_block(ends, num_src_nodes=edges.num_tails, num_dst_nodes=edges.num_heads)
    block.create_formats_()
    if weight is None:
        return lambda x: dgl.ops.copy_u_sum(block, x)
    return lambda x: dgl.ops.u_mul_e_sum(block, x, weight.unsqueeze(1))


def pyg_messages(edges: Edges, weight: Tensor | None) -> Sum:
    """PyG's ``propagate``: rows gathered at edges, then scattered; what its layers do without ``torch_sparse``."""
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
    if weight is not None and weight.requires_grad:
        return None
    from torch_geometric import EdgeIndex

    ends = torch.from_numpy(np.stack([edges.heads, edges.tails]).astype(np.int64))
    index = EdgeIndex(ends, sparse_size=(edges.num_heads, edges.num_tails), sort_order="row").fill_cache_()
    return lambda x: index.matmul(x, input_value=weight)


METHODS: dict[str, tuple[str, Callable[[Edges, Tensor | None], Sum | None]]] = {
    "dgcl": ("torch", ours),
    "DGL": ("dgl", dgl_sum),
    "PyG propagate": ("torch_geometric", pyg_messages),
    "PyG EdgeIndex": ("torch_geometric", pyg_edge_index),
}


def first_part(graph: Graph) -> Edges:
    """The in-edges of the first of two parts, local rows in the order of global ids, owned before halo."""
    graph = both_ways(graph)
    part = partition_graph(graph, 2, seed=0)
    owned, (tails, heads) = np.flatnonzero(part == 0), graph.edges()
    mine = part[heads] == 0
    tails, heads = tails[mine], heads[mine]
    rows = np.concatenate([owned, np.setdiff1d(tails, owned)])
    local = np.zeros(graph.num_nodes, np.int32)
    local[rows] = np.arange(len(rows))
    order = np.argsort(local[heads], kind="stable")
    return Edges(local[heads][order], local[tails][order], len(owned), len(rows))


def expected(edges: Edges, x: Tensor, grad: Tensor, weight: Tensor) -> list[np.ndarray]:
    """Sums, and gradients of rows and of weights, in float64."""
    wide, back = (tensor.detach().numpy().astype(np.float64) for tensor in (x, grad))
    matrix, step = edges.matrix(weight.detach().numpy().astype(np.float64)), 100_000
    pieces = [slice(e, e + step) for e in range(0, len(edges.heads), step)]
    dots = [np.einsum("ef,ef->e", back[edges.heads[e]], wide[edges.tails[e]]) for e in pieces]
    return [matrix @ wide, matrix.T @ back, np.concatenate(dots)]


def reading() -> Callable[[], object]:
    """Rows read in sequence from 256 MB of memory, by our kernel."""
    rows = torch.ones((256 << 20) // (4 * WIDTH), WIDTH)
    block = Block(np.arange(len(rows)) // 16, np.arange(len(rows)), len(rows) // 16, len(rows))
    out = torch.zeros(block.num_heads, WIDTH)
    return lambda: block.sum(rows, out)


def measure(edges: Edges, weights: str, rounds: int) -> Iterator[list[Any]]:
    """All methods in turns: a row for each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(edges.num_tails, WIDTH, generator=generator).requires_grad_()
    grad = torch.randn(edges.num_heads, WIDTH, generator=generator)
    weight = torch.rand(len(edges.heads), generator=generator).requires_grad_(weights == "learned")
    argument = None if weights == "none" else weight
    truth = expected(edges, x, grad, torch.ones_like(weight) if argument is None else weight)
    calls: dict[str, Callable[[], object]] = {}
    checks = {}
    for name, (library, make) in METHODS.items():
        method = make(edges, argument) if importlib.util.find_spec(library) else None
        if method is None:
            continue
        kept: list[int] = []

        def keep(saved: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(saved.numel() * saved.element_size())
            return saved

        def both(method: Sum = method) -> Tensor:
            x.grad = weight.grad = None
            y = method(x)
            y.backward(grad)
            return y.detach()

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            method(x)
        values = [both(), x.grad, *([weight.grad] if weights == "learned" else [])]
        pairs = zip(values, truth, strict=False)
        checks[name] = sum(kept) / 1e6, max(np.abs(a.numpy() - b).max() / np.abs(b).max() for a, b in pairs)
        calls |= {f"{name} there": partial(method, x), name: both}
    times = in_turns(calls, rounds, clock=PROCESS)
    for name, (kept_mb, error) in checks.items():
        there, both = times[f"{name} there"].median, times[name].median
        yield [name, 1e3 * there, 1e3 * (both - there), times[name].ratio(times["dgcl"]), kept_mb, error]


def sums(run: Run) -> Figure:
    """Each graph with each kind of weights by each method."""
    torch.set_num_threads(1)
    columns = {
        "graph": "", "weights": "", "method": "", "there ms": ".1f", "back ms": ".1f", "as fast": ".2f",
        "kept": "{:.0f} MB", "error": ".0e",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for name in run.some(GRAPHS):
            edges = first_part(run.graph(name))
            for weights in WEIGHTS:
                yield from ([name, weights, *row] for row in measure(edges, weights, run.rounds))

    text = "{there ms:.0f} + {back ms:.0f} ms, {as fast:.2f}, {kept:.0f} MB"
    small = ("{graph}, {weights}".format_map, "{method}".format_map, text.format_map)
    return Figure(columns, rows(), machine(), small=small)


FIGURES = {"sums": sums}
