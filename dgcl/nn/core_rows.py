"""Core rows: with replicas every vertex has one row that counts in sums over vertices, and others are copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from dgcl.graph.typed import within
from dgcl.nn.arguments import current
from dgcl.ranks.tensors import beside_the_graph, require_tensors

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


_counts: WeakKeyDictionary[Any, Iterable[set[int]]] = WeakKeyDictionary()
Rows = TypeVar("Rows", Tensor, None, "Tensor | None")


def num_counted(comm: Communicator, outputs: Tensor) -> int:
    """How many of a rank's outputs count, from the first on: all but the replicas.

    Where vertices are not replicated these are all, however many there are.

    Raises:
        ValueError: With replicas, rows that are neither all owned rows nor the core rows alone: which of them
            count cannot be known. On a grid, slices of rows.
    """
    if comm.are_slices(len(outputs)):
        raise ValueError(
            f"outputs must be whole rows of the {comm.num_owned} vertices of rank {comm.rank}, and {len(outputs)} are"
            " those of its slices: bring them back with comm.rows first"
        )
    if not comm.layout.is_replicated:
        return len(outputs)
    if len(outputs) not in (comm.num_owned, comm.num_core):
        raise ValueError(
            f"outputs must hold the {comm.num_owned} owned rows of rank {comm.rank}, or the first {comm.num_core},"
            f" which are no replicas (got {len(outputs)}); leave copies out of other sums yourself"
        )
    return comm.num_core


def first_rows(rows: Rows, count: int) -> Rows:
    """The first ``count`` rows; None stays None."""
    return rows if rows is None or len(rows) == count else rows.narrow(0, 0, count)


def ids_of_rows(comm: Communicator, num_rows: int, num_vertices: int) -> Tensor | None:
    """Ids of this rank's vertices, in a graph of several types of those of one, from 0; None: rows are of others.

    Args:
        comm: The communicator.
        num_rows: How many this rank has.
        num_vertices: How many there are, or more where there is one type.

    Raises:
        ValueError: It has so many of several types, or of one with fewer vertices.
    """
    ids = comm.owned_ids
    types = comm.node_types.values() or [(0, comm.num_nodes)]
    each = [(within(ids, first, number), number) for first, number in types if number <= num_vertices]
    fitting = [(own, number) for own, number in each if len(own) == num_rows]
    if not fitting:
        return None
    if comm.node_types:
        fitting = [(own, number) for own, number in fitting if number == num_vertices]
    if len(fitting) != 1:
        raise ValueError(
            f"numbers of {num_rows} rows of this rank, for {num_vertices} vertices, are of no type, or of several:"
            " dispatch numbers with the data, as in data[type].ids = torch.arange(...)"
        )
    return fitting[0][0].to(comm.device)


def counts(comm: Any) -> Iterable[set[int]]:
    """How many vertices and edges of each type a rank has, but for so few that they are no sign of anything.

    None of a rank that is alone.
    """
    if comm is None or comm.world_size == 1:
        return ()
    if comm not in _counts:
        numbers = {"vertices": [comm.num_owned], "edges": [comm.local.num_edges]}
        for kind, (types, ids, _) in comm.dispatched[1].items():
            numbers[kind] += [len(within(ids, *place)) for place in types.values()]
        vertices, edges = ({number for number in each if number > 8} for each in numbers.values())
        _counts[comm] = vertices, edges - vertices
    return _counts[comm]


@beside_the_graph
def sum_copies(rows: Tensor, *, comm: Communicator | None = None) -> Tensor:
    """For each owned row the sum over all copies of its vertex: replicas, and the core row.

    Learned inputs, one row for each vertex, get a gradient on each machine that holds a copy. This adds them up, so
    copies that start equal stay equal::

        x.grad = dgcl.nn.sum_copies(x.grad)      # between backward and step

    Collective, and of all rows through the control plane, which is slow: constant features need none of it. Added
    in rank order, so that all copies get the same bits. Without replicas ``rows`` itself is returned. Not
    differentiable.

    Args:
        rows: (num_owned, *F).
        comm: the communicator; default the current one.
    """
    comm = current(comm)
    require_tensors(rows=rows)
    if not comm.layout.is_replicated:
        return rows
    if len(rows) != comm.num_owned:
        raise ValueError(
            f"rows must hold the {comm.num_owned} owned rows of rank {comm.rank} (got {len(rows)})"
        )
    mine, total = comm.owned_ids.cpu(), torch.zeros_like(rows)
    # A copy is sent: ranks that are threads would otherwise read what this one goes on to change.
    with comm.collective("sum_copies"):
        copies = comm.control.exchange((mine, rows.detach().cpu().clone()))
    for ids, rows_of_rank in copies:
        common = np.intersect1d(mine, ids, assume_unique=True, return_indices=True)[1:]
        here, there = map(torch.from_numpy, common)
        total.index_add_(0, here.to(rows.device), rows_of_rank[there].to(rows.device))
    return total
