"""One aggregation as a linear operation on rows: expand, sum, fold; its adjoint has the same form.

A rank's edges are in four blocks, by what they read and what they add to::

    own       owned rows -> owned rows
    outgoing  owned rows -> partial sums of other ranks' rows
    incoming  halo rows  -> owned rows
    through   halo rows  -> partial sums

    halo    = x expanded                              partial = outgoing.x + through.halo
    y       = own.x + incoming.halo + (partial of all ranks folded)

In the adjoint blocks are transposed, ``incoming`` and ``outgoing`` change places, gradients of y are expanded by the
exchange that folded partial sums, and those of halo rows folded by the one that expanded. So a backward, and the
backward of a backward, is the same code.

One call is under way at a time: ``outgoing`` is summed while rows are expanded, ``incoming`` while partial sums are
folded; ``own`` where there is less else to do. At an owned row the edges from owned rows are added first, then those
from halo rows, then what others fold, in a fixed order: the same input gives the same bits. Where each row that others
fold has one contributor, as on grids of depth 1, nothing is added: the row is moved to its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.aggregation.results import ResultMemory
from dgcl.aggregation.sparse import sum_dtype
from dgcl.aggregation.steps import carry_out
from dgcl.transport.base import Transport
from dgcl.transport.steps import (
    EXPAND,
    FIRST,
    FOLD,
    FOLDED,
    FOR_SUM,
    GIVEN,
    PARTIAL,
    RESULT,
    WEIGHTED,
    Begin,
    Round,
    Step,
    Sum,
    Wait,
)

__all__ = ["Operation"]

#: Of each block the weights of its edges, ``(E_b,)``; or None: ones.
Weights = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class Operation:
    """A rank's part of an aggregation; every call is collective.

    Attributes:
        blocks: ``own``, ``outgoing``, ``incoming``, ``through``.
        edges: Which of the rank's edges are in each block, ``(E_b,)`` int64 each.
        expand, fold: Numbers of the exchanges; None: no rank sends a row.
        weights: Constant ones of each block's edges.
        fresh: The rows of the result that are what others fold and nothing else, one row each, ``(m,)`` int64: they are
            moved there, not added to zeros. The same of the adjoint. None: there are others too, or none of these.
        memory: Of results and partial sums; that of the adjoint, too.
        purpose: What it is for (:data:`dgcl.transport.steps.FOR_SUM`); ranks that disagree are named.
    """

    blocks: tuple[Block, Block, Block, Block]
    edges: tuple[Tensor, Tensor, Tensor, Tensor]
    expand: int | None
    fold: int | None
    weights: Weights = (None, None, None, None)
    fresh: tuple[Tensor | None, Tensor | None] = (None, None)
    memory: ResultMemory = field(default_factory=ResultMemory)
    purpose: int = FOR_SUM

    @cached_property
    def transposed(self) -> Operation:
        """The adjoint."""
        own, outgoing, incoming, through = (block.transposed for block in self.blocks)
        return Operation(  # without a reference to this one: weights would live until the next garbage collection
            (own, incoming, outgoing, through),
            _turned(self.edges),
            self.fold,
            self.expand,
            _turned(self.weights),
            self.fresh[::-1],
            self.memory,
            self.purpose,
        )

    def weighted(self, weight: Tensor, purpose: int = 0) -> Operation:
        """The same with weights ``(E,)`` of the rank's edges, for this purpose; by default as a weighted one."""
        own, outgoing, incoming, through = (weight.index_select(0, ids) for ids in self.edges)
        weights = own, outgoing, incoming, through
        return replace(self, weights=weights, purpose=purpose or self.purpose | WEIGHTED)

    def run(
        self, x: Tensor, transport: Transport, *, keep: bool = False, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Aggregate.

        Args:
            x: ``(num_tails of own, width)``, dense floating point.
            transport: Carries out the exchanges.
            keep: Return the halo rows, too.
            out: Where to put the result, contiguous, of the type of sums; None: memory of its own.

        Returns:
            ``(num_heads of own, width)`` of x's type; and, if they are kept, the halo rows that were summed.
        """
        x = x.resolve_neg().contiguous()  # once, not for the exchange and for each block
        if out is None:
            out = self.memory.empty(x, self.blocks[0].num_heads, x.shape[1], sum_dtype(x.dtype))
        return carry_out(self, x, out, transport, keep=keep)

    @property
    def windows(self) -> None:
        """There are none."""

    def reserve(self, width: int, dtype: torch.dtype, transport: Transport) -> None:
        """Nothing: there are no windows."""

    def steps(self, rounds: bool) -> list[Step]:
        """What is carried out, in this order."""
        del rounds
        (own, outgoing, incoming, through), weights = self.blocks, self.weights
        early = self.fold is None or incoming.num_edges >= outgoing.num_edges
        own_sum = Sum(own, weights[0], GIVEN, RESULT)
        steps: list[Step] = []
        if self.expand is not None:
            steps.append(expand := Begin(EXPAND, self.expand, GIVEN, FIRST, self.purpose))
        steps.append(Sum(outgoing, weights[1], GIVEN, PARTIAL))
        if early:
            steps.append(own_sum)
        if self.expand is not None:
            steps.append(Wait(expand))
        steps.append(Sum(through, weights[3], FIRST, PARTIAL, add=True))
        if self.fold is not None:
            steps.append(fold := Begin(FOLD, self.fold, PARTIAL, FOLDED, self.purpose))
        if not early:
            steps.append(own_sum)
        steps += [Sum(incoming, weights[2], FIRST, RESULT, add=True), Round()]
        if self.fold is not None:
            steps.append(Wait(fold, self.fresh[0]))
        return steps

    def dots(self, y: Tensor, y_partial: Tensor, x: Tensor, halo: Sequence[Tensor]) -> Tensor:
        """``(E,)``: for each of the rank's edges the product of the row that it adds to and the row that it reads."""
        out = x.new_empty(sum(map(len, self.edges)), dtype=sum_dtype(x.dtype))
        ends = ((y, x), (y_partial, x), (y, halo[0]), (y_partial, halo[0]))
        for block, ids, (heads, tails) in zip(self.blocks, self.edges, ends, strict=True):
            if len(ids):
                out[ids] = block.dots(heads, tails).to(out.dtype)
        return out


def _turned(of_blocks: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """What blocks have, for those of the adjoint: ``outgoing`` and ``incoming`` change places."""
    own, outgoing, incoming, through = of_blocks
    return own, incoming, outgoing, through
