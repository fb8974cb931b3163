"""Decides whether a rank may make a call: usable, failed or closed; one call at a time, from one thread.

A failed or closed communicator stays so; a started call must be waited for before the next one.
Called by `dgcl/transport/base`, `dgcl/transport/collective/agreement` and `dgcl/transport/shared_memory/executor`. Free
to change while a call is refused after a failure, after close, in a fork and while another runs, and no lock is held
for ever (`tests/dgcl/transport/common/test_call_lock.py`), and rows that change between start and wait raise
(`tests/dgcl/autograd/test_pending.py`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor

from dgcl.errors import CommError, DisagreementError
from dgcl.program.rank_program import Program
from dgcl.transport.common.calls import UnderWay
from dgcl.transport.common.failure_detector import FailureDetector
from dgcl.transport.common.peers import Peers
from dgcl.transport.common.program_agreement import check_agreement
from dgcl.transport.common.words import call_attention
from dgcl.transport.row_checks import version_of


class CallLock:
    """A lock that a thread holds while it makes a call, from the first check to the call's end.

    The holding thread may acquire it again: a call that failed before it began leaves it held. A thread that assists
    a started call of another thread (:mod:`dgcl.transport.shared_memory.executor`) holds it briefly, and others wait
    for that. Ctrl-C may leave such a brief hold behind. Its own thread can still acquire the lock, and others wait for
    at most ``timeout``.

    Args:
        rank: For messages.
        timeout: Seconds to wait for a thread that assists.

    Attributes:
        holder: The holder's thread number at "thread", negative while it assists; empty while nobody holds the lock.
            ``setdefault`` is atomic: one of two threads sees the other.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self.holder: dict[str, int] = {}

    def acquire(self) -> None:
        """Acquire the lock to begin a call or to continue it.

        Raises:
            ValueError: Another thread is in a call.
        """
        me, since = threading.get_ident(), time.monotonic()
        while True:
            holder = self.holder.setdefault("thread", me)
            if holder == -me:
                self.holder["thread"] = me
            if abs(holder) == me:
                return
            if holder > 0 or time.monotonic() - since > self._timeout:
                raise ValueError(
                    f"rank {self._rank}: another thread is in a call on this communicator; make its calls one after"
                    " the other (peers must see them in one order), or build a communicator for each thread"
                )
            time.sleep(1e-4)  # another thread assists

    def try_assist(self) -> bool:
        """Acquire the lock briefly if it is free; follow with :meth:`end_assist`."""
        me = -threading.get_ident()
        return self.holder.setdefault("thread", me) == me

    def end_assist(self) -> None:
        """Release it if this thread holds it to assist."""
        if self.holder.get("thread") == -threading.get_ident():
            self.holder.clear()

    def release(self) -> None:
        """Release the lock: the call is over, or is to be continued later."""
        self.holder.clear()


class LifeCycle(FailureDetector):
    """What the transports of a host's ranks have in common.

    Args:
        peers, timeout, names: As of a :class:`FailureDetector`.

    Attributes:
        pool: Allocates the rank's buffers.
        process: The rank's.
        lock, holder: The call lock, and its holder (:class:`CallLock`).
        under_way: A call that was started and is not done yet.
    """

    def __init__(self, peers: Peers, timeout: float, names: Iterable[str]) -> None:
        super().__init__(peers, timeout, tuple(names))
        self.pool, self.process = peers.pool, peers.process
        self.lock = CallLock(peers.rank, timeout)
        self.holder = self.lock.holder
        self.under_way: UnderWay | None = None
        self._wake_words = np.array([page.wake_address for page in peers.control_pages], np.int64)

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

    def check_unchanged(self, rows: Tensor, version: int | None) -> None:
        """Raise unless the rows of a started exchange, which had this version then, are as they were."""
        self.check_present()
        if version_of(rows) != version:
            self.abandon("changed before they were sent")
            raise RuntimeError(
                "rows were changed in place between the start of their exchange and wait(); change a copy"
            )

    def abandon(self, how: str) -> None:
        """Tell the peers what became of the rows of a started exchange."""
        self.fail(CommError(f"rank {self.rank}: rows of a started exchange were {how}"))

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

    def _post_failure(self, error: CommError) -> None:
        self.peers.page.post_failure(error, self.control.num_calls)
        call_attention(self._wake_words)
        # After the failure was posted, so that ranks that see this one leave the control plane find the cause first.
        call = self.under_way
        if (
            isinstance(error, DisagreementError)
            and call is not None
            and self._collective_of_peer(call.number)
        ):
            self.control.leave(f"has left: {error}", DisagreementError)

    def _check_failures(self, under_way: UnderWay, late: bool) -> None:
        """Raise if the call cannot or must not go on."""
        report = self.peers.reported_failure()
        if report is not None:
            peer, error = report
            mine = f" ({self.place(under_way)} was at {under_way.place})"
            text = f"rank {self.rank} stops because rank {peer} reports: {error}{mine}"
            self._failure = type(error)(text)
            self._post_failure(error)  # pass on the first reason, not a chain of reasons
            raise type(error)(text)
        self.check_waits(under_way, late)
