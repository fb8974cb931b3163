"""Groups edges by their heads, and runs the CPU's kernels over them with heads divided among threads.

The threads are Python's, as many as ``torch.get_num_threads()``: kernels run without the GIL. A head belongs to one
thread, so that the number of threads changes no bit of a result.
Called by `block`, `contribution_exchange`, `dgcl/frameworks/csr_ops`, `dgcl/offload/chunk_graphs` and others. Free to
change while any number of threads gives the same bits, a child of fork has threads of its own
(`tests/dgcl/aggregation/test_block.py`), and compiled steps sum with threads, too
(`tests/dgcl/aggregation/test_steps.py`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.sparse import sum_dtype
from dgcl.kernels.compiled import compile_all
from dgcl.kernels.edge_sums import EDGE_DOTS, EDGE_SUMS
from dgcl.relation.local_graph import pointer
from dgcl.transport.shared_memory import interpreter
from dgcl.transport.steps import EdgePart

NONE = np.zeros(0, np.int32)
_LEAST = 1 << 20
"""Bytes of rows that a thread reads at least: less does not pay for waking it."""


@dataclass(frozen=True, eq=False)
class EdgeGroups:
    """E edges grouped by their heads, for R heads.

    Attributes:
        indptr: (R + 1,) int64; the edges of the i-th head are ``indptr[i]:indptr[i + 1]``.
        tails: (E,) int32, the row that each edge reads.
        heads: (R,) int32, each head's row, ascending; empty where the i-th head is row i.
        order: (E,) int32, the place of each edge in the order in which the edges were given, ascending at each head;
            empty where that is this order.
    """

    indptr: NDArray[np.int64]
    tails: NDArray[np.int32]
    heads: NDArray[np.int32]
    order: NDArray[np.int32]

    @property
    def num_heads(self) -> int:
        """Heads, those without an edge included if they are here."""
        return len(self.indptr) - 1


def group_edges(heads: NDArray[np.integer], tails: NDArray[np.integer], num_heads: int) -> EdgeGroups:
    """Group (E,) edges by ``heads`` in [0, num_heads), which need not be sorted; only heads that have an edge."""
    counts = np.bincount(heads, minlength=num_heads)
    columns = tails.astype(np.int32, copy=False)
    order = NONE
    if len(heads) and (np.diff(heads) < 0).any():
        order = _stable_order(heads, num_heads)
        columns = columns[order]
    present = np.flatnonzero(counts)
    indptr = pointer(counts[present])
    return EdgeGroups(indptr, columns, NONE if len(present) == num_heads else present.astype(np.int32), order)


def _stable_order(keys: NDArray[np.integer], num_keys: int) -> NDArray[np.int32]:
    """What sorts ``keys``, equal ones in their order: the transpose of a matrix of one row, five times as fast as
    ``argsort``."""
    from scipy.sparse import csr_matrix  # 10 MB, which a rank that only exchanges need not hold

    places, whole = np.arange(len(keys), dtype=np.int32), np.array([0, len(keys)], np.int32)
    matrix = csr_matrix((places, keys.astype(np.int32, copy=False), whole), shape=(1, num_keys))
    return matrix.tocsc().data


def sum_over_edges(edges: EdgeGroups, x: Tensor, out: Tensor, weight: Tensor | None, *, add: bool) -> None:
    """Write, or add, to each head's row of ``out`` the sum of its tails' rows of ``x``, in the order of the edges.

    Args:
        edges: The edges.
        x: (tails, F) floats on the CPU; copied unless its rows are contiguous, which may lie apart.
        out: (heads, F) of type ``sum_dtype(x.dtype)``, with contiguous rows.
        weight: (E,) of that type, in the order of ``edges``; default 1.
        add: Whether ``out`` is added to; else it is written, rows of heads without an edge too if they are in
            ``edges``.
    """
    weights = _one(out.dtype) if weight is None else weight
    step = 0 if weight is None else weights.stride(0) * weights.element_size()
    x = x if has_contiguous_rows(x) else x.contiguous()
    _sum_at(edges, (*_rows(out), *_rows(x)), x.dtype, x.shape[1], weights, step, add)


def _sum_at(
    edges: EdgeGroups,
    rows: tuple[int, int, int, int],
    dtype: torch.dtype,
    width: int,
    weights: Tensor,
    step: int,
    add: bool,
) -> None:
    """Sum ``width`` elements of rows; of results and of rows the address of row 0, and bytes from one to the next."""
    kernel = EDGE_SUMS[_name(dtype)]

    def run(begin: int, end: int) -> None:
        kernel(
            *rows, edges.indptr, edges.tails, weights.data_ptr(), step, edges.heads, begin, end, width, add
        )  # fmt: skip

    in_threads(run, edges, width * dtype.itemsize)


def part_of_edges(
    edges: EdgeGroups,
    weight: Tensor | None,
    width: int,
    dtype: torch.dtype,
    missing: NDArray[np.int64],
    *,
    add: bool,
) -> EdgePart:
    """What compiled code needs for :func:`sum_over_edges` of contiguous rows, of the type that they are summed in."""
    weights, step = (_one(dtype), 0) if weight is None else (weight, weight.element_size())
    row_bytes, in_threads = width * dtype.itemsize, None
    if _num_threads(edges, row_bytes) > 1:

        def in_threads(out: int, x: int) -> None:
            _sum_at(edges, (out, row_bytes, x, row_bytes), dtype, width, weights, step, add)

    return EdgePart(edges.indptr, edges.tails, edges.heads, weights, step, missing, in_threads)


def dots_at_edges(edges: EdgeGroups, y: Tensor, x: Tensor) -> Tensor:
    """(E,) of type ``sum_dtype(x.dtype)``, in the order in which edges were given: for each edge the dot product of its
    head's row of ``y`` (heads, F) with its tail's row of ``x`` (tails, F), both of one type.
    """
    y, x = (rows if has_contiguous_rows(rows) else rows.contiguous() for rows in (y, x))
    out = torch.empty(len(edges.tails), dtype=sum_dtype(x.dtype), device="cpu")
    kernel, rows = EDGE_DOTS[_name(x.dtype)], (*_rows(y), *_rows(x))

    def run(begin: int, end: int) -> None:
        kernel(
            out.data_ptr(), *rows, edges.indptr, edges.tails, edges.heads, edges.order, begin, end, x.shape[1]
        )  # fmt: skip

    in_threads(run, edges, x.shape[1] * x.element_size())
    return out


@functools.cache
def prepare() -> None:
    """Compile, or load, the kernels of float32 and float64, and steps, so that no peer waits for it in a call."""
    for kernels in (EDGE_SUMS, EDGE_DOTS):
        for name in ("float32", "float64"):
            kernel: Any = kernels[name]
            kernel.compile(kernel.only_signature)
    compile_all(interpreter)
    import scipy.sparse  # noqa: F401  which the first call would wait for


@functools.cache
def _one(dtype: torch.dtype) -> Tensor:
    """The weight of edges without weights; only read."""
    return torch.ones(1, dtype=dtype, device="cpu")


@functools.cache
def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in EDGE_SUMS:
        raise TypeError(f"sums over edges take rows of {', '.join(EDGE_SUMS)} (got {name})")
    return name


def has_contiguous_rows(x: Tensor) -> bool:
    """Whether the elements of each row lie one behind the other."""
    return x.shape[1] < 2 or x.stride(1) == 1


def _rows(x: Tensor) -> tuple[int, int]:
    """The address of row 0, and bytes from one row to the next."""
    return x.data_ptr(), x.stride(0) * x.element_size()


def _num_threads(edges: EdgeGroups, row_bytes: int) -> int:
    """How many threads sum the edges."""
    return min(torch.get_num_threads(), 1 + len(edges.tails) * row_bytes // _LEAST)


def in_threads(run: Callable[[int, int], None], edges: EdgeGroups, row_bytes: int) -> None:
    """Call ``run`` for ranges of heads, begin and end, with about as many edges each, side by side."""
    num_threads = _num_threads(edges, row_bytes)
    if num_threads == 1:
        run(0, edges.num_heads)
        return
    ends = np.linspace(0, len(edges.tails), num_threads + 1)[1:-1]
    bounds = [0, *np.searchsorted(edges.indptr, ends).tolist(), edges.num_heads]
    others = [_pool(num_threads - 1).submit(run, *bounds[i : i + 2]) for i in range(1, num_threads)]
    try:
        run(*bounds[:2])
    finally:
        for other in others:
            other.result()


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, "dgcl-sums")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads are not there in a child
