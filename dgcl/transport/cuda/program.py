"""Lay a program out for CUDA kernels: what each stage waits for, moves and signals.

A call on a device is a fixed list of launches (:mod:`dgcl.kernels.cuda_tables` has the tables they read)::

    begin                          this call may be written, here are the buffers
    for every stage:
        signal_wait: ready         the receivers have announced; where do they want their rows?
        signal_wait: awaited       what is sent here in earlier stages has arrived
        gather (expand), sum (fold)    one task per receiver and kind of rows
        signal_wait: raised        the receivers' done flags
    signal_wait: awaited           everything that is sent here has arrived
    sum (fold)                     the sums of owned rows
    signal_wait: raised            the host: the call is over

:func:`fuse` makes one launch of flag kernels that follow each other.

Rows for peers out of reach are gathered into staging memory of this rank. From there they are copied through the
host's memory (:mod:`dgcl.transport.cuda.lane_copies`), or sent to another machine (:mod:`dgcl.transport.cuda.groups`).

The order is that of :mod:`dgcl.transport.shared_memory.engine`, but by stage instead of by transfer: what a stage sends
starts when all of the stage's receivers are ready, and when all that earlier stages bring has arrived, not only what it
passes on: a rank that went on sooner would take bandwidth from rows of earlier stages which others still wait for.
Within a stage every receiver has thread blocks of its own, so a slow one delays no other.

Nothing here touches a GPU: it makes numpy tables, passes them to ``upload``, and returns launches by name. The same
launches run on a device and in numba's simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dgcl.kernels.cuda_shapes import THREADS, deal_blocks
from dgcl.kernels.cuda_tables import (
    FLAG,
    FLAG_THREADS,
    TASK,
    Begin,
    SignalWait,
    arrival_pointers,
    records,
)
from dgcl.program.model import Program, Schedule
from dgcl.transport.shared_memory.engine import EXPAND, FOLD

__all__ = ["EXPAND", "FOLD", "CallLayout", "Launch", "RankAddresses", "fuse", "peer_slot"]

#: Slots of the address table: this rank's rows (the result of an expand, the input of a fold); its relay rows, or
#: arrivals; the result of a fold; staging memory for peers out of reach. Two slots for each peer follow.
LOCAL: Final = 0
SECOND: Final = 1
RESULT: Final = 2
STAGING: Final = 3
_PEERS: Final = 4

#: Marks in a list of launches, see :class:`Launch`.
BEGUN: Final = "begun"
PACKED: Final = "packed"
GROUPED: Final = "grouped"
RECEIVED: Final = "received"
JOINED: Final = "joined"

# Bytes of a copy kernel's task that are worth a thread block.
_UNITS_PER_THREAD: Final = {EXPAND: 4, FOLD: 1}

#: Tables of a launch of ``signal_wait``, in the order in which it goes through them; ``begin`` has the middle two.
_FLAG_TABLES: Final = ("raised", "ready", "awaited", "ended")


def peer_slot(peer: int) -> int:
    """The slot of a peer's buffer; that of its relay rows (expand) is the next."""
    return _PEERS + 2 * peer


def num_slots(world_size: int) -> int:
    """Length of the address table."""
    return _PEERS + 2 * world_size


