"""Defines a program: arrays by which one rank sends, receives and adds rows, stage by stage.

An *expand* sends owned rows to the ranks that need them; a *fold* is its adjoint, and sends sums back to the owners. A
rank's rows are owned, halo (received and needed here) or relay (only passed on); the comment below says how all are
numbered. Ranks compare in pairs what they will exchange (:mod:`dgcl.transport.common.program_agreement`).
Called by `compile`, `exchange`, `dgcl/transport/connect`, `dgcl/transport/shared_memory/tasks`,
`dgcl/transport/cuda/program` and others. Free to change while rows are numbered as said below
(`tests/dgcl/program/test_compile.py`), and results are right at whatever pace ranks run
(`tests/dgcl/program/test_any_pace.py`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Local rows of a rank are numbered by the plan::
#
#     [0, num_owned)                        the items that it owns, in ascending global id, or as the rank gave them
#     [num_owned, num_local)                halo rows, by (arrival stage, sending rank, global id)
#     [num_local, num_local + num_relay)    relay rows, by the same; they live apart from the result
#
# So what one sender brings in one stage is at most two contiguous slices, and the sender writes them in place. A
# *transfer* is (stage, sender, receiver, rows): first the rows that the receiver needs, then those that it only
# passes on, each in ascending global id.
#
# The fold is the same transfers backwards: stage ``K - 1 - k``, sender and receiver swapped. What arrives at a
# rank lies in an arrival buffer, one slice per transfer; ``arrival_rows`` and ``arrival_slots`` say which local
# row each arrival is added to, sorted by row, then slot. A rank sends on, or keeps, its own row plus the
# arrivals, in that order; a relay row is the sum of its arrivals alone.
#
# Every place is written once in a call: relay rows and arrivals each have a slot of their own.


class ProgramError(ValueError):
    """A program's tables contradict its plan."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """What one rank sends and receives in one verb; S sends and R receives, both sorted by (stage, peer).

    Tables with two columns have a column for each kind of rows: 0 for those that the receiver of an expand wants, 1 for
    those that it only passes on.

    Attributes:
        send_peer, send_stage: ``(S,)`` int32.
        send_count: ``(S, 2)`` int64 rows.
        send_from: ``(S, 2)`` int64. Expand: where these rows start in ``Program.send_rows``. Fold: the
            first local row.
        send_to: ``(S, 2)`` int64. Expand: the first local row at the receiver, and the first of its relay
            rows (from 0). Fold: the first slots in the receiver's arrival buffer.
        send_dep_ptr, send_deps: A send waits for the receives ``send_deps[send_dep_ptr[i]:send_dep_ptr[i +
            1]]`` of this rank.
        recv_peer, recv_stage: ``(R,)`` int32.
        recv_count, recv_to: ``(R, 2)`` int64, as ``send_count`` and ``send_to`` of the peer that sends it.
    """

    send_peer: np.ndarray
    send_stage: np.ndarray
    send_count: np.ndarray
    send_from: np.ndarray
    send_to: np.ndarray
    send_dep_ptr: np.ndarray
    send_deps: np.ndarray
    recv_peer: np.ndarray
    recv_stage: np.ndarray
    recv_count: np.ndarray
    recv_to: np.ndarray

    @property
    def rows_sent(self) -> int:
        """Rows that leave this rank."""
        return int(self.send_count.sum())


@dataclass(frozen=True, eq=False)
class Program:
    """What one rank does in every call.

    Attributes:
        rank, world_size, num_stages: Where this program runs, and K, the stages of the plan.
        num_owned, num_halo: Local rows of these kinds.
        owned_ids, halo_ids: Global ids of the owned and the halo rows, int64.
        expand, fold: The two schedules.
        send_rows: int32, local rows of this rank, in the order an expand sends them.
        arrival_rows, arrival_slots: int32, ``(expand.rows_sent,)``: see the module's page.
        places: Integers, ``(num_local + num_relay,)``: where each local row's item stands among all items that some
            rank wants, in the order (class, id); -1: nobody wants it. By these ranks divide rows alike
            (:mod:`dgcl.program.window_programs`).
    """

    rank: int
    world_size: int
    num_stages: int
    num_owned: int
    num_halo: int
    owned_ids: np.ndarray
    halo_ids: np.ndarray
    expand: Schedule
    fold: Schedule
    send_rows: np.ndarray
    arrival_rows: np.ndarray
    arrival_slots: np.ndarray
    places: np.ndarray

    @property
    def num_local(self) -> int:
        """Rows of an expand's result: owned and halo."""
        return self.num_owned + self.num_halo

    @cached_property
    def num_relay(self) -> int:
        """Rows that only pass through this rank in an expand."""
        return int(self.expand.recv_count[:, 1].sum())

    @cached_property
    def num_arrivals(self) -> int:
        """Rows that arrive in a fold: one for each that an expand sends."""
        return self.expand.rows_sent
