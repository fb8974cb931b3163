"""Check that programs are well formed: tables of the right length and order, indices in range.

Together with what pairs of ranks compare (:mod:`dgcl.transport.shared_memory.agreement`) it is the proof that every
row, and every sum, arrives where it belongs, by induction over stages:

- a place of results, relay rows and arrivals is written exactly once, and read after that alone;
- the fold is the expand backwards: it sends each row on that an expand received, with the sum of what arrived for it;
- what a rank sends to another one are the items that this one expects, in its order.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from dgcl.graph.id_arrays import any_outside
from dgcl.program.model import Program, Schedule

#: Of the tables that are not int64.
_NARROW = frozenset(
    (
        "send_peer", "send_stage", "send_deps", "recv_peer", "recv_stage",
        "send_rows", "arrival_rows", "arrival_slots",
    )
)  # fmt: skip

_MOST_ROWS = np.iinfo(np.int32).max  # rows of a rank are numbered by int32


class ProgramError(ValueError):
    """A program's tables contradict its plan."""


def fail(program: Program, text: str) -> ProgramError:
    """The error to raise about one rank's program."""
    return ProgramError(f"program of rank {program.rank}: {text}")


def check_program(program: Program) -> None:
    """Raise :class:`ProgramError` unless one rank's tables are of the right form by themselves.

    The compiled executor may then index without checking. What remains is where a rank writes in the memory of others.
    """
    _check_types(program)
    if not 0 <= program.rank < program.world_size or program.num_stages < 0:
        raise fail(program, f"no rank of {program.world_size}, or {program.num_stages} stages")
    if program.owned_ids.shape != (program.num_owned,) or program.halo_ids.shape != (program.num_halo,):
        raise fail(program, "the numbers of rows do not match the ids")
    if (program.owned_ids < 0).any() or (program.halo_ids < 0).any():
        raise fail(program, "a negative id")
    if program.places.shape != (program.num_local + program.num_relay,):
        raise fail(program, "places must have an entry for each local row")
    _check_schedule(program, "expand")
    _check_schedule(program, "fold")
    _check_fold(program)
    _check_rows(program)
    _check_ranges(program)
    _check_waits(program)


def _check_types(program: Program) -> None:
    """Compiled code reads tables as what they are said to be."""
    for record in (program, program.expand, program.fold):
        for field in fields(record):
            value: Any = getattr(record, field.name)
            if isinstance(value, Schedule):
                continue
            if not isinstance(value, np.ndarray):
                if isinstance(value, bool) or not isinstance(value, int):
                    raise ProgramError(f"{field.name} of a program is a number (got {value!r})")
            elif field.name == "places" and value.dtype == np.int32:
                continue  # where that is enough
            elif value.dtype != (np.int32 if field.name in _NARROW else np.int64):
                raise fail(program, f"{field.name} holds {value.dtype}")


def _check_fold(program: Program) -> None:
    """The fold's transfers are the expand's backwards, and of the same rows."""
    expand, fold = program.expand, program.fold
    first = expand.recv_to + np.array([0, program.num_local])  # an expand counts relay rows from 0
    for (mine, *its_tables), (theirs, *tables), what in (
        (
            (fold.send_stage, fold.send_peer, fold.send_count, fold.send_from * (fold.send_count > 0)),
            (expand.recv_stage, expand.recv_peer, expand.recv_count, first * (expand.recv_count > 0)),
            "sends other rows than the expand receives",
        ),
        (
            (fold.recv_stage, fold.recv_peer, fold.recv_count),
            (expand.send_stage, expand.send_peer, expand.send_count),
            "receives other rows than the expand sends",
        ),
    ):
        stage = program.num_stages - 1 - theirs
        order = np.lexsort((tables[0], stage))
        pairs = zip((mine, *its_tables), (stage, *tables), strict=True)
        if not all(np.array_equal(ours, other[order]) for ours, other in pairs):
            raise fail(program, f"the fold {what}")


