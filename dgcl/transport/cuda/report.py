"""Error messages from a snapshot of a rank's flags: which peers it waits for, and which make another call.

The messages are those of :mod:`dgcl.transport.shared_memory.executor`, from a copy of the flags on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dgcl.errors import DisagreementError
from dgcl.kernels.cuda_tables import CALL
from dgcl.program.model import Program, Schedule
from dgcl.transport.cuda.control_block import Snapshot
from dgcl.transport.shared_memory.tasks import call_label
from dgcl.transport.shared_memory.waits import count_rows, exchange_of_tag, unpack_tag, verb_of_tag

_MOST_WAITS = 5  # in a message

#: (stage, peer, what is needed of it)
Wait = tuple[int, int, str]


def schedule_of(programs: Sequence[Program], tag: int) -> Schedule:
    """What a rank sends and receives in a call with this tag."""
    program = programs[exchange_of_tag(tag)]
    return (program.expand, program.fold)[verb_of_tag(tag)]


def place(rank: int, names: Sequence[str], call: int, tag: int) -> str:
    """Where a rank is, as messages begin; ``names`` are those of the exchanges."""
    return f"rank {rank}, {call_label(exchange_of_tag(tag), verb_of_tag(tag), names)} (call {call})"


def awaited(programs: Sequence[Program], snapshot: Snapshot, tag: int) -> list[Wait]:
    """What this rank's current call still needs of its peers; the earliest stage first."""
    call = snapshot.state(CALL)
    schedule, num_stages = schedule_of(programs, tag), programs[0].num_stages
    waits: list[Wait] = []
    for peer, stage, count in zip(
        schedule.recv_peer.tolist(), schedule.recv_stage.tolist(), schedule.recv_count.sum(1), strict=True
    ):
        if snapshot.done(peer) < call * num_stages + stage + 1:
            waits.append((stage, peer, f"stage {stage}: {count_rows(count)} missing from rank {peer}"))
    for peer, stage, count in zip(
        schedule.send_peer.tolist(), schedule.send_stage.tolist(), schedule.send_count.sum(1), strict=True
    ):
        if snapshot.ready(peer)[0] < call:
            waits.append(
                (stage, peer, f"stage {stage}: rank {peer} is not ready to receive {count_rows(count)}")
            )
    return sorted(waits)


def suspects(waits: list[Wait], snapshot: Snapshot) -> str:
    """What is waited for, ranks that have not begun the call before those that may wait themselves."""
    call = snapshot.state(CALL)
    begun = {peer: snapshot.ready(peer)[0] >= call for _, peer, _ in waits}
    waits = sorted(waits, key=lambda wait: begun[wait[1]])
    known = [
        f"{needed} (it {'is in this call' if begun[peer] else 'has not begun this call'})"
        for _, peer, needed in waits[:_MOST_WAITS]
    ]
    more = len(waits) - len(known)
    return "; ".join(known) + (f"; and {more} more" if more else "")


def differing(
    rank: int,
    names: Sequence[str],
    snapshot: Snapshot,
    tag: int,
    peers: Iterable[int],
    staged: frozenset[int],
) -> DisagreementError | None:
    """Which of some peers, whom this rank's call needs, makes another call; None: nobody.

    One in ``staged``, reached through the host, may be done with a call whose rows are still in the slots.
    """
    call = snapshot.state(CALL)
    for peer in peers:
        theirs, their_tag = snapshot.ready(peer)
        if (theirs > call and peer not in staged) or (theirs == call and their_tag != tag):
            what = f"rank {peer} is in call {theirs}: {unpack_tag(their_tag, names)}"
            return disagreement(rank, names, call, tag, what)
    return None


def disagreement(rank: int, names: Sequence[str], call: int, tag: int, others: str) -> DisagreementError:
    """The error; ``others`` says who does what instead."""
    return DisagreementError(
        f"ranks make different calls: rank {rank} is in call {call}: {unpack_tag(tag, names)}; {others}. "
        "Every rank must make the same calls with the same row shape and dtype, in the same order"
    )
