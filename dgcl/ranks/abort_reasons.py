"""Writes down why a rank has left the job, for ranks that only see its connections break.

A broken connection names its other end, which may have left only because of a third rank. So a rank that leaves first
writes whose fault it was into the store that the ranks met by, and then closes its connections. A rank that died has
written nothing. The store may have died with the rank that keeps it: nothing here waits longer than half a second.

Called by `group_control` and `object_messages`. Free to change while others read what a rank of their group wrote, and
a store that is gone is reported and not waited for (`tests/dgcl/ranks/test_control.py`). In a row of ranks that wait
for each other the last is named (`tests/dgcl/ranks/test_watch.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dgcl.errors import ERROR_CODES, CommError, PeerLostError, code_of
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.rendezvous import store_in_time, stored

if TYPE_CHECKING:
    from torch.distributed import Store

_STORE_TIMEOUT = 0.5  # seconds


@dataclass(frozen=True)
class AbortReason:
    """Why a rank has left.

    Attributes:
        culprit: The rank whose fault it was: itself, or one that it had waited for.
        clause: What is the matter with the culprit, beginning with its name.
        kind: The error that those who needed the rank raise.
    """

    culprit: int
    clause: str
    kind: type[CommError] = PeerLostError


class AbortReasons:
    """The reasons of the ranks of one group.

    Args:
        store: Where they are written; a part of the ranks' store that belongs to this group alone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, rank: int, reason: AbortReason) -> None:
        """Write down why ``rank`` leaves; others see it when this returns, if the store still answers."""
        value = [reason.culprit, reason.clause, code_of(reason.kind)]
        store_in_time(self._store, str(rank), json.dumps(value))

    def read(self, rank: int) -> AbortReason | None:
        """Why ``rank`` has left; None where it has written nothing.

        Raises:
            ConnectionError: The store does not answer.
        """

        entry = self._read(str(rank))
        if entry is None:
            return None
        culprit, clause, code = entry
        return AbortReason(culprit, clause, ERROR_CODES[code])

    def post_wait(self, rank: int, number: int, peer: int) -> None:
        """Write down that ``rank`` has waited long for ``peer``, in its swap of this number."""
        store_in_time(self._store, f"{rank} waits", json.dumps([number, peer]))

    def wait_of(self, rank: int) -> Any:
        """(number, peer) that ``rank`` has written down last, itself as the peer where it works; None: nothing.

        Raises:
            ConnectionError: The store does not answer.
        """
        return self._read(f"{rank} waits")

    def last_in_row(self, rank: int, peer: int) -> int:
        """The rank at the end of a chain of waits: ``rank`` waits for ``peer``, which may wait for another.

        A rank that has begun a swap has sent what others need of it there. So who waits for such a rank could have what
        it waits for: it is itself the one that does not go on.

        Raises:
            ConnectionError: The store does not answer.
        """
        seen = {rank, peer}
        waits = self.wait_of(peer)
        while waits is not None and waits[1] not in seen:
            number, after = waits
            waits = self.wait_of(after)
            if waits is not None and waits[0] >= number:
                break
            peer = after
            seen.add(peer)
        return peer

    def _read(self, key: str) -> Any:
        """What is under a key; None: nothing. ConnectionError: the store does not answer."""
        try:
            text = in_time(lambda: stored(self._store, key), _STORE_TIMEOUT)
        except (TimeoutError, RuntimeError):
            raise ConnectionError("the store that the ranks met by does not answer") from None
        return None if text is None else json.loads(text)
