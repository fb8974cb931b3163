"""The wait policy: how long the engine spins, yields and sleeps before it returns to Python.

A rank spins for a moment, yields its core for a while, and sleeps. One policy serves ranks that have a core each and
ranks that share cores, because each yield measures which it is. On a core of its own a yield returns at once, so yields
are as good as spinning. Where the ranks on a core exchange a few rows, each one waits for another on that core (also 2
ranks on 2 cores, where the operating system has put both on one), and spinning would keep that one from running,
while a futex wake-up would take longer than everything else. But a yield may cost a whole time slice
(:mod:`dgcl.kernels.futex`), during which arriving rows go unnoticed. So after an expensive yield the engine does not
yield in many following waits. Their number doubles if the next yield is expensive, too, and halves after a wait that
ended during cheap yields.
"""

#: Nanoseconds to spin; nanoseconds to keep yielding the core between checks of the flags; nanoseconds from which a
#: yield is expensive; how many times to sleep; nanoseconds of a sleep.
WaitPolicy = tuple[int, int, int, int, int]

#: Do not wait.
AT_ONCE: WaitPolicy = (0, 0, 0, 0, 0)

#: Spin, yield, and sleep.
POLICY: WaitPolicy = (2_000, 50_000, 200_000, 4, 5_000_000)

_SHORT_SLEEPS = (1, 1_000_000)


def among_others(policy: WaitPolicy) -> WaitPolicy:
    """Shorten the sleeps of a rank with calls under way on several communicators, each with its own wake-up word."""
    return (*policy[:3], *min(_SHORT_SLEEPS, policy[3:]))
