"""Point-to-point messages on the channel's own process group."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

#: Tags: control messages, rows, and a tag that is never sent.
NEWS: Final = 1
ROWS: Final = 2
_NEVER: Final = 3

# A wait that times out breaks the group, so waits for control messages have practically no deadline. Rows arrive
# within a few deadlines of the executor or not at all.
_FOREVER: Final = timedelta(days=100)
_DEADLINES: Final = 10
_AT_ONCE: Final = timedelta(milliseconds=1)


class Wire:
    """Sends and receives byte messages between the ranks of a Gloo group that is used for nothing else.

    Errors of Gloo (a broken connection) are RuntimeError, from posting or from waiting. So is use after
    :meth:`close`.

    Args:
        group: The group.
        timeout: Seconds without progress after which a rank gives up a call.
    """

    def __init__(self, group: ProcessGroup, timeout: float) -> None:
        self._group: Any = group
        self._rows = timedelta(seconds=min(_DEADLINES * timeout, 1e6))
        self._closing = threading.Lock()
        self.closed = False

    def send(self, message: Tensor, peer: int, tag: int) -> Work:
        """Post a send; the memory is read until :meth:`wait` returns."""
        work: Work = self._open().send([message], peer, tag)
        return work

    def receive(self, place: Tensor, peer: int, tag: int) -> Work:
        """Post a receive into ``place``."""
        work: Work = self._open().recv([place], peer, tag)
        return work

    def wait(self, work: Work) -> None:
        """Wait until a posted message has been transferred or its connection breaks."""
        work.wait(self._rows)

    def wait_for_news(self, work: Work) -> None:
        """Wait without a practical deadline for a message that may never come."""
        work.wait(_FOREVER)

    def close(self, peers: Iterable[int]) -> None:
        """Break all connections and release the group. Idempotent.

        This ends the waits for messages whose transfer has not begun. Gloo forgets the waits for messages that were
        cut off in transit; such a wait ends by its own deadline.
        """
        with self._closing:
            if self.closed:
                return
            self.closed = True
        for peer in peers:
            with suppress(
                RuntimeError
            ):  # either this connection is broken already, or this breaks all of them
                self.receive(torch.empty(1, dtype=torch.uint8), peer, _NEVER).wait(_AT_ONCE)

        self._group = None

    def _open(self) -> Any:
        """The group, read once because another thread may release it; RuntimeError if it is closed."""
        group = self._group
        if group is None:
            raise RuntimeError("the connections are closed")
        return group
