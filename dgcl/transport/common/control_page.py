"""The page of shared memory on which a rank publishes its state to its peers: calls, flags, failures.

A rank writes only its own control page and its peers' wake-up words, and reads its peers' pages. Words are int64,
aligned, written once per event with release order and read with acquire order (:mod:`dgcl.kernels.memory`). Compiled
code reads and writes ready, done and wake lines by their addresses (:mod:`dgcl.transport.shared_memory.engine`).
Called by `peers`, `failure_detector`, `calls`, `dgcl/transport/collective/call` and `dgcl/transport/cuda/watchdog`. A
change of order or meaning is one of the protocol: model it first (docs/protocol/exchange.pml). Free to change while the
model holds (`tests/dgcl/transport/test_protocol_model.py`), and calls and failures are read whole
(`tests/dgcl/transport/common/test_control_page.py`).
"""

from __future__ import annotations

import secrets
import time

import numpy as np

from dgcl.errors import ERROR_CODES, CommError, code_of
from dgcl.transport.common.segments import Segment, SegmentFile
from dgcl.transport.common.words import read_word, write_word

# byte 0     token      random; proves to a peer that it opened the right file
#          8     state      ALIVE, FAILED, CLOSED
#         16     code       of the error, when FAILED (place in errors.ERROR_CODES)
#         24     length     of the reason's text
#         32     call       that this rank is in, or was in last
#         40     tags[2]    what it is, of the last call with an even, and with an odd number
#         56     stuck      the last call in which this rank was seen to wait with no thread left to make another
#         64     control    calls that this rank had begun on the control plane when it left
#         72     reason     UTF-8
#        968     collective of the control plane that this rank waits in; 0: none
#        976     name       its length in bytes, doubled; plus 1 where no other thread of the rank could make a call
#        984     text       the name, UTF-8
#       1016     waits      for whom: milliseconds of the clock when last published << 16 | the peer + 1; 0: never
#       1024     ready[P]   one line per peer that may write here: call, tag, and where
#        ...     done[P]    one line per peer that this rank writes to: a sequence number
#        ...     wake       the one line that others write to: it wakes this rank (:mod:`dgcl.kernels.futex`)
#
# A *ready* line says "call n may be written": the call number is written last, so a rank that sees it sees the rest. A
# *done* line counts up: ``call * K + stage + 1`` means that this rank has finished all its transfers to that peer up
# to that stage of that call. Calls are numbered from 1 and nothing is ever reset, so a stale flag cannot be
# mistaken for a fresh one. A rank publishes ready for call n + 1 only after it has seen every done of call n,
# by which time its senders have read the line of call n.
#
# A communicator may execute several programs, whose numbers of stages differ. K is the largest number of stages of any
# of them, the same on every rank. Nothing else of the protocol depends on which program a call executes: a program
# with fewer stages leaves out the last values of its call, so every done line still grows with every call that uses it,
# and no value of call n reaches ``(n + 1) * K + 1``, the first one of call n + 1. With the number of stages of the
# call's own program instead, a short call could end below the value that a longer earlier call left, which would be
# taken for its done. All ranks make the calls in one order, and the tag names the exchange, so the ranks of a call
# execute one program (model: docs/protocol/exchange.pml).
#
# *call* and *tags* serve a rank that waits in vain: a peer that makes another call may have no ready line for it. The
# tag of call n stays until call n + 2 begins, so a reader that reads n both before and after a tag has the tag of n.
#
# Memory order, on x86 and on Arm. Four pairs of events must not be reordered:
#
# 1. Rows are written, then *done* is raised; *done* is seen, then rows are read. The flag is stored with release
#    and loaded with acquire order (x86: plain ``mov``, for it keeps stores in order, and loads in order; Arm:
#    ``stlr`` and ``ldar``). Large results are written by streaming stores, which x86 keeps in no order: a full fence
#    (:func:`dgcl.kernels.memory.write_fence`, a locked instruction, which no store passes; Arm: ``dmb ish``)
#    stands between the last of them and the flag.
# 2. The words of a *ready* line are written, then its call; the call is seen, then the words are read: the same.
# 3. A buffer is read by the program, then offered again by *ready* of a later call; that is seen, then the buffer
#    is written. Release also keeps earlier *loads* before the store, and acquire keeps later *stores* behind the
#    load: the old contents have been read before anybody may write new ones.
# 4. A sender reads a *ready* line, then raises *done*; *done* is seen, then the line is written for the next call.
#    The same as 3, with the line in place of the buffer.
#
# Nothing here requires all ranks to see two different flags in one order, so sequential consistency is not needed.
# Wake-ups, which only shorten waits, have fences of their own. Flags are aligned 8-byte words, which both
# architectures read and write in one piece.
#
# A ready, done or wake line takes the space of two cache lines, because processors fetch cache lines in pairs.
ALIVE, FAILED, CLOSED = 0, 1, 2

LINE = 128
_CALL_START = 32
_STUCK = 56
_LINES_START = 1024
_CONTROL = 64
_REASON_START = 72
_COLLECTIVE = 968
_NAME = 976
_NAME_START = 984
_WAITS = 1016
_NAME_MAX = _WAITS - _NAME_START
_REASON_MAX = _COLLECTIVE - _REASON_START

#: Words of a ready line: the call (written last), the call's tag, then (segment base, segment size, offset)
#: of the buffer and of the relay rows.
READY_BUFFER, READY_RELAY = 2, 5


def control_page_bytes(world_size: int) -> int:
    """Size of a control page."""
    return _LINES_START + (2 * world_size + 1) * LINE


