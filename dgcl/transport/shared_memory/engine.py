"""The engine: carries out one rank's part of one call, as far as it can without waiting for long.

It is one compiled function over plain arrays. It keeps passing over what is still to be received and to be
sent; a send runs as soon as the rows it reads have arrived and its receiver is ready, in whatever order that
happens, so one slow peer delays nobody else. Sends to one peer keep their order, because the peer reads them
off one counter (:mod:`dgcl.transport.shared_memory.control_page`). When nothing can be done it looks again for a moment, lets others run, then
sleeps until a peer that has raised a flag rings (:mod:`dgcl.kernels.futex`); ranks may well outnumber cores. It
returns when all is done, or to let Python look after signals, deadlines and peers.

No deadlock: a send of stage k waits only for receives of earlier stages and for its peer to enter the call,
so the waiting graph of a call has no cycle.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from dgcl.kernels.futex import ASLEEP, LOOK_UP, SILENT, mute, ring, set_bell, sleep, yield_core
from dgcl.kernels.memory import load_acquire, load_word, monotonic_nanoseconds, store_release
from dgcl.kernels.rows import gather_rows, sum_rows

#: Hash of the kernels compiled into the cached functions here, which numba does not look at; held by a test.
COMPILED_FROM: Final = "327cc8fc96f13f07"

#: What :func:`advance` returns: all done; nothing to do for a while; a peer's segment must be mapped; a peer
#: made another call; a send can run now (with LOOK); the chosen send is done.
DONE, WAITING, UNMAPPED, DISAGREES, FOUND, SENT = 0, 1, 2, 3, 4, 5

#: Which sends :func:`advance` carries out: all, or none (a number from 0 on: that one alone).
ALL, LOOK = -1, -2

EXPAND: Final = 0
FOLD: Final = 1

#: After a dear yield, waits without any.
FEWEST, MOST = 16, 1024
#: Whether to yield in a wait is decided when it has lasted a moment.
UNDECIDED: Final = -1


@njit(nogil=True, cache=True)
def read_word(address: int) -> int:
    """The int64 at ``address``, with acquire order."""
    return load_acquire(address)


@njit(nogil=True, cache=True)
def write_word(address: int, value: int) -> None:
    """Write an int64, with release order."""
    store_release(address, value)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def announce(lines: np.ndarray, bells: np.ndarray, own_call: int, call: int, words: np.ndarray) -> None:
    """:func:`publish_ready`, and ring the peers that were told."""
    publish_ready(lines, own_call, call, words)
    for i in range(len(bells)):
        ring(bells[i], SILENT)


@njit(nogil=True, cache=True)
def call_attention(bells: np.ndarray) -> None:
    """Wake all who sleep, to look at more than flags."""
    for i in range(len(bells)):
        ring(bells[i], LOOK_UP)


@njit(nogil=True, inline="never")
def _mapped(
    bases: np.ndarray, sizes: np.ndarray, addresses: np.ndarray, line: int, first: int, last: int
) -> int:
    """This process's address of the buffer that a ready line names at ``line``; 0 when its segment is not
    mapped here.

    Returns -1 when bytes ``first`` to ``last`` of the buffer do not lie inside the segment. The buffer may
    begin before the segment: that of halo rows alone begins where owned rows would lie.
    """
    if first == last:
        return 1
    base, offset = load_word(line), load_word(line + 16)
    for i in range(len(bases)):
        if addresses[i] != 0 and bases[i] == base:
            inside = offset + first >= 0 and offset + last <= sizes[i]
            return addresses[i] + offset if inside else -1
    return 0


@njit(nogil=True, cache=True)
def advance(
    verb: int,
    call: int,
    num_stages: int,
    tag: int,
    row_bytes: int,
    sum_code: int,
    streamed_from: int,
    buffers: tuple[int, int, int],
    sends: tuple[np.ndarray, ...],
    receives: tuple[np.ndarray, np.ndarray],
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    lines: tuple[np.ndarray, np.ndarray, np.ndarray],
    maps: tuple[np.ndarray, np.ndarray, np.ndarray],
    bells: np.ndarray,
    own_bell: int,
    sent: np.ndarray,
    received: np.ndarray,
    moved: np.ndarray,
    where: np.ndarray,
    times: np.ndarray,
    patience: tuple[int, int, int, int, int],
    yields: np.ndarray,
    chosen: int,
) -> int:
    """Carry the call on.

    Args:
        verb: EXPAND or FOLD.
        call, num_stages, tag: Number of the call, stages of the plan, what all ranks must agree on.
        row_bytes, sum_code: Size of a row; element type (:data:`dgcl.kernels.rows.SUMMABLE`).
        streamed_from: Bytes of a send that is written past the caches.
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
        bells, own_bell: Addresses of every rank's bell, and of this rank's as it sees it.
        sent, received: ``(S,)`` and ``(R,)`` uint8, what is done so far; updated.
        moved: ``(P,)`` int64, bytes written to each peer; added to.
        where: ``(4,)`` int64, out: the send, and the portion, that an UNMAPPED or DISAGREES is about; the
            rest is scratch.
        times: ``(S + R, 2)`` int64, out: when each send began and ended, and when each receive was seen (in
            the first column); ``(0, 2)`` where nobody wants to know.
        patience: What to do before WAITING is returned (:data:`dgcl.transport.shared_memory.wait_policy.Patience`); all zero for what can
            be done at once.
        yields: ``(2,)`` int64: in how many waits to come not to yield, and how many they were when they began; updated.
        chosen: Which sends to carry out: ALL, LOOK, or the number of one.
    """
    send_peer, send_stage, send_count, send_from, send_to, dep_ptr, deps, first_arrival = sends
    recv_peer, recv_stage = receives
    send_rows, arrival_rows, arrival_slots = tables
    peer_ready, peer_done, own_done = lines
    bases, sizes, addresses = maps
    source, num_source_rows, second = buffers
    timed = len(times) > 0
    scratch = where.ctypes.data + 16
    blocked = np.zeros(len(peer_ready), np.uint8)
    targets = np.zeros(2, np.int64)
    look, share, dear, naps, nap = patience
    sharing = UNDECIDED  # nanoseconds to go on yielding, once it has looked for long enough
    since = -1  # when it began to look in vain
    listening = False
    while True:
        progressed = False
        pending = 0
        for i in range(len(recv_peer)):
            if received[i] == 0:
                if load_acquire(peer_done[recv_peer[i]]) >= call * num_stages + recv_stage[i] + 1:
                    received[i] = 1
                    progressed = True
                    if timed:
                        times[len(send_peer) + i, 0] = monotonic_nanoseconds(scratch)
                else:
                    pending += 1
        blocked[:] = 0
        for i in range(len(send_peer)):
            peer = send_peer[i]
            if sent[i] != 0:
                continue
            pending += 1
            if blocked[peer] != 0:
                continue
            blocked[peer] = 1
            arrived = True
            for d in range(dep_ptr[i], dep_ptr[i + 1]):
                if received[deps[d]] == 0:
                    arrived = False
                    break
            if not arrived:
                continue
            line = peer_ready[peer]
            ready = load_acquire(line)
            if ready < call:
                continue
            where[0] = i
            if ready > call or load_word(line + 8) != tag:
                return DISAGREES
            # Both portions are found before either is sent: rows that were sent twice would be counted twice.
            for portion in range(2):
                count = send_count[i, portion]
                if count == 0:
                    continue
                relay = verb == EXPAND and portion == 1
                first = send_to[i, portion] * row_bytes
                last = first + count * row_bytes
                slot = line + (40 if relay else 16)
                targets[portion] = _mapped(bases[peer], sizes[peer], addresses[peer], slot, first, last)
                where[1] = portion
                if targets[portion] == 0:
                    return UNMAPPED
                if targets[portion] < 0:
                    return DISAGREES
            if chosen == LOOK:
                return FOUND
            if chosen != ALL and chosen != i:
                continue
            if timed:
                times[i, 0] = monotonic_nanoseconds(scratch)
            for portion in range(2):
                count = send_count[i, portion]
                if count == 0:
                    continue
                target = targets[portion] + send_to[i, portion] * row_bytes
                start = send_from[i, portion]
                if verb == EXPAND:
                    gather_rows(
                        target,
                        source,
                        num_source_rows,
                        second,
                        send_rows,
                        start,
                        start + count,
                        row_bytes,
                        streamed_from,
                    )
                else:
                    own = source if portion == 0 else 0
                    sum_rows(
                        sum_code,
                        target,
                        own,
                        start,
                        start + count,
                        arrival_rows,
                        arrival_slots,
                        first_arrival[i, portion],
                        second,
                        row_bytes,
                        streamed_from,
                    )
                moved[peer] += count * row_bytes
            store_release(own_done[peer], call * num_stages + send_stage[i] + 1)
            ring(bells[peer], SILENT)
            sent[i] = 1
            if timed:
                times[i, 1] = monotonic_nanoseconds(scratch)
            if chosen == i:
                return SENT
            blocked[peer] = 0
            pending -= 1
            progressed = True
        if pending == 0 or progressed:
            if sharing > 0:
                yields[1] //= 2
            since, sharing = -1, UNDECIDED
            if listening:
                mute(own_bell)
                listening = False
            if pending == 0:
                return DONE
            continue
        if listening:
            listening = False
            naps -= 1
            word = sleep(own_bell, nap, scratch)
            if word == LOOK_UP or (word == ASLEEP and naps <= 0):
                return WAITING
            continue
        if look > 0:
            now = monotonic_nanoseconds(scratch)
            since = now if since < 0 else since
            if now - since < look:
                continue
            if sharing == UNDECIDED:
                sharing = share if yields[0] == 0 else 0
                yields[0] = max(yields[0] - 1, 0)
            if now - since < look + sharing:
                if yield_core(scratch) > dear:
                    sharing = 0
                    yields[:] = min(max(2 * yields[1], FEWEST), MOST)
                continue
        if naps <= 0:
            return WAITING
        set_bell(own_bell)
        listening = True
