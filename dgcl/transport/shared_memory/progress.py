"""Runs the compiled engine on a call: in one go, or one send at a time for a profiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.profiler import record_function

from dgcl.ranks.torch_private import profiler_enabled
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import ALL, FOUND, PEEK, SENT, advance
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.profiler_ranges import send_label, wait_label
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.shared_memory.wait_policy import WaitPolicy


class ProgressEngine:
    """Runs the compiled engine on calls, and holds the arrays that it needs besides the call.

    Args:
        rank: This rank.
        num_stages: The largest number of stages of any program of the communicator.
        peers, control_page: The communicator's.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer; added to.
    """

    def __init__(
        self, rank: int, num_stages: int, peers: Peers, control_page: ControlPage, bytes_sent: np.ndarray
    ) -> None:
        self._rank, self._num_stages, self._peers = rank, num_stages, peers
        self._wake_word, self._bytes_sent = control_page.wake_address, bytes_sent

    def run(self, call: Call, policy: WaitPolicy) -> int:
        """Do what can be done, wait as ``policy`` says, and return the status of :func:`advance`."""
        if profiler_enabled():
            return self._in_ranges(call, policy)
        return self._advance(call, policy)

    def _advance(self, call: Call, policy: WaitPolicy, chosen: int = ALL) -> int:
        task, row_type = call.task, call.row_type
        maps: Any = self._peers.maps
        row_bytes = row_type.row_bytes
        status: int = advance(
            (
                task.verb,
                call.number,
                self._num_stages,
                call.tag,
                row_bytes,
                row_type.sum_code,
                task.streamed_from(row_bytes),
            ),
            call.buffers,
            task.sends,
            task.receives,
            task.tables,
            task.lines,
            maps,
            task.wake_words,
            self._wake_word,
            task.sent,
            task.received,
            self._bytes_sent[task.counted, task.verb],
            task.where,
            task.times,
            policy,
            task.yields,
            task.scratch,
            chosen,
        )
        return status

    def _in_ranges(self, call: Call, policy: WaitPolicy) -> int:
        """Do as :meth:`_advance`, one send at a time, with a profiler range around each send and each wait."""
        while True:
            with record_function(wait_label(self._rank, call.task)):
                status = self._advance(call, policy, PEEK)
            if status != FOUND:
                return status
            send = int(call.task.where[0])
            with record_function(send_label(self._rank, call.task, send, call.row_type.row_bytes)):
                status = self._advance(call, policy, send)
            if status != SENT:
                return status
