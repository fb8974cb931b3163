"""How long the engine looks for flags before it sleeps, and how long it sleeps before Python looks around."""

from __future__ import annotations

from typing import Final

from dgcl.runtime.peers import Peers
from dgcl.threads import available_cores

#: Nanoseconds in which to look in vain, then how many naps to take, and nanoseconds of a nap.
Patience = tuple[int, int, int]

#: Do not wait.
AT_ONCE: Final[Patience] = (0, 0, 0)

# A rank with a core for itself looks for as long as it takes to send and wake a sleeping one, twice over; one that
# shares it would keep the rank that it waits for from working.
_LOOK_ALONE: Final = 50_000
_LOOK_CROWDED: Final = 2_000
_NAPS: Final = (4, 5_000_000)
_REMOTE_NAPS: Final = (200, 50_000)  # what comes through the network rings no bell


def choose_patience(peers: Peers) -> Patience:
    """For a rank with these peers."""
    crowded = peers.world_size - len(peers.remote) > available_cores()
    return (_LOOK_CROWDED if crowded else _LOOK_ALONE, *(_REMOTE_NAPS if peers.any_remote else _NAPS))
