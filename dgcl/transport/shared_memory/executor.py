"""Runs a rank's calls through shared memory: starts them, keeps deadlines, and finds failed peers.

A list of steps begins and ends calls (:mod:`dgcl.transport.shared_memory.step_list`); here is what it needs for that,
and all of a call that takes long. Every wait ends: with the data, or with a :class:`~dgcl.errors.CommError` that names
ranks, stage, direction and rows. After that the communicator is unusable, and its buffers are never reused, because a
stopped process may resume and write.
Called by `step_list`, `started`, `transport`, `dgcl/transport/connect`, `dgcl/transport/cuda/host_agreement` and
others. Free to change while after a fault at any place each survivor says who failed, in time
(`tests/dgcl/faults/test_faults.py`), Ctrl-C included (`tests/dgcl/transport/shared_memory/test_interrupts.py`).
"""

import time
from collections.abc import Callable, Mapping

import numpy as np

from dgcl.errors import CommError
from dgcl.program.rank_program import Program
from dgcl.ranks.torch_private import profiler_enabled
from dgcl.transport.common.calls import call_label
from dgcl.transport.common.life_cycle import LifeCycle
from dgcl.transport.common.peers import Peers
from dgcl.transport.common.words import read_word
from dgcl.transport.shared_memory.engine import (
    AT_ONCE,
    DISAGREES,
    DONE,
    NUM_STAGES,
    POLICY,
    READY,
    UNMAPPED,
    WAITING,
    advance,
)
from dgcl.transport.shared_memory.tasks import Call, Task
from dgcl.transport.steps import EXPAND, FOLD

#: How often, and how long, a rank sleeps with calls under way on several communicators: each has a wake-up word.
_SHORT_SLEEPS = (1, 1_000_000)


