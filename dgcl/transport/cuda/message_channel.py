"""The interface of what carries rows between machines from device to device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """Bytes that go to a rank, or come from one.

    Attributes:
        peer: The rank.
        address: Where they are, or are to be, on this rank's device.
        num_bytes: How many, at least one.
    """

    peer: int
    address: int
    num_bytes: int


class MessageChannel(Protocol):
    """Groups of messages between the ranks of a job, in the order of a stream.

    Between two ranks the k-th send of one meets the k-th receive of the other, over all groups.
    """

    def group(self, sends: Sequence[Message], receives: Sequence[Message], stream: int) -> None:
        """Enqueue some messages on a stream as one group: none waits for another. The host does not wait.

        Messages whose other end never comes stay in the stream until :meth:`abort`.

        Raises:
            CommError: They cannot be enqueued.
        """

    def abort(self) -> None:
        """End all that is under way, and take nothing more. Idempotent, in any thread; may take long."""

    def close(self) -> None:
        """Give the connections up when all that is under way has been delivered. Idempotent; may take long."""
