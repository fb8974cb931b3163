"""The wait policy: how long the engine spins, yields and sleeps before it returns to Python.

Ranks that share a core yield it for a while before they sleep. When 4 ranks on 2 cores exchange a few rows, each one
waits for another on its core, and a futex wake-up would take longer than everything else. But a yield may cost a
whole time slice (:mod:`dgcl.kernels.futex`), during which arriving rows go unnoticed. So after an expensive yield the
engine does not yield in many following waits. Their number doubles if the next yield is expensive, too, and halves
after a wait that ended during cheap yields.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dgcl.transport.shared_memory.peers import Peers

#: Nanoseconds to spin; nanoseconds to keep yielding the core between checks of the flags; nanoseconds from which a
#: yield is expensive; how many times to sleep; nanoseconds of a sleep.
WaitPolicy = tuple[int, int, int, int, int]

#: Do not wait.
AT_ONCE: Final[WaitPolicy] = (0, 0, 0, 0, 0)

# A rank with its own core spins for twice the time that a send to a sleeping rank, including its wake-up, takes.
# A rank that shares its core does not spin: it would keep the rank that it waits for from running.
_ALONE: Final = (50_000, 0, 0)
_CROWDED: Final = (2_000, 50_000, 200_000)
_SLEEPS: Final = (4, 5_000_000)
_REMOTE_SLEEPS: Final = (200, 50_000)  # the network does not wake a sleeping rank
_SHORT_SLEEPS: Final = (1, 1_000_000)


def choose_policy(peers: Peers) -> WaitPolicy:
    """Choose the policy of a rank with these peers."""
    here = [cores for peer, cores in enumerate(peers.cores) if peer not in peers.remote]
    awake = _ALONE if fit_on_cores(here) else _CROWDED
    return (*awake, *(_REMOTE_SLEEPS if peers.any_remote else _SLEEPS))


def among_others(policy: WaitPolicy) -> WaitPolicy:
    """Shorten the sleeps of a rank with calls under way on several communicators, each with its own wake-up word."""
    return (*policy[:3], *min(_SHORT_SLEEPS, policy[3:]))


def fit_on_cores(allowed: Sequence[Collection[int]]) -> bool:
    """Whether each rank can have its own core; ``allowed[r]`` are the cores that rank r may run on.

    Finds a matching in a bipartite graph by augmenting paths, in O(ranks x cores allowed).
    """
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
