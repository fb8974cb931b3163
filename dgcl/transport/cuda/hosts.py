"""The hosts agree on a call before any of them enqueues it: which call it is, and where each wants its rows.

An exchange of one row per rank through shared memory. It brings every host into step, so that errors of ranks which
are late, gone or in another call are those of the CPU's calls; and it makes waits on devices safe. Driver functions may
wait for kernels that run (to allocate, open or load), and a kernel waits for other devices. When a host calls such a
function for call n, all hosts have begun to agree on n or are about to, so all have enqueued what precedes n - 1, and
none needs this host to enqueue n - 1: every kernel that runs will end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dgcl.errors import DisagreementError
from dgcl.program.model import Program, Schedule
from dgcl.ranks.control import Control
from dgcl.transport.common.agreement import connect_peers
from dgcl.transport.common.calls import unpack_tag
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.transport import SharedMemoryTransport


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
    """The program of a rank that sends one row of its own to each other rank, and gets theirs in their order."""
    peers = np.delete(np.arange(world_size, dtype=np.int32), rank)
    number = np.arange(len(peers), dtype=np.int64)
    place_there = np.where(rank < peers, rank, rank - 1)

    def schedule(send_from: np.ndarray, send_to: np.ndarray, recv_to: np.ndarray) -> Schedule:
        stages, one = np.zeros(len(peers), np.int32), np.ones(len(peers), np.int64)
        none = np.zeros(len(peers) + 1, np.int64)
        count, *places = (np.stack([column, 0 * one], 1) for column in (one, send_from, send_to, recv_to))
        return Schedule(
            send_peer=peers,
            send_stage=stages,
            send_count=count,
            send_from=places[0],
            send_to=places[1],
            send_dep_ptr=none,
            send_deps=stages[:0],
            recv_peer=peers,
            recv_stage=stages,
            recv_count=count,
            recv_to=places[2],
        )

    return Program(
        rank=rank,
        world_size=world_size,
        num_stages=1,
        num_owned=1,
        num_halo=len(peers),
        owned_ids=np.array([rank]),
        halo_ids=peers.astype(np.int64),
        expand=schedule(number, 1 + place_there, 1 + number),
        fold=schedule(1 + number, place_there, number),
        send_rows=np.zeros(len(peers), np.int32),
        arrival_rows=np.zeros(len(peers), np.int32),
        arrival_slots=np.arange(len(peers), dtype=np.int32),
        places=np.array([rank, *peers]),
    )
