"""A rank's own rows: whether they are whole, whose they are, and how many there are of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor

from dgcl.graph.typed import within

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


_counts: WeakKeyDictionary[Any, Iterable[set[int]]] = WeakKeyDictionary()


def require_whole_rows(comm: Communicator, rows: Tensor) -> None:
    """Refuse slices of rows, on a grid.

    Raises:
        ValueError: There are as many rows as this rank has slices.
    """
    if comm.are_slices(len(rows)):
        raise ValueError(
            f"outputs must be whole rows of the {comm.num_owned} vertices of rank {comm.rank}, and {len(rows)} are"
            " those of its slices: bring them back with comm.rows first"
        )


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
        for kind, (types, ids) in comm.dispatched[1].items():
            numbers[kind] += [len(within(ids, *place)) for place in types.values()]
        vertices, edges = ({number for number in each if number > 8} for each in numbers.values())
        _counts[comm] = vertices, edges - vertices
    return _counts[comm]
