"""Turns a program into launches of CUDA kernels: what each stage waits for, moves and signals.

Nothing here touches a GPU: it makes numpy tables (:mod:`dgcl.kernels.cuda_tables`), passes them to ``upload``, and
returns launches by name. The same launches run on a device, in numba's simulator, and in numpy (tests). The comment
below has the order of a call's launches.
Called by `connect_devices`, `device_exchange`, `operations` and `watchdog`. Free to change while a stage begins when
all of earlier stages has arrived, and fused launches do the same in the same order
(`tests/dgcl/transport/cuda/test_device_program.py`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
from dgcl.program.rank_program import Program, Schedule
from dgcl.transport.steps import EXPAND, FOLD

#: Slots of the address table: this rank's rows (the result of an expand, the input of a fold); its relay rows, or
#: arrivals; the result of a fold. Two slots for each peer follow.
LOCAL = 0
SECOND = 1
RESULT = 2
_PEERS = 3

# Bytes of a copy kernel's task that are worth a thread block.
_UNITS_PER_THREAD = {EXPAND: 4, FOLD: 1}

#: Tables of a launch of ``signal_wait``, in the order in which it goes through them; ``begin`` has the middle one.
_FLAG_TABLES = ("raised", "awaited", "ended")


def peer_slot(peer: int) -> int:
    """The slot of a peer's buffer; that of its relay rows (expand) is the next."""
    return _PEERS + 2 * peer


def num_slots(world_size: int) -> int:
    """Length of the address table."""
    return _PEERS + 2 * world_size


# A call on a device is a fixed list of launches (:mod:`dgcl.kernels.cuda_tables` has the tables they read)::
#
#     begin                          this call may be written
#     for every stage:
#         signal_wait: awaited       the receivers have announced; what is sent here in earlier stages has arrived
#         gather (expand), sum (fold)    one task per receiver and kind of rows
#         signal_wait: raised        the receivers' done flags
#     signal_wait: awaited           everything that is sent here has arrived
#     sum (fold)                     the sums of owned rows
#     signal_wait: raised            the host: the call is over
#
# :func:`fuse` makes one launch of flag kernels that follow each other.
#
# The order is that of :mod:`dgcl.transport.shared_memory.engine`, but by stage instead of by transfer: what a stage
# sends starts when all of the stage's receivers are ready, and when all that earlier stages bring has arrived, not
# only what it passes on: a rank that went on sooner would take bandwidth from rows of earlier stages which others
# still wait for. Within a stage every receiver has thread blocks of its own, so a slow one delays no other.
@dataclass(frozen=True)
class RankAddresses:
    """Device addresses of one rank, for all its calls.

    Attributes:
        state, address_table: Addresses of these tables.
        ring, ring_length: Where the host writes the addresses of each call.
        lines: ``(P,)`` where this rank announces its calls to each peer.
        ready: ``(P,)`` where each peer announces its calls to this rank.
        done: ``(P,)`` each peer's done flag for this rank.
        raised: ``(P,)`` this rank's done flag for each peer.
        begun, finished: Where the host reads the number of the last call that the device has begun, and of the last
            that it has finished; 0 for nowhere.
    """

    state: int
    address_table: int
    ring: int
    ring_length: int
    lines: np.ndarray
    ready: np.ndarray
    done: np.ndarray
    raised: np.ndarray
    begun: int = 0
    finished: int = 0


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel of the catalogue, and the stage that it belongs to."""

    stage: int
    kernel: str
    blocks: int
    threads: int
    parameters: tuple[int, ...]


def fuse(launches: list[Launch]) -> list[Launch]:
    """The same in fewer launches: one of flag kernels that follow each other, in their order."""
    fused: list[Launch] = []
    for launch in launches:
        last = _fused(fused[-1], launch) if fused else None
        if last is None:
            fused.append(launch)
        else:
            fused[-1] = last
    return fused


def _fused(first: Launch, second: Launch) -> Launch | None:
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
    if place not in behind or not hasattr(before, place):
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

    def launches(self) -> Iterator[Launch]:
        """All launches and marks, in order."""
        program, addresses, schedule = self._program, self._addresses, self._schedule
        # Those that send here wait for it; nobody writes to a rank that does not wait for that in the same call.
        announced = [int(addresses.lines[peer]) for peer in np.unique(schedule.recv_peer)]
        announced += [addresses.begun] * (addresses.begun != 0)
        table = self._upload(np.array(announced, np.int64))
        slots = addresses.address_table, num_slots(program.world_size)
        ring = addresses.ring, addresses.ring_length
        yield Launch(
            -1, "begin", 1, FLAG_THREADS, Begin(addresses.state, *ring, *slots, table, len(announced))
        )
        for stage in np.unique(schedule.send_stage).tolist():
            yield from self._stage(stage)
        last = program.num_stages
        everything = np.arange(len(schedule.recv_peer))
        yield from self._flags(last, "awaited", _done_flags(program, addresses, schedule, everything))
        if self._verb == FOLD:
            kept = {"source": LOCAL, "second": SECOND, "target": RESULT, "count": program.num_owned}
            yield from self._move(last, [kept])
        if addresses.finished:
            yield from self._flags(last, "raised", [{"address": addresses.finished, "multiplier": 1}])

    def _stage(self, stage: int) -> Iterator[Launch]:
        """Wait for the receivers and for earlier stages, move the rows, and signal."""
        program, addresses, schedule = self._program, self._addresses, self._schedule
        sends = np.flatnonzero(schedule.send_stage == stage).tolist()
        ready = [{"address": int(addresses.ready[schedule.send_peer[i]]), "multiplier": 1} for i in sends]
        earlier = np.flatnonzero(schedule.recv_stage < stage)
        awaited = [*ready, *_done_flags(program, addresses, schedule, earlier)]
        yield from self._flags(stage, "awaited", awaited)
        tasks = (_tasks(program, self._verb, schedule, i) for i in sends)
        yield from self._move(stage, [task for some in tasks for task in some])
        raised = [stage_flag(program, int(addresses.raised[schedule.send_peer[i]]), stage) for i in sends]
        yield from self._flags(stage, "raised", raised)

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
            table = {name: self._upload(records(FLAG, rows)), f"num_{name}": len(rows)}
            parameters = SignalWait(self._addresses.state)._replace(**table)
            yield Launch(stage, "signal_wait", 1, FLAG_THREADS, parameters)


def stage_flag(program: Program, address: int, stage: int) -> dict[str, int]:
    """The value of a flag when this stage of a call is done, as fields of a FLAG record."""
    return {"address": address, "multiplier": program.num_stages, "offset": stage + 1}


def _done_flags(
    program: Program, addresses: RankAddresses, schedule: Schedule, receives: np.ndarray
) -> list[dict[str, int]]:
    """The flags to wait for so that these receives have arrived; of each peer only its last stage."""
    latest: dict[int, int] = {}
    for i in receives:
        peer, stage = int(schedule.recv_peer[i]), int(schedule.recv_stage[i])
        latest[peer] = max(latest.get(peer, 0), stage)
    return [stage_flag(program, int(addresses.done[peer]), stage) for peer, stage in sorted(latest.items())]


def _tasks(program: Program, verb: int, schedule: Schedule, send: int) -> Iterator[dict[str, int]]:
    """TASK records of a send: the rows that the receiver needs, then relay rows.

    Relay rows are those that the receiver passes on (expand), or that this rank has passed on (fold).
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
        if verb == EXPAND:
            task["near_rows"] = program.num_local
        elif portion == 1:
            task["source"] = -1  # a rank has no values of its own for rows that only passed through
        yield task