class ControlPage:
    """One rank's control page, its own or a peer's.

    Attributes:
        segment: The mapped segment that it lies in.
    """

    def __init__(self, segment: Segment, world_size: int) -> None:
        self.segment = segment
        self._words = segment.memory[: control_page_bytes(world_size)].view(np.int64)
        self._world_size = world_size

    @classmethod
    def create(cls, file: SegmentFile, world_size: int) -> ControlPage:
        """A new control page in a segment of its own; every word but the token is zero."""
        control_page = cls(file.grow(control_page_bytes(world_size)), world_size)
        control_page._words[0] = secrets.randbits(62) + 1
        return control_page

    @classmethod
    def stand_in(cls, world_size: int) -> ControlPage:
        """A control page in this process's own memory for a peer whose control page cannot be mapped."""
        memory = np.zeros(control_page_bytes(world_size) + LINE, np.uint8)
        skip = -memory.ctypes.data % LINE
        memory = memory[skip : skip + control_page_bytes(world_size)]
        return cls(Segment(0, len(memory), memory, memory.ctypes.data), world_size)

    @property
    def token(self) -> int:
        """The control page's random number."""
        return int(self._words[0])

    def ready_address(self, peer: int) -> int:
        """Address of the line with which this control page's rank tells ``peer`` where to write."""
        return self.segment.address + _LINES_START + peer * LINE

    def done_address(self, peer: int) -> int:
        """Address of the line with which this control page's rank tells ``peer`` what it has written."""
        return self.segment.address + _LINES_START + (self._world_size + peer) * LINE

    @property
    def wake_address(self) -> int:
        """Address of the futex word on which this control page's rank sleeps; peers write it to wake the rank."""
        return self.segment.address + _LINES_START + 2 * self._world_size * LINE

    @property
    def call_address(self) -> int:
        """Address of the call that this control page's rank is in; the two tags follow."""
        return self.segment.address + _CALL_START

    def current_call(self) -> tuple[int, int]:
        """(number, tag) of the call that this control page's rank is in."""
        while True:
            call = int(read_word(self.call_address))
            tag = int(read_word(self.call_address + 8 + 8 * (call & 1)))
            if read_word(self.call_address) == call:
                return call, tag

    @property
    def stuck_call(self) -> int:
        """The last call in which this rank waited while no other thread of its process could make calls."""
        return int(read_word(self.segment.address + _STUCK))

    def post_stuck(self, call: int) -> None:
        """Publish that this rank waits in ``call`` and has no other thread that may make calls."""
        write_word(self.segment.address + _STUCK, call)

    def post_wait(self, peer: int) -> None:
        """Publish that this rank waits for ``peer``; again and again, as long as it does."""
        write_word(self.segment.address + _WAITS, time.monotonic_ns() // 10**6 << 16 | peer + 1)

    def waits_for(self, seconds: float) -> int | None:
        """The peer that this control page's rank waits for; None if it has not said so in the last ``seconds``."""
        when, peer = divmod(int(read_word(self.segment.address + _WAITS)), 1 << 16)
        fresh = peer and time.monotonic_ns() // 10**6 - when < 1000 * seconds
        return peer - 1 if fresh and peer <= self._world_size else None

    def post_collective(self, number: int, alone: bool, name: str) -> None:
        """Publish the control-plane collective in which this rank waits; number 0: none."""
        if number:
            text = name.encode()[:_NAME_MAX]
            self._words[_NAME // 8] = 2 * len(text) + alone
            self.segment.memory[_NAME_START : _NAME_START + len(text)] = np.frombuffer(text, np.uint8)
        write_word(self.segment.address + _COLLECTIVE, number)

    def current_collective(self) -> tuple[int, bool, str]:
        """(number, alone, name) of the collective that this control page's rank waits in; number 0: none."""
        while number := int(read_word(self.segment.address + _COLLECTIVE)):
            length, alone = divmod(int(self._words[_NAME // 8]), 2)
            length = min(max(length, 0), _NAME_MAX)
            text = self.segment.memory[_NAME_START : _NAME_START + length].tobytes()
            if read_word(self.segment.address + _COLLECTIVE) == number:
                return number, bool(alone), text.decode(errors="replace")
        return 0, False, ""

    @property
    def state(self) -> int:
        """ALIVE, FAILED or CLOSED."""
        return int(read_word(self.segment.address + 8))

    @property
    def num_control_calls(self) -> int:
        """How many calls this page's rank had begun on the control plane when it closed or failed."""
        return int(read_word(self.segment.address + _CONTROL))

    def post_closed(self, num_control_calls: int = 0) -> None:
        """Publish that this rank has left; a posted failure is kept."""
        if self.state == ALIVE:
            self._words[_CONTROL // 8] = num_control_calls
            write_word(self.segment.address + 8, CLOSED)

    def post_failure(self, error: CommError, num_control_calls: int = 0) -> None:
        """Publish why this rank gave up; only the first reason is kept."""
        if self.state == FAILED:
            return
        text = str(error).encode()[:_REASON_MAX]
        text = text.decode(errors="ignore").encode()  # do not cut a character in two
        self.segment.memory[_REASON_START : _REASON_START + len(text)] = np.frombuffer(text, np.uint8)
        self._words[2] = code_of(type(error))
        self._words[3] = len(text)
        self._words[_CONTROL // 8] = num_control_calls
        write_word(self.segment.address + 8, FAILED)

    def failure(self) -> CommError:
        """The error that the rank posted."""
        code, length = int(self._words[2]), int(self._words[3])
        kind = ERROR_CODES[code] if 0 <= code < len(ERROR_CODES) else CommError
        length = min(max(length, 0), _REASON_MAX)
        text = self.segment.memory[_REASON_START : _REASON_START + length]
        return kind(text.tobytes().decode(errors="replace"))
