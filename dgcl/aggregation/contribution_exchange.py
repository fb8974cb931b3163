"""The exchange that brings each rank's own maximum or minimum for a row to the row's owner, uncombined.

A fold, which brings partial sums to owners, adds them on their way; that gives no maximum. This exchange
(:mod:`dgcl.program.contribution_programs`) is added to the transport, by all ranks together, for a communicator's first
aggregator of maxima or minima, and only where several ranks may have in-edges of one row.
Called by `aggregator` and `extremes`. Free to change while each contribution reaches the owner with the ids of its
elements (`tests/dgcl/aggregation/test_extremes.py`), and a rank that cannot connect is named on all
(`tests/dgcl/aggregation/test_failures.py`).
"""

import functools
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.extreme_kernels import Segments
from dgcl.aggregation.grouped_edges import group_edges
from dgcl.program.contribution_programs import contribution_program, contribution_rows
from dgcl.program.exchange import PARTIAL
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree


@dataclass(frozen=True, eq=False)
class Contributions:
    """A rank's part of the exchange of contributions.

    A row to which others contribute has *candidates*: M of these rows, then the items that arrive for them. Candidate i
    below M is what the rank found itself for the i-th row.

    Attributes:
        exchange: Its number.
        sent: ``(num_partial,)`` int64, the partial results in the order in which the rank sends them.
        rows: ``(M,)`` int64, owned rows to which others contribute.
        candidates: Of each, those without an edge left out.
        num_items: Items that arrive.
    """

    exchange: int
    sent: Tensor
    rows: Tensor
    candidates: Segments
    num_items: int


#: Of each communicator.
_connected: WeakKeyDictionary[Any, Contributions] = WeakKeyDictionary()


def connect_contributions(comm: Aggregating) -> Contributions:
    """The exchange of contributions of a communicator. Collective the first time.

    Raises:
        ValueError, MemoryError: It cannot be made on some rank; on every rank.
        CommError: A rank is gone.
    """
    connection = _connected.get(comm)
    if connection is None:
        connection = _connected[comm] = _connect(comm)
    return connection


@functools.partial(set_up_call, name="aggregator")
def _connect(comm: Aggregating) -> Contributions:
    control, folded = comm.control, comm.exchanges[PARTIAL]
    problem: Exception | None = None
    with comm.collective("aggregator"):
        try:
            program = contribution_program(folded.plan, control.rank)
            sent, rows = contribution_rows(program, folded.program, folded.plan)
        except (MemoryError, ValueError) as error:
            problem = error
        agree(control, problem)
        named = {f"{PARTIAL}, of each contributor": program}
        exchange = comm.transport.add_exchanges(named, comm.number_of(PARTIAL))
    owned, indptr, candidates = _candidates(np.diff(comm.local.indptr), rows)
    segments = Segments(indptr, candidates, comm.device)
    sent_rows, owned_rows = (torch.from_numpy(each).to(comm.device) for each in (sent, owned))
    return Contributions(exchange, sent_rows, owned_rows, segments, len(rows))


def _candidates(
    degrees: NDArray[np.int64], item_rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """The ``rows`` of :class:`Contributions`, where their candidates begin, and these.

    Args:
        degrees: Edges of each row on this rank.
        item_rows: The row that each item is for.
    """
    rows, place = np.unique(item_rows, return_inverse=True)
    own = np.flatnonzero(degrees[rows])
    heads = np.concatenate([own, place])
    candidates = np.concatenate([own, len(rows) + np.arange(len(place))])
    edges = group_edges(heads, candidates, len(rows))  # each row has one
    return rows, edges.indptr, edges.tails
