"""A rank's part of an aggregation as a list of steps: expand, sum, fold; its adjoint has the same form.

*Expand*: owners send rows to the ranks whose edges read them. *Fold*: ranks send partial sums to owners, who add them.
The order of steps decides the bits of a result: at an owned row edges from owned rows are added first, then those from
halo rows, then what others fold. :mod:`dgcl.aggregation.step_execution` carries the steps out.
Called by `aggregator` and `windowed`. Free to change while sums and gradients are those of a dense matrix, with the
same bits each time (`tests/dgcl/aggregation/test_windows.py`), and past weights are not kept alive
(`tests/dgcl/aggregation/test_aggregator.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from dgcl.aggregation.step_execution import Aggregation
from dgcl.transport.steps import (
    EXPAND,
    FIRST,
    FOLD,
    FOLDED,
    GIVEN,
    PARTIAL,
    RESULT,
    Begin,
    Round,
    Step,
    Sum,
    Wait,
)


# A rank's edges are in four blocks, by what they read and what they add to::
#
#     own       owned rows -> owned rows
#     outgoing  owned rows -> partial sums of other ranks' rows
#     incoming  halo rows  -> owned rows
#     through   halo rows  -> partial sums
#
#     halo    = x expanded                              partial = outgoing.x + through.halo
#     y       = own.x + incoming.halo + (partial of all ranks folded)
#
# In the adjoint blocks are transposed, ``incoming`` and ``outgoing`` change places, gradients of y are expanded by the
# exchange that folded partial sums, and those of halo rows folded by the one that expanded. So a backward, and the
# backward of a backward, is the same code.
#
# One call is under way at a time: ``outgoing`` is summed while rows are expanded, ``incoming`` while partial sums are
# folded; ``own`` where there is less else to do. At an owned row the edges from owned rows are added first, then
# those from halo rows, then what others fold, in a fixed order: the same input gives the same bits.
@dataclass(frozen=True, eq=False)
class Operation(Aggregation):
    """A rank's part of an aggregation whose halo rows travel at once: four blocks.

    Attributes:
        expand, fold: Numbers of the exchanges; None: no rank sends a row.
    """

    expand: int | None
    fold: int | None
    weights: tuple[Tensor | None, ...] = field(default=(None,) * 4, kw_only=True)

    @cached_property
    def transposed(self) -> Operation:
        """The adjoint."""
        own, outgoing, incoming, through = (block.transposed for block in self.blocks)
        return Operation(  # without a reference to this one: weights would live until the next garbage collection
            (own, incoming, outgoing, through),
            _turned(self.edges),
            self.fold,
            self.expand,
            weights=_turned(self.weights),
            memory=self.memory,
            purpose=self.purpose,
        )

    def steps(self) -> list[Step]:
        """What is carried out, in this order."""
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
            steps.append(Wait(fold))
        return steps


def _turned(of_blocks: tuple[Any, ...]) -> tuple[Any, ...]:
    """What blocks have, for those of the adjoint: ``outgoing`` and ``incoming`` change places."""
    own, outgoing, incoming, through = of_blocks
    return own, incoming, outgoing, through
