"""Some edges of a graph as a linear operator on rows: sums at their heads and, transposed, at their tails.

>>> block = Block(heads, tails, num_heads, num_tails)
>>> block.sum(x, out, add=True)                # out[h] += sum over edges t -> h of x[t]
>>> block.transposed.sum(grad, grad_x)         # grad_x[t] = sum over edges t -> h of grad[h]

The CPU has kernels of ours (:mod:`dgcl.kernels.edge_sums`); other devices use :mod:`dgcl.aggregation.sparse`.
Called by `aggregator`, `step_execution`, `windowed` and `dgcl/offload/chunk_graphs`. Free to change while sums and dot
products both ways are those of a dense matrix, the same bits for any number of threads
(`tests/dgcl/aggregation/test_block.py`).
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.grouped_edges import (
    EdgeGroups,
    dots_at_edges,
    group_edges,
    part_of_edges,
    sum_over_edges,
)
from dgcl.aggregation.sparse import gathered_dots, sparse_sums
from dgcl.transport.steps import EdgePart


class Block:
    """E edges from rows at their tails to rows at their heads.

    Args:
        heads: (E,) integers in [0, num_heads), sorted or not.
        tails: (E,) integers in [0, num_tails).
        num_heads: Rows of results.
        num_tails: Rows of what is summed.
        device: Where rows are.

    Rows are (rows, F) tensors of real floats on ``device``. Results have the type of sums: float32 for
    16-bit floats, else the type of the rows. At each head edges are added in the order in which they were given. All
    methods work in place or on new tensors, without autograd.

    Attributes:
        ends: ``heads`` and ``tails``.

    Raises:
        ValueError: There are 2**31 edges or more.
    """

    def __init__(
        self,
        heads: NDArray[np.integer[Any]],
        tails: NDArray[np.integer[Any]],
        num_heads: int,
        num_tails: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(heads) >= 2**31:
            raise ValueError(f"a rank must sum less than 2**31 edges (got {len(heads)}); take more ranks")
        self.ends, self._sizes = (heads, tails), (num_heads, num_tails)
        self._device = torch.device(device)
        self._sides: list[Side | None] = [None, None]  # by head, by tail; both of a block and its transposed
        self._side = 0

    @property
    def num_heads(self) -> int:
        """Rows of results."""
        return self._sizes[0]

    @property
    def num_edges(self) -> int:
        """Edges, those that occur several times as often as they do."""
        return len(self.ends[0])

    @property
    def transposed(self) -> Block:
        """The same edges the other way round: the adjoint."""
        other = object.__new__(Block)
        other.__dict__.update(
            self.__dict__,
            ends=self.ends[::-1],
            _sizes=self._sizes[::-1],
            _side=1 - self._side,
        )
        return other

    def part(self, weight: Tensor | None, width: int, dtype: torch.dtype, *, add: bool) -> EdgePart:
        """What compiled code needs for :meth:`sum` of contiguous rows, on a CPU."""
        return self._grouped.part(weight, width, dtype, add)

    def dots(self, y: Tensor, x: Tensor) -> Tensor:
        """(E,) of the type of sums: for each edge the dot product of its head's row of ``y`` (num_heads, F) with its
        tail's row of ``x`` (num_tails, F), in the order in which edges were given."""
        assert (len(y), len(x)) == self._sizes
        assert y.shape[1] == x.shape[1]
        if y.dtype != x.dtype:  # a hook on saved tensors changed one of them
            raise TypeError(f"y and x must be rows of one type (got {y.dtype} and {x.dtype})")
        return self._grouped.dots(y.resolve_neg(), x.resolve_neg())

    @property
    def _grouped(self) -> Side:
        side = self._sides[self._side]
        if side is None:
            edges = group_edges(*self.ends, self.num_heads)
            side = self._sides[self._side] = side_class(self._device)(edges, self._sizes, self._device)
        return side

    def sum(self, x: Tensor, out: Tensor, weight: Tensor | None = None, *, add: bool = False) -> None:
        """Write to each head's row of ``out`` the sum over its edges of their tails' rows of ``x``, or add it there.

        Args:
            x: (num_tails, F).
            out: (num_heads, F) of the type of sums, with contiguous rows. Those of heads without an edge become zeros;
                with ``add`` they stay as they are.
            weight: (E,) what each edge's row is multiplied by, in the order in which edges were given; default 1.
                Constant weights are sorted once: the last tensor given is remembered, with its type.
            add: Add.
        """
        assert (len(out), len(x)) == self._sizes
        assert out.shape[1] == x.shape[1]
        if not add or self.num_edges:
            self._grouped.sum(x, out, weight, add)


