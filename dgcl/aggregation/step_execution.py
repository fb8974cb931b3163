"""Carries out an aggregation's steps: one by one the first time, later in one call of compiled code.

Those that keep the rows that they sum, with learned weights for example, are always carried out one by one: their
operation is another one each time. So are all in 16 bits, and where the transport has no compiled code for steps.
Called by `aggregator`, `operation` and `windowed`. Free to change while both ways give the same bits, also where some
ranks go one way and some the other, and a rank that is interrupted is named on all
(`tests/dgcl/aggregation/test_steps.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.aggregation.results import ResultMemory
from dgcl.aggregation.sparse import sum_dtype
from dgcl.transport.base import StepList, Transport
from dgcl.transport.steps import (
    EXPAND,
    FOR_SUM,
    GIVEN,
    PARTIAL,
    RESULT,
    WEIGHTED,
    Begin,
    Round,
    Step,
    Sum,
)


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A rank's part of an aggregation; every call is collective.

    Attributes:
        blocks: ``own``, ``outgoing``, then ``incoming`` and ``through`` of all halo rows, or of each window of them.
        edges: Which of the rank's edges are in each block, ``(E_b,)`` int64 each.
        weights: Constant ones of each block's edges; None: ones.
        memory: Of results and partial sums; that of the adjoint, too.
        purpose: What it is for (:data:`dgcl.transport.steps.FOR_SUM`); ranks that disagree are named.
    """

    blocks: tuple[Block, ...]
    edges: tuple[Tensor, ...]
    weights: tuple[Tensor | None, ...] = field(kw_only=True)
    memory: ResultMemory = field(default_factory=ResultMemory, kw_only=True)
    purpose: int = field(default=FOR_SUM, kw_only=True)

    @property
    def transposed(self) -> Self:
        """The adjoint."""
        raise NotImplementedError

    @property
    def windows(self) -> tuple[int, int] | None:
        """Rows that the two buffers of windows have place for; None: there are no windows."""
        return None

    def reserve(self, width: int, dtype: torch.dtype, transport: Transport) -> None:
        """Have these buffers in one stretch of memory."""

    def steps(self) -> list[Step]:
        """What is carried out, in this order."""
        raise NotImplementedError

    def weighted(self, weight: Tensor) -> Self:
        """The same with weights ``(E,)`` of the rank's edges."""
        weights = tuple(weight.index_select(0, ids) for ids in self.edges)
        return replace(self, weights=weights, purpose=self.purpose | WEIGHTED)

    def run(
        self, x: Tensor, transport: Transport, *, keep: bool = False, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Aggregate.

        Args:
            x: ``(num_tails of own, width)``, dense floating point.
            transport: Carries out the exchanges.
            keep: Return the rows that were expanded, too.
            out: Where to put the result, contiguous, of the type of sums; None: memory of its own.

        Returns:
            ``(num_heads of own, width)`` of x's type; rows that were expanded, call by call, or none of them.
        """
        x = x.resolve_neg().contiguous()  # once, not for the exchange and for each block
        if out is None:
            out = self.memory.empty(x, self.blocks[0].num_heads, x.shape[1], sum_dtype(x.dtype))
        if not keep:
            sequence = _repeated(self, x, transport)
            if sequence is not None:
                partial = None
                if sequence.num_partial is not None:
                    partial = self.memory.empty(x, sequence.num_partial, x.shape[1], x.dtype)
                sequence.run(x, out, partial)
                return out, ()
        return _one_by_one(self, x, out, transport, keep)

    def dots(self, y: Tensor, y_partial: Tensor, x: Tensor, halo: Sequence[Tensor]) -> Tensor:
        """``(E,)``: for each of the rank's edges the product of the row that it adds to and the row that it reads."""
        out = x.new_empty(sum(map(len, self.edges)), dtype=sum_dtype(x.dtype))
        ends = [(into, rows) for rows in (x, *halo) for into in (y, y_partial)]
        for block, ids, (heads, tails) in zip(self.blocks, self.edges, ends, strict=True):
            if len(ids):
                out[ids] = block.dots(heads, tails).to(out.dtype)
        return out


#: Of each transport and aggregation what carries it out, by width and type of rows and number of threads.
_sequences: WeakKeyDictionary[Any, WeakKeyDictionary[Any, dict[Any, Any]]] = WeakKeyDictionary()


def _repeated(what: Aggregation, x: Tensor, transport: Transport) -> StepList | None:
    """What carries out an aggregation like those before; None the first time, and where there is nothing."""
    lists = _sequences.setdefault(transport, WeakKeyDictionary()).setdefault(what, {})
    kind = (x.shape[1], x.dtype, torch.get_num_threads())
    if kind not in lists:
        lists[kind] = False
        return None
    if lists[kind] is False:
        lists[kind] = transport.sequence(what.steps(), x.shape[1], x.dtype, what.windows)
    return lists[kind]


def _one_by_one(
    what: Aggregation, x: Tensor, out: Tensor, transport: Transport, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    rows, nothing, kept = {GIVEN: x, RESULT: out}, x[:0], []
    wide, width = out.dtype, x.shape[1]
    started: Any = None
    what.reserve(width, x.dtype, transport)
    for step in what.steps():
        if isinstance(step, Sum):
            if step.target not in rows and step.target == PARTIAL:
                rows[PARTIAL] = what.memory.empty(x, step.edges.num_heads, width, wide)
            elif step.target not in rows:
                assert what.windows is not None
                buffer = transport.empty((what.windows[0], width), wide)
                rows[step.target] = buffer[: step.edges.num_heads]
                del buffer
            source, target = rows.get(step.source, nothing), rows[step.target]
            step.edges.sum(source, target, step.weight, add=step.add)
            del source, target
        elif isinstance(step, Round):
            rows[RESULT] = rows[RESULT].to(x.dtype)
        elif isinstance(step, Begin):
            rows.pop(step.arrivals, None)  # or it would live until what arrives now is there
            source = rows[step.source]
            if step.verb == EXPAND:
                started = transport.begin_expand(source, step.exchange, purpose=step.purpose)
            else:
                started = transport.begin_fold(source.to(x.dtype), step.exchange, purpose=step.purpose)
            del source
        elif step.begun.verb == EXPAND:
            rows[step.begun.arrivals] = started.wait()
            if keep:
                kept.append(rows[step.begun.arrivals])
        else:
            started.wait(rows[RESULT])
            started = None
            del rows[step.begun.source]
    return rows[RESULT], tuple(kept) if kept or not keep else (nothing,)
