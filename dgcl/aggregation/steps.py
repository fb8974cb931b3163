"""Carries out the steps of an aggregation: at once, by compiled code, where they repeat; else one by one.

The first aggregation of its kind is carried out one by one, and so are those that keep the rows that they sum, with
learned weights for example: their operation is another one each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dgcl.aggregation.results import ResultMemory
from dgcl.transport.base import CallSequence, Transport
from dgcl.transport.steps import EXPAND, GIVEN, PARTIAL, RESULT, Begin, Round, Step, Sum

__all__ = ["carry_out"]


class _Aggregation(Protocol):
    """What is carried out.

    Attributes:
        memory: Of results and partial sums.
        windows: Rows that buffers of windows have place for; None: there are no windows.
    """

    @property
    def memory(self) -> ResultMemory: ...

    @property
    def windows(self) -> tuple[int, int] | None: ...

    def reserve(self, width: int, dtype: torch.dtype, transport: Transport) -> None:
        """Have these buffers in one stretch of memory."""

    def steps(self, rounds: bool) -> Sequence[Step]:
        """The steps; with ``rounds`` sums are of another type than rows."""


#: Of each transport and aggregation what carries it out, by width and type of rows and number of threads.
_sequences: WeakKeyDictionary[Any, WeakKeyDictionary[Any, dict[Any, Any]]] = WeakKeyDictionary()


def carry_out(
    what: _Aggregation, x: Tensor, out: Tensor, transport: Transport, *, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Carry out an aggregation of ``(num_owned, width)`` contiguous rows.

    Args:
        what: The aggregation.
        x: The rows.
        out: Where to put the result, contiguous, of the type of sums.
        transport: Carries out the exchanges.
        keep: Return the rows that were expanded, too.

    Returns:
        The result, of x's type; rows that were expanded, call by call, or none of them.
    """
    if not keep:
        sequence = _repeated(what, x, transport)
        if sequence is not None:
            partial = None
            if sequence.num_partial is not None:
                partial = what.memory.empty(x, sequence.num_partial, x.shape[1], x.dtype)
            if sequence.run(x, out, partial):
                return out, ()
    return _one_by_one(what, x, out, transport, keep)


def _repeated(what: _Aggregation, x: Tensor, transport: Transport) -> CallSequence | None:
    """What carries out an aggregation like those before; None the first time, and where there is nothing."""
    of_transport = _sequences.get(transport)
    if of_transport is None:
        of_transport = _sequences.setdefault(transport, WeakKeyDictionary())
    made = of_transport.get(what)
    if made is None:
        made = of_transport.setdefault(what, {})
    kind = (x.shape[1], x.dtype, torch.get_num_threads())
    if kind not in made:
        made[kind] = False
        return None
    if made[kind] is False:
        made[kind] = transport.sequence(what.steps(rounds=False), x.shape[1], x.dtype, what.windows)
    found: CallSequence | None = made[kind]
    return found


def _one_by_one(
    what: _Aggregation, x: Tensor, out: Tensor, transport: Transport, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    rows, nothing, kept = {GIVEN: x, RESULT: out}, x[:0], []
    wide, width = out.dtype, x.shape[1]
    started: Any = None
    what.reserve(width, x.dtype, transport)
    for step in what.steps(rounds=wide != x.dtype):
        if isinstance(step, Sum):
            if step.target not in rows and step.target == PARTIAL:
                rows[PARTIAL] = what.memory.empty(x, step.edges.num_heads, width, wide)
            elif step.target not in rows:
                assert what.windows is not None
                buffer = transport.empty((what.windows[0], width), wide)
                rows[step.target] = buffer[: step.edges.num_heads]
                del buffer
            _sum(step, rows.get(step.source, nothing), rows[step.target])
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
            started.wait(rows[RESULT], step.fresh)
            started = None
            del rows[step.begun.source]
    return rows[RESULT], tuple(kept) if kept or not keep else (nothing,)


def _sum(step: Sum, x: Tensor, out: Tensor) -> None:
    if step.add:
        step.edges.add(x, out, step.weight)
    elif step.piece is None:
        step.edges.put(x, out, step.weight)
    else:
        step.edges.put_piece(x, out, step.weight, piece=step.piece[0], number=step.piece[1])
