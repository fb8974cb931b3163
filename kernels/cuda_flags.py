"""Flags between devices: begin a call, signal peers, wait for them, and find out where they want their rows.

Two kernels of one block each run before and after the copy kernels in the same stream, never inside them: on a GPU that
several processes share, a kernel that spins keeps its time slice, and one that both spins and copies keeps the whole
chip. What follows one another without rows in between is one launch, because a small kernel behind another costs
microseconds: a call's announcement and its first wait; the flags of a stage, what the next one waits for, and the word
for the host. While a block waits, one thread polls, and sleeps between two polls, at most a microsecond.

The protocol is that of :mod:`dgcl.transport.shared_memory.control_page`: flags only grow, all
waits are ``>=``. :mod:`dgcl.kernels.cuda_memory` explains why the rows are visible when the flag is. Signals leave
before the block waits, so two kernels of this kind that wait for each other's signals both end.

Stopping. A host that gives up sets the abort word, then writes :data:`~dgcl.kernels.cuda_tables.FLAG_MAX` to the flags
of its rank, which also ends waits of the stream itself. A waiting kernel that sees either sets SKIP in its state; the
rest of that kernel and all later ones read SKIP first and do nothing, so the stream drains and no flag is set for rows
that were not written.
"""

from __future__ import annotations

from numba import cuda, int64

from dgcl.kernels.cuda_memory import (
    inlined,
    load_acquire,
    load_word,
    sleep_nanoseconds,
    store_release,
    store_word,
)
from dgcl.kernels.cuda_tables import (
    ABORT,
    ABORTED,
    CALL,
    DISAGREES,
    FAULT,
    FLAG_ADDRESS,
    FLAG_BYTES,
    FLAG_MAPS,
    FLAG_MAX,
    FLAG_MULTIPLIER,
    FLAG_NUM_MAPS,
    FLAG_OFFSET,
    FLAG_TARGET,
    MAP_ADDRESS,
    MAP_BYTES,
    MAP_SIZE,
    SKIP,
    UNMAPPED,
    WAITING,
    WHERE,
)

_SHORTEST_SLEEP, _LONGEST_SLEEP = 20, 1000  # nanoseconds
_POLLS_PER_ABORT = 16

# Bytes of a ready line (dgcl.transport.shared_memory.control_page): the tag, the two buffers.
_TAG, _BUFFERS, _BUFFER_BYTES = 8, 16, 24


@inlined
def _signal(state: int, call: int, flags: int, num_flags: int) -> None:
    """Set flags, one per thread."""
    i = int64(cuda.threadIdx.x)
    while i < num_flags and load_word(state + SKIP) == 0:
        flag = flags + FLAG_BYTES * i
        value = call * load_word(flag + FLAG_MULTIPLIER) + load_word(flag + FLAG_OFFSET)
        store_release(load_word(flag + FLAG_ADDRESS), value)
        i += int64(cuda.blockDim.x)


@inlined
def _wait(state: int, call: int, flags: int, num_flags: int, before: int) -> None:
    """Let the first thread wait for flags, one after the other; ``before`` of this launch were waited for already."""
    i = int64(0)
    if cuda.threadIdx.x != 0:
        i = int64(num_flags)
    while i < num_flags and load_word(state + SKIP) == 0:
        flag = flags + FLAG_BYTES * i
        address = load_word(flag + FLAG_ADDRESS)
        value = call * load_word(flag + FLAG_MULTIPLIER) + load_word(flag + FLAG_OFFSET)
        seen = load_acquire(address)
        polls = int64(0)
        sleep = int64(_SHORTEST_SLEEP)
        if seen < value:
            store_release(state + WAITING, before + i + 1)
        while seen < value:
            # The abort word lies in the host's memory, a microsecond away; the flag usually does not.
            if polls % _POLLS_PER_ABORT == 0 and load_acquire(load_word(state + ABORT)) != 0:
                seen = FLAG_MAX
            else:
                sleep_nanoseconds(sleep)
                sleep = sleep * 2 if sleep * 2 < _LONGEST_SLEEP else _LONGEST_SLEEP
                seen = load_acquire(address)
            polls += 1
        if seen == FLAG_MAX:
            store_word(state + FAULT, ABORTED)
            store_word(state + WHERE, before + i)
            store_release(state + SKIP, 1)
        elif polls > 0:
            store_word(state + WAITING, 0)
        i += 1


