"""Verifier of compiled programs: it executes those of all ranks with global ids in the place of rows.

It goes stage by stage, and shares no code with the compiler. It shows:

- every send reads only rows that are there, and waits for exactly the receives that brought them, all of
  earlier stages (so no two sends wait for each other);
- every place, of results, relay rows and arrivals, is written exactly once, by the transfer that the receiver expects
  there: no row is overwritten while it is needed, at whatever pace ranks run;
- every rank ends with exactly the rows that the demand says it wants, under the ids that ``halo_ids`` states: read
  from the demand itself, item by item, and not from the classes that were planned;
- every row has the place of its item, the same on every rank, among those of its owner's items;
- each (stage, sender, receiver) moves as many rows as the plan says, relays that serve nobody left out
  (:mod:`dgcl.planner.relays`);
- the fold, run on one random 64-bit number per (rank, row) with wrapping sums, gives each owner the sum over
  all ranks that hold its item (a slot added twice, left out, or added to the wrong row escapes with a
  chance of 2**-64).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dgcl.planner.plan import Plan
from dgcl.planner.relays import without_idle_relays
from dgcl.planner.trees import Trees
from dgcl.program.checks import ProgramError, arrivals_of, check_form, fail
from dgcl.program.model import Program, Schedule
from dgcl.relation.demand import Wants

__all__ = ["ProgramError", "verify_programs"]


def verify_programs(programs: list[Program], plan: Plan, demand: Wants) -> None:
    """Prove the programs of all ranks against the plan, and against who wants which item.

    Raises:
        ProgramError: Naming rank, stage, peer and what is wrong.
    """
    trees = without_idle_relays(plan)
    check_form(programs, trees.num_stages, demand.owner)
    _check_matching(programs, "expand")
    _check_matching(programs, "fold")
    _check_counts(programs, trees)
    holds = _run_expand(programs)
    places = _check_places(programs, holds, len(demand.owner))
    _check_demand(programs, plan, demand, places)
    _run_fold(programs)


def _check_matching(programs: list[Program], verb: str) -> None:
    """Each send has its receive, with the same rows in the same place."""
    for program in programs:
        mine: Schedule = getattr(program, verb)
        sends = zip(mine.send_stage, mine.send_peer, mine.send_count, mine.send_to, strict=True)
        for stage, peer, count, to in sends:
            theirs: Schedule = getattr(programs[peer], verb)
            match = np.flatnonzero((theirs.recv_stage == stage) & (theirs.recv_peer == program.rank))
            if (
                len(match) != 1
                or (theirs.recv_count[match[0]] != count).any()
                or (theirs.recv_to[match[0]] != to)[count > 0].any()
            ):
                raise fail(
                    program, f"{verb}: the send to rank {peer} in stage {stage} is not what that rank expects"
                )
    num_sends = sum(len(getattr(program, verb).send_peer) for program in programs)
    num_receives = sum(len(getattr(program, verb).recv_peer) for program in programs)
    if num_sends != num_receives:
        raise ProgramError(f"{verb}: {num_sends} sends but {num_receives} receives")


def _check_counts(programs: list[Program], trees: Trees) -> None:
    planned: dict[tuple[int, int, int], int] = {}
    per_edge = np.repeat(trees.tree_count, np.diff(trees.edge_ptr))
    world_size = len(programs)
    keys, place = np.unique(
        (trees.edge_stage.astype(np.int64) * world_size + trees.edge_src) * world_size + trees.edge_dst,
        return_inverse=True,
    )
    rows = np.zeros(len(keys), np.int64)
    np.add.at(rows, place, per_edge)
    for key, count in zip(keys.tolist(), rows.tolist(), strict=True):
        planned[key // world_size**2, key // world_size % world_size, key % world_size] = count
    for verb in ("expand", "fold"):
        moved = {}
        for program in programs:
            schedule: Schedule = getattr(program, verb)
            for peer, stage, count in zip(
                schedule.send_peer.tolist(),
                schedule.send_stage.tolist(),
                schedule.send_count.sum(1).tolist(),
                strict=True,
            ):
                if verb == "expand":
                    moved[stage, program.rank, peer] = count
                else:
                    moved[program.num_stages - 1 - stage, peer, program.rank] = count
        if moved != planned:
            odd = sorted(set(moved.items()) ^ set(planned.items()))[0]
            (stage, sender, receiver), _ = odd
            raise ProgramError(
                f"{verb}: stage {stage}, rank {sender} to rank {receiver}: the program moves "
                f"{moved.get(odd[0], 0)} rows, the plan {planned.get(odd[0], 0)}"
            )


def _sends(programs: list[Program], verb: str, stage: int) -> Iterator[tuple[Program, int, Program]]:
    """All sends of a stage: the sender, its send, the receiver."""
    for program in programs:
        schedule: Schedule = getattr(program, verb)
        for send in np.flatnonzero(schedule.send_stage == stage).tolist():
            yield program, send, programs[schedule.send_peer[send]]


def _run_expand(programs: list[Program]) -> list[np.ndarray]:
    """Deliver ids from stage to stage; return the id in each row of each rank.

    ``holds[rank][row]`` is the id there.
    """
    holds = []
    for program in programs:
        size = program.num_local + program.num_relay
        holds.append(np.full(size, -1, np.int64))
        holds[-1][: program.num_owned] = program.owned_ids
    for stage in range(programs[0].num_stages):
        writes = []
        for program, send, peer in _sends(programs, "expand", stage):
            schedule = program.expand
            for kind in (0, 1):
                count = schedule.send_count[send, kind]
                start = schedule.send_from[send, kind]
                rows = program.send_rows[start : start + count]
                if len(rows) != count:
                    raise fail(
                        program, f"expand: stage {stage}: send_rows to rank {peer.rank} are out of range"
                    )
                ids = holds[program.rank][rows]
                if (ids < 0).any():
                    raise fail(
                        program,
                        f"expand: stage {stage}: sends rank {peer.rank} rows that have not arrived",
                    )
                first = schedule.send_to[send, kind] + (peer.num_local if kind else 0)
                low, high = (
                    (peer.num_local, peer.num_local + peer.num_relay)
                    if kind
                    else (peer.num_owned, peer.num_local)
                )
                if count and not low <= first <= first + count <= high:
                    raise fail(program, f"expand: stage {stage}: writes outside rank {peer.rank}'s rows")
                writes.append((program.rank, peer.rank, first, ids))
        for sender, rank, first, ids in writes:  # after all reads of the stage
            place = slice(first, first + len(ids))
            if (holds[rank][place] >= 0).any():
                raise ProgramError(f"expand: stage {stage}: rank {sender} writes rows of rank {rank} twice")
            holds[rank][place] = ids
    for program, ids in zip(programs, holds, strict=True):
        if not np.array_equal(ids[program.num_owned : program.num_local], program.halo_ids):
            raise fail(program, "expand: the halo rows are not those that halo_ids states")
        if (ids < 0).any():
            raise fail(program, "expand: a relay row is never written")
    return holds


def _check_places(programs: list[Program], holds: list[np.ndarray], num_items: int) -> np.ndarray | None:
    """Every item has one place, the same on all ranks; return them, ``(N,)``, or None where ranks know of none."""
    places = np.full(num_items, -1, np.int64)
    for program, ids in zip(programs, holds, strict=True):
        if program.places is not None:
            places[ids[: program.num_owned]] = program.places[: program.num_owned]
    for program, ids in zip(programs, holds, strict=True):
        if program.places is not None and not np.array_equal(places[ids], program.places):
            raise fail(program, "the place of a row is another one than on its owner")
    if any(program.places is None for program in programs):
        return None
    return places


def _check_demand(programs: list[Program], plan: Plan, demand: Wants, places: np.ndarray | None) -> None:
    """Every rank receives what it wants, and the plan's relation counts the same rows from owner to rank.

    Where items have places, these number the ones that are wanted, and each lies in the class of its owner and of the
    ranks that want it.
    """
    relation = plan.relation
    if relation.world_size != demand.world_size:
        raise ProgramError(
            f"the plan is for {relation.world_size} ranks, the items are for {demand.world_size}"
        )
    planned, class_end = relation.pair_rows(), np.cumsum(relation.count)
    if places is not None:
        items = np.flatnonzero(places != -1)
        if not np.array_equal(np.sort(places[items]), np.arange(relation.num_vertices)):
            raise ProgramError("places do not number the items that some rank wants")
        of_class = np.searchsorted(class_end, places[items], side="right")
        _check_class(items, relation.source[of_class] == demand.owner[items])
    for program in programs:
        expected = demand.wanted_by(program.rank)
        counted = np.bincount(demand.owner[expected], minlength=demand.world_size)
        if not np.array_equal(counted, planned[:, program.rank]):
            raise fail(program, "the plan's relation is another than that of the items")
        if not np.array_equal(np.sort(program.halo_ids), expected):
            raise fail(program, "its halo rows are not the items that it wants")
        if places is not None:
            # As many pairs of item and rank as the relation has, each in a class that has the rank: no others.
            if (places[expected] < 0).any():
                raise ProgramError("places do not number the items that some rank wants")
            of_class = np.searchsorted(class_end, places[expected], side="right")
            word, bit = program.rank // 64, np.uint64(program.rank % 64)
            _check_class(expected, (relation.dests[of_class, word] >> bit & np.uint64(1)) > 0)


def _check_class(items: np.ndarray, same: np.ndarray) -> None:
    """Raise unless all items are in their own classes."""
    if not same.all():
        raise ProgramError(f"the place of item {items[~same][0]} is in another class than its own")


def _run_fold(programs: list[Program]) -> None:
    """Sum random numbers, wrapping; compare each owner's with the sum over the ranks that hold its items."""
    generator = np.random.default_rng(0x0DE1)
    values = [
        generator.integers(0, 2**64, program.num_local, dtype=np.uint64, endpoint=False)
        for program in programs
    ]
    num_items = 1 + max((int(p.owned_ids.max(initial=-1)) for p in programs), default=-1)
    expected = np.zeros(num_items, np.uint64)
    for program, mine in zip(programs, values, strict=True):
        np.add.at(expected, program.owned_ids, mine[: program.num_owned])
        np.add.at(expected, program.halo_ids, mine[program.num_owned :])
    arrivals = [np.zeros(program.num_arrivals, np.uint64) for program in programs]
    arrived = [np.zeros(program.num_arrivals, np.bool_) for program in programs]

    def total(program: Program, begin: int, end: int, with_own: bool) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the local rows begin:end, and which of their arrivals are there."""
        sums = values[program.rank][begin:end].copy() if with_own else np.zeros(end - begin, np.uint64)
        listed = arrivals_of(program, begin, end)
        rows, slots = program.arrival_rows[listed], program.arrival_slots[listed]
        np.add.at(sums, rows - begin, arrivals[program.rank][slots])
        distinct = np.count_nonzero(np.diff(rows)) + min(len(rows), 1)  # they are sorted
        if not with_own and distinct != end - begin:
            raise fail(program, "fold: a relay row has no arrival")
        return sums, arrived[program.rank][slots]

    for stage in range(programs[0].num_stages):
        writes = []
        for program, send, peer in _sends(programs, "fold", stage):
            schedule = program.fold
            for kind in (0, 1):
                count, begin = schedule.send_count[send, kind], schedule.send_from[send, kind]
                if count == 0:
                    continue
                low, high = (
                    (program.num_local, program.num_local + program.num_relay)
                    if kind
                    else (program.num_owned, program.num_local)
                )
                if not low <= begin <= begin + count <= high:
                    raise fail(program, f"fold: stage {stage}: sends rank {peer.rank} rows that it lacks")
                sums, brought = total(program, begin, begin + count, with_own=kind == 0)
                if not brought.all():
                    raise fail(
                        program,
                        f"fold: stage {stage}: sends rank {peer.rank} sums before all has arrived",
                    )
                writes.append((program.rank, peer.rank, schedule.send_to[send, kind], sums))
        for sender, rank, first, sums in writes:
            place = slice(first, first + len(sums))
            if first < 0 or len(arrived[rank][place]) != len(sums):
                raise ProgramError(f"fold: stage {stage}: arrivals of rank {rank} are written out of range")
            if arrived[rank][place].any():
                raise ProgramError(f"fold: stage {stage}: rank {sender} writes arrivals of rank {rank} twice")
            arrivals[rank][place] = sums
            arrived[rank][place] = True
    for program in programs:
        sums, brought = total(program, 0, program.num_owned, with_own=True)
        if not brought.all() or not np.array_equal(sums, expected[program.owned_ids]):
            raise fail(program, "fold: an owned row is not the sum over the ranks that hold it")