class Side:
    """The edges one way round, on one device."""

    def __init__(self, edges: EdgeGroups, sizes: tuple[int, int], device: torch.device) -> None:
        self.edges, self.sizes, self.device = edges, sizes, device
        self._order = torch.from_numpy(edges.order).to(device)
        self._remembered: dict[torch.dtype, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def sort(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """(E,) weights in the order of ``edges``; constant ones as long as they are the same tensor and not written."""
        if not len(self._order) and weight.dtype == dtype:
            return weight.contiguous()
        constant = not weight.requires_grad and not weight.is_inference()
        if constant and dtype in self._remembered:
            tensor, version, ordered = self._remembered[dtype]
            if tensor() is weight and weight._version == version:
                return ordered
        ordered = weight.index_select(0, self._order) if len(self._order) else weight
        ordered = ordered.to(dtype).contiguous()
        if constant:
            self._remembered[dtype] = (weakref.ref(weight), weight._version, ordered)
        return ordered

    @functools.cached_property
    def missing(self) -> Tensor | None:
        """Rows of heads without an edge; None if there is none."""
        has_edge = np.zeros(self.sizes[0], bool)
        has_edge[self.edges.heads if len(self.edges.heads) else slice(self.edges.num_heads)] = True
        return None if has_edge.all() else torch.from_numpy(np.flatnonzero(~has_edge)).to(self.device)

    def sum(self, x: Tensor, out: Tensor, weight: Tensor | None, add: bool) -> None:
        """As :meth:`Block.sum`."""
        if not add and self.missing is not None:
            out.index_fill_(0, self.missing, 0)
        weight = None if weight is None else self.sort(weight, out.dtype)
        sum_over_edges(self.edges, x, out, weight, add=add)

    def part(self, weight: Tensor | None, width: int, dtype: torch.dtype, add: bool) -> EdgePart:
        """As :meth:`Block.part`."""
        weights = None if weight is None else self.sort(weight, dtype)
        missing = np.zeros(0, np.int64) if add or self.missing is None else self.missing.numpy()
        return part_of_edges(self.edges, weights, width, dtype, missing, add=add)

    def dots(self, y: Tensor, x: Tensor) -> Tensor:
        """As :meth:`Block.dots`."""
        return dots_at_edges(self.edges, y, x)


class _SparseSide(Side):
    """The same by torch's own operations, on any device."""

    def sum(self, x: Tensor, out: Tensor, weight: Tensor | None, add: bool) -> None:
        """As :meth:`Block.sum`."""
        values = None if weight is None else self.sort(weight, out.dtype)
        sums = sparse_sums(self._indptr, self._tails, values, x.to(out.dtype))
        if not add and self.missing is not None:
            out.index_fill_(0, self.missing, 0)
        if len(self.edges.heads) or len(sums) < len(out):
            (out.index_add_ if add else out.index_copy_)(0, self._heads, sums)
        else:
            (out.add_ if add else out.copy_)(sums)

    def dots(self, y: Tensor, x: Tensor) -> Tensor:
        """As :meth:`Block.dots`."""
        heads = torch.repeat_interleave(self._heads, self._indptr.diff().long())
        result = gathered_dots(y, x, heads, self._tails)
        order = self._order.long()
        return torch.empty_like(result).index_copy_(0, order, result) if len(order) else result

    @functools.cached_property
    def _indptr(self) -> Tensor:
        return torch.from_numpy(self.edges.indptr.astype(np.int32)).to(self.device)

    @functools.cached_property
    def _tails(self) -> Tensor:
        return torch.from_numpy(self.edges.tails).to(self.device)

    @functools.cached_property
    def _heads(self) -> Tensor:
        heads = self.edges.heads if len(self.edges.heads) else np.arange(self.edges.num_heads)
        return torch.from_numpy(heads).to(self.device, torch.int64)


def side_class(device: torch.device) -> type[Side]:
    """What sums on ``device``."""
    return Side if device.type == "cpu" else _SparseSide
