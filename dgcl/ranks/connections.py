"""Finds which socket of Gloo leads to which rank, and keeps child processes from inheriting it.

A peer hears that a rank has died when its sockets close, but forks (data loaders) and programs that a rank starts
inherit them and keep them open. So they are marked to be closed in other programs, and replaced by /dev/null in forks.

Called by `group_control`, `watch` and `dgcl/transport/collective/wires`. Free to change while children have none of the
group's connections, and a break of any is noticed (`tests/dgcl/ranks/test_watch.py`).
"""

import os
import select
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from dgcl.ranks.control import Control

# Gloo does not report its sockets. So each rank lists the connections that it has more of than before the group was
# made, and takes for the group's those of which the other end is on another rank's list.


class Connection(NamedTuple):
    """A connected TCP socket of this process.

    Attributes:
        descriptor, inode: Its number, and what distinguishes it from a later socket with the same number.
        here, there: (address, port) of its two ends.
    """

    descriptor: int
    inode: int
    here: tuple[str, int]
    there: tuple[str, int]

    @property
    def is_open(self) -> bool:
        """Whether the descriptor is still this socket."""
        try:
            return os.fstat(self.descriptor).st_ino == self.inode
        except OSError:
            return False


#: Connections of groups, which children must not keep open.
_ours: set[Connection] = set()


def open_connections() -> set[Connection]:
    """The connected TCP sockets of this process."""
    connections = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile, or is not connected
            about = os.fstat(int(name))
            if not stat.S_ISSOCK(about.st_mode):
                continue
            one = socket.socket(fileno=int(name))
            try:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    here, there = one.getsockname()[:2], one.getpeername()[:2]
                    connections.add(Connection(int(name), about.st_ino, here, there))
            finally:
                one.detach()
    return connections


def claim_connections(control: Control, before: set[Connection]) -> dict[int, Connection]:
    """The connection to each peer that was made since ``before``, kept from children from now on. Collective.

    A peer whose addresses are translated on the way is left out.
    """
    new = open_connections() - before
    reports = control.exchange([(one.here, one.there) for one in new])
    ends = {end: rank for rank, theirs in enumerate(reports) if rank != control.rank for end in theirs}
    connections = {ends[one.there, one.here]: one for one in new if (one.there, one.here) in ends}
    for one in connections.values():
        with suppress(OSError):  # the peer has ended meanwhile, and Gloo closed it
            os.set_inheritable(one.descriptor, False)
    _ours.difference_update(one for one in _ours.copy() if not one.is_open)
    _ours.update(connections.values())
    return connections


def wait_for_break(
    connections: Mapping[int, Connection], stop: int, tick: Callable[[], None], seconds: float
) -> int | None:
    """The first peer whose end of its connection is closed; None once ``stop`` can be read.

    Args:
        connections: By peer.
        stop: A descriptor.
        tick, seconds: Called so often meanwhile.
    """
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    peers = {one.descriptor: peer for peer, one in connections.items() if one.is_open}
    for descriptor in peers:
        poll.register(descriptor, select.POLLRDHUP)
    while not (events := poll.poll(1000 * seconds)):
        tick()
    closed = [descriptor for descriptor, _ in events]
    return None if stop in closed else peers[closed[0]]


def _close_in_fork() -> None:
    """Keep the numbers taken: nobody may get one that something of the rank's still closes."""
    if _ours:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for one in _ours:
            if one.is_open:
                os.dup2(nothing, one.descriptor, inheritable=False)
        os.close(nothing)
        _ours.clear()


os.register_at_fork(after_in_child=_close_in_fork)
