"""The control plane of ranks that are the processes of a ``torch.distributed`` process group.

It makes a Gloo group of its own with the same ranks: the user's may have any backend, and never carries our messages.
After a rank was lost it is closed for good; ``anew`` makes another.

Called by `launcher`, `device_sums`, `dgcl/api`, `dgcl/nn/gradients`, `dgcl/transport/connect` and others. Free to
change while results are those of `thread_control` (`tests/dgcl/ranks/test_control.py`), and a rank that dies, stops or
leaves is named by every other in time (`tests/dgcl/ranks/test_watch.py`).
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dgcl.errors import CommError, PeerLostError
from dgcl.ranks.abort_reasons import AbortReason, AbortReasons
from dgcl.ranks.connections import Connection, claim_connections, open_connections
from dgcl.ranks.context import tell_at_exit
from dgcl.ranks.control import Call, Control
from dgcl.ranks.gloo_groups import connected, make_group, next_store
from dgcl.ranks.object_messages import GroupMessages
from dgcl.ranks.rendezvous import Waiting
from dgcl.ranks.watch import Watch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

T = TypeVar("T")

_LOOK = 0.1  # seconds in which a rank that left a communicator is not noticed


class GroupControl(Control):
    """The ranks of a process group.

    Makes a Gloo group of its own with the same ranks, so that the user's group never carries our traffic and may have
    any backend. Collective over the group.

    Args:
        group: The user's; None for the default group.
        timeout: Seconds that ranks wait for each other in set-up.

    Attributes:
        device_sums: What sums tensors on GPUs, by the GPUs of the ranks (:mod:`dgcl.ranks.device_sums`).
        global_ranks: The ranks in the default group.
    """

    has_group = True

    def __init__(self, group: ProcessGroup | None, timeout: float) -> None:
        import torch.distributed as dist

        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("group: this process is not a member; call dgcl.init only on the group's ranks")
        super().__init__(rank, dist.get_world_size(group))
        self.timeout = timeout
        self._group = group
        self.global_ranks = (
            list(range(self.world_size)) if group is None else dist.get_process_group_ranks(group)
        )
        self._axes: dict[tuple[int, ...], GroupControl] = {}
        self.device_sums: dict[tuple[str, ...], Any] = {}
        self._store: Store | None = None  # what this control plane has of the ranks' store
        self._watch: Watch | None = None
        self._deadline: float | None = None  # of this rank's wait in a communicator's collective
        self._looks: threading.Thread | None = None
        before = open_connections()
        group_of_own, self._store = self._make_group("dgcl.init")
        reasons = AbortReasons(dist.PrefixStore("abort reasons", self._store))
        self.messages = GroupMessages(group_of_own, self.rank, reasons)
        self._connections = claim_connections(self, before)
        tell_at_exit(self)

    @property
    def is_closed(self) -> bool:
        """Whether it can carry nothing any more: a rank has left."""
        return self.messages.is_closed

    def lost(self) -> CommError | None:
        """As :meth:`Control.lost`."""
        reason = self.messages.ended_by
        return None if reason is None else reason.kind(f"rank {self.rank}: {reason.clause}")

    def anew(self, timeout: float) -> GroupControl:
        """A fresh one of the same ranks. Collective."""
        return GroupControl(self._group, timeout)

    def axis(self, group: ProcessGroup) -> GroupControl:
        """The control plane of a group on another axis of the job, such as data parallelism. Collective over it.

        Made where it is asked for first, and again after a rank there was lost.
        """
        import torch.distributed as dist

        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._axes or self._axes[ranks].is_closed:
            self._axes[ranks] = GroupControl(group, min(self.timeout, self.limit))
        return self._axes[ranks]

    def new_group(self) -> tuple[ProcessGroup, dict[int, Connection]]:
        """Another Gloo group of the same ranks, in the same order, with the connection to each. Collective.

        Raises:
            CommError: A rank has died, or has not come within the timeout.
        """
        before = open_connections()
        group = self._make_group("rows by collectives")[0]
        return group, claim_connections(self, before)

    def next_store(self, purpose: str) -> Store:
        """A part of the ranks' store, for a group of another kind. Collective.

        Raises:
            CommError: As of :meth:`new_group`.
        """
        return self._meet(purpose, lambda store: store)

    def leave(self, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Take part no more; ranks that wait for this one hear of it at once."""
        self.messages.leave(why, kind)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As :meth:`Control.watched`; the outermost counts."""
        if self._watch is not None or self.world_size == 1 or self.is_closed:
            yield
            return
        messages = self.messages
        self._watch = Watch(
            self._connections, messages.lose, messages.publish, min(self.timeout / 4, self.limit / 4, 60.0)
        )
        try:
            yield
        finally:
            watch, self._watch = self._watch, None
            watch.end()

    def unless_lost(self, function: Callable[[], T]) -> T:
        """As :meth:`Control.unless_lost`."""
        if self._watch is None:
            return function()
        return self._watch.call(function, self.messages.lost_error)

    def _swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        if self._of is None and self._seconds == math.inf:
            return self.messages.swap(call, outgoing, sources)
        if (
            self._looks is None or not self._looks.is_alive()
        ):  # one thread for all collectives: a start takes 0.1 ms
            self._looks = threading.Thread(
                target=_look_again, args=(weakref.ref(self),), name="dgcl watch", daemon=True
            )
            self._looks.start()
        self._deadline = time.monotonic() + self._seconds
        try:
            return self.messages.swap(call, outgoing, sources)
        finally:
            self._deadline = None

    def look(self) -> None:
        """End a wait in a communicator's collective that a rank has left, or that is over its deadline."""
        of, number, deadline = self._of, self.num_calls, self._deadline
        if deadline is None:
            return
        if of is not None and (lost := of.lost(number)) is not None:
            if self._deadline == deadline:
                self.messages.lose(lost[0], AbortReason(lost[0], lost[2], lost[1]))
        elif time.monotonic() > deadline:
            if not self.messages.hears():
                self.messages.lose_late(self._seconds)
            elif self._deadline == deadline:
                self._deadline = deadline + self._seconds
        else:
            self.messages.publish_wait()

    def _make_group(self, purpose: str) -> tuple[ProcessGroup, Store]:
        """A group, and what it has of the ranks' store."""
        return self._meet(
            purpose, lambda store: (make_group(store, self.rank, self.world_size, self.timeout), store)
        )

    def _meet(self, purpose: str, make: Callable[[Store], T]) -> T:
        """What is made of a part of the store that this rendezvous of the ranks has for itself."""

        def connect(waiting: Waiting) -> T:
            ranks, store = self.global_ranks, self._store
            return make(next_store(ranks, self.rank, purpose, timeout, waiting, store))

        timeout = min(self.timeout, self.limit)
        return connected(connect, self.rank, self.world_size, purpose, timeout)


def _look_again(reference: weakref.ref[GroupControl]) -> None:
    """Look as long as the control plane is in use."""
    while (control := reference()) is not None and not control.is_closed:
        control.look()
        del control
        time.sleep(_LOOK)
