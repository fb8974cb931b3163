"""The life of a communicator on one rank: usable, then failed or closed; one call at a time, from one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.call_lock import CallLock
from dgcl.transport.shared_memory.control_calls import ControlCalls
from dgcl.transport.shared_memory.engine import call_attention
from dgcl.transport.shared_memory.failure_detector import FailureDetector, OtherCommunicator, UnderWay
from dgcl.transport.shared_memory.peers import Peers


class Lives:
    """What transports take from their life cycle.

    Args:
        life: It.
    """

    def __init__(self, life: LifeCycle) -> None:
        self._life = life

    @property
    def control_calls(self) -> ControlCalls | None:
        """As :attr:`dgcl.transport.base.Transport.control_calls`."""
        return self._life.failure_detector.control_calls

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""
        return self._life.failure

    def fail(self, error: CommError) -> None:
        """Make the transport unusable and tell the peers why."""
        self._life.fail(error)

    def close(self) -> None:
        """Close the transport. Idempotent, not collective; results of earlier calls stay valid."""
        self._life.close()

    def synchronize(self) -> None:
        """Do nothing: on the CPU calls return when they are done."""

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Do nothing: the CPU has no streams."""


class LifeCycle:
    """What the transports of a host's ranks have in common.

    Args:
        peers: The other ranks (:func:`dgcl.transport.shared_memory.agreement.connect_peers`).
        timeout: Seconds that a wait may take.
        names: Of the exchanges, by number.

    Attributes:
        peers, control, rank, names: As above.
        pool: Allocates the rank's buffers.
        process, closed: The rank's process; whether it has closed the communicator.
        lock, holder: The call lock, and its holder (:class:`dgcl.transport.shared_memory.call_lock.CallLock`).
        call_number: The number of the last call.
        under_way: A call that was started and is not done yet.
        failure_detector: Finds out why a call makes no progress.
        others: Returns the other communicators that the calling thread built.
    """

    def __init__(self, peers: Peers, timeout: float, names: tuple[str, ...]) -> None:
        self.peers, self.control, self.pool, self.process = peers, peers.control, peers.pool, peers.process
        self.rank, self.names, self._timeout = peers.rank, names, timeout
        self.lock = CallLock(peers.rank, timeout)
        self.holder = self.lock.holder
        self.call_number, self.closed = 0, False
        self.under_way: UnderWay | None = None
        self._failure: CommError | None = None
        self._wake_words = np.array([page.wake_address for page in peers.control_pages], np.int64)
        self.failure_detector = FailureDetector(names, peers, timeout)
        self.others: Callable[[], Iterable[LifeCycle]] = tuple

    def seen_by_others(self) -> OtherCommunicator | None:
        """This communicator as its rank's other communicators see it; None once it makes no more calls."""
        if self.closed or self._failure is not None:
            return None
        return OtherCommunicator(self.failure_detector.name, self.call_number, self.peers, self.names)

    @property
    def next_call(self) -> int:
        """The number of the next call."""
        return self.call_number + 1

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
                self.peers.page.post_closed(self.control.num_calls)
                call_attention(self._wake_words)
            self.peers.close()
            me = threading.get_ident()
            if not self.holder and self.under_way is None and self.holder.setdefault("thread", me) == me:
                # No call needs the memory, and none begins: the lock stays held.
                self.pool.close()
                self.peers.unmap()

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

    def check_usable(self, call: UnderWay | None = None) -> None:
        """Raise unless a call can be made now, or ``call`` can go on; acquire the lock."""
        self.check_present()
        if self._failure is not None:
            raise type(self._failure)(
                f"rank {self.rank}: this communicator is unusable since an earlier call failed "
                f"({self._failure}); close it and build a new one"
            )
        if self.under_way is not call and self.under_way is not None:
            raise ValueError(
                f"rank {self.rank}: {self.under_way.label} {self.under_way.number} was started and"
                " is not finished; call wait() on its result first"
            )
        self.lock.acquire()

    def agree_to_add(self, programs: Mapping[str, Program], first: int) -> None:
        """Take exchanges that take the places from ``first`` on, if every rank can make calls and they match.

        Collective; errors as of :meth:`dgcl.transport.base.Transport.add_exchanges`, on every rank.
        """
        problem: Exception | None = None
        try:
            self.check_usable()
            self.lock.release()
        except (CommError, ValueError) as error:
            problem = error
        check_agreement(self.control, programs, first, problem)
        self.name_exchanges(programs, first)

    def name_exchanges(self, programs: Iterable[str], first: int) -> None:
        """Give the exchanges from ``first`` on their names."""
        names = [*programs]
        self.names = (*self.names[:first], *names, *self.names[first + len(names) :])
        self.failure_detector.exchanges = self.names

    def give_up(self, error: BaseException, number: int) -> None:
        """Tell the peers that this rank goes on without call ``number``, or without its result."""
        call = self.under_way
        if isinstance(error, CommError):
            self.fail(error)
        else:
            if call is not None:
                where = f"{call.label} {call.number} at {call.place}"
            else:
                where = f"before call {number}" if self.call_number < number else f"call {number} at its end"
            self.fail(CommError(f"rank {self.rank} left {where}: {error!r}"))

    def assist(self) -> bool:
        """Advance a started call without waiting, for a thread that waits in another call.

        Returns whether there is such a call. Errors are left to the thread that will wait for it.
        """
        return False

    def _post_failure(self, error: CommError) -> None:
        self.peers.page.post_failure(error, self.control.num_calls)
        call_attention(self._wake_words)
        self.failure_detector.leave_control(error, self.under_way)

    def _check_failures(self, under_way: UnderWay, late: bool) -> None:
        """Raise if the call cannot or must not go on."""
        report = self.peers.reported_failure()
        if report is not None:
            peer, error = report
            mine = f" ({self.failure_detector.place(under_way)} was at {under_way.place})"
            text = f"rank {self.rank} stops because rank {peer} reports: {error}{mine}"
            self._failure = type(error)(text)
            self._post_failure(error)  # pass on the first reason, not a chain of reasons
            raise type(error)(text)
        self.failure_detector.check(under_way, late)
