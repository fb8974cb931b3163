import os
import socket
from typing import Any

import dgcl
from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.transport.common.peers import Peers
from tests.support.samples import named


def connect(change: Any) -> list[str | None]:
    """What each of two ranks is told when rank 1 gives out ``change(card)`` as its card."""

    def run() -> str | None:
        control = context.require_control()
        exchange, first = control.exchange, True

        def changed(value: Any) -> list[Any]:
            nonlocal first
            card = change(*value) if first and control.rank == 1 else value
            first = False
            return exchange(card)

        control.exchange = changed  # type: ignore[method-assign]
        try:
            peers = Peers(control)
        except CommError as error:
            return str(error)
        peers.close()
        return None

    before = len(os.listdir("/proc/self/fd"))
    said = dgcl.launch(run, 2)
    assert len(os.listdir("/proc/self/fd")) <= before + 4, "files are left open"
    return said


def test_ranks_that_share_memory_connect():
    assert connect(lambda *card: card) == [None, None]


@named(
    "change, why",
    {
        "no such process": (lambda process, *rest: (2**22 + 1, *rest), "No such file"),
        "no such file": (lambda process, descriptor, *rest: (process, 9999, *rest), "No such file"),
        "another process": (lambda *card: (*card[:4], card[4] + 1, card[5]), "that process is another one"),
        "too small": (lambda *card: (*card[:3], 64, *card[4:]), "its control page is too small"),
        "outside the file": (lambda *card: (*card[:2], 1 << 40, *card[3:]), "no segment of"),
    },
)
def test_ranks_that_share_none_are_told_on_both_sides(change: Any, why: str):
    """A rank of another host looks like this: its process id means nothing here, or somebody else."""
    said = connect(change)
    assert said[0] == said[1]
    assert said[0] is not None
    host = socket.gethostname()
    assert said[0].startswith(f"rank 0 on {host} and rank 1 on {host} share no memory: process ")
    assert why in said[0]
    assert "share the PID namespace" in said[0]
