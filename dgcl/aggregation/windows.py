"""An aggregation in windows: rows are expanded, and summed, a part at a time.

A *window* is some of the halo rows, exchanged by themselves (:mod:`dgcl.program.windows`); ``incoming`` and ``through``
of :mod:`dgcl.aggregation.operation` are divided by the window of the row that an edge reads::

    start window 0; for q = 0, 1, ...: finish window q, start window q + 1, sum q

so that at most two windows' rows are held. In the adjoint gradients of a window's rows are summed and folded, windows
in the opposite order: those that are sent and those that arrive are two buffers, and to sum the next window
meanwhile would take a third.

Owned rows and partial sums travel whole: windows divide rows that are expanded. Sums are made in a fixed order: edges
from owned rows, then window by window, then what others fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.aggregation.operation import Operation
from dgcl.aggregation.results import ResultMemory
from dgcl.aggregation.sparse import sum_dtype
from dgcl.relation.local_graph import LocalGraph

if TYPE_CHECKING:
    from dgcl.transport.base import StartedFold, Transport

__all__ = ["HaloWindows", "WindowedOperation", "divide"]


@dataclass(frozen=True, eq=False)
class HaloWindows:
    """The windows of a rank's halo rows.

    Attributes:
        exchanges: ``(W,)`` the number of each window's exchange.
        window: ``(num_halo,)`` the window of each halo row; in its window rows keep their order.
        room: Rows that a window's buffer has place for, relay rows and arrivals too.
    """

    exchanges: range
    window: NDArray[np.int64]
    room: int


@dataclass(frozen=True, eq=False)
class WindowedOperation:
    """A rank's part of an aggregation in windows; as :class:`~dgcl.aggregation.operation.Operation`.

    Attributes:
        blocks: ``own``, ``outgoing``, then ``incoming`` and ``through`` of each window.
        edges: Which of the rank's edges are in each block, ``(E_b,)`` int64 each.
        windows: Numbers of the windows' exchanges.
        fold: Number of the exchange of partial sums; None: no rank sends one.
        weights: Constant ones of each block's edges; None: ones.
        memory: Of results and partial sums; that of the whole operation.
        is_adjoint: Whether rows go from heads to tails, and windows are folded.
    """

    blocks: tuple[Block, ...]
    edges: tuple[Tensor, ...]
    windows: range
    fold: int | None
    weights: tuple[Tensor | None, ...]
    memory: ResultMemory
    is_adjoint: bool = False

    @cached_property
    def transposed(self) -> WindowedOperation:
        """The adjoint."""
        blocks = tuple(block.transposed for block in self.blocks)
        return replace(self, blocks=blocks, is_adjoint=not self.is_adjoint)

    def weighted(self, weight: Tensor) -> WindowedOperation:
        """The same with weights ``(E,)`` of the rank's edges."""
        return replace(self, weights=tuple(weight.index_select(0, ids) for ids in self.edges))

    def run(
        self, x: Tensor, transport: Transport, *, keep: bool = False, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Aggregate.

        Args:
            x: ``(num_tails of own, width)``, dense floating point.
            transport: Carries out the exchanges.
            keep: Keep all windows' rows.
            out: Where to put the result, contiguous, of the type of sums; None: memory of its own.

        Returns:
            ``(num_heads of own, width)`` of x's type; and, if they are kept, the rows that were summed.
        """
        x = x.resolve_neg().contiguous()  # once, not for the exchange and for each block
        if out is None:
            out = self.memory.empty(x, self.blocks[0].num_heads, x.shape[1], sum_dtype(x.dtype))
        if self.is_adjoint:
            return self._fold_windows(x, transport, out)
        return self._expand_windows(x, transport, out, keep)

    def _expand_windows(
        self, x: Tensor, transport: Transport, out: Tensor, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (own, outgoing, *divided), (own_weight, outgoing_weight, *weights) = self.blocks, self.weights
        started = transport.begin_expand(x, self.windows[0])
        partial = self.memory.empty(x, outgoing.num_heads, x.shape[1], out.dtype)
        outgoing.put(x, partial, outgoing_weight)
        own.put(x, out, own_weight)
        kept: list[Tensor] = []
        folding: StartedFold | None = None
        for q in range(len(self.windows)):
            halo = started.wait()
            if q + 1 < len(self.windows):
                started = transport.begin_expand(x, self.windows[q + 1])
            (incoming, through), (weight, through_weight) = divided[2 * q :][:2], weights[2 * q :][:2]
            through.add(halo, partial, through_weight)
            if q + 1 == len(self.windows) and self.fold is not None:
                folding = transport.begin_fold(partial.to(x.dtype), self.fold)
            incoming.add(halo, out, weight)
            if keep:
                kept.append(halo)
            del halo  # or it would live until the next window's has arrived
        out = out.to(x.dtype)
        if folding is not None:
            folding.wait(out)
        return out, tuple(kept)

    def _fold_windows(
        self, x: Tensor, transport: Transport, out: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (own, outgoing, *divided), (own_weight, outgoing_weight, *weights) = self.blocks, self.weights
        started = None if self.fold is None else transport.begin_expand(x, self.fold)
        wide = out.dtype
        own.put(x, out, own_weight)
        partial = x.new_empty(0, x.shape[1]) if started is None else started.wait()
        outgoing.add(partial, out, outgoing_weight)
        out = out.to(x.dtype)
        for q in reversed(range(len(self.windows))):
            (incoming, through), (weight, through_weight) = divided[2 * q :][:2], weights[2 * q :][:2]
            rows = transport.empty((incoming.num_heads, x.shape[1]), wide)
            incoming.put(x, rows, weight)
            through.add(partial, rows, through_weight)
            transport.begin_fold(rows.to(x.dtype), self.windows[q], wait=True).wait(out)
            del rows
        return out, (partial,)

    def dots(self, y: Tensor, y_partial: Tensor, x: Tensor, halo: Sequence[Tensor]) -> Tensor:
        """``(E,)``: for each of the rank's edges the product of the row that it adds to and the row that it reads."""
        out = x.new_empty(sum(map(len, self.edges)), dtype=sum_dtype(x.dtype))
        ends = [(y, x), (y_partial, x)]
        for rows in halo:
            ends += [(y, rows), (y_partial, rows)]
        for block, ids, (heads, tails) in zip(self.blocks, self.edges, ends, strict=True):
            if len(ids):
                out[ids] = block.dots(heads, tails).to(out.dtype)
        return out


def divide(whole: Operation, local: LocalGraph, windows: HaloWindows) -> WindowedOperation:
    """Divide an operation's edges from halo rows by the windows of these."""
    own, outgoing, incoming, through = whole.blocks
    n, number = local.num_owned, windows.window
    num_windows = len(windows.exchanges)
    sizes = np.bincount(number, minlength=num_windows)
    place = np.empty(len(number), np.int32)
    place[np.argsort(number, kind="stable")] = np.concatenate(
        [np.zeros(0, np.int32), *(np.arange(size, dtype=np.int32) for size in sizes)]
    )
    blocks, edges = [own, outgoing], [*whole.edges[:2]]
    device = whole.edges[0].device
    for q in range(num_windows):
        for block, ids, first_head in ((incoming, whole.edges[2], 0), (through, whole.edges[3], n)):
            mine = ids.cpu().numpy()
            mine = mine[number[local.indices[mine] - n] == q]
            tails = place[local.indices[mine] - n]
            heads = local.heads[mine] - first_head
            blocks.append(Block(heads, tails, block.num_heads, int(sizes[q]), device=device))
            edges.append(torch.from_numpy(mine).to(device))
    return WindowedOperation(
        tuple(blocks), tuple(edges), windows.exchanges, whole.fold, (None,) * len(blocks), whole.memory
    )
