"""From each rank's own vertices and in-edges to its share: no rank has more of the graph than its own part.

Each rank finds what it lacks from its own edges and asks the owners, who then know who reads each of their rows. All
ranks learn the classes with their counts; with the plan of these every rank compiles its own program, from the places
that the owners send along the plan's ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.id_arrays import as_ids
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation, mask_words
from dgcl.planner.relays import without_idle_relays
from dgcl.prepare.shares import Share
from dgcl.program.checks import check_program
from dgcl.program.compile import Frame, Items, compile_program
from dgcl.program.exchange import HALO, Exchange
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.directory import Directory
from dgcl.ranks.whole_rows import agree
from dgcl.relation.classes import group_by_mask
from dgcl.relation.local_graph import MAX_LOCAL_ROWS, LocalGraph

__all__ = ["OwnEdges", "share_of_edges"]

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
            ValueError: An id is out of range or given twice, or a head is not owned.
        """
        for name, ids in (("owned_ids", owned_ids), ("sources", sources), ("heads", heads)):
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                raise ValueError(
                    f"{name} of rank {rank} must lie in [0, {num_nodes}), as all ranks own {num_nodes} vertices (got"
                    f" {ids.min()} to {ids.max()})"
                )
        row_of = np.full(num_nodes, -1, np.int32)
        row_of[owned_ids] = rows = np.arange(len(owned_ids), dtype=np.int32)
        if (row_of[owned_ids] != rows).any():
            twice = owned_ids[np.argmax(row_of[owned_ids] != rows)]
            raise ValueError(f"owned_ids of rank {rank} must be distinct (vertex {twice} is there twice)")
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
    directory: Directory | None = None,
) -> tuple[Share, Directory]:
    """This rank's share of a graph of which each rank has the in-edges of its own vertices. Collective.

    Args:
        control: The control plane.
        owned_ids: Ids of this rank's vertices; 0 to N - 1 over all ranks.
        edges: ``(sources, heads)`` by id.
        planned: Returns the plan of a relation, the same on every rank. Collective, if it likes.
        directory: Where ``owned_ids`` are entered already; None: they are new.

    Raises:
        ValueError, TypeError: Something is wrong on some rank; every rank raises.
    """
    problem: Exception | None = None
    arrays = [np.zeros(0, np.int64)] * 3
    try:
        sources, heads = edges
        arrays = [
            as_ids(ids, name).astype(np.int64)
            for ids, name in ((owned_ids, "owned_ids"), (sources, "sources"), (heads, "heads"))
        ]
        if len(arrays[1]) != len(arrays[2]):
            raise ValueError(f"sources and heads must be as many (got {len(arrays[1])} and {len(arrays[2])})")
    except (TypeError, ValueError) as error:
        problem = error
    rank, sizes = control.rank, np.array(agree(control, problem, (len(arrays[0]), len(arrays[1]))))
    num_owned, num_nodes, num_edges = sizes[:, 0], int(sizes[:, 0].sum()), int(sizes[:, 1].sum())
    if not num_nodes:
        raise ValueError("owned_ids: all ranks together must own a vertex (they are empty on every rank)")
    own, text = None, None
    try:
        own = OwnEdges.of(rank, num_nodes, *arrays)
    except ValueError as error:
        text = str(error)
    nothing = np.zeros(0, np.int64)
    n = len(arrays[0])
    reads = nothing if own is None else np.bincount(own.sources, minlength=n + len(own.lacking))
    known = Directory(control, num_nodes) if directory is None else directory
    _, requests = known.find(
        nothing if own is None else own.lacking,
        reads[n:, None],
        enter=None if directory is not None else arrays[0] if own is not None else nothing,
        problem=text,
    )
    assert own is not None
    asked = np.concatenate(requests)
    readers = np.repeat(np.arange(control.world_size), [len(of_rank) for of_rank in requests])
    row_of = np.empty(num_nodes, np.int32)
    row_of[own.owned_ids] = np.arange(n, dtype=np.int32)
    rows = row_of[asked[:, 0]]
    out_degrees = reads[:n] + np.bincount(rows, weights=asked[:, 1], minlength=n).astype(np.int64)
    relation, places, taken = _classes(control, own.owned_ids, rows, readers)
    plan = planned(relation)
    frame = Frame.of(relation, without_idle_relays(plan), num_owned)
    degrees = np.diff(own.indptr), out_degrees
    program, halo = _compile(control, frame, own.owned_ids, places, taken, np.column_stack(degrees))
    row_of[program.halo_ids] = np.arange(n, program.num_local, dtype=np.int32)
    renumbered = np.concatenate([np.arange(n, dtype=np.int32), row_of[own.lacking]])
    first_edge = int(sizes[:rank, 1].sum())
    local = LocalGraph(
        owned_ids=own.owned_ids,
        halo_ids=program.halo_ids,
        indptr=own.indptr,
        indices=renumbered[own.sources],
        edge_first=first_edge + own.indptr[:-1],
        edge_order=None if own.order is None else first_edge + own.order,
        in_degrees=np.concatenate([degrees[0], halo[:, 0]]),
        out_degrees=np.concatenate([degrees[1], halo[:, 1]]),
        num_nodes_global=num_nodes,
        first_edge=first_edge,
    )
    return Share((Exchange(HALO, plan, program),), local, (num_nodes, num_edges)), known


