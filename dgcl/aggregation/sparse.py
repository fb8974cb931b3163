"""Sums rows over edges as products with sparse matrices; 16-bit floats are summed in 32 bits.

On a device ``torch.use_deterministic_algorithms`` selects a slower way with a fixed order.
Called by `aggregator`, `block`, `windowed`, `dgcl/frameworks/csr_ops`, `dgcl/offload/chunk_graphs` and others. Free to
change while sums and dot products are those of a dense matrix (`tests/dgcl/aggregation/test_block.py`, "sparse"), and
16 bits are summed in float32 (`tests/dgcl/frameworks/test_csr.py`).
"""

import warnings

import torch
from torch import Tensor

_BLOCK = 1 << 24
"""Elements of the temporaries of operations on edges."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns once in a process that its CSR support is a beta
    torch.sparse_csr_tensor(
        [0, 0],
        torch.zeros(0, dtype=torch.int64, device="cpu"),
        torch.zeros(0, device="cpu"),
        (1, 1),
        device="cpu",
    )


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """16-bit floats are summed in 32 bits, as torch does, and rounded once."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def sparse_sums(indptr: Tensor, tails: Tensor, values: Tensor | None, x: Tensor) -> Tensor:
    """Row by row the sum of ``values``, default 1, times rows ``tails`` of ``x``: the product with a sparse matrix.

    In the type of ``x``: autocast would narrow both, to types that on a CPU have no sparse product. On a device
    products need not repeat their bits. Under ``torch.use_deterministic_algorithms`` rows are gathered, some columns at
    a time, and summed by segments, in a fixed order; products of complex numbers remain.
    """
    values = x.new_ones(len(tails)) if values is None else values
    if x.device.type != "cpu" and torch.are_deterministic_algorithms_enabled() and not x.is_complex():
        ends, values = indptr.long(), values[:, None]
        parts = x.split(max(1, _BLOCK // max(1, len(tails))), 1)
        sums = [
            torch.segment_reduce(part.index_select(0, tails) * values, "sum", offsets=ends) for part in parts
        ]
        return torch.cat(sums, 1)
    matrix = torch.sparse_csr_tensor(
        indptr, tails, values, (len(indptr) - 1, len(x)), check_invariants=False, device=x.device
    )
    with torch.autocast(x.device.type, enabled=False):
        return torch.mm(matrix, x)


def gathered_dots(y: Tensor, x: Tensor, heads: Tensor, tails: Tensor) -> Tensor:
    """(E,) of the type of sums: dot products of rows ``heads`` of ``y`` with rows ``tails`` of ``x``, in blocks."""
    dtype = sum_dtype(x.dtype)
    out = x.new_empty(len(heads), dtype=dtype)
    elements = 1 << 18 if x.device.type == "cpu" else _BLOCK  # what a cache of a CPU holds
    step = max(1, elements // max(1, x.size(1)))
    for start in range(0, len(heads), step):
        block = slice(start, start + step)
        products = y.index_select(0, heads[block]).to(dtype) * x.index_select(0, tails[block]).to(dtype)
        torch.sum(products, 1, out=out[block])
    return out
