"""Checks, when a communicator is made, that what each rank sends is what its peers expect.

Programs do not match where parts of two plans are mixed, by a stale cache for example, or where a compiler is wrong.
Ranks would write where their peers expect other rows, and no later check would notice. Compared are digests of each
pair of ranks.
Called by `life_cycle`, `dgcl/transport/connect`, `dgcl/transport/cuda/device_exchange`,
`dgcl/transport/cuda/host_agreement` and `dgcl/calibration/timing`. Free to change while a single row that goes
elsewhere is an error on every rank, with exchange and pair (`tests/dgcl/transport/common/test_agreement.py`).
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dgcl.errors import DisagreementError
from dgcl.program.exchange import HALO
from dgcl.program.rank_program import Program
from dgcl.ranks.control import Control
from dgcl.ranks.set_up import leaving
from dgcl.ranks.whole_rows import agree
from dgcl.transport.common.calls import MOST_EXCHANGES
from dgcl.transport.common.peers import Peers


def connect_peers(programs: Mapping[str, Program], control: Control, channel: str) -> Peers:
    """Compare the programs of all ranks, and connect this one with the others. Collective.

    Raises:
        CommError, ValueError: As of :class:`~dgcl.transport.common.peers.Peers` and of
            :func:`check_agreement`; on every rank.
    """
    with leaving(control):
        check_agreement(control, programs)
        return Peers(control, channel)


def check_agreement(
    control: Control, programs: Mapping[str, Program], num_before: int = 0, problem: Exception | None = None
) -> None:
    """Compare, for each exchange and pair of ranks, what one will send with what the other expects. Collective.

    Args:
        control: The control plane.
        programs: This rank's programs by the names of their exchanges.
        num_before: Exchanges that the communicator has already.
        problem: Why this rank can add none.

    Raises:
        DisagreementError: An exchange and a pair of ranks do not match; on every rank, with both named.
        ValueError: There are no exchanges, or too many; or a rank has a problem, which itself raises that.
    """
    if not 0 < len(programs) <= MOST_EXCHANGES - num_before:
        raise ValueError(
            f"exchanges: expected 1 to {MOST_EXCHANGES}, windows included (got {num_before + len(programs)})"
        )
    stated = agree(control, problem, [(name, p.num_stages, digests_of(p)) for name, p in programs.items()])
    names = [[name for name, _, _ in theirs] for theirs in stated]
    if any(theirs != names[0] for theirs in names):
        odd = next(rank for rank, theirs in enumerate(names) if theirs != names[0])
        raise DisagreementError(
            f"ranks have different exchanges: rank 0 has {', '.join(names[0])}, rank {odd} has"
            f" {', '.join(names[odd])}"
        )
    for number, name in enumerate(names[0]):
        _compare([theirs[number][1:] for theirs in stated], name)


def _compare(stated: Sequence[tuple[int, np.ndarray]], name: str) -> None:
    """Raise unless the (stages, digests) of all ranks for one exchange match."""
    where = "" if name == HALO else f" for exchange {name!r}"
    stages = np.array([num_stages for num_stages, _ in stated])
    if (stages != stages[0]).any():
        odd = int(np.flatnonzero(stages != stages[0])[0])
        raise DisagreementError(
            f"ranks run different plans{where}: rank 0's has {stages[0]} stages, rank {odd}'s has {stages[odd]}"
        )
    if any(digests.shape != stated[0][1].shape for _, digests in stated):
        raise DisagreementError(f"ranks run different plans{where}: they are for different numbers of ranks")
    sent, expected = np.stack([digests for _, digests in stated]).transpose(1, 0, 2)
    differ = np.argwhere(sent != expected.T)
    if len(differ):
        sender, receiver = differ[0]
        raise DisagreementError(
            f"ranks run different plans{where}: what rank {sender} sends is not what rank {receiver} expects;"
            " build all communicators from one call of build_comm_info"
        )


def digests_of(program: Program) -> np.ndarray:
    """``(2, P)`` uint64: digests of everything sent to each peer, and of everything expected from each.

    Of each transfer where it goes, and which items its rows are, by their places among all items.
    """
    digests = np.zeros((2, program.world_size), np.uint64)
    rows = np.arange(program.num_local + program.num_relay)
    row_of_slot = np.empty(program.num_arrivals, np.int64)
    row_of_slot[program.arrival_slots] = program.arrival_rows
    expand, fold = program.expand, program.fold
    received = expand.recv_to + np.array([0, program.num_local])
    sides = (
        ("send", ((expand, program.send_rows, expand.send_from), (fold, rows, fold.send_from))),
        ("recv", ((expand, rows, received), (fold, row_of_slot, fold.recv_to))),
    )
    for side, (end, verbs) in enumerate(sides):
        for peer in range(program.world_size):
            digest = hashlib.blake2b(digest_size=8)
            for schedule, rows_there, first in verbs:
                here = getattr(schedule, f"{end}_peer") == peer
                stage, count, to = (
                    getattr(schedule, f"{end}_{name}")[here] for name in ("stage", "count", "to")
                )
                for table in (stage, count, to * (count > 0)):
                    digest.update(table.astype("<i8").tobytes())
                for start, size in zip(first[here].ravel(), count.ravel(), strict=True):
                    digest.update(program.places[rows_there[start : start + size]].tobytes())
            digests[side, peer] = int.from_bytes(digest.digest(), "little")
    return digests
