"""Makes a rank's share (its edges and programs) where each rank has only its own vertices with their in-edges.

All ranks learn the owner of every vertex. Each finds what it lacks from its own edges and asks the owners. All learn
the classes (rows of one owner that the same ranks read) with their counts, and so get the same plan. Owners send ids
and degrees of rows straight to every rank that the plan leads them to or through; every rank compiles its own program.
Where an edge is not summed at its head, the head's owner gives it to the rank that sums it first.
Called by `dgcl/communicator` and `dgcl/local_build`. Free to change while programs are those that are made from the
whole graph, sums and gradients are one device's, and bad input raises on every rank (`tests/dgcl/test_local_build.py`).
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.build_csr import graph_from_edges
from dgcl.graph.id_arrays import any_outside, as_ids
from dgcl.placement.exchanges import summing_ranks
from dgcl.placement.placed_edges import edges_summed_by
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.prepare.share import RankInputs, RankItems, Share, from_owners, share_of
from dgcl.prepare.shares import machine_of
from dgcl.program.compile import frame_of
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.control import Control
from dgcl.ranks.set_up import leaving
from dgcl.ranks.whole_rows import agree
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import demand_of_pairs
from dgcl.relation.local_graph import RankEdges, Rows, pointer
from dgcl.topology import Topology

# Where edges are summed elsewhere than at their heads (placements "tail" and "cover"), of a pair of ranks each has all
# edges that end at it, which is all that a cover of the pair looks at.

Ids = NDArray[np.int64]


def own_edges(
    rank: int,
    part: NDArray[np.int32],
    world_size: int,
    by_row: bool,
    owned_ids: Ids,
    sources: Ids,
    heads: Ids,
) -> tuple[Graph, Ids, Ids, Ids, list[Any]]:
    """A rank's edges, sorted by row of their head, or its id, and how many of them read each vertex of all ranks.

    Time and memory: linear in its edges, and 20 bytes for each vertex of the whole graph.

    Returns:
        The edges, where those of each owned vertex are and how many, and how many read each vertex; and for each rank
        the ids of its vertices that this one lacks, with their numbers of edges.

    Raises:
        ValueError: An id is out of range, or a head is not owned.
    """
    check_range("sources", sources, rank, len(part))
    check_range("heads", heads, rank, len(part))
    foreign, rows, grouped_by = part != rank, owned_ids, heads
    if by_row and (np.diff(owned_ids) < 0).any():
        rows, row_of = np.arange(len(owned_ids)), np.full(len(part), len(owned_ids))
        row_of[owned_ids] = rows
        grouped_by = row_of[heads]
    graph = graph_from_edges(sources, grouped_by, len(part))
    degrees, reads = graph.in_degrees()[rows], graph.out_degrees()
    if degrees.sum() < len(heads):
        raise ValueError(
            f"heads of rank {rank} must be vertices that it owns: each rank gives the in-edges of its own (got"
            f" vertex {heads[np.argmax(foreign[heads])]})"
        )
    lacking = np.flatnonzero((reads > 0) & foreign).astype(graph.indices.dtype)
    owners, narrow = part[lacking], _narrow(reads)
    lacking_of_ranks = [(ids := lacking[owners == peer], narrow[ids]) for peer in range(world_size)]
    return graph, rows, degrees, reads, lacking_of_ranks


def share_of_edges(
    control: Control,
    owned_ids: Any,
    edges: Any,
    planned: Callable[[Relation], Plan],
    part: NDArray[np.int32] | None = None,
    *,
    problem: Exception | None,
    method: str,
    placement: str = "head",
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
        placement: Of edges, one of :data:`dgcl.placement.exchanges.EDGES`, the same on every rank.
        report: For the other ranks.

    Returns:
        The share, the owners, and the reports of all ranks.

    Raises:
        ValueError, TypeError: Something is wrong on some rank; every rank raises.
        CommError: Another rank cannot go on, for lack of memory for example.
    """
    arrays, graph = [np.zeros(0, np.int64)] * 3, None
    try:
        if len(edges) != 2:
            raise ValueError(f"edges must be (sources, heads), two rows (got {len(edges)})")
        named = zip(("owned_ids", "sources", "heads"), (owned_ids, *edges), strict=True)
        arrays = [as_ids(each, name).astype(np.int64, copy=False) for name, each in named]
        if len(arrays[1]) != len(arrays[2]):
            raise ValueError(f"sources and heads must be as many (got {len(arrays[1])} and {len(arrays[2])})")
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = problem or error
    ids = arrays[0]
    header = ((part is None, f"{method}, {placement}"), len(arrays[1]), report)
    while graph is None:  # once where ranks know the owners, else twice
        pieces: list[Any] = [(*header, ids)] * control.world_size
        try:
            if part is not None:
                graph, rows, degrees, reads, requests = own_edges(
                    control.rank, part, control.world_size, placement == "head", *arrays
                )
                pieces = [(*header, each) for each in requests]
        except Exception as error:
            problem = problem or error
        said = agree(control, problem, pieces, each=True)
        kinds, num_edges, reports, pieces = map(list, zip(*said, strict=True))
        if len(set(kinds)) > 1:
            raise ValueError(
                "owned_ids must be given on every rank or on none, and method and strategy be the same: of"
                f" {[f'{name!r}, with owned_ids' if listed else repr(name) for listed, name in kinds]} by rank"
            )
        with leaving(control):  # where a rank has no memory, for example, the others would wait
            part = _owners(pieces) if part is None else part
    with leaving(control):
        assert part is not None
        first_edges = pointer(np.array(num_edges))
        first_edge = first_edges[control.rank]
        for read, counts in pieces:
            reads[read] += counts
        if placement == "head":
            first, order = first_edge + graph.indptr[rows], graph.edge_ids
            if order is not None:
                order += first_edge
            rank_edges = RankEdges(len(part), ids, degrees, first, graph.indices, order)
            readers = {HALO: [read for read, _ in pieces]}
        else:
            summed_by, _ = summing_ranks(placement, graph, part, control.world_size)
            of_ranks = [edges_summed_by(graph, summed_by, peer) for peer in range(control.world_size)]
            graph = None
            del summed_by
            rank_edges, readers = _give_to_summing_ranks(control, of_ranks, part, first_edge)
            del of_ranks
        owned = ids, np.stack([degrees, reads[ids], ids])
        # All of these are as long as the edges, or the graph.
        del arrays, graph, requests, said, pieces, read, counts, reads
        straight = method == "direct"

        def items() -> Iterator[RankItems]:
            for name in [*readers]:
                yield _items(control, name, readers.pop(name), owned, part, planned, straight)
            # What was freed goes back, or it would be there beside the edges; a rewiring needs it again.
            if report is None:
                getattr(ctypes.CDLL(None), "malloc_trim", bool)(0)

        inputs = RankInputs(
            control.rank,
            (),
            rank_edges,
            (len(part), sum(num_edges)),
            placement=placement,
            first_edges=first_edges,
        )
        return share_of(inputs, items()), part, reports