@inlined
def _resolve(state: int, call: int, addresses: int, tag: int, flags: int, num_flags: int) -> None:
    """Read from ready lines, which have been waited for, where peers want their rows; one line per thread."""
    i = int64(cuda.threadIdx.x)
    while i < num_flags and load_word(state + SKIP) == 0:
        flag = flags + FLAG_BYTES * i
        line = load_word(flag + FLAG_ADDRESS)
        fault = int64(0)
        if load_acquire(line) != call or load_word(line + _TAG) != load_word(tag):
            fault = DISAGREES
        for which in range(2):
            buffer = line + _BUFFERS + which * _BUFFER_BYTES
            base, size, offset = load_word(buffer), load_word(buffer + 8), load_word(buffer + 16)
            address = int64(0)
            maps, num_maps = load_word(flag + FLAG_MAPS), load_word(flag + FLAG_NUM_MAPS)
            while size > 0 and num_maps >= 0 and address == 0 and fault == 0:
                m = int64(0)
                while m < num_maps and address == 0:
                    known = maps + MAP_BYTES * m
                    # A plain load might see for ever what a cache has kept.
                    if load_acquire(known) == base:
                        found = load_acquire(known + MAP_ADDRESS)
                        if found != 0 and load_word(known + MAP_SIZE) == size:
                            address = found + offset
                    m += 1
                if address == 0:
                    if load_acquire(load_word(state + ABORT)) != 0:
                        fault = UNMAPPED
                    else:
                        sleep_nanoseconds(_LONGEST_SLEEP)
            store_word(addresses + 8 * (load_word(flag + FLAG_TARGET) + which), address)
        if fault != 0:
            store_word(state + FAULT, fault)
            store_word(state + WHERE, i)
            store_word(state + SKIP, 1)
        i += int64(cuda.blockDim.x)


@inlined
def _meet(
    state: int,
    call: int,
    addresses: int,
    tag: int,
    ready: int,
    num_ready: int,
    awaited: int,
    num_awaited: int,
) -> None:
    """Wait for peers, resolve their lines, wait for flags; all threads of the block arrive and leave together."""
    _wait(state, call, ready, num_ready, 0)
    cuda.syncthreads()
    _resolve(state, call, addresses, tag, ready, num_ready)
    cuda.syncthreads()
    _wait(state, call, awaited, num_awaited, num_ready)
    cuda.syncthreads()


def begin(
    state: int,
    addresses: int,
    words: int,
    num_words: int,
    lines: int,
    num_lines: int,
    ready: int,
    num_ready: int,
    awaited: int,
    num_awaited: int,
    local: int,
    second: int,
    result: int,
    staging: int,
    tag: int,
    base: int,
    size: int,
    offset: int,
    relay_base: int,
    relay_size: int,
    relay_offset: int,
) -> None:
    """Begin the next call: enter and announce this rank's buffers, then wait as :func:`signal_wait` does. One block.

    Buffers are parameters of this kernel alone. A captured graph repeats them, and may: its buffers stay its own. The
    call's number is counted up here, so such a graph counts its calls by itself. A line's words are written before its
    number, by the same thread.

    Args:
        state: Address of the state; its call number goes up by one.
        addresses: Table whose first four slots become ``local``, ``second``, ``result`` and ``staging``; 0: none, only
            count the call.
        words, num_words: Table of what stands in a line behind the call's number: ``tag``, then (segment, its size,
            offset) of the buffer and of the relay rows.
        lines, num_lines: Table of the addresses of this rank's ready lines.
        ready, num_ready, awaited, num_awaited: See :func:`signal_wait`.
    """
    skip = load_word(state + SKIP)
    call = load_word(state + CALL) + 1
    thread = int64(cuda.threadIdx.x)
    if thread == 0 and addresses != 0:
        store_word(addresses, local)
        store_word(addresses + 8, second)
        store_word(addresses + 16, result)
        store_word(addresses + 24, staging)
        store_word(words, tag)
        store_word(words + 8, base)
        store_word(words + 16, size)
        store_word(words + 24, offset)
        store_word(words + 32, relay_base)
        store_word(words + 40, relay_size)
        store_word(words + 48, relay_offset)
    cuda.syncthreads()  # everyone has read the old number, and may read the words
    if skip == 0:
        if thread == 0:
            store_word(state + CALL, call)
        place = thread
        while place < num_lines:
            line = load_word(lines + 8 * place)
            for i in range(num_words):
                store_word(line + 8 * (i + 1), load_word(words + 8 * i))
            store_release(line, call)
            place += int64(cuda.blockDim.x)
    _meet(state, call, addresses, words, ready, num_ready, awaited, num_awaited)


def signal_wait(
    state: int,
    raised: int,
    num_raised: int,
    addresses: int,
    tag: int,
    ready: int,
    num_ready: int,
    awaited: int,
    num_awaited: int,
    ended: int,
    num_ended: int,
) -> None:
    """Set flags, wait until peers are ready, enter where they want their rows, wait for flags, set flags. One block.

    Each of these is a table of FLAG records, which may be empty. A flag's value is that of the current call.

    Args:
        state: Address of the state.
        raised, num_raised: Flags for rows written by kernels that come earlier in the stream.
        addresses: Table in which both of a ready peer's buffers are entered.
        tag: Address of the word that a ready peer's line must repeat: verb and row type of this call.
        ready, num_ready: Ready lines of peers. A peer may have new memory, which this rank's host is about to map: then
            its MAP record is waited for, in which the address is written last. A flag whose ``num_maps`` is negative
            belongs to a peer whose memory is out of reach: only the call is compared, and its slots become 0.
        awaited, num_awaited: Flags to wait for behind that.
        ended, num_ended: Flags for what has been waited for.
    """
    call = load_word(state + CALL)
    _signal(state, call, raised, num_raised)
    _meet(state, call, addresses, tag, ready, num_ready, awaited, num_awaited)
    _signal(state, call, ended, num_ended)
