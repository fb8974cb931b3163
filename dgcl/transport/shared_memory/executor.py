"""The runtime of a rank: its calls, with deadlines and with peers that may fail.

A list of steps begins and ends calls (:mod:`dgcl.transport.shared_memory.step_list`); here is what it needs for that,
and all of a call that takes long. No rank waits for a peer to *finish*: a call is over for a rank when its own part is
done. Its buffers are safe from then on, because every write into them has been made.

Every wait ends: with the data, or with a :class:`~dgcl.errors.CommError` that names ranks, stage, direction and rows.
During a wait the engine returns to Python about every 20 milliseconds. Python then handles Ctrl-C, reads errors from
the peers' control pages, detects dead processes and enforces the deadline. The first rank to give up posts the
reason; the others raise it, too. After that the communicator is unusable. Its buffers are never reused, because a
stopped process may resume and write.

A rank that waits in one call also advances calls that it has started on other communicators, because a peer may need
those rows before it begins this call. So exchanges may be started and waited for in any order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.torch_private import profiler_enabled
from dgcl.ranks.whole_rows import agree
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.call_lock import CallLock
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import (
    ALL,
    DISAGREES,
    DONE,
    EXPAND,
    FOLD,
    LINE,
    NUM_STAGES,
    UNMAPPED,
    WAITING,
    advance,
    call_attention,
    read_word,
)
from dgcl.transport.shared_memory.failure_detector import FailureDetector, OtherCommunicator
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.pool import BufferPool
from dgcl.transport.shared_memory.profiler_ranges import advance_in_ranges
from dgcl.transport.shared_memory.remote import OpenNetwork, RemoteChannel
from dgcl.transport.shared_memory.segments import SegmentFile
from dgcl.transport.shared_memory.tasks import Call, Task, call_label
from dgcl.transport.shared_memory.wait_policy import AT_ONCE, WaitPolicy, among_others, choose_policy
from dgcl.transport.shared_memory.waits import progress


class Runtime:
    """The programs of one rank, and its calls. Construction is collective; a call waits for its data only.

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
        one_step: Whether calls may be carried out without Python in between; tests that look between steps turn it off.
        peers, network: The connections to the other ranks; the channel to those that share no memory with this one.
        process, closed: The rank's process; whether it has closed the communicator.
        lock, holder: The call lock, and its holder (:class:`dgcl.transport.shared_memory.call_lock.CallLock`).
        call_number: The number of the last call.
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
        self.rank, self.lock = control.rank, CallLock(control.rank, timeout)
        self.holder = self.lock.holder
        self.process = os.getpid()
        try:
            check_agreement(control, programs)
            self._file = SegmentFile()
            self._control_page = ControlPage.create(self._file, control.world_size)
            self.pool = BufferPool(self._file)
            self.peers = Peers(control, self._file, self._control_page, channel)
        except (CommError, ValueError):  # all ranks raise it
            raise
        except BaseException as error:  # the others would wait for this rank in their next exchange
            control.leave(f"was stopped by {type(error).__name__}: {error}")
            raise
        self.bytes_sent = np.zeros((len(programs), 2, control.world_size), np.int64)
        num_stages = self._num_stages = max(program.num_stages for program in self.programs)
        self.tasks: tuple[Task, ...] = tuple(
            self._task(exchange, verb, exchange)
            for exchange in range(len(programs))
            for verb in (EXPAND, FOLD)
        )
        self.wait_policy = choose_policy(self.peers.any_remote)
        self.call_number = 0
        self._failure: CommError | None = None
        self.closed = False
        self.under_way: Call | None = None
        self.network: RemoteChannel | None = None
        if self.peers.any_remote:
            assert open_network is not None, "ranks that share no memory need a network channel"
            self.network = open_network(
                control, self.peers, self.programs, num_stages, timeout, self.bytes_sent
            )
        pages = self.peers.control_pages
        self._wake_words = np.array([page.wake_address for page in pages], np.int64)
        self.failure_detector = FailureDetector(
            self.rank, self.names, num_stages, self.peers, timeout, self.network
        )
        self.others: Callable[[], Iterable[Runtime]] = tuple

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """As :meth:`dgcl.transport.base.Transport.add_exchanges`; buffers are of one size, that of the largest.

        Raises:
            ValueError: There would be too many exchanges, or a call is under way on some rank; on every rank.
            DisagreementError: The programs of two ranks do not match; on every rank.
        """
        problem: Exception | None = None
        try:
            self.check_usable()
        except (CommError, ValueError) as error:
            problem = error
        self.lock.release()
        agree(self.control, problem)
        first = len(self.programs) if first is None else first
        end = first + len(programs)
        check_agreement(self.control, programs, first)
        self.names = (*self.names[:first], *programs, *self.names[end:])
        self.programs = (*self.programs[:first], *programs.values(), *self.programs[end:])
        # Flags only grow, with this number too: all ranks are between the same two calls.
        self._num_stages = max(self._num_stages, *(program.num_stages for program in programs.values()))
        self.failure_detector.num_stages = self._num_stages
        added = [self._task(number, verb, counted) for number in range(first, end) for verb in (EXPAND, FOLD)]
        rooms = [max(task.room for task in added[verb::2]) for verb in (EXPAND, FOLD)]
        for task in added:
            task.room = rooms[task.verb]
        self.tasks = (*self.tasks[: 2 * first], *added, *self.tasks[2 * end :])
        for task in self.tasks:
            task.words[NUM_STAGES] = self._num_stages
        self.failure_detector.exchanges = self.names
        return first

    def _task(self, exchange: int, verb: int, counted: int) -> Task:
        label, program, page = (
            call_label(exchange, verb, self.names),
            self.programs[exchange],
            self._control_page,
        )
        return Task(
            exchange, verb, label, program, self.peers, page, self._num_stages, self.bytes_sent, counted
        )

    def seen_by_others(self) -> OtherCommunicator | None:
        """This communicator as its rank's other communicators see it; None once it makes no more calls."""
        if self.closed or self._failure is not None:
            return None
        remote = self.peers.remote.tolist()
        return OtherCommunicator(
            self.failure_detector.name, self.call_number, self.peers.control_pages, remote, self.names
        )

    @property
    def next_call(self) -> int:
        """The number of the next call."""
        return self.call_number + 1

    @property
    def is_plain(self) -> bool:
        """Whether the next calls may be carried out without Python in between."""
        return (
            self.one_step
            and self.under_way is None
            and self._failure is None
            and not self.closed
            and self.network is None
            and not profiler_enabled()
        )

    @property
    def failure(self) -> CommError | None:
        """Why the communicator is unusable; None if it is not, or is closed."""
        return None if self.closed else self._failure

    def fail(self, error: CommError) -> None:
        """Make the communicator unusable and tell the peers why."""
        if self._failure is None:
            # A copy: the error's traceback holds the caller's frames, and tensors there this communicator, for ever.
            self._failure = type(error)(str(error))
        # Post each time: Ctrl-C may have interrupted an earlier attempt. Only the first posted reason counts.
        if not self.closed and os.getpid() == self.process:
            self._post_failure(self._failure)

    def close(self) -> None:
        """Close the communicator. Idempotent and not collective; results stay valid as long as they are referenced.

        In a fork of the rank's process, such as a data loader's worker, the rank itself is not affected.
        """
        if not self.closed:
            self.closed = True
            if os.getpid() == self.process:
                self._control_page.post_closed(self.control.num_calls)
                call_attention(self._wake_words)
                if self.network is not None:
                    self.network.close()
            self.peers.close()
            self._file.close()

    def check_present(self) -> None:
        """Raise in a fork of the rank's process, and after the communicator was closed."""
        if os.getpid() != self.process:
            raise ValueError(
                f"rank {self.rank}: this process is a fork of the rank's process {self.process}, which alone"
                " may use the communicator"
            )
        if self.closed:
            raise ValueError(
                f"rank {self.rank}: this communicator is closed; build a new one with build_comm_info"
            )

    def check_usable(self, call: Call | None = None) -> None:
        """Raise unless a call can be made now, or ``call`` can go on; acquire the lock."""
        self.check_present()
        if self._failure is not None:
            raise type(self._failure)(
                f"rank {self.rank}: this communicator is unusable since an earlier call failed "
                f"({self._failure}); close it and build a new one"
            )
        if self.under_way is not call and self.under_way is not None:
            raise ValueError(
                f"rank {self.rank}: {self.under_way.task.label} {self.under_way.number} was started and"
                " is not finished; call wait() on its result first"
            )
        self.lock.acquire()

    def start(self, call: Call, begin: Callable[[], object]) -> None:
        """Begin a call: ``begin`` tells the senders where to write."""
        task = call.task
        self.under_way, self.call_number = call, call.number
        begin()
        task.sent[:] = task.remote
        if self.network is not None:
            places = task.words[LINE + 1 : LINE + 7].reshape(2, 3).tolist()
            call.job = self.network.start(
                call, [(self.pool.segment_at(base), offset) for base, _, offset in places]
            )

    def stop(self, error: BaseException, number: int) -> None:
        """Do as :meth:`give_up` in call ``number``, or in one behind it that compiled code has begun."""
        self.call_number = int(read_word(self._control_page.call_address))
        if isinstance(error, MemoryError) and self.call_number < number:
            error = CommError(f"rank {self.rank} is out of memory: {error}")
        self.give_up(error, max(number, self.call_number))

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
        self.lock.acquire()
        task = call.task
        policy = self.wait_policy if wait else AT_ONCE
        try:
            while True:
                status = self.advance(call, policy)
                if status == DONE and call.job is not None and not call.job.is_sent(wait):
                    status = WAITING
                if status == DONE:
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
            self.lock.release()

    def advance(self, call: Call, policy: WaitPolicy) -> int:
        """Do what can be done, wait as ``policy`` says, and return the status of the engine."""
        if profiler_enabled():
            return advance_in_ranges(self.rank, call, policy)
        return advance(call.task.words, policy, ALL)

    def assist(self) -> bool:
        """Advance a started call without waiting, for a thread that waits in another call.

        Returns whether there is such a call. Errors are left to the thread that will wait for it.
        """
        if self._started() is None:
            return False
        try:
            if self.lock.try_assist():
                while (call := self._started()) and self.advance(call, AT_ONCE) == UNMAPPED:
                    self._map_target(call.task)
        except CommError:
            pass
        finally:
            self.lock.end_assist()
        return True

    def _started(self) -> Call | None:
        """The started call that other threads may advance; None if there is none."""
        call = None if self.closed or self._failure is not None else self.under_way
        return call if call is not None and call.given is not None else None

    def _map_target(self, task: Task) -> None:
        """Map the segment that the next send writes to, as requested by the engine."""
        peer = int(task.schedule.send_peer[task.where[0]])
        relay_rows = task.verb == EXPAND and task.where[1] == 1
        self.peers.map_segment(peer, self.peers.buffer_line(peer, relay_rows))
        for each in self.tasks:
            each.enter_maps(self.peers)

    def _post_failure(self, error: CommError) -> None:
        self._control_page.post_failure(error, self.control.num_calls)
        call_attention(self._wake_words)
        if self.network is not None:
            self.network.post_failure(error)
        self.failure_detector.leave_control(error, self.under_way)

    def _check_failures(self, under_way: Call, late: bool) -> None:
        """Raise if the call cannot or must not go on."""
        report = self.peers.reported_failure()
        if report is not None:
            peer, error = report
            mine = f" ({self.failure_detector.place(under_way)} was at {progress(under_way)})"
            text = f"rank {self.rank} stops because rank {peer} reports: {error}{mine}"
            self._failure = type(error)(text)
            self._post_failure(error)  # pass on the first reason, not a chain of reasons
            raise type(error)(text)
        self.failure_detector.check(under_way, late)
