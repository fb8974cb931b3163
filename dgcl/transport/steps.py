"""Data types of an aggregation's steps: begin a call, wait for it, sum rows over edges, round.

An aggregation states its order once (:mod:`dgcl.aggregation.operation`, :mod:`dgcl.aggregation.windowed`). The steps
are carried out one after the other by :mod:`dgcl.aggregation.step_execution`, or all at once by compiled code, where a
transport can (:mod:`dgcl.transport.shared_memory.step_list`).
Called by `dgcl/aggregation/operation`, `dgcl/aggregation/windowed`, `dgcl/aggregation/step_execution`,
`dgcl/transport/shared_memory/step_table`, `base` and others. Free to change while both ways give the same bits, and
ranks whose purposes differ are named (`tests/dgcl/aggregation/test_steps.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Rows by number: what is given; the result; sums for other ranks, or, in an adjoint, their gradients; what arrives of
#: one window and of the next, or, in an adjoint, sums of a window and what arrives for them; what is folded at the end.
GIVEN, RESULT, PARTIAL, FIRST, SECOND, FOLDED = range(6)
NUM_BUFFERS = 6

EXPAND = 0
FOLD = 1

#: What a call's rows are for, in 3 bits; ranks that disagree are named. Sums and means with WEIGHTED added: edges have
#: weights of the caller.
FOR_SUM, FOR_MEAN, FOR_MAX, FOR_MIN, WEIGHTED = 1, 2, 3, 7, 4
_PURPOSES = {1: "sum", 2: "mean", 3: "max", 5: "weighted sum", 6: "weighted mean", 7: "min"}


def purpose_name(purpose: int) -> str:
    """What rows are for, in words; nothing where that is not said."""
    return _PURPOSES.get(purpose, "")


@dataclass(frozen=True, eq=False)
class EdgePart:
    """What a sum over edges reads besides rows; all arrays contiguous.

    Attributes:
        indptr, tails, heads: The edges (:mod:`dgcl.kernels.edge_sums`).
        weights, weight_bytes: ``(E,)`` of the type of sums, and bytes of one; or ``(1,)`` for all edges, and 0.
        missing: ``(m,)`` int64, rows that become zeros.
        in_threads: Makes the sums with several threads, from the addresses of results and rows; None: one thread does.
    """

    indptr: NDArray[np.int64]
    tails: NDArray[np.int32]
    heads: NDArray[np.int32]
    weights: Tensor
    weight_bytes: int
    missing: NDArray[np.int64]
    in_threads: Callable[[int, int], None] | None = None


class RowSum(Protocol):
    """The edges of a step."""

    @property
    def num_heads(self) -> int:
        """Rows of results."""

    def sum(self, x: Tensor, out: Tensor, weight: Tensor | None, *, add: bool) -> None:
        """Write sums of rows of ``x`` to ``out``, or add them."""

    def part(self, weight: Tensor | None, width: int, dtype: torch.dtype, *, add: bool) -> EdgePart:
        """What compiled code needs for that, with contiguous rows of a width and type."""


@dataclass(frozen=True, eq=False)
class Begin:
    """Begin a call: ``verb`` of an exchange, of the rows of ``source``, for a ``purpose``; what arrives comes to
    ``arrivals``. The call is of halo rows alone, or, ``whole``, of owned rows too: an expand copies those of ``source``
    to the start of ``arrivals``, and a fold adds what arrives to those of ``source``, into the result."""

    verb: int
    exchange: int
    source: int
    arrivals: int
    purpose: int = 0
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Wait:
    """Wait for the call that was begun last; what a fold brings is added to the result."""

    begun: Begin


@dataclass(frozen=True, eq=False)
class Sum:
    """Add to ``target``, or write there, the sums over some edges of the rows of ``source``."""

    edges: RowSum
    weight: Tensor | None
    source: int
    target: int
    add: bool = False


@dataclass(frozen=True, eq=False)
class Round:
    """The result becomes of the type of the rows that were given; where that is the type of sums, nothing happens."""


Step = Begin | Wait | Sum | Round
