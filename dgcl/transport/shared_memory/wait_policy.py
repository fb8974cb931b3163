"""The wait policy: how long the engine spins, yields and sleeps before Python looks at deadlines and peers.

Ranks that share a core yield it for a while before they sleep: of 4 ranks on 2 cores that exchange a few rows,
each waits for what another on its core is about to do, and a futex wake-up takes longer than all the rest. But a
yield may cost a whole time slice (:mod:`dgcl.kernels.futex`), in which rows arrive and nobody sees them. So an
expensive yield is the last one for many waits, for twice as many if the next one is expensive, too, and for half
as many after a wait that cheap ones ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dgcl.transport.shared_memory.peers import Peers

#: Nanoseconds to spin, then nanoseconds to yield the core between two looks at the flags, and nanoseconds that make a
#: yield expensive; then how many times to sleep, and nanoseconds of a sleep.
WaitPolicy = tuple[int, int, int, int, int]

#: Do not wait.
AT_ONCE: Final[WaitPolicy] = (0, 0, 0, 0, 0)

# A rank with a core for itself spins for twice as long as it takes to send to a sleeping one and wake it; one that
# shares # its core would keep the rank that it waits for from working.
_ALONE: Final = (50_000, 0, 0)
_CROWDED: Final = (2_000, 50_000, 200_000)
_SLEEPS: Final = (4, 5_000_000)
_REMOTE_SLEEPS: Final = (200, 50_000)  # what comes through the network wakes nobody
_SHORT_SLEEPS: Final = (1, 1_000_000)


def choose_policy(peers: Peers) -> WaitPolicy:
    """Choose the policy of a rank with these peers."""
    here = [cores for peer, cores in enumerate(peers.cores) if peer not in peers.remote]
    awake = _ALONE if fit_on_cores(here) else _CROWDED
    return (*awake, *(_REMOTE_SLEEPS if peers.any_remote else _SLEEPS))


def among_others(policy: WaitPolicy) -> WaitPolicy:
    """Shorten the sleeps of a rank with several calls under way: other communicators have wake-up words of their
    own."""
    return (*policy[:3], *min(_SHORT_SLEEPS, policy[3:]))


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
