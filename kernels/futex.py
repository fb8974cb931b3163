"""Puts a rank to sleep until another thread or process wakes it, by Linux's futex on shared memory.

The word slept on is the rank's wake word: AWAKE, ASLEEP, or ATTEND (woken for something else than a flag).
Called by `dgcl/transport/common/words`, `dgcl/transport/precompile` and `dgcl/transport/shared_memory/engine`. Free to
change while no wake-up is lost, also one that comes just before the sleep, and each sleep ends after its time at the
latest (`tests/kernels/test_futex.py`).
"""

import platform

from numba import int64, types, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import load_acquire, monotonic_nanoseconds, store_release, write_fence

#: What a wake word says: nobody sleeps, or has been woken; somebody may sleep; something else than a flag has changed.
AWAKE, ASLEEP, ATTEND = 0, 1, 2

# futex(2), which libc has no function for; between processes, so without FUTEX_PRIVATE_FLAG.
_system_call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_FUTEX = {"x86_64": 202, "ppc64le": 221}.get(platform.machine(), 98)
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_SECOND = 1_000_000_000


# A rank waits for flags that several peers raise, in places of their own, so there is no single flag to sleep on.
# It sleeps on its wake word, and whoever raises a flag for it wakes it::
#
#     sleeper                                       waker
#     set the wake word to ASLEEP; fence            raise a flag; fence
#     look at all flags once more                   if the word is ASLEEP: set it to AWAKE, wake the sleeper
#     sleep as long as the word is ASLEEP
#
# Of the two fences one comes first: either the sleeper's second look sees the flag, or the waker sees the word.
# The kernel of the operating system looks at the word once more before it lets anybody sleep. So no wake-up is
# lost. A waker that dies between its flag and its wake-up costs the sleeper the rest of its sleep, which ends by
# itself.
#
# Why not yield the core instead, again and again: since Linux 6.18 a thread that calls ``sched_yield`` gives up a
# whole time slice (about 3 ms) to whatever else wants to run on that core, and on any kernel it stays in
# everybody's way. Sleeping ranks leave their cores to those that have work. Where all other threads of a core are
# about to wait themselves, though, yielding is several times cheaper than to sleep and be woken. So a rank may
# yield first, as long as that costs little (:data:`dgcl.transport.shared_memory.engine.POLICY`).


@compiled(void(int64, int64))
def wake(wake_word: int, value: int) -> None:
    """Wake the thread that sleeps on ``wake_word``, if any, and leave ``value`` there; call it after raising a flag."""
    write_fence()
    if load_acquire(wake_word) == ASLEEP:
        store_release(wake_word, value)
        _system_call(_FUTEX, wake_word, _FUTEX_WAKE, 1, 0, 0, 0)


@compiled(void(int64))
def announce_sleep(wake_word: int) -> None:
    """Ask to be woken from now on. Then look at all flags once more, then :func:`sleep` or :func:`cancel_sleep`."""
    store_release(wake_word, ASLEEP)
    write_fence()


@compiled(void(int64))
def cancel_sleep(wake_word: int) -> None:
    """Ask not to be woken any more."""
    store_release(wake_word, AWAKE)


@compiled(int64(int64, int64, int64))
def sleep(wake_word: int, nanoseconds: int, scratch: int) -> int:
    """Sleep until woken, or for ``nanoseconds``, or until a signal comes.

    ``scratch`` is the address of 16 bytes to work in. Returns what is left in the wake word (ASLEEP: nobody woke this
    thread), and sets it to AWAKE.
    """
    store_release(scratch, nanoseconds // _SECOND)
    store_release(scratch + 8, nanoseconds % _SECOND)
    _system_call(_FUTEX, wake_word, _FUTEX_WAIT, ASLEEP, scratch, 0, 0)
    word = load_acquire(wake_word)
    store_release(wake_word, AWAKE)
    return word


@compiled(int64(int64))
def yield_core(scratch: int) -> int:
    """Let others run on this core; return how many nanoseconds that took. ``scratch`` as for :func:`sleep`."""
    begin = monotonic_nanoseconds(scratch)
    _sched_yield()
    return monotonic_nanoseconds(scratch) - begin
