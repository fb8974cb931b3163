"""A program laid out for CUDA kernels: per stage what to wait for, which rows to move, whom to tell.

A call on a device is a fixed list of launches (:mod:`dgcl.kernels.cuda_tables` has the tables they read)::

    enter                          where this call's buffers are (not part of the list here)
    announce                       this call may be written, here are the buffers
    for every stage:
        wait, resolve              the receivers have announced; where do they want their rows?
        wait                       the rows that this stage passes on have arrived
        gather (expand), sum (fold)    one task per receiver and kind of rows
        signal                     the receivers' done flags
    wait                           everything that comes here has come
    sum (fold)                     the owned rows' own sums
    signal                         the host, that the call is over

Rows for peers out of reach are gathered into this rank's own memory, from where others bring them on: through the
host's memory (:mod:`dgcl.transport.cuda.lane_copies`), or to another machine (:mod:`dgcl.transport.cuda.groups`).

Order is that of :mod:`dgcl.transport.shared_memory.engine`, but by stage instead of by transfer: what a stage sends starts when all
of the stage's receivers are ready. Within a stage the thread blocks are dealt to the receivers, so a slow
one holds up nobody.

Nothing here touches a GPU: it makes numpy tables and hands them to ``upload``, and returns launches by
name. The same launches run on a device and in numba's simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from dgcl.kernels.cuda_shapes import THREADS, deal_blocks
from dgcl.kernels.cuda_tables import FLAG, TASK, arrival_pointers, records
from dgcl.program.model import Program, Schedule
from dgcl.transport.shared_memory.engine import EXPAND, FOLD

__all__ = ["EXPAND", "FOLD", "Launch", "Wires", "lay_out", "peer_slot"]

#: Slots of the address table: this rank's rows (the result of an expand, the gradient of a fold); its relay
#: rows, or arrivals; the result of a fold; rows on their way to peers out of reach. Two slots for each peer follow.
LOCAL: Final = 0
SECOND: Final = 1
RESULT: Final = 2
STAGING: Final = 3
_PEERS: Final = 4

#: Marks in a list of launches, for what peers out of reach need.
BEGUN: Final = "begun"
HANDED: Final = "handed"
GROUPED: Final = "grouped"
MET: Final = "met"
JOINED: Final = "joined"

# Bytes of a copy kernel's task that are worth a thread block.
_UNITS_PER_THREAD: Final = {EXPAND: 4, FOLD: 1}
_FLAG_THREADS: Final = 32


def peer_slot(peer: int) -> int:
    """The slot of a peer's buffer; that of its relay rows (expand) is the next."""
    return _PEERS + 2 * peer


def num_slots(world_size: int) -> int:
    """Length of the address table."""
    return _PEERS + 2 * world_size


