"""How long the engine looks for flags before it sleeps, and how long it sleeps before Python looks around.

Ranks that share a core let each other run by yielding it, for a while, before they sleep: of 4 ranks on 2 cores that
exchange a few rows, each waits for what another on its core is about to do, and to be woken takes longer than all the
rest. But a yield may cost a whole time slice (:mod:`dgcl.kernels.futex`), in which rows arrive and nobody looks. So a
yield that was dear is the last one for many waits, for twice as many if the next one is dear, too, and for half as many
after a wait that ended by cheap ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dgcl.transport.shared_memory.peers import Peers

#: Nanoseconds in which to look in vain, then those in which to yield the core between two looks, and those that make a
#: yield dear; then how many naps to take, and nanoseconds of a nap.
Patience = tuple[int, int, int, int, int]

#: Do not wait.
AT_ONCE: Final[Patience] = (0, 0, 0, 0, 0)

# A rank with a core for itself looks for as long as it takes to send and wake a sleeping one, twice over; one that
# shares it would keep the rank that it waits for from working.
_ALONE: Final = (50_000, 0, 0)
_CROWDED: Final = (2_000, 50_000, 200_000)
_NAPS: Final = (4, 5_000_000)
_REMOTE_NAPS: Final = (200, 50_000)  # what comes through the network rings no bell
_SHORT_NAPS: Final = (1, 1_000_000)


def choose_patience(peers: Peers) -> Patience:
    """For a rank with these peers."""
    here = [cores for peer, cores in enumerate(peers.cores) if peer not in peers.remote]
    awake = _ALONE if fit_on_cores(here) else _CROWDED
    return (*awake, *(_REMOTE_NAPS if peers.any_remote else _NAPS))


def among_others(patience: Patience) -> Patience:
    """For a rank that has more than one call under way: what comes for the others rings other bells."""
    return (*patience[:3], *min(_SHORT_NAPS, patience[3:]))


def fit_on_cores(allowed: Sequence[Collection[int]]) -> bool:
    """Whether each rank can have a core for itself, ``allowed[r]`` being those that rank r may run on.

    A matching in a bipartite graph, grown by augmenting paths; O(ranks x cores allowed)."""
    holder: dict[int, int] = {}

    def place(rank: int, tried: set[int]) -> bool:
        for core in allowed[rank]:
            if core not in tried:
                tried.add(core)
                if core not in holder or place(holder[core], tried):
                    holder[core] = rank
                    return True
        return False

    return all(place(rank, set()) for rank in range(len(allowed)))
