"""From each rank's own vertices and in-edges to its share: no rank has more of the graph than its own part.

All ranks learn the owner of every vertex. Each finds what it lacks from its own edges and asks the owners, who then
know who reads each of their rows. All learn the classes with their counts; with the plan of these every rank compiles
its own program, from the places that the owners send along the plan's ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.id_arrays import as_ids
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.planner.relays import without_idle_relays
from dgcl.prepare.shares import Share, machine_of
from dgcl.program.compile import Frame, compile_program
from dgcl.program.exchange import HALO, Exchange
from dgcl.program.model import Program
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.control import Control
from dgcl.ranks.whole_rows import agree
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import demand_of_pairs
from dgcl.relation.local_graph import MAX_LOCAL_ROWS, LocalGraph
from dgcl.topology import Topology

__all__ = ["OwnEdges", "plan_together", "share_of_edges"]

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """A rank's vertices and their in-edges, sorted by head; rows of sources are those of ``owned_ids`` and ``lacking``.

    Attributes:
        owned_ids: (n,) as the rank gave them.
        lacking: (h,) ids of the sources that it does not own, ascending.
        indptr: (n + 1,) in-edges of each owned vertex.
        sources: (E,) int32, the row in [0, n + h) of each edge's source.
        order: (E,) where each edge was in the rank's own order; None: they were sorted already.
    """

    owned_ids: Ids
    lacking: Ids
    indptr: Ids
    sources: NDArray[np.int32]
    order: Ids | None

    @staticmethod
    def of(rank: int, num_nodes: int, owned_ids: Ids, sources: Ids, heads: Ids) -> OwnEdges:
        """Sort a rank's edges.

        Time and memory: linear in its edges, and 4 bytes for each vertex of the whole graph.

        Raises:
            ValueError: An id is out of range, or a head is not owned.
        """
        for name, ids in (("sources", sources), ("heads", heads)):
            check_range(name, ids, rank, num_nodes)
        row_of = np.full(num_nodes, -1, np.int32)
        row_of[owned_ids] = rows = np.arange(len(owned_ids), dtype=np.int32)
        head_rows = row_of[heads]
        if (head_rows < 0).any():
            raise ValueError(
                f"heads of rank {rank} must be vertices that it owns: each rank gives the in-edges of its own (got"
                f" vertex {heads[np.argmin(head_rows)]})"
            )
        order = None
        if (np.diff(head_rows) < 0).any():
            order = np.argsort(head_rows, kind="stable")
            sources = sources[order]
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.bincount(head_rows, minlength=len(rows)), out=indptr[1:])
        lacks = np.zeros(num_nodes, bool)
        lacks[sources] = True
        lacks[owned_ids] = False
        lacking = np.flatnonzero(lacks)
        if len(rows) + len(lacking) > MAX_LOCAL_ROWS:
            raise ValueError(
                f"owned_ids: rank {rank} would hold more than {MAX_LOCAL_ROWS} rows; use more ranks"
            )
        row_of[lacking] = np.arange(len(rows), len(rows) + len(lacking), dtype=np.int32)
        return OwnEdges(owned_ids, lacking, indptr, row_of[sources], order)


def share_of_edges(
    control: Control,
    owned_ids: Any,
    edges: Any,
    planned: Callable[[Relation], Plan],
    part: NDArray[np.int32] | None = None,
    *,
    problem: Exception | None = None,
    method: str = "",
    report: Any = None,
) -> tuple[Share, NDArray[np.int32], list[Any]]:
    """This rank's share of a graph of which each rank has the in-edges of its own vertices. Collective.

    Args:
        control: The control plane.
        owned_ids: Ids of this rank's vertices; 0 to N - 1 over all ranks.
        edges: ``(sources, heads)`` by id.
        planned: Returns the plan of a relation, the same on every rank. Collective, if it likes.
        part: ``(N,)`` the owner of every vertex, where ranks know it already.
        problem: What is wrong on this rank besides.
        method: Of planning, the same on every rank.
        report: For the other ranks.

    Returns:
        The share, the owners, and the reports of all ranks.

    Raises:
        ValueError, TypeError: Something is wrong on some rank; every rank raises.
    """
    ids, sources, heads = arrays = [np.zeros(0, np.int64)] * 3
    try:
        named = zip(("owned_ids", "sources", "heads"), (owned_ids, *edges), strict=True)
        ids, sources, heads = arrays = [as_ids(each, name).astype(np.int64) for name, each in named]
        if len(sources) != len(heads):
            raise ValueError(f"sources and heads must be as many (got {len(sources)} and {len(heads)})")
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = problem or error
    columns = zip(
        *agree(
            control, problem, ((part is None, method), ids if part is None else None, len(sources), report)
        ),
        strict=True,
    )
    kinds, ids_of_ranks, num_edges, reports = map(list, columns)
    if len(set(kinds)) > 1:
        raise ValueError(
            "owned_ids must be given on every rank or on none, and method be the same: of"
            f" {[f'{name!r}, with owned_ids' if given else repr(name) for given, name in kinds]} by rank"
        )
    if part is None:
        part = _owners(ids_of_ranks)
    num_owned = np.bincount(part, minlength=control.world_size)
    own, text = None, None
    try:
        own = OwnEdges.of(control.rank, len(part), *arrays)
    except Exception as error:
        text = str(error) or type(error).__name__
    requests: list[Ids] = [np.zeros((0, 2), np.int64)] * control.world_size
    if own is not None:
        reads = np.bincount(own.sources, minlength=len(ids) + len(own.lacking))
        table, owners = np.column_stack([own.lacking, reads[len(ids) :]]), part[own.lacking]
        requests = [table[owners == peer] for peer in range(control.world_size)]
    received = control.all_to_all([(text, asked) for asked in requests])
    for text, _ in received:
        if text is not None:
            raise ValueError(text)
    assert own is not None
    row_of = np.empty(len(part), np.int32)
    row_of[ids] = np.arange(len(ids), dtype=np.int32)
    readers = np.repeat(np.arange(control.world_size), [len(asked) for _, asked in received])
    asked = np.concatenate([asked for _, asked in received])
    rows = row_of[asked[:, 0]]
    in_degrees, out_degrees = np.diff(own.indptr), reads[: len(ids)]
    np.add.at(out_degrees, rows, asked[:, 1])
    relation, wanted_rows = _classes(control, ids, rows, readers)
    plan = planned(relation)
    frame = Frame.of(relation, without_idle_relays(plan), num_owned)
    program, halo = _compile(control, frame, ids, wanted_rows, np.column_stack([in_degrees, out_degrees]))
    row_of[program.halo_ids] = np.arange(len(ids), program.num_local, dtype=np.int32)
    renumbered = row_of[np.concatenate([ids, own.lacking])]
    first_edge = sum(num_edges[: control.rank])
    local = LocalGraph(
        owned_ids=ids,
        halo_ids=program.halo_ids,
        indptr=own.indptr,
        indices=renumbered[own.sources],
        edge_first=first_edge + own.indptr[:-1],
        edge_order=None if own.order is None else first_edge + own.order,
        in_degrees=np.concatenate([in_degrees, halo[:, 0]]),
        out_degrees=np.concatenate([out_degrees, halo[:, 1]]),
        num_nodes_global=len(part),
        first_edge=first_edge,
    )
    return Share((Exchange(HALO, plan, program),), local, (len(part), sum(num_edges))), part, reports


def plan_together(
    control: Control, relation: Relation, topology: str | Topology, method: str, options: PlanOptions | None
) -> Plan:
    """The plan that rank 0 makes. Collective."""

    def make() -> list[Plan]:
        made = make_plan(relation, machine_of(topology, control.world_size), method, options)
        return [made] * control.world_size

    return from_rank_0(control, make)


def _owners(ids_of_ranks: Sequence[Ids]) -> NDArray[np.int32]:
    """The owner of every vertex.

    Raises:
        ValueError: A vertex has two owners, or none; or there is none.
    """
    part = np.full(sum(map(len, ids_of_ranks)), -1, np.int32)
    if not len(part):
        raise ValueError("owned_ids: all ranks together must own a vertex (they are empty on every rank)")
    for rank, ids in enumerate(ids_of_ranks):
        check_range("owned_ids", ids, rank, len(part))
        if (part[ids] >= 0).any():
            twice = ids[np.argmax(part[ids] >= 0)]
            raise ValueError(f"owned_ids: vertex {twice} has two owners, ranks {part[twice]} and {rank}")
        part[ids] = rank
    if (part < 0).any():  # then another one is there twice
        rank, twice = next(
            (rank, np.bincount(ids).argmax())
            for rank, ids in enumerate(ids_of_ranks)
            if len(np.unique(ids)) < len(ids)
        )
        raise ValueError(f"owned_ids of rank {rank} must be distinct (vertex {twice} is there twice)")
    return part


def check_range(name: str, ids: Ids, rank: int, num_nodes: int) -> None:
    """Raise unless ids of a rank are vertices."""
    if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
        raise ValueError(
            f"{name} of rank {rank} must lie in [0, {num_nodes}), as all ranks own {num_nodes} vertices (got"
            f" {ids.min()} to {ids.max()})"
        )


def _classes(control: Control, owned_ids: Ids, rows: NDArray[np.int32], readers: Ids) -> tuple[Relation, Ids]:
    """The classes of all ranks' rows, and this rank's rows that some rank reads, in the order of places. Collective.

    Args:
        control: The control plane.
        owned_ids: (n,) of this rank.
        rows, readers: Pairs of an owned row and a rank that reads it.
    """
    by_id = np.argsort(owned_ids, kind="stable")
    row_by_id = np.empty_like(by_id)
    row_by_id[by_id] = np.arange(len(by_id))
    owner = np.full(len(owned_ids), control.rank)
    mine = build_classes(demand_of_pairs(owner, row_by_id[rows], readers, control.world_size))
    of_ranks = control.exchange((mine.relation.dests, mine.relation.count))
    relation = Relation(
        control.world_size,
        np.repeat(np.arange(control.world_size, dtype=np.int32), [len(counts) for _, counts in of_ranks]),
        np.concatenate([theirs for theirs, _ in of_ranks]),
        np.concatenate([counts for _, counts in of_ranks]),
    )
    return relation, by_id[mine.items]


def _compile(
    control: Control, frame: Frame, owned_ids: Ids, wanted_rows: Ids, degrees: Ids
) -> tuple[Program, Ids]:
    """This rank's program, and what the owners say of each halo row. Collective.

    Args:
        control: The control plane.
        frame: Of the plan.
        owned_ids: (n,) of this rank's rows.
        wanted_rows: Those that some rank reads, in the order of places.
        degrees: (n, k), what owners say of each row.
    """
    mine, outgoing = frame.places_of(control.rank), []
    for peer in range(control.world_size):
        rows = wanted_rows[np.isin(mine, frame.places_through(peer), assume_unique=True)]
        outgoing.append((owned_ids[rows], degrees[rows]))
    ids, about = (np.concatenate(column) for column in zip(*control.all_to_all(outgoing), strict=True))
    program = compile_program(frame, control.rank, owned_ids, wanted_rows, ids)
    by_id = np.argsort(ids)
    return program, about[by_id[np.searchsorted(ids, program.halo_ids, sorter=by_id)]]
