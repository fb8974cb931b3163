"""Makes all hosts agree on a GPU call before one enqueues it, and exchanges the addresses of its buffers.

An exchange of one row per rank through shared memory. It brings every host into step, so that errors of ranks which are
late, gone or in another call are those of the CPU's calls; and it makes waits on devices safe. Driver functions may
wait for kernels that run (to allocate, open or load), and a kernel waits for other devices; the comment below says why
every kernel that runs will end.
Called by `device_exchange`. Free to change while different calls and absent ranks are named
(`tests/dgcl/transport/cuda/test_faults.py`), and a driver may wait for kernels wherever it likes
(`tests/dgcl/transport/cuda/test_exchange.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dgcl.errors import DisagreementError
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.program import Program, compile_programs
from dgcl.ranks.control import Control
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import demand_of_pairs
from dgcl.topology import resolve_topology
from dgcl.transport.common.calls import unpack_tag
from dgcl.transport.common.program_agreement import connect_peers
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

# Why every kernel that runs will end: when a host calls a driver function that may wait for kernels, for call n, all
# hosts have begun to agree on n or are about to, so all have enqueued what precedes n - 1, and none needs this host to
# enqueue n - 1.


class Hosts:
    """One rank's host among those of the others. Construction is collective.

    Attributes:
        runtime: Carries the rows; its failure is that of the communicator.
    """

    def __init__(self, control: Control, timeout: float, names: Sequence[str]) -> None:
        self._rank, self._names = control.rank, names
        programs = {"addresses": all_to_all(control.rank, control.world_size)}
        self.runtime = Runtime(programs, connect_peers(programs, control, "memory"), timeout)
        self._transport = SharedMemoryTransport(self.runtime)

    def agree(self, call: int, tag: int, words: Sequence[int]) -> np.ndarray:
        """``(P, W)`` the words of every rank for its next call. Collective.

        Args:
            call: The call's number.
            tag: What it is, the same on every rank.
            words: ``(W,)`` integers of this rank.

        Raises:
            DisagreementError: Ranks make different calls; on every rank.
            CommError: A rank is late, gone, or has failed.
        """
        row = torch.tensor([[call, tag, *words]], dtype=torch.int64)
        own, *others = self._transport.expand(row).numpy()
        rows = np.stack([*others[: self._rank], own, *others[self._rank :]])
        for rank, (number, theirs) in enumerate(rows[:, :2].tolist()):
            if (number, theirs) != (call, tag):
                error = DisagreementError(
                    f"ranks make different calls: rank {self._rank} is in call {call}: "
                    f"{unpack_tag(tag, self._names)}; rank {rank} is in call {number}: "
                    f"{unpack_tag(theirs, self._names)}. Every rank must make the same calls with the same row"
                    " shape and dtype, in the same order"
                )
                self.runtime.fail(error)
                raise error
        return rows[:, 2:]


def all_to_all(rank: int, world_size: int) -> Program:
    """The program of a rank that gives one row to each other rank, and gets theirs, in rank order."""
    ranks = np.arange(world_size, dtype=np.int32)
    owners, readers = np.repeat(ranks, world_size), np.tile(ranks, world_size)
    classes = build_classes(demand_of_pairs(ranks, owners, readers, world_size))
    plan = make_plan(classes.relation, resolve_topology("uniform", world_size), "direct", PlanOptions())
    return compile_programs(plan, classes)[rank]
