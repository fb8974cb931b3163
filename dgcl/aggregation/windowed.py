"""An aggregation that exchanges and sums halo rows one part, a window, after another, which takes less memory.

A *window* is some of the halo rows, exchanged by themselves (:mod:`dgcl.program.window_programs`); ``incoming`` and
``through`` of :mod:`dgcl.aggregation.operation` are divided by the window of the row that an edge reads. Sums are made
in a fixed order: edges from owned rows, then window by window, then what others fold.
Called by `aggregating`, `aggregator`, `connect_aggregators` and `dgcl/communicator`. Free to change while sums and
gradients are those of a dense matrix, two windows are held at most, and all windows together move the halo once
(`tests/dgcl/aggregation/test_windows.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from dgcl.aggregation.block import Block
from dgcl.aggregation.operation import Operation
from dgcl.aggregation.sparse import sum_dtype
from dgcl.aggregation.step_execution import Aggregation
from dgcl.transport.base import Transport
from dgcl.transport.steps import (
    EXPAND,
    FIRST,
    FOLD,
    FOLDED,
    GIVEN,
    PARTIAL,
    RESULT,
    SECOND,
    Begin,
    Round,
    Step,
    Sum,
    Wait,
)

_ROUNDING = 256
"""Bytes that a buffer is rounded to."""


@dataclass(frozen=True, eq=False)
class HaloWindows:
    """The windows of a rank's halo rows.

    Attributes:
        exchanges: ``(W,)`` the number of each window's exchange.
        window: ``(num_halo,)`` the window of each halo row; in its window rows keep their order.
        expanded: Rows of the largest window as it is expanded, relay rows too.
        arriving: The same of those that arrive when it is folded.
    """

    exchanges: range
    window: NDArray[np.int64]
    expanded: int
    arriving: int


# start window 0; for q = 0, 1, ...: finish window q, start window q + 1, sum q
#
# so that at most two windows' rows are held. In the adjoint gradients of a window's rows are summed and folded, windows
# in the opposite order: those that are sent and those that arrive are two buffers, and to sum the next window
# meanwhile would take a third.
#
# ``own`` is summed while the first window travels, either way.
#
# Owned rows and partial sums travel whole: windows divide rows that are expanded.
@dataclass(frozen=True, eq=False)
class WindowedOperation(Aggregation):
    """A rank's part of an aggregation in windows.

    Attributes:
        halo: The windows.
        fold: Number of the exchange of partial sums; None: no rank sends one.
        is_adjoint: Whether rows go from heads to tails, and windows are folded.
    """

    halo: HaloWindows
    fold: int | None
    is_adjoint: bool = False

    @cached_property
    def transposed(self) -> WindowedOperation:
        """The adjoint."""
        blocks = tuple(block.transposed for block in self.blocks)
        return replace(self, blocks=blocks, is_adjoint=not self.is_adjoint)

    def reserve(self, width: int, dtype: torch.dtype, transport: Transport) -> None:
        """Have both buffers in one stretch of memory: pieces of windows of other widths would be too small."""
        row_bytes, wide = width * dtype.itemsize, width * sum_dtype(dtype).itemsize
        of_rows = [room * row_bytes for room in self.windows]
        if self.is_adjoint and wide > row_bytes:
            of_rows = [self.halo.expanded * wide, self.halo.arriving * row_bytes]
        transport.empty((sum(-(-each // _ROUNDING) * _ROUNDING for each in of_rows),), torch.uint8)

    @property
    def windows(self) -> tuple[int, int]:
        """Rows that the two buffers of windows have place for."""
        return self.halo.expanded, max(self.halo.expanded, self.halo.arriving)

    def steps(self) -> list[Step]:
        """What is carried out, in this order."""
        return self._fold_windows() if self.is_adjoint else self._expand_windows()

    def _expand_windows(self) -> list[Step]:
        (own, outgoing, *divided), (own_weight, outgoing_weight, *weights) = self.blocks, self.weights
        last = len(self.halo.exchanges) - 1
        begins = [
            Begin(EXPAND, exchange, GIVEN, SECOND if (last - q) % 2 else FIRST, self.purpose)
            for q, exchange in enumerate(self.halo.exchanges)
        ]
        folded = [] if self.fold is None else [Begin(FOLD, self.fold, PARTIAL, FOLDED, self.purpose)]
        steps: list[Step] = [
            begins[0],
            Sum(outgoing, outgoing_weight, GIVEN, PARTIAL),
            Sum(own, own_weight, GIVEN, RESULT),
        ]
        for q, begin in enumerate(begins):
            (incoming, through), (weight, through_weight) = divided[2 * q :][:2], weights[2 * q :][:2]
            steps += [Wait(begin), *begins[q + 1 : q + 2]]
            steps.append(Sum(through, through_weight, begin.arrivals, PARTIAL, add=True))
            if q == last:
                steps += folded
            steps.append(Sum(incoming, weight, begin.arrivals, RESULT, add=True))
        return [*steps, Round(), *(Wait(begin) for begin in folded)]

    def _fold_windows(self) -> list[Step]:
        (own, outgoing, *divided), (own_weight, outgoing_weight, *weights) = self.blocks, self.weights
        own_sum = Sum(own, own_weight, GIVEN, RESULT)  # while the first rows are on their way
        steps: list[Step] = []
        if self.fold is not None:
            begin = Begin(EXPAND, self.fold, GIVEN, PARTIAL, self.purpose)
            steps = [begin, own_sum, Wait(begin)]
        last = len(self.halo.exchanges) - 1
        for q in reversed(range(last + 1)):
            (incoming, through), (weight, through_weight) = divided[2 * q :][:2], weights[2 * q :][:2]
            steps.append(Sum(incoming, weight, GIVEN, FIRST))
            steps.append(Sum(through, through_weight, PARTIAL, FIRST, add=True))
            steps.append(begin := Begin(FOLD, self.halo.exchanges[q], FIRST, SECOND, self.purpose))
            if q == last:
                if self.fold is None:
                    steps.append(own_sum)
                steps.append(Sum(outgoing, outgoing_weight, PARTIAL, RESULT, add=True))
                steps.append(Round())  # before the first arrivals are added
            steps.append(Wait(begin))
        return steps


def divide(whole: Operation, windows: HaloWindows) -> WindowedOperation:
    """Divide an operation's edges from halo rows by the windows of these."""
    own, outgoing, *from_halo = whole.blocks
    num_windows, device = len(windows.exchanges), whole.edges[0].device
    sizes = np.bincount(windows.window, minlength=num_windows)
    order = np.argsort(windows.window, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

    divided = []
    for block, places in zip(from_halo, whole.edges[2:], strict=True):
        heads, tails = block.ends
        of_edges = windows.window[tails]
        ends = np.cumsum(np.bincount(of_edges, minlength=num_windows))
        result = []
        for q, mine in enumerate(np.split(np.argsort(of_edges, kind="stable"), ends[:-1])):
            part = Block(heads[mine], place[tails[mine]], block.num_heads, int(sizes[q]), device)
            result.append((part, places[mine]))
        divided.append(result)
    in_turn = [each for of_window in zip(*divided, strict=True) for each in of_window]
    blocks, edges = zip((own, whole.edges[0]), (outgoing, whole.edges[1]), *in_turn, strict=True)
    weights = (None,) * len(blocks)
    return WindowedOperation(blocks, edges, windows, whole.fold, weights=weights, memory=whole.memory)
