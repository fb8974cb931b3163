"""The interface of a channel to ranks that share no memory with this one.

The network channel (:mod:`dgcl.transport.network`) implements it; :mod:`dgcl.transport.connect` passes it in, so that
nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.segments import Segment
from dgcl.transport.shared_memory.tasks import Call, RemotePart


class RemoteChannel(Protocol):
    """A channel to ranks without shared memory, through stand-ins for their control pages in this rank's memory.

    Attributes:
        lost: Why the connection to a rank was lost, by rank.
        calls_done: Calls that this rank's device did without the channel; sent to the peers on closing.
    """

    lost: dict[int, str]
    calls_done: int

    def start(self, call: Call, places: Sequence[tuple[Segment, int]]) -> RemotePart:
        """Begin a call; ``places`` are (segment, offset) of its buffer and of its relay rows."""

    def post_wait(self, peer: int) -> None:
        """Tell the peers that this rank waits for ``peer``."""

    def post_failure(self, error: CommError) -> None:
        """Stop reading rows, and tell the peers why this rank gave up."""

    def close(self) -> None:
        """Tell the peers and break the connections. Idempotent."""


#: (control, peers, programs, K, timeout, bytes_sent) -> the channel. Collective over all ranks of a job in which any
#: two ranks share no memory.
OpenNetwork = Callable[[Control, Peers, Sequence[Program], int, float, np.ndarray], RemoteChannel]
