"""Flags between devices: announce a call, wait for peers, signal them.

These kernels run before and after the copy kernels in the same stream, never inside them: on a GPU that several
processes share, a kernel that spins keeps its time slice, and one that both spins and copies keeps the whole chip. A
waiting kernel is one thread that sleeps between two polls, at most a microsecond.

The protocol is that of :mod:`dgcl.transport.shared_memory.control_page`: flags only grow, all
waits are ``>=``. :mod:`dgcl.kernels.cuda_memory` explains why the rows are visible when the flag is.

Stopping. A host that gives up sets the abort word, then writes :data:`~dgcl.kernels.cuda_tables.FLAG_MAX` to the flags
of its rank, which also ends waits of the stream itself. A waiting kernel that sees either sets SKIP in its state; every
later kernel reads SKIP first and does nothing, so the stream drains and no flag is set for rows that were not written.
"""

from __future__ import annotations

from numba import cuda, int64

from dgcl.kernels.cuda_memory import load_acquire, load_word, sleep_nanoseconds, store_release, store_word
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


def enter(
    addresses: int,
    words: int,
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
    """Write what differs from call to call into the tables: this rank's buffers. One thread.

    Buffers are parameters of this kernel alone. A captured graph repeats them, and may: its buffers stay its own.

    Args:
        addresses: Table whose first four slots become ``local``, ``second``, ``result`` and ``staging``.
        words: Table of what an announcement says behind the call's number: ``tag``, then (segment, its size, offset)
            of the buffer and of the relay rows.
    """
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


def announce(state: int, lines: int, num_lines: int, words: int, num_words: int) -> None:
    """Begin the next call, and write its number and ``words`` to this rank's ready lines. One block.

    Args:
        state: Address of the state; its call number goes up by one.
        lines, num_lines: Table of the addresses of the lines.
        words, num_words: What stands in a line behind the call number.

    So a captured graph counts its calls by itself. A line's words are written before its number, by the same thread.
    """
    skip = load_word(state + SKIP)
    call = load_word(state + CALL) + 1
    cuda.syncthreads()  # everyone has read the old number
    if skip != 0:
        return
    thread = int64(cuda.threadIdx.x)
    if thread == 0:
        store_word(state + CALL, call)
    place = thread
    while place < num_lines:
        line = load_word(lines + 8 * place)
        for i in range(num_words):
            store_word(line + 8 * (i + 1), load_word(words + 8 * i))
        store_release(line, call)
        place += int64(cuda.blockDim.x)


def wait(state: int, flags: int, num_flags: int) -> None:
    """Wait until each flag has reached its value of the current call. One thread."""
    if load_word(state + SKIP) != 0:
        return
    call = load_word(state + CALL)
    abort = load_word(state + ABORT)
    for i in range(num_flags):
        flag = flags + FLAG_BYTES * i
        address = load_word(flag + FLAG_ADDRESS)
        value = call * load_word(flag + FLAG_MULTIPLIER) + load_word(flag + FLAG_OFFSET)
        seen = load_acquire(address)
        polls = int64(0)
        sleep = int64(_SHORTEST_SLEEP)
        if seen < value:
            store_release(state + WAITING, i + 1)
        while seen < value:
            # The abort word lies in the host's memory, a microsecond away; the flag usually does not.
            if polls % _POLLS_PER_ABORT == 0 and load_acquire(abort) != 0:
                seen = FLAG_MAX
            else:
                sleep_nanoseconds(sleep)
                sleep = sleep * 2 if sleep * 2 < _LONGEST_SLEEP else _LONGEST_SLEEP
                seen = load_acquire(address)
            polls += 1
        if seen == FLAG_MAX:
            store_word(state + FAULT, ABORTED)
            store_word(state + WHERE, i)
            store_release(state + SKIP, 1)
            return
        if polls > 0:
            store_word(state + WAITING, 0)


def resolve(state: int, addresses: int, flags: int, num_flags: int, tag: int) -> None:
    """Read from the peers' ready lines where they want their rows. One thread per flag.

    A peer may have new memory, which this rank's host is about to map: then the thread waits for its MAP record, in
    which the address is written last. A flag whose ``num_maps`` is negative belongs to a peer whose memory is out of
    reach: only the call is compared, and its slots become 0.

    Args:
        state, addresses: Tables; the addresses of both of a peer's buffers are entered in its slots.
        flags, num_flags: The ready lines, already waited for.
        tag: Address of the word that a peer's line must repeat: verb and row type of this call.
    """
    i = int64(cuda.blockIdx.x) * int64(cuda.blockDim.x) + int64(cuda.threadIdx.x)
    if i >= num_flags or load_word(state + SKIP) != 0:
        return
    flag = flags + FLAG_BYTES * i
    line = load_word(flag + FLAG_ADDRESS)
    fault = int64(0)
    if load_acquire(line) != load_word(state + CALL) or load_word(line + _TAG) != load_word(tag):
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


def signal(state: int, flags: int, num_flags: int) -> None:
    """Set each flag to its value of the current call; one thread per flag.

    The rows that a flag announces were written by kernels that come earlier in the stream.
    """
    i = int64(cuda.blockIdx.x) * int64(cuda.blockDim.x) + int64(cuda.threadIdx.x)
    if i >= num_flags or load_word(state + SKIP) != 0:
        return
    flag = flags + FLAG_BYTES * i
    value = load_word(state + CALL) * load_word(flag + FLAG_MULTIPLIER) + load_word(flag + FLAG_OFFSET)
    store_release(load_word(flag + FLAG_ADDRESS), value)