def _classes(
    control: Control, owned_ids: Ids, rows: NDArray[np.int32], readers: Ids
) -> tuple[Relation, NDArray[Any], Ids]:
    """The classes of all ranks' rows; of this rank's rows the places, and which row is at each. Collective.

    Args:
        control: The control plane.
        owned_ids: (n,) of this rank.
        rows, readers: Pairs of an owned row and a rank that reads it.
    """
    masks = np.zeros((mask_words(control.world_size), len(owned_ids)), np.uint64)
    np.bitwise_or.at(masks, (readers // 64, rows), np.uint64(1) << (readers % 64).astype(np.uint64))
    by_id = np.argsort(owned_ids, kind="stable")
    grouped = group_by_mask(masks[:, by_id], np.zeros(len(owned_ids), np.int32), 1)
    of_ranks = control.exchange((grouped.masks, np.diff(grouped.ptr)))
    relation = Relation(
        control.world_size,
        np.repeat(np.arange(control.world_size, dtype=np.int32), [len(counts) for _, counts in of_ranks]),
        np.concatenate([theirs for theirs, _ in of_ranks]),
        np.concatenate([counts for _, counts in of_ranks]),
    )
    first = sum(int(counts.sum()) for _, counts in of_ranks[: control.rank])
    taken = by_id[grouped.items]
    places = np.full(len(owned_ids), -1, np.int32 if int(relation.count.sum()) < 2**31 else np.int64)
    places[taken] = np.arange(first, first + len(taken))
    return relation, places, taken


def _compile(
    control: Control, frame: Frame, owned_ids: Ids, places: Ids, taken: Ids, degrees: Ids
) -> tuple[Program, Ids]:
    """This rank's program, and what the owners say of each halo row. Collective.

    Args:
        control: The control plane.
        frame: Of the plan.
        owned_ids, places: (n,) of this rank's rows.
        taken: Its rows that some rank reads, by place.
        degrees: (n, k), what owners say of each row.
    """
    first = int(places[taken[0]]) if len(taken) else 0
    outgoing = []
    for peer in range(control.world_size):
        through = frame.places_through(peer) - first
        rows = taken[through[(through >= 0) & (through < len(taken))]]
        outgoing.append((owned_ids[rows], places[rows], degrees[rows]))
    received = [np.concatenate(column) for column in zip(*control.all_to_all(outgoing), strict=True)]
    ids = np.concatenate([owned_ids[taken], received[0]])
    order = np.argsort(ids, kind="stable")
    all_places = np.concatenate([places[taken], received[1]])[order]
    rows = np.concatenate([taken.astype(np.int32), np.full(len(received[0]), -1, np.int32)])[order]
    items = Items(ids[order], all_places, frame.tree_of(all_places), rows)
    program = compile_program(frame, control.rank, owned_ids, places, items)
    check_program(program)
    come = order[(rows >= program.num_owned) & (rows < program.num_local)] - len(taken)
    halo = np.empty((program.num_halo, degrees.shape[1]), np.int64)
    halo[rows[(rows >= program.num_owned) & (rows < program.num_local)] - program.num_owned] = received[2][
        come
    ]
    return program, halo