def _check_ranges(program: Program) -> None:
    """Rows that a rank reads in its own memory, and expects there."""
    num_local, end = program.num_local, program.num_local + program.num_relay
    expand, fold = program.expand, program.fold
    for table, first, count, low, high in (
        ("expand: send_from", expand.send_from, expand.send_count, 0, len(program.send_rows)),
        ("expand: recv_to", expand.recv_to[:, :1], expand.recv_count[:, :1], program.num_owned, num_local),
        ("expand: recv_to", expand.recv_to[:, 1:], expand.recv_count[:, 1:], 0, program.num_relay),
        ("fold: send_from", fold.send_from[:, :1], fold.send_count[:, :1], program.num_owned, num_local),
        ("fold: send_from", fold.send_from[:, 1:], fold.send_count[:, 1:], num_local, end),
        ("fold: recv_to", fold.recv_to, fold.recv_count, 0, program.num_arrivals),
    ):
        # Both are within [0, high] before they are added: no sum of them wraps.
        outside = (count > high) | (first < low) | (first > high)
        if (outside & (count > 0)).any() or ((first + count > high) & ~outside & (count > 0)).any():
            raise fail(program, f"{table} and the rows from there are not all within [{low}, {high})")
    for verb, schedule in (("expand", expand), ("fold", fold)):
        receivers = np.repeat(np.arange(len(schedule.send_peer)), np.diff(schedule.send_dep_ptr))
        if (schedule.recv_stage[schedule.send_deps] >= schedule.send_stage[receivers]).any():
            raise fail(program, f"{verb}: a send waits for what comes in its own stage or later")


def _check_waits(program: Program) -> None:
    """A send waits for the receives that bring its rows, or what is added to them, and for no others."""
    expand, fold, num_local = program.expand, program.fold, program.num_local
    brought = _receives_by_row(
        program, "expand", (0, num_local), program.num_owned, num_local + program.num_relay
    )
    slots = _receives_by_row(program, "fold", (0, 0), 0, program.num_arrivals)
    for send in range(len(expand.send_peer)):
        rows = [
            program.send_rows[first : first + count]
            for first, count in zip(expand.send_from[send], expand.send_count[send], strict=True)
        ]
        needed = np.concatenate(rows)
        _check_send(program, "expand", send, brought[needed[needed >= program.num_owned]])
    for send in range(len(fold.send_peer)):
        added = [
            slots[program.arrival_slots[arrivals_of(program, first, first + count)]]
            for first, count in zip(fold.send_from[send], fold.send_count[send], strict=True)
        ]
        _check_send(program, "fold", send, np.concatenate(added))


def arrivals_of(program: Program, begin: int, end: int) -> slice:
    """Where the arrivals of local rows begin:end are listed."""
    # Of the same type: numpy would otherwise convert the whole table in each call.
    ends = np.array((begin, end), program.arrival_rows.dtype)
    return slice(*np.searchsorted(program.arrival_rows, ends).tolist())


def _receives_by_row(
    program: Program, verb: str, bases: tuple[int, int], begin: int, num_rows: int
) -> np.ndarray:
    """``(num_rows,)`` int32: which receive writes a row or a slot; all from ``begin`` on are written, once."""
    schedule: Schedule = getattr(program, verb)
    receive_of_row = np.full(num_rows, -1, np.int32)
    for receive, (firsts, counts) in enumerate(zip(schedule.recv_to, schedule.recv_count, strict=True)):
        for base, first, count in zip(bases, firsts, counts, strict=True):
            receive_of_row[base + first : base + first + count] = receive
    if schedule.recv_count.sum() != num_rows - begin or (receive_of_row[begin:] < 0).any():
        raise fail(program, f"{verb}: a row is received twice, or never")
    return receive_of_row


