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

#: Tags of what ranks tell each other, of rows, and of what is never sent.
NEWS: Final = 1
ROWS: Final = 2
_NEVER: Final = 3

# A wait that times out breaks the group, so waits for what a partner may have to say have no deadline that anybody
# could live to see. Rows come within some deadlines of the executor's or not at all.
_FOREVER: Final = timedelta(days=100)
_DEADLINES: Final = 10
_AT_ONCE: Final = timedelta(milliseconds=1)


class Wire:
    """Messages of bytes between the ranks of a Gloo group that is used for nothing else.

    Errors of Gloo (a connection that broke) come as RuntimeError, from posting or from waiting, and so does use after
    :meth:`close`.

    Args:
        group: The group.
        timeout: Seconds after which a rank gives up a call in which nothing happens.
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
        """Wait for a message that was posted, until it is through or its connection breaks."""
        work.wait(self._rows)

    def wait_for_news(self, work: Work) -> None:
        """Wait for a message that may never come."""
        work.wait(_FOREVER)

    def close(self, peers: Iterable[int]) -> None:
        """Break all connections, and give the group up. Idempotent.

        This ends the waits for messages that have not begun to travel. Gloo forgets who waits for those that
        were cut off on their way; such a wait ends by its own deadline.
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
        """The group; looked at once, because another thread may be giving it up."""
        group = self._group
        if group is None:
            raise RuntimeError("the connections are closed")
        return group
