"""Describes a communicator's plans and channels in text, and labels its calls in torch's profiler.

A line for the plans (stages, relay rows, predicted time), then one for each peer: how rows travel, why, and how many.
Called by `dgcl/communicator`, `dgcl/transport/collective/transport`, `dgcl/transport/cuda/device_exchange` and
`dgcl/transport/shared_memory/transport`. Free to change while the text names plan and channels
(`tests/dgcl/test_messages.py`), and a profiler sees a range for each call
(`tests/dgcl/transport/shared_memory/test_profiler.py`).
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.profiler import record_function

from dgcl.planner.reading.render import seconds
from dgcl.program.exchange import HALO, Exchange
from dgcl.program.rank_program import Program, Schedule
from dgcl.ranks.torch_private import profiler_enabled


def describe_channels(
    exchanges: Mapping[str, Exchange],
    reasons: Sequence[str],
    rank: int,
    choice: str,
) -> str:
    """Describe the plans in one line, and in a line for each other rank how rows travel, and why.

    Args:
        exchanges: Of the communicator, by name.
        reasons: For each rank how rows travel to and from it.
        rank: This rank.
        choice: Why the plan is as it is, where there was a choice.
    """
    lines = [f"rank {rank} of {len(reasons)}; {'; '.join(map(_plan_line, exchanges.values()))}"]
    if choice:
        lines.append(f"  {choice}")
    for peer, reason in enumerate(reasons):
        if peer == rank:
            continue
        rows = [_rows_exchanged(name, exchange.program.expand, peer) for name, exchange in exchanges.items()]
        lines.append(f"  rank {peer}: {'; '.join([reason, *rows])}")
    return "\n".join(lines)


def _plan_line(exchange: Exchange) -> str:
    """Stages, relay rows, predicted time and bound of an exchange."""
    plan, relayed = exchange.plan, exchange.program.num_relay
    where = "" if exchange.name == HALO else f"exchange {exchange.name!r}: "
    stages = f"{plan.num_stages} stage{'s' * (plan.num_stages != 1)}"
    bound = f"bound {seconds(plan.lower_bound_seconds)} as the plan states"
    return (
        f"{where}{plan.method} plan in {stages}, {relayed} relay rows here; predicted"
        f" {seconds(plan.predicted_seconds)} for rows of {plan.row_bytes} bytes on {plan.topology.name}, {bound}"
    )


def _rows_exchanged(name: str, schedule: Schedule, peer: int) -> str:
    """Rows of an expand to and from a peer, in words."""
    sent = int(schedule.send_count[schedule.send_peer == peer].sum())
    received = int(schedule.recv_count[schedule.recv_peer == peer].sum())
    where = "" if name == HALO else f"exchange {name!r}: "
    return f"{where}sends {sent} rows, receives {received}"


def profiled(program: Program, verb: str, rows: Tensor) -> AbstractContextManager[object]:
    """A context manager around an exchange that shows it in an active profiler."""
    if profiler_enabled():
        return record_function(label_exchange(program, verb, rows))
    return nullcontext()


def label_exchange(program: Program, verb: str, rows: Tensor) -> str:
    """The name of an exchange in a profiler: verb, ranks, size and number of stages."""
    schedule = program.expand if verb == "expand" else program.fold
    sent = schedule.rows_sent * math.prod(rows.shape[1:]) * rows.dtype.itemsize
    peers = len(set(schedule.send_peer.tolist()))
    return (
        f"dgcl.{verb} rank {program.rank}: {sent} bytes to {peers} peer(s) in {program.num_stages} stage(s)"
    )
