"""Sleep until another thread or process rings: a bell is one word of memory that both have mapped.

Who waits for flags that several peers raise, in places of their own, has no single word to sleep on. So it sleeps
on its bell, and whoever raises a flag for it rings::

    sleeper                                       ringer
    set the bell to 1; fence                      raise a flag; fence
    look at all flags once more                   if the bell is not 0: set it to 0, wake the sleeper
    sleep as long as the bell is 1

Of the two fences one comes first: either the sleeper's second look sees the flag, or the ringer sees the bell. And
the kernel looks at the bell once more before it lets anybody sleep. So no ring is lost; a ringer that dies between
its flag and its ring costs the sleeper the rest of its nap, for naps end by themselves.

Why not yield the core instead, again and again: since Linux 6.18 who calls ``sched_yield`` gives up a whole time slice
(about 3 ms) to whatever else wants to run on that core, and on any kernel it stays in everybody's way. Ranks that
outnumber cores have cores for their work this way, and nothing else. Where all that wants to run there is about to wait
itself, though, yielding is several times cheaper than to sleep and to be woken. So who waits may yield first, as long
as that costs little (:mod:`dgcl.transport.shared_memory.wait_policy`).
"""

from __future__ import annotations

import platform
from typing import Final

from numba import njit, types

from dgcl.kernels.memory import load_acquire, monotonic_nanoseconds, store_release, write_fence

#: Hash of the kernels compiled into the cached functions here, which numba does not look at; held by a test.
COMPILED_FROM: Final = "c2313bc7fc52e2d0"

#: What a bell says: nobody sleeps, or has been rung; somebody may sleep; something else than a flag has changed.
SILENT, ASLEEP, LOOK_UP = 0, 1, 2

# futex(2), which libc has no function for; between processes, so without FUTEX_PRIVATE_FLAG.
_system_call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_FUTEX: Final = {"x86_64": 202, "ppc64le": 221}.get(platform.machine(), 98)
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_SECOND: Final = 1_000_000_000


@njit(nogil=True, cache=True)
def ring(bell: int, word: int) -> None:
    """Wake who sleeps on ``bell``, if anybody does, and leave ``word`` there; after a flag has been raised."""
    write_fence()
    if load_acquire(bell) == ASLEEP:
        store_release(bell, word)
        _system_call(_FUTEX, bell, _FUTEX_WAKE, 1, 0, 0, 0)


@njit(nogil=True, cache=True)
def set_bell(bell: int) -> None:
    """Ask to be rung from now on; then look at all flags once more, then :func:`sleep` or :func:`mute`."""
    store_release(bell, ASLEEP)
    write_fence()


@njit(nogil=True, cache=True)
def mute(bell: int) -> None:
    """Ask not to be rung any more."""
    store_release(bell, SILENT)


@njit(nogil=True, cache=True)
def sleep(bell: int, nanoseconds: int, scratch: int) -> int:
    """Sleep until rung, or for ``nanoseconds``, or until a signal comes.

    ``scratch`` is the address of 16 bytes to work in. Returns what is left on the bell (ASLEEP: nobody rang), and
    silences it.
    """
    store_release(scratch, nanoseconds // _SECOND)
    store_release(scratch + 8, nanoseconds % _SECOND)
    _system_call(_FUTEX, bell, _FUTEX_WAIT, ASLEEP, scratch, 0, 0)
    word = load_acquire(bell)
    store_release(bell, SILENT)
    return word


@njit(nogil=True, cache=True)
def yield_core(scratch: int) -> int:
    """Let others run on this core, and return how many nanoseconds that took; ``scratch`` as for :func:`sleep`."""
    begin = monotonic_nanoseconds(scratch)
    _sched_yield()
    return monotonic_nanoseconds(scratch) - begin