@dataclass(frozen=True)
class RankAddresses:
    """Device addresses of one rank, for all its calls.

    Attributes:
        state, address_table: Addresses of these tables.
        lines: ``(P,)`` where this rank announces its calls to each peer.
        words, num_words: Table of what an announcement says behind its number; the first word is the call's tag.
        ready: ``(P,)`` where each peer announces its calls to this rank.
        done: ``(P,)`` each peer's done flag for this rank.
        raised: ``(P,)`` this rank's done flag for each peer.
        maps: ``(P, 2)`` address and number of the MAP records of each peer; number -1: it is out of reach.
        staged: The peers that are reached through host lanes (:mod:`dgcl.transport.cuda.lanes`).
        remote, partners: The peers on other machines; those of them that rows go to or come from.
        outbox: Where this rank announces its calls for its partners, who get a copy; 0: it has none.
        packed: Where it counts the stages whose rows for partners are packed, like a done flag; 0: it has none.
        begun, finished: Where the host reads the number of the last call that the device has begun (a line with the
            announcement), and of the last that it has finished; 0 for nowhere.
    """

    state: int
    address_table: int
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
    packed: int = 0
    begun: int = 0
    finished: int = 0


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel of the catalogue, and the stage that it belongs to.

    The parameters of ``begin`` that differ from call to call are left out.

    Where peers are out of reach there are also marks, which launch nothing: :data:`BEGUN` (this rank's buffers may be
    written), :data:`PACKED` (the rows of the sends in ``parameters`` are ready to be copied to the host; here the
    copies of the stage are enqueued), :data:`GROUPED` (here a stage's messages to and from partners are enqueued),
    :data:`RECEIVED` (wait here for the messages of the stage in ``parameters``), and :data:`JOINED` (wait here for all
    copies and messages).
    """

    stage: int
    kernel: str
    blocks: int
    threads: int
    parameters: tuple[int, ...]


def fuse(launches: list[Launch], *, waits_first: bool = False) -> list[Launch]:
    """The same in fewer launches: one of flag kernels that follow each other, in their order.

    Args:
        launches: As laid out.
        waits_first: Let no launch announce or signal before it waits. Where the stream itself waits ahead of the
            kernel, it would keep from the peers what they wait for.
    """
    fused: list[Launch] = []
    for launch in launches:
        last = _fused(fused[-1], launch, waits_first) if fused else None
        if last is None:
            fused.append(launch)
        else:
            fused[-1] = last
    return fused


def _fused(first: Launch, second: Launch, waits_first: bool) -> Launch | None:
    """Both in one, if they can be; ``second`` has one table."""
    before, after = first.parameters, second.parameters
    if not isinstance(before, Begin | SignalWait) or not isinstance(after, SignalWait):
        return None
    full = [name for name in _FLAG_TABLES if getattr(before, f"num_{name}", 0)]
    if isinstance(before, Begin):
        full.insert(0, "raised")  # so to speak: it announces
    (name,) = (each for each in _FLAG_TABLES if getattr(after, f"num_{each}"))
    place = "ended" if name == "raised" else name
    behind = _FLAG_TABLES[_FLAG_TABLES.index(full[-1]) + 1 :]
    if place not in behind or not hasattr(before, place) or (waits_first and full[0] == "raised"):
        return None
    tables = {place: getattr(after, name), f"num_{place}": getattr(after, f"num_{name}")}
    return replace(first, parameters=before._replace(**tables))


class CallLayout:
    """The launches of one call of a verb.

    Args:
        program: Of this rank.
        verb: EXPAND or FOLD.
        addresses: Of this rank.
        kernel: Name of the gather, or of the sum.
        unit: Its unit in bytes; divides ``row_bytes`` and all addresses of rows.
        row_bytes: Size of a row.
        max_blocks: How many blocks of the kernel the device holds at once.
        upload: Copies a table to the device, to stay there, and returns its address.
        threads: Threads of a block of the kernel.
    """

    def __init__(
        self,
        program: Program,
        verb: int,
        addresses: RankAddresses,
        kernel: str,
        unit: int,
        row_bytes: int,
        max_blocks: int,
        upload: Callable[[np.ndarray], int],
        threads: int = THREADS,
    ) -> None:
        self._program, self._verb, self._addresses, self._upload = program, verb, addresses, upload
        self._kernel, self._max_blocks, self._threads = kernel, max_blocks, threads
        self._units_per_row, self._row_bytes = row_bytes // unit, row_bytes
        self._schedule = program.expand if verb == EXPAND else program.fold
        if verb == EXPAND:
            self._fixed: tuple[int, ...] = (upload(program.send_rows),)
        else:
            pointers = arrival_pointers(program.arrival_rows, program.num_local + program.num_relay)
            self._fixed = (upload(pointers), upload(program.arrival_slots))
        self._is_partner = np.isin(np.arange(program.world_size), list(addresses.partners))
        self._first_rows = staging_rows(self._schedule, addresses.staged | addresses.partners)

    def launches(self) -> Iterator[Launch]:
        """All launches and marks, in order."""
        program, addresses, schedule = self._program, self._addresses, self._schedule
        # Everyone within reach learns of every call, so that ranks that make different calls notice it.
        near = np.delete(addresses.lines, [program.rank, *addresses.remote]).tolist()
        announced = np.array([*near, *filter(None, (addresses.outbox, addresses.begun))], np.int64)
        words = addresses.words, addresses.num_words
        parameters = Begin(
            addresses.state, addresses.address_table, *words, self._upload(announced), len(announced)
        )
        yield Launch(-1, "begin", 1, FLAG_THREADS, parameters)
        has_unreachable = bool(addresses.staged | addresses.partners)
        if has_unreachable:
            yield Launch(-1, BEGUN, 0, 0, ())
        partner_stages = schedule.recv_stage[self._is_partner[schedule.recv_peer]]
        is_staged = np.isin(schedule.recv_peer, list(addresses.staged))
        staged_stages = schedule.recv_stage[is_staged]
        for stage in np.unique(np.concatenate([schedule.send_stage, partner_stages, staged_stages])).tolist():
            yield from self._stage(stage, stage in partner_stages, stage in staged_stages)
        last = program.num_stages
        yield from self._arrived(last, np.arange(len(schedule.recv_peer)))
        if self._verb == FOLD:
            kept = {"source": LOCAL, "second": SECOND, "target": RESULT, "count": program.num_owned}
            yield from self._move(last, [kept])
        if has_unreachable:
            yield Launch(last, JOINED, 0, 0, ())
        if addresses.finished:
            yield from self._flags(last, "raised", [{"address": addresses.finished, "multiplier": 1}])

    def _stage(self, stage: int, has_messages: bool, has_slices: bool) -> Iterator[Launch]:
        """Wait for the receivers and for earlier stages, move the rows, and signal.

        Args:
            stage: Which.
            has_messages, has_slices: Whether messages, or slices through the host, arrive in it.
        """
        program, addresses, schedule = self._program, self._addresses, self._schedule
        sends = np.flatnonzero(schedule.send_stage == stage).tolist()
        direct = [i for i in sends if i not in self._first_rows]
        grouped = [i for i in sends if self._is_partner[schedule.send_peer[i]]]
        ready = [ready_flag(addresses, int(schedule.send_peer[i])) for i in sends if i not in grouped]
        yield from self._flags(stage, "ready", ready)
        if sends:
            yield from self._arrived(stage, np.flatnonzero(schedule.recv_stage < stage))
        tasks = (_tasks(program, self._verb, schedule, i, self._first_rows.get(i)) for i in sends)
        yield from self._move(stage, [task for some in tasks for task in some])
        raised = [_raised_flag(program, addresses, schedule, i) for i in direct]
        if grouped:
            raised.append(stage_flag(program, addresses.packed, stage))
        yield from self._flags(stage, "raised", raised)
        packed = tuple(i for i in sends if i in self._first_rows and i not in grouped)
        if packed or has_slices:
            yield Launch(stage, PACKED, 0, 0, packed)
        if grouped or has_messages:
            yield Launch(stage, GROUPED, 0, 0, ())

    def _move(self, stage: int, tasks: list[dict[str, int]]) -> Iterator[Launch]:
        """Gather or sum the rows of some tasks."""
        units = [task["count"] * self._units_per_row for task in tasks]
        blocks = deal_blocks(units, self._max_blocks, _UNITS_PER_THREAD[self._verb] * self._threads)
        if len(blocks):
            own = self._addresses.state, self._addresses.address_table
            tables = self._upload(records(TASK, tasks)), self._upload(blocks)
            parameters = (*own, *tables, *self._fixed, self._row_bytes)
            yield Launch(stage, self._kernel, len(blocks), self._threads, parameters)

    def _flags(self, stage: int, name: str, rows: list[dict[str, int]]) -> Iterator[Launch]:
        """A launch of ``signal_wait`` with one table."""
        if rows:
            own = self._addresses
            parameters = SignalWait(own.state, addresses=own.address_table, tag=own.words)
            table = {name: self._upload(records(FLAG, rows)), f"num_{name}": len(rows)}
            yield Launch(stage, "signal_wait", 1, FLAG_THREADS, parameters._replace(**table))

    def _arrived(self, stage: int, receives: np.ndarray) -> Iterator[Launch]:
        """Wait until these receives have arrived."""
        schedule = self._schedule
        stages = [int(schedule.recv_stage[i]) for i in receives if self._is_partner[schedule.recv_peer[i]]]
        if stages:
            yield Launch(stage, RECEIVED, 0, 0, (max(stages),))
        done = _done_flags(self._program, self._addresses, schedule, receives)
        yield from self._flags(stage, "awaited", done)


def stage_flag(program: Program, address: int, stage: int) -> dict[str, int]:
    """The value of a flag when this stage of a call is done, as fields of a FLAG record."""
    return {"address": address, "multiplier": program.num_stages, "offset": stage + 1, "stage": stage}


def staging_rows(schedule: Schedule, staged: frozenset[int]) -> dict[int, int]:
    """The first row in the staging memory of each send to a peer in ``staged``."""
    sends = [i for i, peer in enumerate(schedule.send_peer.tolist()) if peer in staged]
    counts = [int(schedule.send_count[i].sum()) for i in sends]
    return dict(zip(sends, (np.cumsum([0, *counts])[:-1]).tolist(), strict=True))


def ready_flag(addresses: RankAddresses, peer: int) -> dict[str, int]:
    """The line in which ``peer`` announces its calls, as fields of a FLAG record."""
    maps, num_maps = addresses.maps[peer].tolist()
    return {
        "address": int(addresses.ready[peer]),
        "multiplier": 1,
        "target": peer_slot(peer),
        "maps": maps,
        "num_maps": num_maps,
        "peer": peer,
    }


def _done_flags(
    program: Program, addresses: RankAddresses, schedule: Schedule, receives: np.ndarray
) -> list[dict[str, int]]:
    """The flags to wait for so that these receives have arrived; of each peer only its last stage."""
    latest: dict[int, int] = {}
    for i in receives:
        peer, stage = int(schedule.recv_peer[i]), int(schedule.recv_stage[i])
        latest[peer] = max(latest.get(peer, 0), stage)
    return [
        {**stage_flag(program, int(addresses.done[peer]), stage), "peer": peer}
        for peer, stage in sorted(latest.items())
    ]


def _raised_flag(program: Program, addresses: RankAddresses, schedule: Schedule, send: int) -> dict[str, int]:
    peer, stage = int(schedule.send_peer[send]), int(schedule.send_stage[send])
    return {**stage_flag(program, int(addresses.raised[peer]), stage), "peer": peer}


def _tasks(
    program: Program, verb: int, schedule: Schedule, send: int, staging: int | None = None
) -> Iterator[dict[str, int]]:
    """TASK records of a send: the rows that the receiver needs, then relay rows.

    Relay rows are those that the receiver passes on (expand), or that this rank has passed on (fold). Where the
    receiver is out of reach, rows go to the staging memory, from row ``staging`` on.
    """
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
