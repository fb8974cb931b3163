"""Whether the ranks' programs belong together, checked once, when a communicator is made.

Rank 0 makes all programs, so they do unless somebody mixes the shares of two plans, by a stale cache, say.
Then ranks would write where their peers expect something else, and nothing later would notice.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dgcl.errors import DisagreementError
from dgcl.program.model import Program
from dgcl.ranks.control import Control


def check_agreement(control: Control, program: Program) -> None:
    """Compare, for each pair of ranks, what one will send with what the other expects. Collective.

    Raises:
        DisagreementError: On every rank, naming a pair that differs.
    """
    cards = control.exchange((program.num_stages, _digests(program)))
    stages = np.array([num_stages for num_stages, _ in cards])
    if (stages != stages[0]).any():
        odd = int(np.flatnonzero(stages != stages[0])[0])
        raise DisagreementError(
            f"ranks run different plans: rank 0's has {stages[0]} stages, rank {odd}'s has {stages[odd]}"
        )
    if any(digests.shape != cards[0][1].shape for _, digests in cards):
        raise DisagreementError("ranks run different plans: they are for different numbers of ranks")
    sent, expected = np.stack([digests for _, digests in cards]).transpose(1, 0, 2)
    differ = np.argwhere(sent != expected.T)
    if len(differ):
        sender, receiver = differ[0]
        raise DisagreementError(
            f"ranks run different plans: what rank {sender} sends is not what rank {receiver} expects; build"
            " all communicators from one call of build_comm_info"
        )


def _digests(program: Program) -> np.ndarray:
    """``(2, P)`` uint64: of all that this rank sends to each peer, and of all that it expects from each."""
    digests = np.zeros((2, program.world_size), np.uint64)
    for peer in range(program.world_size):
        sends, receives = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
        for schedule in (program.expand, program.fold):
            to, come = schedule.send_peer == peer, schedule.recv_peer == peer
            for table in (schedule.send_stage[to], schedule.send_count[to], schedule.send_to[to]):
                sends.update(table.astype("<i8").tobytes())
            for table in (schedule.recv_stage[come], schedule.recv_count[come], schedule.recv_to[come]):
                receives.update(table.astype("<i8").tobytes())
        for row, digest in enumerate((sends, receives)):
            digests[row, peer] = int.from_bytes(digest.digest(), "little")
    return digests