# No rank waits for a peer to *finish*: a call is over for a rank when its own part is done. Its buffers are safe from
# then on, because every write into them has been made. During a wait the engine returns to Python about every 20
# milliseconds, which then handles Ctrl-C, reads errors from the peers' control pages, detects dead processes and
# enforces the deadline. A rank that waits in one call also advances calls that it has started on other communicators,
# because a peer may need those rows before it begins this call. So exchanges may be started and waited for in any
# order.
class Runtime(LifeCycle):
    """The programs of one rank, and its calls, each of which waits for its data only.

    All exchanges share one sequence of calls, one buffer pool and one set of flags. Done flags count
    ``call * K + stage + 1`` with K the largest number of stages of any program
    (:mod:`dgcl.transport.common.control_page`).

    Args:
        programs: This rank's programs by the names of their exchanges, in the same order on every rank.
        peers: The other ranks, which share memory with this one
            (:func:`dgcl.transport.common.program_agreement.connect_peers`).
        timeout: Seconds that a wait may take.

    Attributes:
        programs: Of the exchanges, by number.
        bytes_sent: ``(E, 2, P)`` int64: bytes written to each peer so far, by exchange and verb.
        tasks: The tasks of each exchange for an expand and a fold, by ``2 * exchange + verb``.
        wait_policy: How the engine waits before it returns to Python.
        one_step: Whether calls may be carried out without Python in between; tests that look between steps turn it off.
    """

    advance = staticmethod(advance)

    def __init__(
        self,
        programs: Mapping[str, Program],
        peers: Peers,
        timeout: float,
    ) -> None:
        assert not peers.any_remote
        super().__init__(peers, timeout, programs)
        self.programs, self.one_step = tuple(programs.values()), True
        self.bytes_sent = np.zeros((len(programs), 2, peers.world_size), np.int64)
        self._num_stages = max(program.num_stages for program in self.programs)
        self.tasks: tuple[Task, ...] = tuple(
            self._task(exchange, verb, exchange)
            for exchange in range(len(programs))
            for verb in (EXPAND, FOLD)
        )
        self.wait_policy = POLICY
        self.under_way: Call | None = None

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """As :meth:`dgcl.transport.base.Transport.add_exchanges`; buffers are of one size, that of the largest.

        Raises:
            ValueError: There would be too many exchanges, or a call is under way on some rank; on every rank.
            DisagreementError: The programs of two ranks do not match; on every rank.
        """
        first = len(self.programs) if first is None else first
        end = first + len(programs)
        self.agree_to_add(programs, first)
        self.programs = (*self.programs[:first], *programs.values(), *self.programs[end:])
        # Flags only grow, with this number too: all ranks are between the same two calls.
        self._num_stages = max(self._num_stages, *(program.num_stages for program in programs.values()))
        added = [self._task(number, verb, counted) for number in range(first, end) for verb in (EXPAND, FOLD)]
        capacities = [max(task.capacity for task in added[verb::2]) for verb in (EXPAND, FOLD)]
        for task in added:
            task.capacity = capacities[task.verb]
        self.tasks = (*self.tasks[: 2 * first], *added, *self.tasks[2 * end :])
        for task in self.tasks:
            task.words[NUM_STAGES] = self._num_stages
        return first

    def _task(self, exchange: int, verb: int, counted: int) -> Task:
        label, program = call_label(exchange, verb, self.names), self.programs[exchange]
        return Task(verb, label, program, self.peers, self._num_stages, self.bytes_sent, counted)

    @property
    def is_plain(self) -> bool:
        """Whether the next calls may be carried out without Python in between."""
        return (
            self.one_step
            and self.under_way is None
            and self._failure is None
            and not self.closed
            and not profiler_enabled()
        )

    def start(self, call: Call, begin: Callable[[], object]) -> None:
        """Begin a call: ``begin`` tells the senders where to write."""
        self.under_way, self.call_number = call, call.number
        begin()

    def stop(self, error: BaseException, number: int) -> None:
        """Do as :meth:`give_up` in call ``number``, or in one behind it that compiled code has begun."""
        self.call_number = int(read_word(self.peers.page.call_address))
        if isinstance(error, MemoryError) and self.call_number < number:
            error = CommError(f"rank {self.rank} is out of memory: {error}")
        self.give_up(error, max(number, self.call_number))

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
                status = self.advance(task.words, policy)
                if status == DONE:
                    self.under_way = None
                    return True
                if status == UNMAPPED:
                    self._map_target(task)
                elif status == DISAGREES:
                    peer = int(task.schedule.send_peer[task.where[0]])
                    line = int(task.peers[peer, READY])
                    raise self.disagreement(call, peer, read_word(line), read_word(line + 8))
                else:
                    assert status == WAITING
                    if not wait:
                        return False
                    now, so_far = time.monotonic(), call.count_done()
                    if so_far > call.progress:
                        call.progress, call.deadline = so_far, now + self._timeout
                    self._check_failures(call, now >= call.deadline)
                    for other in self.others:
                        if isinstance(other, Runtime) and other.assist():
                            policy = (*policy[:3], *min(_SHORT_SLEEPS, policy[3:]))
        finally:
            self.lock.release()

    def assist(self) -> bool:
        """Advance a started call without waiting, for a thread that waits in another call.

        Returns whether there is such a call. Errors are left to the thread that will wait for it.
        """
        if self._started() is None:
            return False
        try:
            if self.lock.try_assist():
                while (call := self._started()) and self.advance(call.task.words, AT_ONCE) == UNMAPPED:
                    self._map_target(call.task)
        except CommError:
            pass
        finally:
            self.lock.end_assist()
        return True

    def _started(self) -> Call | None:
        """The started call that other threads may advance; None if there is none."""
        call = None if self.closed or self._failure is not None else self.under_way
        return call if call is not None and call.rows is not None else None

    def _map_target(self, task: Task) -> None:
        """Map the segment that the next send writes to, as requested by the engine."""
        peer = int(task.schedule.send_peer[task.where[0]])
        self.peers.map_segment(peer, task.verb == EXPAND and task.where[1] == 1)
        for each in self.tasks:
            each.enter_maps(self.peers)
