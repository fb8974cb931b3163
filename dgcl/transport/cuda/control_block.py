"""A rank's words: what its kernels and its peers' count in, and what the device tells the host.

On the device, one allocation that peers can write to::

    byte 0       state       of this rank (dgcl.kernels.cuda_tables)
      1024       ready[P]    a line per peer: the call that it is in, its tag, where its buffers are
       ...       done[P]     a line per peer: what it has written here
       ...       proof[P]    256 bytes per peer, for the transfers that prove a way at set-up

A peer writes only its own lines here, so every flag is waited for in memory of the device that waits. On the
host, a page that both sides see (locked shared memory)::

    byte 0       abort       not 0: stop
       128       begun       line: the last call that the device has begun, its tag, its buffers
       256       finished    the last call that it has finished
       512       stop        the greatest value, over and over: written over all lines of the device to stop it
       ...       look        a copy of the words on the device, when somebody looks
"""

from __future__ import annotations

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_tables import ABORT, FLAG_MAX, STATE_BYTES
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.shared_memory.engine import read_word, write_word
from dgcl.transport.shared_memory.segments import Segment, SegmentFile

LINE = 128
PROOF = 256
_READY = 1024
_BEGUN, _FINISHED, _STOP = 128, 256, 512


class DeviceWords:
    """The words on a device, this rank's or a peer's, at an address of this process.

    Args:
        address: Where they are.
        world_size: P.
    """

    def __init__(self, address: int, world_size: int) -> None:
        self.address, self.world_size = address, world_size

    @staticmethod
    def num_bytes(world_size: int) -> int:
        """Their size."""
        return _READY + world_size * (2 * LINE + PROOF)

    def ready(self, peer: int) -> int:
        """The line in which ``peer`` announces its calls to this rank."""
        return self.address + _READY + peer * LINE

    def done(self, peer: int) -> int:
        """The line in which ``peer`` counts what it has written here."""
        return self.address + _READY + (self.world_size + peer) * LINE

    def proof(self, peer: int) -> int:
        """Where ``peer`` proves that it can write."""
        return self.address + _READY + 2 * self.world_size * LINE + peer * PROOF

    @property
    def lines(self) -> tuple[int, int]:
        """Where the lines begin, and their bytes."""
        return self.address + _READY, 2 * self.world_size * LINE


class Look:
    """A copy of a rank's words at some moment."""

    def __init__(self, words: np.ndarray, world_size: int) -> None:
        self._words, self._world_size = words, world_size

    def state(self, place: int) -> int:
        """A word of the state, by its byte."""
        return int(self._words[place // 8])

    def ready(self, peer: int) -> tuple[int, int]:
        """The call that ``peer`` has announced, and its tag."""
        first = (_READY + peer * LINE) // 8
        return int(self._words[first]), int(self._words[first + 1])

    def note_ready(self, peer: int, call: int, tag: int) -> None:
        """Enter what ``peer`` has announced elsewhere."""
        first = (_READY + peer * LINE) // 8
        self._words[first : first + 2] = call, tag

    def done(self, peer: int) -> int:
        """What ``peer`` has counted up to."""
        return int(self._words[(_READY + (self._world_size + peer) * LINE) // 8])

    def proof(self, peer: int) -> np.ndarray:
        """``(32,)`` int64: what ``peer`` wrote as its proof."""
        first = (_READY + 2 * self._world_size * LINE + peer * PROOF) // 8
        return self._words[first : first + PROOF // 8].copy()

    def same_as(self, other: Look | None) -> bool:
        """Whether nothing has happened in between."""
        return other is not None and np.array_equal(self._words, other._words)


class HostPage:
    """The page that device and host both see.

    Raises:
        CommError: The driver cannot lock shared memory.
    """

    def __init__(self, device: Device, world_size: int) -> None:
        self._device, self._world_size = device, world_size
        self._words_bytes = DeviceWords.num_bytes(world_size)
        lines = DeviceWords(0, world_size).lines[1]
        self._look = -(-(_STOP + lines) // LINE) * LINE
        self._file = SegmentFile()
        self._segment: Segment = self._file.grow(self._look + self._words_bytes)
        try:
            self._address = device.driver.register_host(self._segment.address, self._segment.size)
        except CudaError as error:
            raise CommError(f"the driver cannot lock shared memory of the host: {error}") from None
        memory = self._segment.memory.view(np.int64)
        memory[_STOP // 8 : (_STOP + lines) // 8] = FLAG_MAX
        self._event = device.driver.create_event()

    @property
    def abort(self) -> int:
        """Where the device reads whether to stop."""
        return self._address

    @property
    def begun_line(self) -> int:
        """Where the device announces a call to the host."""
        return self._address + _BEGUN

    @property
    def finished_word(self) -> int:
        """Where the device says that a call is over."""
        return self._address + _FINISHED

    def begun(self) -> tuple[int, int]:
        """The call that the device has begun last, and its tag."""
        here = self._segment.address + _BEGUN
        while True:
            call = int(read_word(here))
            tag = int(read_word(here + 8))
            if read_word(here) == call:
                return call, tag

    def finished(self) -> int:
        """The last call that the device has finished."""
        return int(read_word(self._segment.address + _FINISHED))

    def stop(self, words: DeviceWords) -> None:
        """Let every wait of this rank end, and all that comes after do nothing.

        Peers may still count over the greatest value, so this is to be repeated until all is quiet.
        """
        self.stop_kernels()
        address, num_bytes = words.lines
        driver, side = self._device.driver, self._device.side
        driver.copy_to_device(address, self._segment.address + _STOP, num_bytes, side)
        driver.record_event(self._event, side)

    def stop_kernels(self) -> None:
        """Let the waits of kernels end, without a word to the driver."""
        write_word(self._segment.address, 1)

    @property
    def is_quiet(self) -> bool:
        """Whether the last stop and the last look are done."""
        return self._device.driver.has_happened(self._event)

    def start_look(self, words: DeviceWords) -> None:
        """Begin to copy the words; :meth:`look` tells when they are here."""
        driver, side = self._device.driver, self._device.side
        driver.copy_to_host(self._segment.address + self._look, words.address, self._words_bytes, side)
        driver.record_event(self._event, side)

    def look(self) -> Look | None:
        """The words, if the copy that was begun last is done."""
        if not self._device.driver.has_happened(self._event):
            return None
        words = self._segment.memory[self._look : self._look + self._words_bytes].view(np.int64)
        return Look(words.copy(), self._world_size)

    def close(self) -> None:
        """Give the page up; nothing on the device may use it any more."""
        self._device.driver.unregister_host(self._segment.address)
        self._device.driver.destroy_event(self._event)
        self._file.close()


def first_state(page: HostPage) -> np.ndarray:
    """The state of a rank that has made no call."""
    words = np.zeros(STATE_BYTES // 8, np.int64)
    words[ABORT // 8] = page.abort
    return words
