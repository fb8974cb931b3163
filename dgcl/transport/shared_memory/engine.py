"""Compiled loop that sends and receives one rank's rows of one call, as far as possible without waiting.

It works on one array of words per task, which says where the task's tables are and holds the state of its call
(:mod:`dgcl.transport.shared_memory.tasks` fills it). It scans the open receives and sends; a send runs as soon as the
rows it reads have arrived and its receiver is ready, in any order, so one slow peer does not delay the others. It
returns when all is done, or to let Python handle signals, deadlines and peers. Each function has one signature,
compiled beforehand.
Called by `executor`, `interpreter`, `tasks` and `dgcl/transport/precompile`. Free to change while the protocol of flags
holds (`tests/dgcl/transport/test_protocol_model.py`), rows arrive at any pace (`tests/dgcl/program/test_any_pace.py`),
and waits yield as said below (`tests/dgcl/transport/shared_memory/test_wait_policy.py`).
"""

from typing import Any

import numpy as np
from numba import carray, int32, int64, njit, types, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.futex import ASLEEP, ATTEND, AWAKE, announce_sleep, cancel_sleep, sleep, wake, yield_core
from dgcl.kernels.memory import (
    address_of,
    load_acquire,
    load_word,
    monotonic_nanoseconds,
    pointer_to,
    store_release,
)
from dgcl.kernels.rows import gather_rows, sum_rows
from dgcl.transport.steps import EXPAND

# Sends to one peer keep their order, because the peer reads them off one counter (control_page.py). When nothing can be
# done the engine spins for a moment, yields its core, then sleeps until a peer that has raised a flag wakes it
# (kernels/futex.py); there may be more ranks than cores. No deadlock: a send of stage k waits only for receives of
# earlier stages and for its peer to enter the call, so the waiting graph of a call has no cycle.
#: What :func:`advance` returns: all done; nothing to do for a while; a peer's segment must be mapped; a peer
#: made another call.
DONE, WAITING, UNMAPPED, DISAGREES = 0, 1, 2, 3
_READY = 4

#: Nanoseconds to spin; nanoseconds to keep yielding the core between checks of the flags; nanoseconds from which a
#: yield is expensive; how many times to sleep; nanoseconds of a sleep.
WaitPolicy = tuple[int, int, int, int, int]
#: One policy serves ranks that have a core each and ranks that share cores, because each yield measures which it is. On
#: a core of its own a yield returns at once. Where ranks share one, each waits for another there, and spinning would
#: keep that one from running. But a yield may cost a whole time slice (:mod:`dgcl.kernels.futex`), in which arriving
#: rows go unnoticed: after an expensive one the engine does not yield in many following waits. Their number doubles if
#: the next yield is expensive, too, and halves after a wait that ended during cheap yields.
POLICY: WaitPolicy = (2_000, 50_000, 200_000, 4, 5_000_000)
AT_ONCE: WaitPolicy = (0, 0, 0, 0, 0)

#: Least and largest number of waits without yields after an expensive yield.
FEWEST, MOST = 16, 1024

#: Words of a task, first the address and the length of each of its tables:
#: sends and receives, one row each; sends' dependencies, as numbers of receives; a row for each peer; for each sender
#: its ready line and its wake word; which rows are sent, and what arrives for which rows
#: (:class:`dgcl.program.rank_program.Program`); bytes written to each peer, added to.
SENDS, RECEIVES, DEPS, PEERS, SENDERS, SEND_ROWS, ARRIVAL_ROWS, ARRIVAL_SLOTS, MOVED = range(0, 18, 2)
#: Addresses of the ``(P, M)`` tables of bases, sizes and addresses (0: free place) of what is mapped of each peer; M.
MAPS, MAPS_WIDTH = 20, 23
#: The verb; stages that a call counts; addresses of the rank's wake word, and of the call on its control page.
VERB, NUM_STAGES, WAKE_WORD, CALL_WORD = range(24, 28)
#: Of the call that was begun last: its number; bytes of a row; code of the element type
#: (:data:`dgcl.kernels.rows.SUMMABLE`); bytes from which on a send is written past the caches; address and number of
#: the rows that are read; address of those that follow (expand: halo rows that have arrived) or of arrivals (fold).
NUMBER, ROW_BYTES, SUM_CODE, STREAMED_FROM, SOURCE, SOURCE_ROWS, SECOND = range(28, 35)
#: The same call's ready line: its tag, then (segment base, segment size, offset) of the buffer and of relay rows.
LINE, TAG = 35, 35
#: The send, and its portion, that UNMAPPED or DISAGREES is about; coming waits without yields, and how many they were.
WHERE, YIELDS = 42, 44
_TARGETS, _CLOCK, _SINCE, _SHARING, _SLEEPS, _LISTENING = 46, 48, 50, 51, 52, 53
NUM_WORDS = 54

