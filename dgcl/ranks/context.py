"""Who this thread is: its control plane and its current communicator.

Ranks may be threads of one process, so this is thread-local. Operators do not ask here: autograd may run a
backward in another thread, and carries the communicator's number with it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from dgcl.ranks.control import Control


class OpenCommunicator(Protocol):
    """What the launcher needs of the communicators that a rank leaves open."""

    def fail(self, reason: str) -> None:
        """Tell the peers that this rank will not go on."""

    def close(self) -> None:
        """Give it up."""


class _Context(threading.local):
    """One thread's place in the job.

    Attributes:
        control: Set by :func:`dgcl.init`.
        communicator: The one built last, a :class:`dgcl.Communicator`.
        opened: All that it built and that still live; :func:`dgcl.launch` closes what a rank leaves open.
        built: How many it built.
    """

    def __init__(self) -> None:
        self.control: Control | None = None
        self.communicator: Any = None
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.built = 0

    def require_control(self) -> Control:
        """The control plane; an error before :func:`dgcl.init`."""
        if self.control is None:
            raise ValueError("call dgcl.init() first (in every rank, in the thread that trains)")
        return self.control

    def require_communicator(self) -> Any:
        """The current communicator; an error before :func:`dgcl.build_comm_info`."""
        if self.communicator is None:
            raise ValueError(
                "call dgcl.build_comm_info(graph) first (in every rank, in the thread that trains)"
            )
        return self.communicator


context = _Context()
