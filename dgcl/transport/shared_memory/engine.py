"""The progress engine: carries out one rank's part of one call, as far as possible without a long wait.

It is compiled and works on plain arrays. It repeatedly scans the open receives and sends. A send runs as soon as the
rows it reads have arrived and its receiver is ready, in any order, so one slow peer does not delay the others. Sends
to one peer keep their order, because the peer reads them off one counter
(:mod:`dgcl.transport.shared_memory.control_page`). When nothing can be done it spins for a moment, yields its core,
then sleeps until a peer that has raised a flag wakes it (:mod:`dgcl.kernels.futex`); there may be more ranks than
cores. It returns when all is done, or to let Python handle signals, deadlines and peers.

No deadlock: a send of stage k waits only for receives of earlier stages and for its peer to enter the call,
so the waiting graph of a call has no cycle.

Every function has one signature, so that all of it is compiled before a communicator is used
(:mod:`dgcl.transport.kernels`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import int32, int64, njit, types, uint8, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.futex import ASLEEP, ATTEND, AWAKE, announce_sleep, cancel_sleep, sleep, wake, yield_core
from dgcl.kernels.memory import address_of, load_acquire, load_word, monotonic_nanoseconds, store_release
from dgcl.kernels.rows import gather_rows, sum_rows

#: What :func:`advance` returns: all done; nothing to do for a while; a peer's segment must be mapped; a peer
#: made another call; a send can run now (with PEEK); the chosen send is done.
DONE, WAITING, UNMAPPED, DISAGREES, FOUND, SENT = 0, 1, 2, 3, 4, 5
_READY: Final = 6

#: Which sends :func:`advance` carries out: all, or none (a number from 0 on: that one alone).
ALL, PEEK = -1, -2

EXPAND: Final = 0
FOLD: Final = 1

#: Least and largest number of waits without yields after an expensive yield.
FEWEST, MOST = 16, 1024

#: Words of scratch that :func:`advance` needs besides one per peer: two to read the clock, two for the targets of a
#: send, and the state of a wait.
SCRATCH_WORDS: Final = 8
_CLOCK, _TARGETS, _SINCE, _SHARING, _SLEEPS, _LISTENING, _PEERS = 0, 2, 4, 5, 6, 7, 8
_UNDECIDED: Final = -1  # whether to yield in a wait is decided when it has lasted a moment

_I1, _I2, _U1, _ROWS = int64[::1], int64[:, ::1], uint8[::1], int32[::1]
_CALL = types.UniTuple(int64, 7)
_BUFFERS = types.UniTuple(int64, 3)
_SENDS = types.Tuple((_ROWS, _ROWS, _I2, _I2, _I2, _I1, _ROWS, _I2))
_RECEIVES = types.UniTuple(_ROWS, 2)
_TABLES = types.UniTuple(_ROWS, 3)
_LINES = types.UniTuple(_I1, 3)
_MAPS = types.UniTuple(_I2, 3)
_POLICY = types.UniTuple(int64, 5)


@compiled(int64(int64))
def read_word(address: int) -> int:
    """Return the int64 at ``address``, with acquire order."""
    return load_acquire(address)


@compiled(void(int64, int64))
def write_word(address: int, value: int) -> None:
    """Write an int64, with release order."""
    store_release(address, value)


@compiled(void(_I1, int64, int64, _I1))
def publish_ready(lines: np.ndarray, own_call: int, call: int, words: np.ndarray) -> None:
    """Write ``words`` (all of a ready line but the call) to every line, then the call, with release order.

    First, at ``own_call``, which call this is: ``words[0]`` as its tag, then its number.
    """
    store_release(own_call + 8 + 8 * (call & 1), words[0])
    store_release(own_call, call)
    for i in range(len(lines)):
        for word in range(len(words)):
            store_release(lines[i] + 8 * (word + 1), words[word])
        store_release(lines[i], call)


@compiled(void(_I1, _I1, int64, int64, _I1))
def announce(lines: np.ndarray, wake_words: np.ndarray, own_call: int, call: int, words: np.ndarray) -> None:
    """Do :func:`publish_ready`, and wake the peers whose lines were written."""
    publish_ready(lines, own_call, call, words)
    for i in range(len(wake_words)):
        wake(wake_words[i], AWAKE)


@compiled(void(_I1))
def call_attention(wake_words: np.ndarray) -> None:
    """Wake all sleeping ranks, so that they check more than flags."""
    for i in range(len(wake_words)):
        wake(wake_words[i], ATTEND)


@njit(nogil=True)
def _note_arrivals(
    call: tuple[int, ...],
    receives: tuple[np.ndarray, np.ndarray],
    peer_done: np.ndarray,
    received: np.ndarray,
    times: np.ndarray,
    first_time: int,
    clock: int,
) -> tuple[int, bool]:
    """Mark the receives that are complete; return how many are not, and whether any was marked."""
    pending = 0
    progressed = False
    for i in range(len(received)):
        if received[i] == 0:
            if load_acquire(peer_done[receives[0][i]]) >= call[1] * call[2] + receives[1][i] + 1:
                received[i] = 1
                progressed = True
                if len(times) > 0:
                    times[first_time + i, 0] = monotonic_nanoseconds(clock)
            else:
                pending += 1
    return pending, progressed


@njit(nogil=True)
def _find_targets(
    send: int,
    call: tuple[int, ...],
    sends: tuple[np.ndarray, ...],
    line: int,
    maps: tuple[np.ndarray, ...],
    received: np.ndarray,
    where: np.ndarray,
    scratch: np.ndarray,
) -> int:
    """Find the target addresses of both portions of a send, before either is sent.

    Rows that were sent twice would be counted twice. Returns _READY, WAITING (for the rows that the send reads, or
    for the peer), UNMAPPED or DISAGREES.
    """
    verb, number, _, tag, row_bytes, _, _ = call
    peer, _, count, _, to, dep_ptr, deps, _ = sends
    for d in range(dep_ptr[send], dep_ptr[send + 1]):
        if received[deps[d]] == 0:
            return WAITING
    ready = load_acquire(line)
    if ready < number:
        return WAITING
    where[0] = send
    if ready > number or load_word(line + 8) != tag:
        return DISAGREES
    for portion in range(2):
        if count[send, portion] != 0:
            first = to[send, portion] * row_bytes
            last = first + count[send, portion] * row_bytes
            slot = line + (40 if verb == EXPAND and portion == 1 else 16)
            target = _mapped(maps, peer[send], slot, first, last)
            scratch[_TARGETS + portion] = target + first
            where[1] = portion
            if target == 0:
                return UNMAPPED
            if target < 0:
                return DISAGREES
    return _READY


@njit(nogil=True)
def _mapped(maps: tuple[np.ndarray, ...], peer: int, line: int, first: int, last: int) -> int:
    """This process's address of the buffer that a ready line names at ``line``; 0 when its segment is not mapped.

    Returns -1 when bytes ``first`` to ``last`` of the buffer do not lie inside the segment. The buffer may
    begin before the segment: that of halo rows alone begins where owned rows would lie.
    """
    if first == last:
        return 1
    bases, sizes, addresses = maps
    base, offset = load_word(line), load_word(line + 16)
    for i in range(bases.shape[1]):
        if addresses[peer, i] != 0 and bases[peer, i] == base:
            inside = offset + first >= 0 and offset + last <= sizes[peer, i]
            return addresses[peer, i] + offset if inside else -1
    return 0


@njit(nogil=True)
def _write_rows(
    send: int,
    call: tuple[int, ...],
    buffers: tuple[int, int, int],
    sends: tuple[np.ndarray, ...],
    tables: tuple[np.ndarray, ...],
    scratch: np.ndarray,
) -> int:
    """Write both portions of a send to their targets; return the number of bytes."""
    verb, _, _, _, row_bytes, sum_code, streamed_from = call
    _, _, count, start, _, _, _, first_arrival = sends
    send_rows, arrival_rows, arrival_slots = tables
    source, num_source_rows, second = buffers
    num_bytes = 0
    for portion in range(2):
        if count[send, portion] == 0:
            continue
        target = scratch[_TARGETS + portion]
        begin = start[send, portion]
        end = begin + count[send, portion]
        if verb == EXPAND:
            gather_rows(
                target, source, num_source_rows, second, send_rows, begin, end, row_bytes, streamed_from
            )
        else:
            sum_rows(
                sum_code,
                target,
                source if portion == 0 else 0,
                begin,
                end,
                arrival_rows,
                arrival_slots,
                first_arrival[send, portion],
                second,
                row_bytes,
                streamed_from,
            )
        num_bytes += (end - begin) * row_bytes
    return num_bytes


@njit(nogil=True)
def _end_wait(own_wake_word: int, yields: np.ndarray, scratch: np.ndarray) -> None:
    """Reset the wait state after progress, so that the next wait starts afresh."""
    if scratch[_SHARING] > 0:
        yields[1] //= 2
    scratch[_SINCE], scratch[_SHARING] = -1, _UNDECIDED
    if scratch[_LISTENING] != 0:
        cancel_sleep(own_wake_word)
        scratch[_LISTENING] = 0


@njit(nogil=True)
def _wait(
    own_wake_word: int, policy: tuple[int, int, int, int, int], yields: np.ndarray, scratch: np.ndarray
) -> bool:
    """Wait briefly before the next scan of all flags; return False when Python must check signals and peers."""
    spin, share, expensive, _, nanoseconds = policy
    clock = address_of(scratch) + 8 * _CLOCK
    if scratch[_LISTENING] != 0:
        scratch[_LISTENING] = 0
        scratch[_SLEEPS] -= 1
        word = sleep(own_wake_word, nanoseconds, clock)
        return word != ATTEND and (word != ASLEEP or scratch[_SLEEPS] > 0)
    if spin > 0:
        now = monotonic_nanoseconds(clock)
        if scratch[_SINCE] < 0:
            scratch[_SINCE] = now
        waited = now - scratch[_SINCE]
        if waited < spin:
            return True
        if scratch[_SHARING] == _UNDECIDED:
            scratch[_SHARING] = share if yields[0] == 0 else 0
            yields[0] = max(yields[0] - 1, 0)
        if waited < spin + scratch[_SHARING]:
            if yield_core(clock) > expensive:
                scratch[_SHARING] = 0
                yields[0] = yields[1] = min(max(2 * yields[1], FEWEST), MOST)
            return True
    if scratch[_SLEEPS] <= 0:
        return False
    announce_sleep(own_wake_word)  # then check all flags once more
    scratch[_LISTENING] = 1
    return True


@compiled(
    int64(
        *(_CALL, _BUFFERS, _SENDS, _RECEIVES, _TABLES, _LINES, _MAPS),
        *(_I1, int64, _U1, _U1, _I1, _I1, _I2, _POLICY, _I1, _I1, int64),
    ),
    inline=False,
)
def advance(
    call: tuple[int, int, int, int, int, int, int],
    buffers: tuple[int, int, int],
    sends: tuple[np.ndarray, ...],
    receives: tuple[np.ndarray, np.ndarray],
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    lines: tuple[np.ndarray, np.ndarray, np.ndarray],
    maps: tuple[np.ndarray, np.ndarray, np.ndarray],
    wake_words: np.ndarray,
    own_wake_word: int,
    sent: np.ndarray,
    received: np.ndarray,
    moved: np.ndarray,
    where: np.ndarray,
    times: np.ndarray,
    policy: tuple[int, int, int, int, int],
    yields: np.ndarray,
    scratch: np.ndarray,
    chosen: int,
) -> int:
    """Advance a call as far as possible, waiting as ``policy`` allows.

    Args:
        call: The verb (EXPAND or FOLD); number of the call; stages that a call counts; the tag that all ranks must
            agree on; bytes of a row; code of the element type (:data:`dgcl.kernels.rows.SUMMABLE`); bytes from which
            on a send is written past the caches.
        buffers: What is read: (address of the local rows, how many they are, address of those that follow
            (expand: relay rows, or, where own rows lie apart, halo rows and then relay rows) or of arrivals
            (fold)).
        sends: peer, stage, count, from, to, dep_ptr, deps of a Schedule, and for a fold the first arrival of
            each portion.
        receives: peer, stage.
        tables: send_rows, arrival_rows, arrival_slots.
        lines: Per peer the addresses of: its ready line for this rank, its done line for this rank, this
            rank's done line for it.
        maps: ``(P, M)`` segment bases, sizes, addresses of what is mapped of each peer (address 0: free
            place).
        wake_words, own_wake_word: Addresses of every rank's wake word, and of this rank's as it sees it.
        sent, received: ``(S,)`` and ``(R,)`` uint8, what is done so far; updated.
        moved: ``(P,)`` int64, bytes written to each peer; added to.
        where: ``(2,)`` int64, out: the send, and the portion, that an UNMAPPED or DISAGREES is about.
        times: ``(S + R, 2)`` int64, out: when each send began and ended, and when each receive was seen (in
            the first column); ``(0, 2)`` if times are not recorded.
        policy: What to do before WAITING is returned (:data:`dgcl.transport.shared_memory.wait_policy.WaitPolicy`);
            all zero for what can be done at once.
        yields: ``(2,)`` int64: number of coming waits without yields, and their number when that period began;
            updated.
        scratch: ``(SCRATCH_WORDS + P,)`` int64.
        chosen: Which sends to carry out: ALL, PEEK, or the number of one.
    """
    clock = address_of(scratch) + 8 * _CLOCK
    scratch[_SINCE], scratch[_SHARING], scratch[_SLEEPS], scratch[_LISTENING] = -1, _UNDECIDED, policy[3], 0
    while True:
        pending, progressed = _note_arrivals(call, receives, lines[1], received, times, len(sent), clock)
        scratch[_PEERS:] = 0
        for i in range(len(sent)):
            peer = sends[0][i]
            if sent[i] != 0:
                continue
            pending += 1
            if scratch[_PEERS + peer] != 0:
                continue
            scratch[_PEERS + peer] = 1
            status = _find_targets(i, call, sends, lines[0][peer], maps, received, where, scratch)
            if status == WAITING:
                continue
            if status != _READY:
                return status
            if chosen == PEEK:
                return FOUND
            if chosen != ALL and chosen != i:
                continue
            if len(times) > 0:
                times[i, 0] = monotonic_nanoseconds(clock)
            moved[peer] += _write_rows(i, call, buffers, sends, tables, scratch)
            store_release(lines[2][peer], call[1] * call[2] + sends[1][i] + 1)
            wake(wake_words[peer], AWAKE)
            sent[i] = 1
            if len(times) > 0:
                times[i, 1] = monotonic_nanoseconds(clock)
            if chosen == i:
                return SENT
            scratch[_PEERS + peer] = 0
            pending -= 1
            progressed = True
        if pending == 0 or progressed:
            _end_wait(own_wake_word, yields, scratch)
            if pending == 0:
                return DONE
        elif not _wait(own_wake_word, policy, yields, scratch):
            return WAITING
