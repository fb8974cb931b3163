"""Compiles a schedule into tables for each rank: in each batch, which rows enter and leave which slots.

Batch j is chunk j of every rank, computed at the same time; a slot is the place of one row in device memory. The
backward is the adjoint of the forward, batches in descending order; the steps of both are listed above ``Batch``.
Called by `arranging`, which makes tables, `layer`, which carries them out, and `chunk_graphs`. Free to change while
each chunk finds its rows in its slots, forwards and backwards, and each vertex gets the sum of its gradients once
(`tests/dgcl/offload/test_tables.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dgcl.offload.residency import Ids
from dgcl.offload.schedule import Schedule
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.program import compile_programs
from dgcl.program.rank_program import Program
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import demand_of_pairs
from dgcl.topology import Topology


@dataclass(frozen=True, eq=False)
class Swap:
    """One exchange between ranks.

    Attributes:
        number: Of the exchange, as the transport calls it.
        send: Slots whose rows go in, in the order of the program's owned rows.
        receive: Slots of the rows that come out, in the order of its halo rows.
    """

    number: int
    send: Ids
    receive: Ids


@dataclass(frozen=True, eq=False)
class HostRows:
    """Rows between host memory and slots.

    Attributes:
        rows: Places in host memory, ascending.
        slots: The slot of each.
        again: (k,) bool: in a backward the host has a gradient of the row already, to which this one is added.
    """

    rows: Ids
    slots: Ids
    again: NDArray[np.bool_]


# A forward takes the batches in ascending order. In each one a rank
#
# 1. loads rows of its own from host memory into slots: ``load``
# 2. sends and receives the rows that begin to be resident elsewhere than at their owner: ``begin``
# 3. computes its chunk on the rows in ``sources``
#
# A backward takes them in descending order:
#
# 1. loads the rows whose residency ends with the batch, from host memory and from owners: ``reload``, ``end``
# 2. starts gradients of those, ``opened``, at zero
# 3. computes its chunk again, and adds the gradients of ``sources``
# 4. returns the gradients of residencies that begin with the batch, first to owners: ``begin``, backwards, then to host
#    memory: ``load``, backwards
@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of one rank; see the module.

    Attributes:
        rows: The stretch of host memory that holds the chunk's own rows.
        load, reload: From host memory, as a residency begins, or ends.
        begin, end: Between ranks; None: no rank sends a row.
        opened: Slots of residencies that end with the batch.
        sources: The slot of each row that the chunk reads: its own first.
    """

    rows: slice
    load: HostRows
    reload: HostRows
    begin: Swap | None
    end: Swap | None
    opened: Ids
    sources: Ids


@dataclass(frozen=True, eq=False)
class RankTables:
    """What one rank does.

    Attributes:
        batches: One each.
        num_slots: Slots of the rank.
        programs: Of the exchanges, by name, in the order of their numbers.
    """

    batches: tuple[Batch, ...]
    num_slots: int
    programs: dict[str, Program]

    @cached_property
    def travelling(self) -> int:
        """The most rows that a call of an exchange has buffers for."""
        calls = self.programs.values()
        return max((max(of.num_halo, of.num_arrivals) + of.num_relay for of in calls), default=0)


def compile_tables(
    schedule: Schedule,
    stored: Sequence[Ids],
    sizes: Sequence[Sequence[tuple[int, int]]],
    topology: Topology,
    method: str,
    options: PlanOptions | None = None,
) -> tuple[list[RankTables], list[Plan]]:
    """Compile the tables of all ranks, with a plan for every exchange, proved.

    Args:
        schedule: What is resident where; what a chunk reads begins with its own vertices.
        stored: Of each rank its vertices in the order of host memory: chunk by chunk, in the order of batches.
        sizes: Of each rank and batch the chunk's (vertices, in-edges).
        topology, method, options: For the plans.

    Raises:
        ValueError: An unknown method, or ranks that no chain of links joins.
    """
    place = np.empty(len(schedule.owner), np.int64)
    for ids in stored:
        place[ids] = np.arange(len(ids))
    num_ranks = schedule.num_ranks
    programs: list[dict[str, Program]] = [{} for _ in range(num_ranks)]
    plans: list[Plan] = []
    batches: list[list[Batch]] = [[] for _ in range(num_ranks)]
    first = np.zeros(num_ranks, np.int64)
    for batch in range(schedule.num_batches):
        swaps = []
        for ends in (False, True):
            exchange = _exchange(schedule, batch, ends, topology, method, options)
            number = len(plans)
            for rank in range(num_ranks if exchange is not None else 0):
                programs[rank][f"batch {batch} {'end' if ends else 'begin'}"] = exchange[1][rank]  # type: ignore[index]
            plans += [] if exchange is None else [exchange[0]]
            swaps.append((number, exchange))
        for rank, mine in enumerate(schedule.residencies):
            begins, ends_here = np.arange(len(mine.row))[mine.beginning(batch)], mine.ending(batch)
            last = _last_of_each_row(mine.row, mine.begin)
            count = sizes[rank][batch][0]
            batches[rank].append(
                Batch(
                    rows=slice(int(first[rank]), int(first[rank]) + count),
                    load=_host_rows(schedule, rank, begins, place, last),
                    reload=_host_rows(schedule, rank, ends_here, place, last),
                    begin=_swap(schedule, rank, batch, *swaps[0]),
                    end=_swap(schedule, rank, batch, *swaps[1]),
                    opened=mine.slot[ends_here],
                    sources=mine.slots_of(batch, schedule.reads[rank][batch]),
                )
            )
            first[rank] += count
    tables = [
        RankTables(tuple(batches[rank]), schedule.num_slots[rank], programs[rank])
        for rank in range(num_ranks)
    ]
    return tables, plans


def _last_of_each_row(row: Ids, begin: Ids) -> NDArray[np.bool_]:
    """Which residency of each row begins last, and is so returned first."""
    order = np.lexsort((begin, row))
    last = np.ones(len(row), bool)
    last[order[:-1]] = row[order[1:]] != row[order[:-1]]
    return last


def _host_rows(schedule: Schedule, rank: int, which: Ids, place: Ids, last: NDArray[np.bool_]) -> HostRows:
    """Those of a rank's residencies that are of its own rows, in the order of host memory."""
    mine = schedule.residencies[rank]
    which = which[schedule.owner[mine.row[which]] == rank]
    which = which[np.argsort(place[mine.row[which]])]
    return HostRows(place[mine.row[which]], mine.slot[which], ~last[which])


def _exchange(
    schedule: Schedule, batch: int, ends: bool, topology: Topology, method: str, options: PlanOptions | None
) -> tuple[Plan, list[Program], Ids] | None:
    """The plan, the proved programs of all ranks, and the vertices that are its items; None: nothing travels."""
    rows, ranks = schedule.travelling(batch, ends)
    if not len(rows):
        return None
    vertices, items = np.unique(rows, return_inverse=True)
    demand = demand_of_pairs(schedule.owner[vertices], items, ranks, schedule.num_ranks)
    classes = build_classes(demand)
    plan = make_plan(classes.relation, topology, method, options)
    programs = compile_programs(plan, classes)
    return plan, programs, vertices


def _swap(
    schedule: Schedule, rank: int, batch: int, number: int, exchange: tuple[Plan, list[Program], Ids] | None
) -> Swap | None:
    if exchange is None:
        return None
    _, programs, vertices = exchange
    mine, program = schedule.residencies[rank], programs[rank]
    return Swap(
        number,
        mine.slots_of(batch, vertices[program.owned_ids]),
        mine.slots_of(batch, vertices[program.halo_ids]),
    )
