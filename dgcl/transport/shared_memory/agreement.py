"""Checks, when a communicator is made, that the programs of all ranks match.

Rank 0 makes all programs, so they match unless parts of two plans are mixed, by a stale cache for example. Then ranks
would write where their peers expect other rows, and no later check would notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dgcl.errors import CommError, DisagreementError
from dgcl.program.exchange import HALO
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.waits import MOST_EXCHANGES


def connect_peers(programs: Mapping[str, Program], control: Control, channel: str) -> Peers:
    """Compare the programs of all ranks, and connect this one with the others. Collective.

    Raises:
        CommError, ValueError: As of :class:`~dgcl.transport.shared_memory.peers.Peers` and of
            :func:`check_agreement`; on every rank.
    """
    try:
        check_agreement(control, programs)
        return Peers(control, channel)
    except (CommError, ValueError):  # all ranks raise it
        raise
    except BaseException as error:  # the others would wait for this rank in their next exchange
        control.leave(f"was stopped by {type(error).__name__}: {error}")
        raise


def check_agreement(control: Control, programs: Mapping[str, Program], num_before: int = 0) -> None:
    """Compare, for each exchange and pair of ranks, what one will send with what the other expects. Collective.

    Args:
        control: The control plane.
        programs: This rank's programs by the names of their exchanges.
        num_before: Exchanges that the communicator has already.

    Raises:
        DisagreementError: An exchange and a pair of ranks do not match; on every rank, with both named.
        ValueError: There are no exchanges, or too many.
    """
    if not 0 < len(programs) <= MOST_EXCHANGES - num_before:
        raise ValueError(
            f"exchanges: expected 1 to {MOST_EXCHANGES}, windows included (got {num_before + len(programs)})"
        )
    found = control.exchange([(name, p.num_stages, _digests(p)) for name, p in programs.items()])
    names = [[name for name, _, _ in theirs] for theirs in found]
    if any(theirs != names[0] for theirs in names):
        odd = next(rank for rank, theirs in enumerate(names) if theirs != names[0])
        raise DisagreementError(
            f"ranks have different exchanges: rank 0 has {', '.join(names[0])}, rank {odd} has"
            f" {', '.join(names[odd])}"
        )
    for number, name in enumerate(names[0]):
        _compare([theirs[number][1:] for theirs in found], name)


def _compare(found: Sequence[tuple[int, np.ndarray]], name: str) -> None:
    """Raise unless the (stages, digests) of all ranks for one exchange match."""
    where = "" if name == HALO else f" for exchange {name!r}"
    stages = np.array([num_stages for num_stages, _ in found])
    if (stages != stages[0]).any():
        odd = int(np.flatnonzero(stages != stages[0])[0])
        raise DisagreementError(
            f"ranks run different plans{where}: rank 0's has {stages[0]} stages, rank {odd}'s has {stages[odd]}"
        )
    if any(digests.shape != found[0][1].shape for _, digests in found):
        raise DisagreementError(f"ranks run different plans{where}: they are for different numbers of ranks")
    sent, expected = np.stack([digests for _, digests in found]).transpose(1, 0, 2)
    differ = np.argwhere(sent != expected.T)
    if len(differ):
        sender, receiver = differ[0]
        raise DisagreementError(
            f"ranks run different plans{where}: what rank {sender} sends is not what rank {receiver} expects;"
            " build all communicators from one call of build_comm_info"
        )


def _digests(program: Program) -> np.ndarray:
    """``(2, P)`` uint64: digests of everything sent to each peer, and of everything expected from each."""
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
