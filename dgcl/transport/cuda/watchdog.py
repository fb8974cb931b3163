"""Watches the device by a thread per communicator: opens peers' memory, keeps deadlines, stops the device.

The host waits for nothing, so a thread must check whether the device makes progress. The device writes two words in
host memory: the call it has begun last, and the call it has finished. In between, the watchdog takes snapshots of the
rank's control block, by copies on a stream of their own. If nothing has changed for ``timeout`` seconds, or a peer that
is still needed has failed, died or left, or a kernel has found that ranks make different calls, the watchdog

1. posts the error for the peers, which raise it, too (:mod:`dgcl.transport.shared_memory.control_page`), 2. aborts what
is under way to and from other machines, sets the abort word, and overwrites the rank's flags with FLAG_MAX,
   so that all waits on the device end, in kernels and in streams, and later kernels of this communicator do nothing;
3. keeps the error, which the next call, or ``synchronize``, raises.

A driver may block the watchdog itself: some functions wait for kernels that run, and one of those may be waiting for
this very process. So a second thread, which never calls the driver, checks that the watchdog makes progress; if not, it
sets the abort word itself, which is host memory, so that the kernels end and the driver returns.

In the end it waits until every peer has released this rank's memory, and frees it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.kernels.cuda_tables import CALL, DISAGREES, FAULT
from dgcl.program.model import Program
from dgcl.transport.cuda.connections import Connections
from dgcl.transport.cuda.control_block import Snapshot
from dgcl.transport.cuda.gpu import CudaError
from dgcl.transport.cuda.network import Network
from dgcl.transport.cuda.pool import DevicePool
from dgcl.transport.cuda.report import awaited, differing, disagreement, place, schedule_of, suspects
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.peers import Peers

_log = logging.getLogger("dgcl")

_TICK: Final = 0.002  # how soon new memory of a peer is found
_CHECK_EVERY: Final = 0.05
_SNAPSHOT_SECONDS: Final = 1.0  # at most; a blocked device does not even copy
_GUARD_EVERY: Final = 0.25
_LAST_RESORT: Final = 2  # timeouts
_DRIVER_SECONDS: Final = 3.0  # what opening or allocating memory may take beside everything else


class Watchdog:
    """Watches one rank; holds no reference to the communicator.

    Args:
        connections, pool, programs, control_page, peers: Of the rank.
        timeout: Seconds without any progress after which a call has failed.
        network: What joins it to other machines; None: nothing.

    Attributes:
        failure: Why the communicator is unusable; None as long as it is not.
    """

    def __init__(
        self,
        connections: Connections,
        pool: DevicePool,
        programs: Mapping[str, Program],
        control_page: ControlPage,
        peers: Peers,
        timeout: float,
        network: Network | None = None,
    ) -> None:
        self._network = network
        self._connections, self._pool = connections, pool
        self._names, self._programs = tuple(programs), tuple(programs.values())
        self._rank = self._programs[0].rank
        self._control_page, self._peers, self._timeout = control_page, peers, timeout
        self.failure: CommError | None = None
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._last: Snapshot | None = None
        self._since = self._checked = self._ticked = time.monotonic()
        self._cut_short = False
        self._thread = threading.Thread(
            target=self._run, name=f"dgcl watchdog of rank {self._rank}", daemon=True
        )
        self._thread.start()
        guard = threading.Thread(target=self._guard, name=f"dgcl guard of rank {self._rank}", daemon=True)
        guard.start()

    def fail(self, error: CommError) -> None:
        """Mark the communicator failed, tell the peers why, and stop the device."""
        self._fail(error, posted=error)

    def leave(self, after: Callable[[], None]) -> None:
        """Stop watching.

        The thread ends once this rank's memory is freed, and then calls ``after``."""
        self._after = after
        self._leaving.set()

    def name_fault(self) -> None:
        """Wait until the reason is known why the device has stopped on its own."""
        self._failed.wait(2 * _SNAPSHOT_SECONDS + 10 * _CHECK_EVERY)

    @property
    def unfinished(self) -> bool:
        """Whether the device has begun a call that it has not finished."""
        page = self._connections.page
        return page.begun()[0] > page.finished()

    def _run(self) -> None:
        driver = self._connections.device.driver
        driver.use_context(self._connections.device.context)
        driver.allow_during_captures()
        while not self._leaving.wait(_TICK):
            try:
                self._tick()
            except CudaError as error:
                self.fail(CommError(f"rank {self._rank}: the device failed: {error}"))
                break
        self._leaving.wait()
        self._give_back()

    def _guard(self) -> None:
        """Stop the device's kernels if the driver blocks the watchdog."""
        limit = self._timeout + _DRIVER_SECONDS
        while not self._leaving.wait(_GUARD_EVERY):
            if not self._cut_short and self.unfinished and time.monotonic() - self._ticked > limit:
                self._cut_short = True
                _log.warning(
                    "rank %d: the driver has kept its watchdog waiting for %.0f s; stopping the device",
                    self._rank,
                    limit,
                )
                if self._network is not None:
                    self._network.abort()
                self._connections.page.stop_kernels()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        if self._cut_short and self.failure is None:
            call, tag = self._connections.page.begun()
            self.fail(
                CommTimeoutError(
                    f"{place(self._rank, self._names, call, tag)}: the driver did not answer for {self._timeout:g} s,"
                    " and the device was stopped; ranks that are threads need CUDA_MODULE_LOADING=EAGER"
                )
            )
        problem = self._connections.map_new()
        if problem:
            self.fail(CommError(problem))
        now = time.monotonic()
        if now - self._checked < _CHECK_EVERY:
            return
        self._checked = now
        if self.failure is not None:
            if self.unfinished:
                self._stop_device()  # a peer may have counted over the last stop
            return
        if self._peer_has_failed():
            return
        if not self.unfinished:
            self._last, self._since = None, now
            return
        snapshot = self._snapshot()
        if snapshot is not None and not snapshot.same_as(self._last):
            self._last, self._since = snapshot, now
        self._check_call(snapshot, late=time.monotonic() - self._since >= self._timeout)

    def _peer_has_failed(self) -> bool:
        """Whether a peer has failed; then this rank fails, too."""
        report = self._peers.reported_failure()
        if report is not None:
            peer, error = report
            # The first reason is passed on, not a chain of them.
            mine = type(error)(f"rank {self._rank} stops because rank {peer} reports: {error}")
            self._fail(mine, posted=error)
        return report is not None

    def _snapshot(self) -> Snapshot | None:
        """A snapshot of the control block; None if the device does not even copy."""
        page, words = self._connections.page, self._connections.control_block
        page.start_snapshot(words)
        end = time.monotonic() + _SNAPSHOT_SECONDS
        while (snapshot := page.snapshot()) is None and time.monotonic() < end:
            time.sleep(_TICK / 4)
        if snapshot is not None and self._connections.lanes is not None:
            for peer, call, tag in self._connections.lanes.announcements():
                snapshot.set_ready(peer, call, tag)
        return snapshot

    def _check_call(self, snapshot: Snapshot | None, late: bool) -> None:
        """Fail if the call cannot or must not go on."""
        call, tag = self._connections.page.begun()
        if snapshot is None or snapshot.state(CALL) != call:  # the next call has begun since
            if late:
                where = place(self._rank, self._names, call, tag)
                self.fail(CommTimeoutError(f"{where}: the device has not got on for {self._timeout:g} s"))
            return
        if snapshot.state(FAULT) == DISAGREES:
            schedule = schedule_of(self._programs, tag)
            others = [*schedule.send_peer.tolist(), *self._connections.addresses.partners]
            found = differing(self._rank, self._names, snapshot, tag, others, frozenset())
            # A line may have been written over since a kernel read it.
            self.fail(
                found or disagreement(self._rank, self._names, call, tag, "a peer announced another one")
            )
            return
        lanes = self._connections.lanes
        staged = lanes.staged if lanes is not None else frozenset()
        waits = awaited(self._programs, snapshot, tag)
        needed_peers = dict.fromkeys(peer for _, peer, _ in waits)
        differs = differing(self._rank, self._names, snapshot, tag, needed_peers, staged)
        gone = {peer: why for peer in needed_peers if (why := self._gone(peer, call)) is not None}
        if differs is not None or gone:
            # A peer may have done its part just before it went on: only what is still missing now is lost.
            again = self._snapshot()
            if again is None or again.state(CALL) != call:
                return
            waits = awaited(self._programs, again, tag)
            differs = differing(
                self._rank, self._names, again, tag, dict.fromkeys(peer for _, peer, _ in waits), staged
            )
            if differs is not None:
                self.fail(differs)
                return
            for _, peer, needed in waits:
                if peer in gone:
                    where = place(self._rank, self._names, call, tag)
                    self.fail(PeerLostError(f"{where}: rank {peer} {gone[peer]}, and {needed}"))
                    return
        if late and waits:
            where = place(self._rank, self._names, call, tag)
            self.fail(
                CommTimeoutError(
                    f"{where}: waited {self._timeout:g} s in vain: {suspects(waits, snapshot)}. If ranks may be that "
                    "late, give build_comm_info a longer timeout"
                )
            )
        elif not waits and time.monotonic() - self._since >= _LAST_RESORT * self._timeout:
            # Everything has arrived, yet the call does not end: its rows are not taken, so the
            # receiver has failed by now.
            where = place(self._rank, self._names, call, tag)
            seconds = _LAST_RESORT * self._timeout
            self.fail(CommTimeoutError(f"{where}: the device has not got on for {seconds:g} s"))

    def _gone(self, peer: int, call: int) -> str | None:
        """Return why a peer will do nothing more for a call; None if it still may."""
        if self._network is not None and peer in self._network.remote:
            return self._network.gone(peer, call)
        return self._peers.gone(peer)

    def _fail(self, mine: CommError, posted: CommError) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = mine
        self._control_page.post_failure(posted)
        if self._network is not None:
            self._network.tell(posted)
            self._network.abort()  # before the waits on its stream end
        self._stop_device()
        self._failed.set()

    def _stop_device(self) -> None:
        with self._connections.device.current():
            try:
                self._connections.page.stop(self._connections.control_block)
                if self._connections.lanes is not None:
                    self._connections.lanes.stop()
            except CudaError as error:
                _log.warning("rank %d cannot stop its device: %s", self._rank, error)

    def _give_back(self) -> None:
        """Free this rank's memory once nobody can write to it or read it any more."""
        watched = [(rank, peer) for rank, peer in enumerate(self._connections.peers) if peer is not None]
        for _, peer in watched:
            peer.close()
        self._connections.directory.release_peers()
        while watched or self._pool.num_in_use:
            watched = [
                (rank, peer)
                for rank, peer in watched
                if not peer.has_released and self._peers.gone(rank) != "has died"
            ]
            time.sleep(_CHECK_EVERY)
        try:
            self._pool.file.free()
            self._connections.close()
        except CudaError as error:
            _log.debug("rank %d: memory is not given back: %s", self._rank, error)
        self._after()
