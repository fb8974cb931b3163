"""What must be over when a send begins, at whatever pace the ranks run; read off the programs alone.

A send begins after the receives that it waits for. When a rank has received transfer T, then T is over, all that was
over when T began, and the same of every transfer of an earlier stage from that sender to this rank, since a receiver
counts what each sender has done. Nothing else is known: a rank does not wait for others than those.
"""

from __future__ import annotations

from dgcl.program.model import Program, Schedule

#: A transfer: (stage, sender, receiver).
Transfer = tuple[int, int, int]


class History:
    """What is over when each send of one verb begins, found when first asked for."""

    def __init__(self, programs: list[Program], verb: str) -> None:
        self._schedules: list[Schedule] = [getattr(program, verb) for program in programs]
        self._over: dict[Transfer, frozenset[Transfer]] | None = None

    def over_before(self, stage: int, sender: int, receiver: int) -> frozenset[Transfer]:
        """The transfers that are over when this one begins."""
        if self._over is None:
            self._over = self._find()
        return self._over[stage, sender, receiver]

    def _find(self) -> dict[Transfer, frozenset[Transfer]]:
        over: dict[Transfer, frozenset[Transfer]] = {}
        told: dict[Transfer, frozenset[Transfer]] = {}  # what the arrival of a transfer tells its receiver
        latest: dict[tuple[int, int], Transfer] = {}
        sends = [
            (int(schedule.send_stage[i]), sender, int(schedule.send_peer[i]), i)
            for sender, schedule in enumerate(self._schedules)
            for i in range(len(schedule.send_peer))
        ]
        for stage, sender, receiver, i in sorted(sends):
            transfer = (stage, sender, receiver)
            # One that is not of an earlier stage tells nothing here (and is rejected elsewhere).
            over[transfer] = frozenset().union(*(told.get(x, ()) for x in self._received(sender, i)))
            told[transfer] = over[transfer] | {transfer}
            if (sender, receiver) in latest:
                told[transfer] |= told[latest[sender, receiver]]
            latest[sender, receiver] = transfer
        return over

    def _received(self, rank: int, send: int) -> list[Transfer]:
        """The transfers that a send waits for."""
        schedule = self._schedules[rank]
        waits = schedule.send_deps[schedule.send_dep_ptr[send] : schedule.send_dep_ptr[send + 1]]
        return [(int(schedule.recv_stage[r]), int(schedule.recv_peer[r]), rank) for r in waits.tolist()]