def _give_to_summing_ranks(
    control: Control, of_ranks: list[Any], part: NDArray[np.int32], first_edge: int
) -> tuple[RankEdges, dict[str, list[Ids]]]:
    """Give edges into this rank's vertices to the ranks that sum them. Collective.

    Returns:
        What this rank sums; and by exchange, for each rank, ids of this one's vertices that it reads or contributes to.
    """
    sources = np.flatnonzero(np.bincount(of_ranks[control.rank].sources, minlength=len(part)))
    pieces = []
    for peer, each in enumerate(of_ranks):
        for places in (each.first, each.order):
            places += first_edge
        edges = each.heads, each.degrees, each.first, each.sources, each.order
        pieces.append((edges, sources[part[sources] == peer]))
    received, read = map(list, zip(*control.all_to_all(pieces), strict=True))
    received.insert(0, received.pop(control.rank))  # by row, own heads are before all others
    columns: list[Any] = [np.concatenate(column) for column in zip(*received, strict=True)]
    return RankEdges(len(part), *columns), {HALO: read, PARTIAL: [each.heads for each in of_ranks]}


def _items(
    control: Control,
    name: str,
    readers: list[Ids],
    owned: Rows,
    part: NDArray[np.int32],
    planned: Callable[[Relation], Plan],
    straight: bool,
) -> RankItems:
    """What an exchange has to do with this rank. Collective.

    Args:
        control, part, planned: As of :func:`share_of_edges`.
        name: Of the exchange.
        readers: Ids of this rank's vertices that each rank wants.
        owned: This rank's vertices.
        straight: Whoever reads a row gets it from its owner, whatever the plan is.
    """
    ids, about = owned[0], _narrow(owned[1])
    ranks, by_id = range(control.world_size), np.argsort(ids, kind="stable")
    row_of = np.empty_like(part)
    row_of[ids[by_id]] = np.arange(len(ids))
    readers_of_pairs = np.repeat(ranks, [*map(len, readers)])
    classes = build_classes(
        demand_of_pairs(part[ids], row_of[np.concatenate(readers)], readers_of_pairs, len(ranks))
    )
    mine, wanted_rows = classes.relation, by_id[classes.items]
    dests = mine.dest_matrix()
    del readers, row_of, readers_of_pairs, classes  # as long as the graph, or what is read
    rows: list[Any] = [
        about[:, wanted_rows[np.repeat(dests[:, peer], mine.count)]] if straight else None for peer in ranks
    ]
    of_ranks = control.all_to_all([(mine.dests, mine.count, each) for each in rows])
    theirs, counts, rows = map(list, zip(*of_ranks, strict=True))
    relation = Relation(
        control.world_size,
        np.repeat(np.array(ranks, np.int32), [*map(len, counts)]),
        np.concatenate(theirs),
        np.concatenate(counts),
    )
    plan, num_owned = planned(relation), np.bincount(part, minlength=control.world_size)
    frame = frame_of(plan, num_owned)
    incoming = np.concatenate(rows, axis=1) if straight else from_owners(control, frame, about, wanted_rows)
    return RankItems(name, plan, num_owned, owned, wanted_rows, (incoming[2], incoming), frame)


def _narrow(numbers: Ids) -> NDArray[Any]:
    """In as few bytes as travel, and are held twice on the way."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


def plan_together(
    control: Control, relation: Relation, topology: str | Topology, method: str, options: PlanOptions | None
) -> Plan:
    """The plan that rank 0 makes. Collective."""

    def make() -> list[Plan]:
        plan = make_plan(relation, machine_of(topology, control.world_size), method, options)
        return [plan] * control.world_size

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
        part[ids] = rank
    if (part < 0).any():  # then another one is there twice
        twice = np.bincount(np.concatenate(ids_of_ranks)).argmax()
        owners = [
            rank for rank, ids in enumerate(ids_of_ranks) for _ in range(np.count_nonzero(ids == twice))
        ]
        raise ValueError(f"owned_ids must name each vertex once (got vertex {twice} from ranks {owners})")
    return part


def check_range(name: str, ids: Ids, rank: int, num_nodes: int) -> None:
    """Raise unless ids of a rank are vertices."""
    if any_outside(ids, num_nodes):
        raise ValueError(
            f"{name} of rank {rank} must lie in [0, {num_nodes}), as all ranks own {num_nodes} vertices (got"
            f" {ids.min()} to {ids.max()})"
        )
