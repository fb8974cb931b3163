"""Makes one rank's share of a job from its edges, its items and the plans: compiled programs, numbered edges.

An item is what an exchange moves: the row of a vertex, or a slice of it. The same code serves every way to a share:
rank 0 hands such inputs out from a whole graph (:mod:`dgcl.prepare.shares`), or each rank has its own edges and asks
others for the rest (:mod:`dgcl.prepare.local_edges`).
Called by `shares`, `local_edges`, `part_files` and `dgcl/build`. Free to change while both ways give the same programs,
and sums are those of one device (`tests/dgcl/test_local_build.py`; from files:
`tests/dgcl/prepare/test_part_files.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dgcl.grid.grid import Grid
from dgcl.planner.plan import Plan
from dgcl.program.compile import Frame, compile_program, frame_of
from dgcl.program.exchange import HALO, PARTIAL, Exchange
from dgcl.ranks.control import Control
from dgcl.relation.local_graph import LocalGraph, NumberedEdges, RankEdges, Rows, build_local_graph

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Share:
    """What one rank needs to take part.

    Attributes:
        exchanges: The exchanges of the communicator; the first one is "halo".
        local: Its edges and degrees.
        sizes: (vertices, edges) of the whole graph.
        choice: Why this plan, where there was a choice; for people.
        edges: The placement of edges (:mod:`dgcl.placement`); "head": each rank has all in-edges of its vertices;
            "grid": those of ``grid``.
        grid: Where items are slices of rows; None: they are vertices.
    """

    exchanges: tuple[Exchange, ...]
    local: LocalGraph
    sizes: tuple[int, int]
    choice: str = ""
    edges: str = "head"
    grid: Grid | None = None


@dataclass(frozen=True, eq=False)
class RankItems:
    """What one exchange has to do with one rank.

    Attributes:
        name, plan: Of the exchange.
        num_owned: (P,) items that each rank owns.
        owned, incoming: (n,) ids of the items that the rank owns, and (m,) of those that reach it, by their places;
            what is known of them (:data:`~dgcl.relation.local_graph.Rows`).
        wanted_rows: The rows of owned items that some rank wants, by their places.
        frame: Of the plan, where it is known already.
    """

    name: str
    plan: Plan
    num_owned: Ids
    owned: Rows
    wanted_rows: Ids
    incoming: Rows
    frame: Frame | None = None


@dataclass(frozen=True, eq=False)
class RankInputs:
    """What a rank makes its share from.

    Attributes:
        rank: The rank.
        exchanges: Its items in each exchange.
        edges: What it sums, by ids of vertices, or by local rows already.
        first_edges: Of its local graph.
        sizes, choice, placement, grid: Of the share.
    """

    rank: int
    exchanges: tuple[RankItems, ...]
    edges: RankEdges | NumberedEdges
    sizes: tuple[int, int]
    first_edges: Ids | None = None
    choice: str = ""
    placement: str = "head"
    grid: Grid | None = None


def share_of(inputs: RankInputs, items: Iterable[RankItems] = ()) -> Share:
    """A rank's share: its programs compiled, its edges numbered.

    ``items`` are in the place of ``inputs.exchanges``: made one by one, and gone when they are compiled.

    Raises:
        ValueError: The rank would hold 2**31 rows or more, or has an edge of a vertex of which it has no row.
    """
    exchanges, halo = [], {PARTIAL: (np.zeros(0, np.int64), np.zeros((3, 0), np.int64))}
    owned = []
    for each in items or inputs.exchanges:
        frame = each.frame or frame_of(each.plan, each.num_owned)
        ids, about = each.incoming
        program, arrivals = compile_program(frame, inputs.rank, each.owned[0], each.wanted_rows, ids)
        about = about[:, arrivals]
        halo[each.name] = ids[arrivals], about
        program = replace(
            program,
            owned_ids=each.owned[1][2],
            halo_ids=about[2] if each.name == HALO else about[2].astype(np.int64),
        )
        exchanges.append(Exchange(each.name, each.plan, program))
        owned.append(each.owned)
        del each, ids, program, arrivals, about  # as long as what is read
    local = build_local_graph(
        inputs.edges,
        owned[0],
        halo[HALO],
        halo[PARTIAL],
        inputs.sizes[0],
        first_edges=inputs.first_edges,
    )
    # Of the ids that both have one array, int64, and none that is a row of more.
    program = replace(exchanges[0].program, owned_ids=local.owned_ids, halo_ids=local.halo_ids)
    exchanges[0] = replace(exchanges[0], program=program)
    return Share(tuple(exchanges), local, inputs.sizes, inputs.choice, inputs.placement, inputs.grid)


def from_owners(control: Control, frame: Frame, rows: Ids, wanted_rows: Ids) -> Ids:
    """Columns of the owners' ``rows``, by the places of the items that reach this rank. Collective.

    Args:
        control: The ranks.
        frame: Of the exchange.
        rows: (k, n) what is known of each item that this rank owns.
        wanted_rows: As of :class:`RankItems`.
    """
    places, ranks = frame.places_of(control.rank), range(control.world_size)
    reach = (np.isin(places, frame.places_through(peer), assume_unique=True) for peer in ranks)
    return np.concatenate(control.all_to_all([rows[:, wanted_rows[each]] for each in reach]), axis=1)
