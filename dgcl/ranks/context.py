"""Holds each thread's control plane and current communicator, and tells peers when the process ends.

Ranks may be threads of one process, so this is thread-local. Operators do not ask here: autograd may run a backward in
another thread, and carries the communicator's number with it. In a fork nothing is closed: its end is not the rank's.

Called by `dgcl/api`, `dgcl/communicator`, `dgcl/build`, `launcher`, `set_up` and others. Free to change while verbs use
the communicator that this thread built last (`tests/dgcl/test_communicator.py`), and peers hear of a program that ends
before its connections break (`tests/dgcl/ranks/test_set_up_faults.py`).
"""

import atexit
import ctypes
import os
import threading
import time
import weakref
from typing import Any

from dgcl.errors import CommError
from dgcl.ranks.control import OWN_THREADS, Control


class _Context(threading.local):
    """One thread's place in the job.

    Attributes:
        control: Set by :func:`dgcl.init`.
        communicator: The one built last, a :class:`dgcl.Communicator`.
        opened: All that it built and that still live; :func:`dgcl.launch` closes what a rank leaves open.
        keeps_memory: Whether its process keeps the memory that is freed.
    """

    def __init__(self) -> None:
        self.control: Control | None = None
        self.communicator: Any = None
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.keeps_memory = False

    def require_control(self) -> Control:
        """The control plane; an error before :func:`dgcl.init`."""
        if self.control is None:
            raise ValueError("call dgcl.init() first (in every rank, in the thread that trains)")
        return self.control

    def require_communicator(self) -> Any:
        """The current communicator; an error before :func:`dgcl.build_comm_info`."""
        if self.communicator is None:
            raise ValueError(
                "call dgcl.dispatch(data) or dgcl.build_comm_info(graph) first (in every rank, in the thread that"
                " trains)"
            )
        return self.communicator


context = _Context()

#: What peers may wait for: control planes, with the process whose end is the rank's, and open communicators.
_controls: weakref.WeakKeyDictionary[Control, int] = weakref.WeakKeyDictionary()
_communicators: weakref.WeakSet[Any] = weakref.WeakSet()
_holders: weakref.WeakSet[Any] = weakref.WeakSet()

_EXIT_SECONDS = 10.0  # in which threads of ours come back from torch; those behind a cut connection never do


def tell_at_exit(control: Control) -> None:
    """Report the end of this process to the ranks of a control plane, before torch notices it."""
    _controls[control] = os.getpid()


def keep_in_forks(holder: Any) -> None:
    """Let an object that holds a process group live for ever in forks, which cannot take the group down."""
    _holders.add(holder)


def _keep_groups() -> None:
    """Let no process group be destroyed in a fork.

    That would wait, at exit, for threads that a fork does not have.
    """
    if not any(control.has_group for control in _controls):
        return
    from dgcl.ranks.torch_private import process_groups

    for held in (*_controls, *_holders, *process_groups()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def add_communicator(comm: Any) -> None:
    """Make a communicator this thread's current one; the end of the process is reported to its peers."""
    context.communicator = comm
    context.opened.add(comm)
    _communicators.add(comm)


os.register_at_fork(after_in_child=_keep_groups)


@atexit.register
def _tell_peers() -> None:
    """Close what this process leaves open: peers that wait for it hear of it now, not when its connections break.

    A communicator that has failed is why the process ends; what is closed already has been recovered from. Not in its
    forks, whose end is not the rank's.
    """
    open_ones = list(_communicators)
    failure: CommError | None = next((why for comm in open_ones if (why := comm.failure) is not None), None)
    for comm in open_ones:
        comm.end(failure)
    for control, process in list(_controls.items()):
        if process != os.getpid():
            continue
        if failure is None:
            control.leave("has ended")
        else:
            control.leave(f"has ended: {failure}", type(failure))
    # A thread that comes back from torch when Python is gone aborts the process.
    until = time.monotonic() + _EXIT_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREADS):
            thread.join(max(until - time.monotonic(), 0.0))