#: Columns of sends (COUNT to FIRST have one for each portion), of receives, and of peers: its ready line for this rank,
#: its done line for this rank, this rank's done line for it, its wake word.
PEER, STAGE, IS_DONE, COUNT, START, TO, FIRST, DEPS_BEGIN, DEPS_END = 0, 1, 2, 3, 5, 7, 9, 11, 12
SEND_COLUMNS, RECEIVE_COLUMNS = 13, 3
READY, ITS_DONE, OWN_DONE, ITS_WAKE, _SEEN = range(5)
PEER_COLUMNS = 5

_UNDECIDED = -1  # whether to yield in a wait is decided when it has lasted a moment
_I1 = int64[::1]
_POLICY = types.UniTuple(int64, 5)


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


@njit(nogil=True, inline="always")
def array_at(words: np.ndarray, place: int, sample: Any) -> Any:
    """The array whose address and length are in two words."""
    return carray(pointer_to(words[place], sample), (words[place + 1],))


@njit(nogil=True, inline="always")
def table_at(words: np.ndarray, place: int, columns: int) -> Any:
    """The same, of words in rows."""
    return carray(pointer_to(words[place], int64(0)), (words[place + 1], columns))


@njit(nogil=True)
def begin(words: np.ndarray, number: int) -> None:
    """Begin call ``number``, whose words are entered: nothing is done yet; the senders hear where to write."""
    words[NUMBER] = number
    table_at(words, SENDS, SEND_COLUMNS)[:, IS_DONE] = 0
    table_at(words, RECEIVES, RECEIVE_COLUMNS)[:, IS_DONE] = 0
    senders = array_at(words, SENDERS, int64(0))
    publish_ready(senders, words[CALL_WORD], number, words[LINE : LINE + 7])
    for i in range(len(senders)):
        wake(load_word(words[SENDERS] + 8 * (len(senders) + i)), AWAKE)


@njit(nogil=True)
def _note_arrivals(words: np.ndarray, receives: np.ndarray, peers: np.ndarray) -> tuple[int, bool]:
    """Mark the receives that are complete; return how many are not, and whether any was marked."""
    pending = 0
    progressed = False
    before = words[NUMBER] * words[NUM_STAGES]
    for i in range(len(receives)):
        if receives[i, IS_DONE] == 0:
            if load_acquire(peers[receives[i, PEER], ITS_DONE]) > before + receives[i, STAGE]:
                receives[i, IS_DONE] = 1
                progressed = True
            else:
                pending += 1
    return pending, progressed


@njit(nogil=True)
def _find_targets(
    words: np.ndarray, sends: np.ndarray, send: int, line: int, receives: np.ndarray, deps: np.ndarray
) -> int:
    """Find the target addresses of both portions of a send, before either is sent.

    Rows that were sent twice would be counted twice. Returns _READY, WAITING (for the rows that the send reads, or
    for the peer), UNMAPPED or DISAGREES.
    """
    for d in range(sends[send, DEPS_BEGIN], sends[send, DEPS_END]):
        if receives[deps[d], IS_DONE] == 0:
            return WAITING
    ready = load_acquire(line)
    if ready < words[NUMBER]:
        return WAITING
    words[WHERE] = send
    if ready > words[NUMBER] or load_word(line + 8) != words[TAG]:
        return DISAGREES
    row_bytes = words[ROW_BYTES]
    for portion in range(2):
        if sends[send, COUNT + portion] != 0:
            first = sends[send, TO + portion] * row_bytes
            last = first + sends[send, COUNT + portion] * row_bytes
            slot = line + (40 if words[VERB] == EXPAND and portion == 1 else 16)
            target = _mapped(words, sends[send, PEER], slot, first, last)
            words[_TARGETS + portion] = target + first
            words[WHERE + 1] = portion
            if target == 0:
                return UNMAPPED
            if target < 0:
                return DISAGREES
    return _READY


@njit(nogil=True)
def _mapped(words: np.ndarray, peer: int, line: int, first: int, last: int) -> int:
    """This process's address of the buffer that a ready line names at ``line``; 0 when its segment is not mapped.

    Returns -1 when bytes ``first`` to ``last`` of the buffer do not lie inside the segment. The buffer may
    begin before the segment: that of halo rows alone begins where owned rows would lie.
    """
    if first == last:
        return 1
    base, offset, width = load_word(line), load_word(line + 16), words[MAPS_WIDTH]
    for place in range(peer * width, (peer + 1) * width):
        address = load_word(words[MAPS + 2] + 8 * place)
        if address != 0 and load_word(words[MAPS] + 8 * place) == base:
            inside = offset + first >= 0 and offset + last <= load_word(words[MAPS + 1] + 8 * place)
            return address + offset if inside else -1
    return 0


