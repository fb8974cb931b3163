"""Flags between devices: begin a call, signal peers, and wait for them.

Two kernels of one block each run before and after the copy kernels in the same stream, never inside them: on a GPU that
several processes share, a kernel that spins keeps its time slice, and one that both spins and copies keeps the whole
chip. What follows one another without rows in between is one launch, because a small kernel behind another costs
microseconds. While a block waits, one thread polls, and sleeps between two polls, at most a microsecond.

Called by users. Free to change while results are bit for bit those of plain Python (`tests/kernels/`).
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
    CALL,
    FLAG_ADDRESS,
    FLAG_BYTES,
    FLAG_MULTIPLIER,
    FLAG_OFFSET,
    SKIP,
)

_SHORTEST_SLEEP, _LONGEST_SLEEP = 20, 1000  # nanoseconds
_POLLS_PER_ABORT = 16


# Flags only grow, and all waits are ``>=``. :mod:`dgcl.kernels.cuda_memory` explains why the rows are visible
# when the flag is. Signals leave before the block waits, so two kernels of this kind that wait for each other's
# signals both end. A kernel waits only for other devices, never for a host: all hosts have agreed on a call
# before it is enqueued.
#
# Stopping. A host that gives up sets the abort word. A waiting kernel that sees it sets SKIP in its state; the
# rest of that kernel and all later ones read SKIP first and do nothing, so the stream drains and no flag is set
# for rows that were not written.


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
def _wait(state: int, call: int, flags: int, num_flags: int) -> None:
    """Let the first thread wait for flags, one after the other; all threads of the block leave together."""
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
        while seen < value:
            # The abort word lies in the host's memory, a microsecond away; the flag usually does not.
            if polls % _POLLS_PER_ABORT == 0 and load_acquire(load_word(state + ABORT)) != 0:
                store_release(state + SKIP, 1)
                seen = value
            else:
                sleep_nanoseconds(sleep)
                sleep = sleep * 2 if sleep * 2 < _LONGEST_SLEEP else _LONGEST_SLEEP
                seen = load_acquire(address)
            polls += 1
        i += 1
    cuda.syncthreads()


def begin(
    state: int,
    ring: int,
    ring_length: int,
    addresses: int,
    num_slots: int,
    lines: int,
    num_lines: int,
    awaited: int,
    num_awaited: int,
) -> None:
    """Begin the next call: enter the addresses of its buffers, announce it, then wait for flags. One block.

    Args:
        state: Address of the state; its call number goes up by one.
        ring, ring_length: Tables of addresses in the host's memory; that of call n is the ``n % ring_length``-th.
        addresses, num_slots: The table of addresses that copy kernels read, and its length.
        lines, num_lines: Table of the addresses of the words that are set to the call's number.
        awaited, num_awaited: Flags to wait for behind that.
    """
    skip = load_word(state + SKIP)
    call = load_word(state + CALL) + 1
    thread = int64(cuda.threadIdx.x)
    entered = ring + 8 * num_slots * (call % ring_length)
    place = thread
    while place < num_slots:
        store_word(addresses + 8 * place, load_acquire(entered + 8 * place))
        place += int64(cuda.blockDim.x)
    cuda.syncthreads()  # everyone has read the old number
    if skip == 0:
        if thread == 0:
            store_word(state + CALL, call)
        place = thread
        while place < num_lines:
            store_release(load_word(lines + 8 * place), call)
            place += int64(cuda.blockDim.x)
    _wait(state, call, awaited, num_awaited)


def signal_wait(
    state: int,
    raised: int,
    num_raised: int,
    awaited: int,
    num_awaited: int,
    ended: int,
    num_ended: int,
) -> None:
    """Set flags, wait for flags, set flags. One block.

    Each of these is a table of FLAG records, which may be empty. A flag's value is that of the current call.

    Args:
        state: Address of the state.
        raised, num_raised: Flags for rows written by kernels that come earlier in the stream.
        awaited, num_awaited: Flags to wait for.
        ended, num_ended: Flags for what has been waited for.
    """
    call = load_word(state + CALL)
    _signal(state, call, raised, num_raised)
    _wait(state, call, awaited, num_awaited)
    _signal(state, call, ended, num_ended)