def _check_send(program: Program, verb: str, send: int, needed: np.ndarray) -> None:
    schedule: Schedule = getattr(program, verb)
    seen = np.zeros(len(schedule.recv_peer) + 1, np.bool_)
    seen[needed] = True  # -1 is the last
    waits = schedule.send_deps[schedule.send_dep_ptr[send] : schedule.send_dep_ptr[send + 1]]
    if seen[-1] or not np.array_equal(np.flatnonzero(seen[:-1]), waits):
        raise fail(
            program,
            f"{verb}: stage {schedule.send_stage[send]}: does not wait for what it sends rank"
            f" {schedule.send_peer[send]}, or waits for more",
        )


def _check_schedule(program: Program, verb: str) -> None:
    schedule: Schedule = getattr(program, verb)
    sends, receives = len(schedule.send_peer), len(schedule.recv_peer)
    shapes = {
        "send_stage": (sends,),
        "send_count": (sends, 2),
        "send_from": (sends, 2),
        "send_to": (sends, 2),
        "send_dep_ptr": (sends + 1,),
        "recv_stage": (receives,),
        "recv_count": (receives, 2),
        "recv_to": (receives, 2),
    }
    for name, shape in shapes.items():
        if getattr(schedule, name).shape != shape:
            raise fail(
                program, f"{verb}: {name} must have shape {shape} (has {getattr(schedule, name).shape})"
            )
    for peers, stages, counts, name in (
        (schedule.send_peer, schedule.send_stage, schedule.send_count, "sends"),
        (schedule.recv_peer, schedule.recv_stage, schedule.recv_count, "receives"),
    ):
        order = list(zip(stages.tolist(), peers.tolist(), strict=True))
        if order != sorted(set(order)):
            raise fail(program, f"{verb}: {name} are not ordered by (stage, peer)")
        if any_outside(stages, program.num_stages):
            raise fail(program, f"{verb}: a stage of the {name} is outside the plan's {program.num_stages}")
        if ((peers < 0) | (peers >= program.world_size) | (peers == program.rank)).any():
            raise fail(program, f"{verb}: a peer of the {name} is no other rank")
        if (counts < 0).any() or (counts > _MOST_ROWS).any() or (counts.sum(axis=1) == 0).any():
            raise fail(program, f"{verb}: one of the {name} moves no rows, or more than {_MOST_ROWS}")
    if ((schedule.send_from < 0) & (schedule.send_count > 0)).any():
        raise fail(program, f"{verb}: send_from is negative")
    pointer, deps = schedule.send_dep_ptr, schedule.send_deps
    if pointer[0] != 0 or pointer[-1] != len(deps) or (np.diff(pointer) < 0).any():
        raise fail(program, f"{verb}: send_dep_ptr does not divide the {len(deps)} send_deps")
    if any_outside(deps, receives):
        raise fail(program, f"{verb}: send_deps name a receive that is not there")


def _check_rows(program: Program) -> None:
    """``send_rows``, and the arrivals of the fold: one per row sent, sorted by (row, slot)."""
    num_sent = program.expand.rows_sent
    rows, slots = program.arrival_rows, program.arrival_slots
    if not program.send_rows.shape == rows.shape == slots.shape == (num_sent,):
        raise fail(program, f"send_rows, arrival_rows and arrival_slots must have {num_sent} entries each")
    for name, indices, end in (
        ("send_rows", program.send_rows, program.num_local + program.num_relay),
        ("arrival_rows", rows, program.num_local + program.num_relay),
        ("arrival_slots", slots, program.num_arrivals),
    ):
        if any_outside(indices, end):
            raise fail(program, f"{name} name a row that is not there")
    sent = np.bincount(program.send_rows, minlength=program.num_owned)[: program.num_owned] > 0
    if not np.array_equal(program.places[: program.num_owned] != -1, sent):
        raise fail(program, "places must be those of the owned rows that are sent")
    step, slot_step = np.diff(rows), np.diff(slots)
    if ((step < 0) | ((step == 0) & (slot_step <= 0))).any():
        raise fail(program, "arrival_rows and arrival_slots are not sorted by row, then slot")
    if not np.bincount(slots, minlength=program.num_arrivals).all():
        raise fail(program, "arrival_slots leave out a place of the arrival buffer")
