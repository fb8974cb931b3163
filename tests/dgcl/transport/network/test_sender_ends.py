"""A sender that marks its last send and ends while the executor asks what a partner that has left still lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dgcl.transport.shared_memory.engine import EXPAND
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.shared_memory.waits import arrived_meanwhile
from tests.samples import named


@named("ends, through", {"all sent": (True, True), "cut off": (False, False)})
def test_what_is_sent_at_the_last_moment_is_not_missing(ends: bool, through: bool) -> None:
    ready = np.array([1], np.int64)
    job: Any = SimpleNamespace(sent=np.zeros(1, np.uint8))

    def is_set() -> bool:
        job.sent[:] = ends
        return True

    job.sender_done = SimpleNamespace(is_set=is_set)
    schedule = SimpleNamespace(
        recv_peer=np.zeros(0, int), recv_stage=np.zeros(0, int), send_peer=np.array([0])
    )
    task: Any = SimpleNamespace(
        verb=EXPAND,
        schedule=schedule,
        sent=np.ones(1, np.uint8),
        received=np.zeros(0, np.uint8),
        remote=np.array([True]),
        peers=np.array([[ready.ctypes.data, ready.ctypes.data]]),
    )
    row_type: Any = None
    call = Call(task, 1, 0, row_type, job=job)
    control_pages: Any = [SimpleNamespace(current_call=lambda: (1, 0))]
    assert arrived_meanwhile(call, 0, control_pages, 1) == through
