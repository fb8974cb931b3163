"""What a communicator says of itself: to people, and to profilers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.profiler import record_function

from dgcl.planner.plan import Plan
from dgcl.program.model import Program
from dgcl.relation.local_graph import LocalGraph


def describe_channels(
    program: Program, reasons: Sequence[str], plan: Plan, local: LocalGraph, choice: str
) -> str:
    """What a rank replicates and why (``choice``), and how rows travel between it and each other rank, and why
    (``reasons``); one line for each."""
    lines = [f"rank {program.rank} of {program.world_size}", *_describe_replicas(program, plan, local)]
    if choice:
        lines.append(f"  {choice}")
    schedule = program.expand
    machine = [device.machine for device in plan.topology.devices]
    for peer, reason in enumerate(reasons):
        if peer == program.rank:
            continue
        if "replication" in plan.meta and machine[peer] != machine[program.rank]:
            reason = "nothing travels: it is on another machine"
        sent = int(schedule.send_count[schedule.send_peer == peer].sum())
        received = int(schedule.recv_count[schedule.recv_peer == peer].sum())
        lines.append(f"  rank {peer}: {reason}; sends {sent} rows, receives {received}")
    return "\n".join(lines)


def _describe_replicas(program: Program, plan: Plan, local: LocalGraph) -> list[str]:
    facts = plan.meta.get("replication")
    if facts is None:
        return []
    return [
        f"  replicated across machines, for {facts['hops']} exchange(s): no row travels between machines; this rank"
        f" keeps {local.num_core} rows of its own and {local.num_replicas} replicas; all machines together hold"
        f" {facts['copies']:.2f} copies of a vertex and {facts['edges']:.2f} of an edge"
    ]


def profiled(program: Program, verb: str, rows: Tensor) -> AbstractContextManager[object]:
    """Around an exchange, so that a profiler that is on shows it."""
    if torch.autograd._profiler_enabled():
        return record_function(label_exchange(program, verb, rows))
    return nullcontext()


def label_exchange(program: Program, verb: str, rows: Tensor) -> str:
    """What a profiler calls the exchange of these rows: who, how much, in how many stages."""
    schedule = program.expand if verb == "expand" else program.fold
    sent = schedule.rows_sent * math.prod(rows.shape[1:]) * rows.dtype.itemsize
    peers = len(set(schedule.send_peer.tolist()))
    return (
        f"dgcl.{verb} rank {program.rank}: {sent} bytes to {peers} peer(s) in {program.num_stages} stage(s)"
    )
