"""Watches a rank's GPU from a thread: ends calls that make no progress, and frees memory.

The host does not wait for its device, so a thread must check whether that makes progress. The device writes two words
in host memory: the call it has begun last, and the call it has finished. If neither changes for ``timeout`` seconds
inside a call, or a peer has died and the call does not end, the watchdog ends it. What a peer has exported is unmapped
when that peer leaves, or this rank fails or leaves, and the device has done all that was enqueued. A rank that leaves
waits until its peers have done so, also at the end of its process.
Called by `device_exchange`. Free to change while every rank hears of a failure by name, in time, and a slow rank is no
failure (`tests/dgcl/transport/cuda/test_faults.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Mapping

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.program.rank_program import Program
from dgcl.transport.common.calls import call_label, waits_of
from dgcl.transport.common.control_page import ALIVE
from dgcl.transport.cuda.connect_devices import Connections
from dgcl.transport.cuda.control_block import RING, Snapshot, in_time
from dgcl.transport.cuda.device_pool import DevicePool
from dgcl.transport.cuda.gpu import CudaError
from dgcl.transport.cuda.program import EXPAND
from dgcl.transport.shared_memory.executor import Runtime

_CHECK_EVERY = 0.05
_SNAPSHOT_SECONDS = 1.0
_GRACE = 0.5  # for what a peer did just before it died
_EXIT_SECONDS = 5.0
_MOST_WAITS = 5  # in a message

#: Those whose threads may still run. A thread must not be the last to hold one: torch's groups, which may go with it,
#: let other threads run meanwhile, and a thread that comes back when Python is shutting down aborts the process.
_started: set[Watchdog] = set()


# To end a call it first sets the abort word, which is host memory: no driver is called that may wait for the kernels
# which are to end; they and all later kernels of this communicator do nothing. Then it copies the rank's flags, to see
# what is missing, and from whom; keeps the error for the next call, or ``synchronize``; and posts it for the peers
# (:meth:`dgcl.transport.shared_memory.executor.Runtime.fail`), whose devices stop, too.
class Watchdog:
    """Watches one rank; holds no reference to the communicator.

    Args:
        connections, pool, runtime: Of the rank.
        programs: Its programs by the names of their exchanges.
        timeout: Seconds without any progress after which a call has failed.

    Attributes:
        ended: Event behind all that the rank has enqueued.
        timeout: As given; may be changed.
        enqueuing: Held from a call's agreement until it is enqueued.
        calls: Exchange and verb of the last calls, by number modulo RING.
    """

    def __init__(
        self,
        connections: Connections,
        pool: DevicePool,
        runtime: Runtime,
        programs: Mapping[str, Program],
        timeout: float,
    ) -> None:
        self._connections, self._pool, self._runtime, self.timeout = connections, pool, runtime, timeout
        self._names, self._programs = tuple(programs), tuple(programs.values())
        self._rank, self._pages = runtime.rank, runtime.peers.control_pages
        self.ended = connections.device.driver.create_event()
        self.enqueuing = threading.Lock()
        self.calls = [(0, EXPAND)] * RING
        self._stopped, self._failed, self._leaving = (threading.Event() for _ in range(3))
        self._exiting = False
        self._last, self._since, self._died_at = (0, 0), time.monotonic(), 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"dgcl watchdog of rank {self._rank}", daemon=True
        )
        self._thread.start()
        _started.difference_update(each for each in _started.copy() if not each._thread.is_alive())
        _started.add(self)

    def fail(self, error: CommError) -> None:
        """Mark the communicator failed, report to the peers why, and stop the device."""
        self._runtime.fail(error)
        self._stopped.set()
        self._connections.page.stop()
        self._failed.set()

    def leave(self) -> None:
        """Stop watching. The thread ends once this rank's memory is freed."""
        self._leaving.set()

    def name_fault(self) -> None:
        """Wait until the reason is known why the device was stopped, if it was."""
        if self._stopped.is_set():
            self._failed.wait(2 * _SNAPSHOT_SECONDS)

    def _run(self) -> None:
        device = self._connections.device
        device.driver.use_context(device.context)
        while not self._leaving.wait(_CHECK_EVERY):
            try:
                self._check()
            except CudaError as error:
                self.fail(CommError(f"rank {self._rank}: the device failed: {error}"))
                break
        self._leaving.wait()
        with contextlib.suppress(CudaError):  # the driver is shutting down
            self._give_back()

    def _check(self) -> None:
        runtime, page = self._runtime, self._connections.page
        if (report := runtime.peers.reported_failure()) is not None:
            runtime.fail(report[1])  # the first reason is passed on, not a chain of them
        if runtime.failure is not None:
            self.fail(runtime.failure)
        self._release()
        progress, now = (page.begun(), page.finished()), time.monotonic()
        if progress != self._last:
            self._last, self._since = progress, now
        if progress[0] <= progress[1] or runtime.failure is not None:
            self._since, self._died_at = now, 0.0
            return
        dead = [rank for rank, peer in enumerate(self._connections.peers) if peer and peer.has_died()]
        self._died_at = (self._died_at or now) if dead else 0.0
        if dead and now - self._died_at >= _GRACE:
            self._stop(progress[0], dead)
        elif now - self._since >= self.timeout:
            self._stop(progress[0], [])

    def _stop(self, call: int, dead: list[int]) -> None:
        """Stop the device in a call, and fail with what it waited for."""
        self._stopped.set()
        self._connections.page.stop()
        exchange, verb = self.calls[call % RING]
        with self._connections.device.current():
            snapshot = self._connections.page.snapshot(self._connections.control_block, _SNAPSHOT_SECONDS)
        waits = [] if snapshot is None else self._awaited(snapshot, exchange, verb)
        where = f"rank {self._rank}, {call_label(exchange, verb, self._names)} (call {call})"
        for peer, needed in waits:
            if peer in dead:
                self.fail(PeerLostError(f"{where}: rank {peer} has died, and {needed}"))
                return
        if dead:
            self.fail(PeerLostError(f"{where}: rank {dead[0]} has died, and the call does not end"))
        elif waits:
            missing = "; ".join(needed for _, needed in waits[:_MOST_WAITS])
            self.fail(
                CommTimeoutError(
                    f"{where}: waited {self.timeout:g} s in vain: {missing}. If ranks may be that late, give "
                    "build_comm_info a longer timeout"
                )
            )
        else:
            self.fail(CommTimeoutError(f"{where}: the device has not got on for {self.timeout:g} s"))

    def _awaited(self, snapshot: Snapshot, exchange: int, verb: int) -> list[tuple[int, str]]:
        """(stage, peer, what is needed of it) for what a call still waits for; the earliest stage first."""
        program = self._programs[exchange]
        schedule = program.expand if verb == EXPAND else program.fold
        missing = (
            snapshot.done[schedule.recv_peer] < snapshot.call * program.num_stages + schedule.recv_stage + 1
        )
        return waits_of(schedule, missing, snapshot.ready[schedule.send_peer] < snapshot.call)

    def _release(self, everything: bool = False) -> None:
        """Unmap the memory of peers that have left, or of all, once the device has done all that was enqueued."""
        if not self.enqueuing.acquire(blocking=False):  # its holder may wait for what this thread is to end
            return
        try:
            if not self._connections.device.driver.has_happened(self.ended):
                return
            everything = everything or self._runtime.failure is not None
            for rank, peer in enumerate(self._connections.peers):
                if peer is None or peer.is_closed:
                    continue
                if everything or self._pages[rank].state != ALIVE or peer.has_died():
                    peer.close()
                    self._connections.memory.release(rank)
        finally:
            self.enqueuing.release()

    def _give_back(self) -> None:
        """Free this rank's memory once nobody can write to it or read it any more."""
        peers = [peer for peer in self._connections.peers if peer is not None]
        while not all(peer.is_closed for peer in peers):
            self._release(everything=True)
            time.sleep(_CHECK_EVERY / 10)
        while not all(peer.has_left(self._rank) for peer in peers):
            time.sleep(_CHECK_EVERY)
        while self._pool.num_in_use:
            if self._exiting:
                return
            time.sleep(_CHECK_EVERY)
        self._pool.file.free()
        self._connections.close()

    def leave_at_exit(self) -> None:
        """Leave before the process ends, and with it its device memory, if that does not take too long."""
        if os.getpid() != self._runtime.process:
            return
        driver = self._connections.device.driver
        self._exiting = True
        with contextlib.suppress(CudaError), self._connections.device.current():
            in_time(lambda: driver.has_happened(self.ended), _EXIT_SECONDS)
        self._runtime.close()
        self._leaving.set()
        self._thread.join(_EXIT_SECONDS)


@atexit.register
def _leave_all() -> None:
    for watchdog in _started:
        watchdog.leave_at_exit()