@dataclass(frozen=True)
class Wires:
    """Device addresses of one rank, for all its calls.

    Attributes:
        state, addresses: The tables.
        lines: ``(P,)`` where this rank announces its calls to each peer.
        words, num_words: What an announcement says behind its number; the first is the call's tag.
        ready: ``(P,)`` where each peer announces its calls to this rank.
        done: ``(P,)`` each peer's done flag for this rank.
        raised: ``(P,)`` this rank's done flag for each peer.
        maps: ``(P, 2)`` address and number of the MAP records of each peer; -1: it is out of reach.
        staged: The peers that are reached through memory of the host (:mod:`dgcl.transport.cuda.lanes`).
        remote, partners: The peers on other machines; those of them that rows go to or come from.
        outbox: Where this rank announces its calls for its partners, who get a copy; 0: it has none.
        handed: Where it counts the stages whose rows for partners are ready, like a done flag; 0: it has none.
        begun, finished: Where the host reads the number of the last call that the device has begun (a line,
            with what the announcement says), and of the last that it has finished; 0 for nowhere.
    """

    state: int
    addresses: int
    lines: np.ndarray
    words: int
    num_words: int
    ready: np.ndarray
    done: np.ndarray
    raised: np.ndarray
    maps: np.ndarray
    staged: frozenset[int] = frozenset()
    remote: frozenset[int] = frozenset()
    partners: frozenset[int] = frozenset()
    outbox: int = 0
    handed: int = 0
    begun: int = 0
    finished: int = 0


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel of the catalogue, and the stage that it belongs to.

    Where peers are out of reach there are more kinds, which launch nothing: :data:`BEGUN` (this rank's buffers may be
    written), :data:`HANDED` (the rows of the sends in ``parameters`` are ready to be copied to the host),
    :data:`GROUPED` (here a stage's messages to and from partners are enqueued), :data:`MET` (the messages of the stage
    in ``parameters`` are to have come here), and :data:`JOINED` (all copies and messages are to be done here).
    """

    stage: int
    kernel: str
    blocks: int
    threads: int
    parameters: tuple[int, ...]


def lay_out(
    program: Program,
    verb: int,
    wires: Wires,
    kernel: str,
    unit: int,
    row_bytes: int,
    max_blocks: int,
    upload: Callable[[np.ndarray], int],
    threads: int = THREADS,
) -> list[Launch]:
    """The launches of one call of a verb, in their order.

    Args:
        program: What this rank does.
        verb: EXPAND or FOLD.
        wires: Where things are.
        kernel: Name of the gather, or of the sum.
        unit: Its unit; divides ``row_bytes`` and all addresses of rows.
        row_bytes: Size of a row.
        max_blocks: How many blocks of the kernel the device holds at once.
        upload: Copies a table to the device, to stay there, and returns its address.
        threads: Of a block of the kernel.
    """
    schedule = program.expand if verb == EXPAND else program.fold
    if verb == EXPAND:
        fixed: tuple[int, ...] = (upload(program.send_rows),)
    else:
        pointers = arrival_pointers(program.arrival_rows, program.num_local + program.num_relay)
        fixed = (upload(pointers), upload(program.arrival_slots))
    own = wires.state, wires.addresses
    out_of_reach = wires.staged | wires.partners
    far = np.isin(np.arange(program.world_size), list(wires.partners))

    def move(stage: int, tasks: list[dict[str, int]]) -> Iterator[Launch]:
        units = [task["count"] * (row_bytes // unit) for task in tasks]
        blocks = deal_blocks(units, max_blocks, _UNITS_PER_THREAD[verb] * threads)
        if len(blocks):
            tables = upload(records(TASK, tasks)), upload(blocks)
            yield Launch(stage, kernel, len(blocks), threads, (*own, *tables, *fixed, row_bytes))

    def flags(stage: int, name: str, rows: list[dict[str, int]], *more: int) -> Iterator[Launch]:
        if rows:
            table = upload(records(FLAG, rows)), len(rows)
            blocks = 1 if name == "wait" else -(-len(rows) // _FLAG_THREADS)
            width = 1 if name == "wait" else _FLAG_THREADS
            prefix = own if name == "resolve" else own[:1]
            yield Launch(stage, name, blocks, width, (*prefix, *table, *more))

    def arrived(stage: int, receives: np.ndarray) -> Iterator[Launch]:
        """Wait until these receives have come."""
        latest = max(
            (int(schedule.recv_stage[i]) for i in receives if far[schedule.recv_peer[i]]), default=-1
        )
        if latest >= 0:
            yield Launch(stage, MET, 0, 0, (latest,))
        yield from flags(stage, "wait", _done_flags(program, wires, schedule, receives))

    def launches() -> Iterator[Launch]:
        # Everyone within reach hears of every call, so that ranks that make different calls notice it.
        near = np.delete(wires.lines, [program.rank, *wires.remote]).tolist()
        announced = np.array([*near, *filter(None, (wires.outbox, wires.begun))], np.int64)
        parameters = upload(announced), len(announced), wires.words, wires.num_words
        yield Launch(-1, "announce", 1, _FLAG_THREADS, (wires.state, *parameters))
        if out_of_reach:
            yield Launch(-1, BEGUN, 0, 0, ())
        first_rows = staging_rows(schedule, out_of_reach)
        of_partners = schedule.recv_stage[far[schedule.recv_peer]]
        for stage in np.union1d(schedule.send_stage, of_partners).tolist():
            sends = np.flatnonzero(schedule.send_stage == stage).tolist()
            direct = [i for i in sends if i not in first_rows]
            grouped = [i for i in sends if far[schedule.send_peer[i]]]
            ready = [ready_flag(wires, int(schedule.send_peer[i])) for i in sends if i not in grouped]
            yield from flags(stage, "wait", ready)
            yield from flags(stage, "resolve", ready, wires.words)
            needed = [_dependencies(schedule, i) for i in sends]
            yield from arrived(stage, np.unique(np.concatenate(needed)) if needed else np.zeros(0, np.int64))
            tasks = (_tasks(program, verb, schedule, i, first_rows.get(i)) for i in sends)
            yield from move(stage, [task for some in tasks for task in some])
            raised = [_raised_flag(program, wires, schedule, i) for i in direct]
            if grouped:
                raised.append(stage_flag(program, wires.handed, stage))
            yield from flags(stage, "signal", raised)
            if handed := tuple(i for i in sends if i in first_rows and i not in grouped):
                yield Launch(stage, HANDED, 0, 0, handed)
            if grouped or stage in of_partners:
                yield Launch(stage, GROUPED, 0, 0, ())
        last = program.num_stages
        yield from arrived(last, np.arange(len(schedule.recv_peer)))
        if verb == FOLD:
            kept = {"source": LOCAL, "second": SECOND, "target": RESULT, "count": program.num_owned}
            yield from move(last, [kept])
        if out_of_reach:
            yield Launch(last, JOINED, 0, 0, ())
        if wires.finished:
            yield from flags(last, "signal", [{"address": wires.finished, "multiplier": 1}])

    return list(launches())


def stage_flag(program: Program, address: int, stage: int) -> dict[str, int]:
    """What a word says when this stage of a call is done."""
    return {"address": address, "multiplier": program.num_stages, "offset": stage + 1, "stage": stage}


def staging_rows(schedule: Schedule, staged: frozenset[int]) -> dict[int, int]:
    """For each send to a peer that is out of reach: its first row in the staging memory."""
    sends = [i for i, peer in enumerate(schedule.send_peer.tolist()) if peer in staged]
    counts = [int(schedule.send_count[i].sum()) for i in sends]
    return dict(zip(sends, (np.cumsum([0, *counts])[:-1]).tolist(), strict=True))


def ready_flag(wires: Wires, peer: int) -> dict[str, int]:
    maps, num_maps = wires.maps[peer].tolist()
    return {
        "address": int(wires.ready[peer]),
        "multiplier": 1,
        "target": peer_slot(peer),
        "maps": maps,
        "num_maps": num_maps,
        "peer": peer,
    }


def _done_flags(
    program: Program, wires: Wires, schedule: Schedule, receives: np.ndarray
) -> list[dict[str, int]]:
    """What to wait for so that these receives have come; of each peer only its last stage."""
    latest: dict[int, int] = {}
    for i in receives:
        peer, stage = int(schedule.recv_peer[i]), int(schedule.recv_stage[i])
        latest[peer] = max(latest.get(peer, 0), stage)
    return [
        {**stage_flag(program, int(wires.done[peer]), stage), "peer": peer}
        for peer, stage in sorted(latest.items())
    ]


def _raised_flag(program: Program, wires: Wires, schedule: Schedule, send: int) -> dict[str, int]:
    peer, stage = int(schedule.send_peer[send]), int(schedule.send_stage[send])
    return {**stage_flag(program, int(wires.raised[peer]), stage), "peer": peer}


def _dependencies(schedule: Schedule, send: int) -> np.ndarray:
    return schedule.send_deps[schedule.send_dep_ptr[send] : schedule.send_dep_ptr[send + 1]]


def _tasks(
    program: Program, verb: int, schedule: Schedule, send: int, staging: int | None = None
) -> Iterator[dict[str, int]]:
    """The rows that the receiver needs, then those that it passes on (expand) or that passed here (fold); from row
    ``staging`` of the staging memory on, one behind the other, where the receiver is out of reach."""
    for portion in range(2):
        count = int(schedule.send_count[send, portion])
        if count == 0:
            continue
        # A fold's arrivals are one buffer, whichever rows they are for.
        relay_slot = portion if verb == EXPAND else 0
        task = {
            "source": LOCAL,
            "second": SECOND,
            "target": peer_slot(int(schedule.send_peer[send])) + relay_slot,
            "first": int(schedule.send_from[send, portion]),
            "to": int(schedule.send_to[send, portion]),
            "count": count,
        }
        if staging is not None:
            task["target"], task["to"] = STAGING, staging
            staging += count
        if verb == EXPAND:
            task["near_rows"] = program.num_local
        elif portion == 1:
            task["source"] = -1  # a rank has no values of its own for rows that only passed through
        yield task
