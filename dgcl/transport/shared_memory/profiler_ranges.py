"""Shows the parts of a call in torch's profiler: sends by peer and stage, waits by their peers."""

import numpy as np
from torch.profiler import record_function

from dgcl.transport.shared_memory.engine import FOUND, PEEK, SENT, advance
from dgcl.transport.shared_memory.tasks import Call, Task
from dgcl.transport.shared_memory.wait_policy import WaitPolicy


def advance_in_ranges(rank: int, call: Call, policy: WaitPolicy) -> int:
    """Advance a call, one send at a time, with a profiler range around each send and each wait; return the status."""
    task, status = call.task, SENT
    while status == SENT:
        with record_function(_wait_label(rank, task)):
            status = advance(task.words, policy, PEEK)
        if status == FOUND:
            send = int(task.where[0])
            with record_function(_send_label(rank, task, send, call.row_type.row_bytes)):
                status = advance(task.words, policy, send)
    return status


def _send_label(rank: int, task: Task, send: int, row_bytes: int) -> str:
    """The name of a rank's send number ``send``."""
    schedule = task.schedule
    peer, stage, rows = schedule.send_peer[send], schedule.send_stage[send], schedule.send_count[send].sum()
    return (
        f"dgcl.{task.label} rank {rank}: stage {stage} to rank {peer}, {rows} rows, {rows * row_bytes} bytes"
    )


def _wait_label(rank: int, task: Task) -> str:
    """The name of a wait for missing rows or for peers that are not ready, with stages and ranks."""
    schedule = task.schedule
    missing = np.flatnonzero(task.received == 0)
    if len(missing):
        pairs = sorted({(int(schedule.recv_stage[i]), int(schedule.recv_peer[i])) for i in missing})
        what = "rows of " + ", ".join(f"stage {stage} from rank {peer}" for stage, peer in pairs)
    else:
        what = "ranks to be ready"
    return f"dgcl.{task.label} rank {rank}: waits for {what}"
