"""A rank's control block on the device, and the page of host memory that the device and its host share.

The control block is one device allocation that peers can write to::

    byte 0       state       this rank's state (dgcl.kernels.cuda_tables)
      1024       ready[P]    a line per peer: the call it is in, its tag, where its buffers are
       ...       done[P]     a line per peer: the stages it has written here
       ...       proof[P]    256 bytes per peer, for the transfers that test the connection at set-up

A peer writes only its own lines, so every flag is waited for in memory of the device that waits. The host page is
locked memory of this process, allocated by the driver::

    byte 0       abort       not 0: stop
       128       begun       line: the last call that the device has begun, its tag, its buffers
       256       finished    the last call that the device has finished
       384       trial       two words for the test of streams at set-up (dgcl.transport.cuda.concurrency)
       512       stop        FLAG_MAX over and over: copied over all lines of the device to stop it
       ...       snapshot    a copy of the control block, when one was requested
"""

from __future__ import annotations

import ctypes

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_tables import ABORT, FLAG_MAX, STATE_BYTES
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.shared_memory.engine import read_word, write_word

LINE = 128
PROOF = 256
_READY = 1024
_BEGUN, _FINISHED, _TRIAL, _STOP = 128, 256, 384, 512


class ControlBlock:
    """Addresses inside the control block of this rank, or of a peer, as mapped in this process.

    Args:
        address: Address of the block.
        world_size: Number of ranks, P.
    """

    def __init__(self, address: int, world_size: int) -> None:
        self.address, self.world_size = address, world_size

    @staticmethod
    def num_bytes(world_size: int) -> int:
        """Size of a control block."""
        return _READY + world_size * (2 * LINE + PROOF)

    def ready(self, peer: int) -> int:
        """Address of the line in which ``peer`` announces its calls to this rank."""
        return self.address + _READY + peer * LINE

    def done(self, peer: int) -> int:
        """Address of the line in which ``peer`` counts the stages it has written here."""
        return self.address + _READY + (self.world_size + peer) * LINE

    def proof(self, peer: int) -> int:
        """Address where ``peer`` writes its test pattern."""
        return self.address + _READY + 2 * self.world_size * LINE + peer * PROOF

    @property
    def lines(self) -> tuple[int, int]:
        """Address and size in bytes of all lines."""
        return self.address + _READY, 2 * self.world_size * LINE


class Snapshot:
    """A copy of a control block at one moment."""

    def __init__(self, words: np.ndarray, world_size: int) -> None:
        self._words, self._world_size = words, world_size

    def state(self, offset: int) -> int:
        """A word of the state, by its byte offset."""
        return int(self._words[offset // 8])

    def ready(self, peer: int) -> tuple[int, int]:
        """The call that ``peer`` has announced, and its tag."""
        first = (_READY + peer * LINE) // 8
        return int(self._words[first]), int(self._words[first + 1])

    def set_ready(self, peer: int, call: int, tag: int) -> None:
        """Enter what ``peer`` has announced in another place (the lines of host lanes)."""
        first = (_READY + peer * LINE) // 8
        self._words[first : first + 2] = call, tag

    def done(self, peer: int) -> int:
        """The value of ``peer``'s done flag."""
        return int(self._words[(_READY + (self._world_size + peer) * LINE) // 8])

    def proof(self, peer: int) -> np.ndarray:
        """``(32,)`` int64: the test pattern that ``peer`` wrote."""
        first = (_READY + 2 * self._world_size * LINE + peer * PROOF) // 8
        return self._words[first : first + PROOF // 8].copy()

    def same_as(self, other: Snapshot | None) -> bool:
        """Whether nothing has changed between two snapshots."""
        return other is not None and np.array_equal(self._words, other._words)


class HostPage:
    """The page of locked host memory that both the device and its host read and write.

    Raises:
        CommError: The driver cannot lock host memory.
    """

    def __init__(self, device: Device, world_size: int) -> None:
        self._device, self._world_size = device, world_size
        self._block_bytes = ControlBlock.num_bytes(world_size)
        lines = ControlBlock(0, world_size).lines[1]
        self._snapshot_at = -(-(_STOP + lines) // LINE) * LINE
        size = self._snapshot_at + self._block_bytes
        try:
            self._here, self._address = device.driver.allocate_host(size)
        except CudaError as error:
            raise CommError(f"the driver cannot lock memory of the host: {error}") from None
        self._memory = np.ctypeslib.as_array((ctypes.c_int64 * (size // 8)).from_address(self._here))
        self._memory[:] = 0
        self._memory[_STOP // 8 : (_STOP + lines) // 8] = FLAG_MAX
        self._event = device.driver.create_event()

    @property
    def abort(self) -> int:
        """Device address of the abort word."""
        return self._address

    @property
    def begun_line(self) -> int:
        """Device address of the line in which the device announces a call to the host."""
        return self._address + _BEGUN

    @property
    def finished_word(self) -> int:
        """Device address of the word that says which call is over."""
        return self._address + _FINISHED

    @property
    def trial(self) -> int:
        """Device address of the first of the two words for the test of streams."""
        return self._address + _TRIAL

    def trial_word(self, which: int) -> int:
        """One of the two words, as the host reads it."""
        return int(read_word(self._here + _TRIAL + 8 * which))

    def set_trial(self, which: int, value: int) -> None:
        """Write one of the two words."""
        write_word(self._here + _TRIAL + 8 * which, value)

    def begun(self) -> tuple[int, int]:
        """The last call that the device has begun, and its tag."""
        here = self._here + _BEGUN
        while True:
            call = int(read_word(here))
            tag = int(read_word(here + 8))
            if read_word(here) == call:
                return call, tag

    def finished(self) -> int:
        """The last call that the device has finished."""
        return int(read_word(self._here + _FINISHED))

    def stop(self, control_block: ControlBlock) -> None:
        """End every wait of this rank, and make all later kernels do nothing.

        Peers may still overwrite the stop value with their counts, so this is repeated until the device is idle.
        """
        self.stop_kernels()
        address, num_bytes = control_block.lines
        driver, side = self._device.driver, self._device.side
        driver.copy_to_device(address, self._here + _STOP, num_bytes, side)
        driver.record_event(self._event, side)

    def stop_kernels(self) -> None:
        """End the waits of kernels, without calling the driver."""
        write_word(self._here, 1)

    @property
    def is_idle(self) -> bool:
        """Whether the last stop and the last snapshot are done."""
        return self._device.driver.has_happened(self._event)

    def start_snapshot(self, control_block: ControlBlock) -> None:
        """Begin to copy the control block to the host; :meth:`snapshot` returns it when it is there."""
        driver, side = self._device.driver, self._device.side
        target = self._here + self._snapshot_at
        driver.copy_to_host(target, control_block.address, self._block_bytes, side)
        driver.record_event(self._event, side)

    def snapshot(self) -> Snapshot | None:
        """The snapshot that was started last; None while its copy is not done."""
        if not self._device.driver.has_happened(self._event):
            return None
        return Snapshot(self._memory[self._snapshot_at // 8 :].copy(), self._world_size)

    def close(self) -> None:
        """Release the page; nothing on the device may use it any more. What it holds can still be read."""
        address, self._memory = self._here, self._memory.copy()
        self._here = self._memory.ctypes.data
        self._device.driver.free_host(address)
        self._device.driver.destroy_event(self._event)


def first_state(page: HostPage) -> np.ndarray:
    """``(STATE_BYTES / 8,)`` int64: the state of a rank that has made no call."""
    words = np.zeros(STATE_BYTES // 8, np.int64)
    words[ABORT // 8] = page.abort
    return words