@njit(nogil=True)
def _write_rows(words: np.ndarray, sends: np.ndarray, send: int) -> int:
    """Write both portions of a send to their targets; return the number of bytes."""
    source, second, row_bytes, streamed_from = (
        words[SOURCE],
        words[SECOND],
        words[ROW_BYTES],
        words[STREAMED_FROM],
    )
    num_bytes = 0
    for portion in range(2):
        if sends[send, COUNT + portion] == 0:
            continue
        target = words[_TARGETS + portion]
        begin = sends[send, START + portion]
        end = begin + sends[send, COUNT + portion]
        if words[VERB] == EXPAND:
            rows = array_at(words, SEND_ROWS, int32(0))
            gather_rows(
                target, source, words[SOURCE_ROWS], second, rows, begin, end, row_bytes, streamed_from
            )
        else:
            sum_rows(
                words[SUM_CODE],
                target,
                source if portion == 0 else 0,
                begin,
                end,
                array_at(words, ARRIVAL_ROWS, int32(0)),
                array_at(words, ARRIVAL_SLOTS, int32(0)),
                sends[send, FIRST + portion],
                second,
                row_bytes,
                streamed_from,
            )
        num_bytes += (end - begin) * row_bytes
    return num_bytes


@njit(nogil=True)
def _end_wait(words: np.ndarray) -> None:
    """Reset the wait state after progress, so that the next wait starts afresh."""
    if words[_SHARING] > 0:
        words[YIELDS + 1] //= 2
    words[_SINCE], words[_SHARING] = -1, _UNDECIDED
    if words[_LISTENING] != 0:
        cancel_sleep(words[WAKE_WORD])
        words[_LISTENING] = 0


@njit(nogil=True)
def _wait(words: np.ndarray, policy: WaitPolicy, clock: int) -> bool:
    """Wait briefly before the next scan of all flags; return False when Python must check signals and peers."""
    spin, share, expensive, _, nanoseconds = policy
    if words[_LISTENING] != 0:
        words[_LISTENING] = 0
        words[_SLEEPS] -= 1
        word = sleep(words[WAKE_WORD], nanoseconds, clock)
        return word != ATTEND and (word != ASLEEP or words[_SLEEPS] > 0)
    if spin > 0:
        now = monotonic_nanoseconds(clock)
        if words[_SINCE] < 0:
            words[_SINCE] = now
        waited = now - words[_SINCE]
        if waited < spin:
            return True
        if words[_SHARING] == _UNDECIDED:
            words[_SHARING] = share if words[YIELDS] == 0 else 0
            words[YIELDS] = max(words[YIELDS] - 1, 0)
        if waited < spin + words[_SHARING]:
            if yield_core(clock) > expensive:
                words[_SHARING] = 0
                words[YIELDS] = words[YIELDS + 1] = min(max(2 * words[YIELDS + 1], FEWEST), MOST)
            return True
    if words[_SLEEPS] <= 0:
        return False
    announce_sleep(words[WAKE_WORD])  # then check all flags once more
    words[_LISTENING] = 1
    return True


@compiled(int64(_I1, _POLICY), inline=False)
def advance(words: np.ndarray, policy: WaitPolicy) -> int:
    """Advance a call as far as possible, waiting as ``policy`` allows.

    Args:
        words: The task's, whose call was begun.
        policy: What to do before WAITING is returned.
    """
    clock = address_of(words) + 8 * _CLOCK
    sends, deps = table_at(words, SENDS, SEND_COLUMNS), array_at(words, DEPS, int32(0))
    receives, peers = table_at(words, RECEIVES, RECEIVE_COLUMNS), table_at(words, PEERS, PEER_COLUMNS)
    moved = array_at(words, MOVED, int64(0))
    words[_SINCE], words[_SHARING], words[_SLEEPS], words[_LISTENING] = -1, _UNDECIDED, policy[3], 0
    while True:
        pending, progressed = _note_arrivals(words, receives, peers)
        peers[:, _SEEN] = 0
        for i in range(len(sends)):
            if sends[i, IS_DONE] != 0:
                continue
            pending += 1
            peer = sends[i, PEER]
            if peers[peer, _SEEN] != 0:
                continue
            peers[peer, _SEEN] = 1
            status = _find_targets(words, sends, i, peers[peer, READY], receives, deps)
            if status == WAITING:
                continue
            if status != _READY:
                return status
            moved[peer] += _write_rows(words, sends, i)
            store_release(peers[peer, OWN_DONE], words[NUMBER] * words[NUM_STAGES] + sends[i, STAGE] + 1)
            wake(peers[peer, ITS_WAKE], AWAKE)
            sends[i, IS_DONE] = 1
            peers[peer, _SEEN] = 0
            pending -= 1
            progressed = True
        if pending == 0 or progressed:
            _end_wait(words)
            if pending == 0:
                return DONE
        elif not _wait(words, policy, clock):
            return WAITING
