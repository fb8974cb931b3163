"""Begins calls and runs them to their end, with deadlines and with peers that may fail.

Every wait ends: with the data, or with a :class:`~dgcl.errors.CommError` that names ranks, stage, direction and rows.
During a wait the engine returns to Python about every 20 milliseconds. Python then handles Ctrl-C, reads errors from
the peers' control pages, detects dead processes and enforces the deadline. The first rank to give up posts the
reason; the others raise it, too. After that the communicator is unusable. Its buffers are never reused, because a
stopped process may resume and write.

A rank that waits in one call also advances calls that it has started on other communicators, because a peer may need
those rows before it begins this call. So exchanges may be started and waited for in any order.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.whole_rows import agree
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.call_lock import CallLock
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import (
    DISAGREES,
    DONE,
    EXPAND,
    FOLD,
    UNMAPPED,
    WAITING,
    announce,
    call_attention,
)
from dgcl.transport.shared_memory.failure_detector import FailureDetector, OtherCommunicator
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.pool import Block, BufferPool
from dgcl.transport.shared_memory.progress import ProgressEngine
from dgcl.transport.shared_memory.remote import OpenNetwork, RemoteChannel
from dgcl.transport.shared_memory.row_types import RowType
from dgcl.transport.shared_memory.segments import Segment, SegmentFile
from dgcl.transport.shared_memory.tasks import Call, CallRecord, Task, call_label
from dgcl.transport.shared_memory.wait_policy import AT_ONCE, among_others, choose_policy
from dgcl.transport.shared_memory.waits import pack_tag, progress


class CallRunner:
    """Begins the calls of one rank and advances them. Construction is collective; a call waits for its data only.

    All exchanges share one sequence of calls, one buffer pool and one set of flags. Done flags count
    ``call * K + stage + 1`` with K the largest number of stages of any program
    (:mod:`dgcl.transport.shared_memory.control_page`).

    Args:
        programs: This rank's programs by the names of their exchanges, in the same order on every rank.
        control: The control plane.
        timeout: Seconds that a wait may take.
        channel: How rows travel (:data:`dgcl.transport.shared_memory.peers.CHANNELS`).
        open_network: Opens the channel to ranks that share no memory with this one; None if there is no such channel.

    Attributes:
        programs, names: Programs and names of the exchanges, by number.
        pool: Allocates the rank's buffers.
        bytes_sent: ``(E, 2, P)`` int64: bytes written to each peer so far, by exchange and verb.
        tasks: The tasks of each exchange for an expand and a fold, by ``2 * exchange + verb``.
        wait_policy: How the engine waits before it returns to Python
        (:mod:`dgcl.transport.shared_memory.wait_policy`).
        under_way: A call that was started and is not done yet.
        failure_detector: Finds out why a call makes no progress.
        others: Returns the runtimes of other communicators that the calling thread built.
        one_step: Whether calls that repeat may be carried out in one compiled step
            (:mod:`dgcl.transport.shared_memory.repeated`); tests that look between steps turn it off.
        process: The rank's process.
        holder: The call lock's, for such calls (:class:`dgcl.transport.shared_memory.call_lock.CallLock`).
        call_number: The number of the last call.
        step_addresses: Of this rank's wake word, of the call on its control page; and K.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        control: Control,
        timeout: float,
        channel: str = "auto",
        open_network: OpenNetwork | None = None,
    ) -> None:
        self.names, self.programs = tuple(programs), tuple(programs.values())
        self.control, self._timeout, self.one_step = control, timeout, True
        self.rank, self._lock = control.rank, CallLock(control.rank, timeout)
        self.holder = self._lock.holder
        self.process = os.getpid()
        try:
            check_agreement(control, programs)
            self._file = SegmentFile()
            self._control_page = ControlPage.create(self._file, control.world_size)
            self.pool = BufferPool(self._file)
            self._peers = Peers(control, self._file, self._control_page, channel)
        except (CommError, ValueError):  # all ranks raise it
            raise
        except BaseException as error:  # the others would wait for this rank in their next exchange
            control.leave(f"was stopped by {type(error).__name__}: {error}")
            raise
        self.tasks: tuple[Task, ...] = tuple(
            self._task(exchange, verb) for exchange in range(len(programs)) for verb in (EXPAND, FOLD)
        )
        self.wait_policy = choose_policy(self._peers.any_remote)
        self.call_number = 0
        self._failure: CommError | None = None
        self._closed = False
        self._recorder: Callable[[CallRecord], None] | None = None
        self.under_way: Call | None = None
        self.bytes_sent = np.zeros((len(programs), 2, control.world_size), np.int64)
        num_stages = self._num_stages = max(program.num_stages for program in self.programs)
        self._network: RemoteChannel | None = None
        if self._peers.any_remote:
            assert open_network is not None, "ranks that share no memory need a network channel"
            self._network = open_network(
                control, self._peers, self.programs, num_stages, timeout, self.bytes_sent
            )
        page = self._control_page
        self.step_addresses = (page.wake_address, page.call_address, num_stages)
        self._engine = ProgressEngine(self.rank, num_stages, self._peers, self._control_page, self.bytes_sent)
        self.failure_detector = FailureDetector(
            self.rank, self.names, num_stages, self._peers, timeout, self._network
        )
        self.others: Callable[[], Iterable[CallRunner]] = tuple

    def add_exchanges(self, programs: Mapping[str, Program], counted: int) -> int:
        """Add exchanges, whose bytes count as those of exchange ``counted``; return the first one's number.

        Collective, between calls. Their buffers are of one size, that of the largest.

        Raises:
            ValueError: There would be too many exchanges, or a call is under way on some rank; on every rank.
            DisagreementError: The programs of two ranks do not match; on every rank.
        """
        problem: Exception | None = None
        try:
            self.check_usable()
        except (CommError, ValueError) as error:
            problem = error
        self._lock.release()
        agree(self.control, problem)
        first, last = len(self.programs), len(programs)
        check_agreement(self.control, programs, first)
        assert all(program.num_stages <= self._num_stages for program in programs.values())
        self.names, self.programs = (*self.names, *programs), (*self.programs, *programs.values())
        made = [self._task(number, verb) for number in range(first, first + last) for verb in (EXPAND, FOLD)]
        rooms = [max(task.room for task in made[verb::2]) for verb in (EXPAND, FOLD)]
        for task in made:
            task.counted = counted
            task.room = rooms[task.verb]
            task.time_transfers(self._recorder is not None)
        self.tasks = (*self.tasks, *made)
        self.failure_detector.exchanges = self.names
        return first

    def _task(self, exchange: int, verb: int) -> Task:
        label = call_label(exchange, verb, self.names)
        return Task(exchange, verb, label, self.programs[exchange], self._peers, self._control_page)

    def seen_by_others(self) -> OtherCommunicator | None:
        """This communicator as its rank's other communicators see it; None once it makes no more calls."""
        if self._closed or self._failure is not None:
            return None
        remote = self._peers.remote.tolist()
        return OtherCommunicator(
            self.failure_detector.name, self.call_number, self._peers.control_pages, remote, self.names
        )

    @property
    def next_call(self) -> int:
        """The number of the next call."""
        return self.call_number + 1

    @property
    def closed(self) -> bool:
        """Whether this rank has closed the communicator."""
        return self._closed

    @property
    def peers(self) -> Peers:
        """The connections to the other ranks."""
        return self._peers

    @property
    def network(self) -> RemoteChannel | None:
        """The channel to ranks that share no memory with this one."""
        return self._network

    @property
    def any_remote(self) -> bool:
        """Whether any two ranks of the job exchange through the network."""
        return self._peers.any_remote

    @property
    def reasons(self) -> list[str]:
        """For each rank, how it is reached and why."""
        return self._peers.reasons

    def record_calls(self, recorder: Callable[[CallRecord], None] | None) -> None:
        """Pass the times of every call from now on to ``recorder``; None stops this."""
        self._recorder = recorder
        for task in self.tasks:
            task.time_transfers(recorder is not None)

    def record(self, call: Call) -> None:
        """Pass the times of a finished call to the recorder."""
        if self._recorder is not None:
            self._recorder(call.task.record(call.number))

    def fail(self, error: CommError) -> None:
        """Make the communicator unusable and tell the peers why."""
        if self._failure is None:
            # A copy: the error's traceback holds the caller's frames, and tensors there this communicator, for ever.
            self._failure = type(error)(str(error))
        # Post each time: Ctrl-C may have interrupted an earlier attempt. Only the first posted reason counts.
        if not self._closed and os.getpid() == self.process:
            self._post_failure(self._failure)

    def close(self) -> None:
        """Close the communicator. Idempotent and not collective; results stay valid as long as they are referenced.

        In a fork of the rank's process, such as a data loader's worker, the rank itself is not affected.
        """
        if not self._closed:
            self._closed = True
            if os.getpid() == self.process:
                self._control_page.post_closed()
                call_attention(self.tasks[EXPAND].wake_words)
                if self._network is not None:
                    self._network.close()
            self._peers.close()
            self._file.close()

    def allocate(self, num_bytes: int) -> Block:
        """Allocate a block; on an error fail the communicator, because the peers would wait for this rank."""
        try:
            return self.pool.allocate(num_bytes)
        except MemoryError as error:
            self.fail(CommError(f"rank {self.rank} is out of memory: {error}"))
            raise
        except BaseException as error:  # also Ctrl-C: the others make the call that needs this block
            self.give_up(error, self.next_call)
            raise

    def check_present(self) -> None:
        """Raise in a fork of the rank's process, and after the communicator was closed."""
        if os.getpid() != self.process:
            raise ValueError(
                f"rank {self.rank}: this process is a fork of the rank's process {self.process}, which alone"
                " may use the communicator"
            )
        if self._closed:
            raise ValueError(
                f"rank {self.rank}: this communicator is closed; build a new one with build_comm_info"
            )

    def check_usable(self) -> None:
        """Raise unless a call can be made now."""
        self.check_present()
        if self._failure is not None:
            raise type(self._failure)(
                f"rank {self.rank}: this communicator is unusable since an earlier call failed "
                f"({self._failure}); close it and build a new one"
            )
        if self.under_way is not None:
            raise ValueError(
                f"rank {self.rank}: {self.under_way.task.label} {self.under_way.number} was started and"
                " is not finished; call wait() on its result first"
            )
        self._lock.acquire()

    def start(
        self,
        task: Task,
        row_type: RowType,
        places: Sequence[tuple[Segment, int]],
        buffers: tuple[int, int, int],
        purpose: int = 0,
    ) -> Call:
        """Begin a call: tell the senders where to write.

        ``places`` are (segment, offset) of the buffer and of the relay rows. Called within an
        :class:`~dgcl.transport.shared_memory.abort_guard.AbortGuard`, because from here on the peers rely on this
        rank.
        """
        tag = pack_tag(task.verb, row_type, task.exchange, purpose)
        call = Call(task, self.next_call, tag, row_type, buffers)
        named = [(segment.base, segment.size, offset) for segment, offset in places]
        line = np.array([tag, *itertools.chain(*named)], np.int64)
        task.sent[:] = task.remote
        task.received[:] = 0
        task.copied = 0
        self.under_way = call
        self.call_number = call.number
        announce(task.own_ready, task.own_senders, self._control_page.call_address, call.number, line)
        if self._network is not None:
            call.job = self._network.start(call, places)
        return call

    def give_up(self, error: BaseException, number: int) -> None:
        """Tell the peers that this rank goes on without call ``number``, or without its result."""
        call = self.under_way
        if isinstance(error, CommError):
            self.fail(error)
        else:
            if call is not None:
                where = f"{call.task.label} {call.number} at {progress(call)}"
            else:
                where = f"before call {number}" if self.call_number < number else f"call {number} at its end"
            self.fail(CommError(f"rank {self.rank} left {where}: {error!r}"))

    def run(self, call: Call, wait: bool = True) -> bool:
        """Run a call until it is done, and return True.

        Without ``wait``, do only what can be done at once, and return whether the call is done.
        """
        self.check_present()
        self._lock.acquire()
        task = call.task
        policy = self.wait_policy if wait else AT_ONCE
        try:
            while True:
                status = self._engine.run(call, policy)
                if status == DONE and call.job is not None and not call.job.is_sent(wait):
                    status = WAITING
                if status == DONE:
                    task.span = (call.begin, time.perf_counter_ns())
                    self.under_way = None
                    return True
                if status == UNMAPPED:
                    self._map_target(task)
                elif status == DISAGREES:
                    raise self.failure_detector.refused_by_peer(call)
                else:
                    assert status == WAITING
                    if not wait:
                        return False
                    now, so_far = time.monotonic(), call.count_done()
                    if so_far > call.progress:
                        call.progress, call.deadline = so_far, now + self._timeout
                    self._check_failures(call, now >= call.deadline)
                    for other in self.others():
                        if other.assist():
                            policy = among_others(self.wait_policy)
        finally:
            self._lock.release()

    def assist(self) -> bool:
        """Advance a started call without waiting, for a thread that waits in another call.

        Returns whether there is such a call. Errors are left to the thread that will wait for it.
        """
        if self._started() is None:
            return False
        try:
            if self._lock.try_assist():
                while (call := self._started()) and self._engine.run(call, AT_ONCE) == UNMAPPED:
                    self._map_target(call.task)
        except CommError:
            pass
        finally:
            self._lock.end_assist()
        return True

    def _started(self) -> Call | None:
        """The started call that other threads may advance; None if there is none."""
        call = None if self._closed or self._failure is not None else self.under_way
        return call if call is not None and call.given is not None else None

    def _map_target(self, task: Task) -> None:
        """Map the segment that the next send writes to, as requested by the engine."""
        peer = int(task.schedule.send_peer[task.where[0]])
        relay_rows = task.verb == EXPAND and task.where[1] == 1
        self._peers.map_segment(peer, self._peers.buffer_line(peer, relay_rows))

    def _post_failure(self, error: CommError) -> None:
        self._control_page.post_failure(error)
        call_attention(self.tasks[EXPAND].wake_words)
        if self._network is not None:
            self._network.post_failure(error)
        self.failure_detector.leave_control(error, self.under_way)

    def _check_failures(self, under_way: Call, late: bool) -> None:
        """Raise if the call cannot or must not go on."""
        report = self._peers.reported_failure()
        if report is not None:
            peer, error = report
            mine = f" ({self.failure_detector.place(under_way)} was at {progress(under_way)})"
            text = f"rank {self.rank} stops because rank {peer} reports: {error}{mine}"
            self._failure = type(error)(text)
            self._post_failure(error)  # pass on the first reason, not a chain of reasons
            raise type(error)(text)
        self.failure_detector.check(under_way, late)
