"""What a communicator says of itself: to people, and to profilers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dgcl.program.model import Program


def describe_channels(program: Program, reasons: Sequence[str]) -> str:
    """How rows travel between a rank and each other rank, and why (``reasons``); one line for each."""
    schedule = program.expand
    lines = [f"rank {program.rank} of {program.world_size}"]
    for peer, reason in enumerate(reasons):
        if peer != program.rank:
            sent = int(schedule.send_count[schedule.send_peer == peer].sum())
            received = int(schedule.recv_count[schedule.recv_peer == peer].sum())
            lines.append(f"  rank {peer}: {reason}; sends {sent} rows, receives {received}")
    return "\n".join(lines)


def label_exchange(program: Program, verb: str, rows: Tensor) -> str:
    """What a profiler calls the exchange of these rows: who, how much, in how many stages."""
    schedule = program.expand if verb == "expand" else program.fold
    sent = schedule.rows_sent * math.prod(rows.shape[1:]) * rows.dtype.itemsize
    peers = len(set(schedule.send_peer.tolist()))
    return (
        f"dgcl.{verb} rank {program.rank}: {sent} bytes to {peers} peer(s) in {program.num_stages} stage(s)"
    )
