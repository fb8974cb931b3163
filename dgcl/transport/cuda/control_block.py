"""Layouts of a rank's flags in device memory, and of the page that device and host share.

Peers write flags (a call may be written; a stage has been written) into the *control block* on the device; the *host
page* says which calls have begun and finished, and takes the addresses of each call. Kernels read and write both by the
addresses given here (:mod:`dgcl.kernels.cuda_tables`), so a change of one is one of the kernels, too.
Called by `connect_devices`, `device_exchange`, `device_tables` and `watchdog`. Free to change while calls end
(`tests/dgcl/transport/cuda/test_exchange.py`), and a stopped call's flags say what is missing, and from whom
(`tests/dgcl/transport/cuda/test_faults.py`).
"""

import ctypes
import time
from collections.abc import Callable

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_tables import ABORT, CALL, STATE_BYTES
from dgcl.transport.common.words import read_word, write_word
from dgcl.transport.cuda.gpu import CudaError, Device

# The control block is one device allocation that peers can write to::
#
#     byte 0       state       this rank's state (dgcl.kernels.cuda_tables)
#       1024       ready[P]    a line per peer: the last call that it has begun
#        ...       done[P]     a line per peer: the stages it has written here
#
# A peer writes only its own lines, so every flag is waited for in memory of the device that waits. The host page is
# locked memory of this process, allocated by the driver::
#
#     byte 0       abort       not 0: stop
#        128       begun       the last call that the device has begun
#        256       finished    the last call that the device has finished
#        384       ring        addresses of the buffers of the last RING calls
#        ...       snapshot    a copy of the control block, when one was requested
LINE = 128
#: Calls whose addresses the ring holds; fewer than that are under way at a time.
RING = 64
#: Seconds that the device may take for something small at set-up.
SECONDS = 10.0
_READY = 1024
_BEGUN, _FINISHED, _RING = 128, 256, 384
_POLL = 5e-4


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
        return _READY + world_size * 2 * LINE

    def ready(self, peer: int) -> int:
        """Address of the line in which ``peer`` announces its calls to this rank."""
        return self.address + _READY + peer * LINE

    def done(self, peer: int) -> int:
        """Address of the line in which ``peer`` counts the stages it has written here."""
        return self.address + _READY + (self.world_size + peer) * LINE


class Snapshot:
    """A copy of a control block at one moment.

    Attributes:
        call: The last call that the device has begun.
        ready, done: ``(P,)`` the last call that each peer has announced, and its done flag.
    """

    def __init__(self, words: np.ndarray, world_size: int) -> None:
        self.call = int(words[CALL // 8])
        lines = words[_READY // 8 :][: 2 * world_size * LINE // 8].reshape(2, world_size, -1)
        self.ready, self.done = lines[:, :, 0].copy()


class HostPage:
    """The page of locked host memory that both the device and its host read and write.

    Args:
        device: Whose it is.
        world_size: Number of ranks.
        num_slots: Addresses that a call has.

    Raises:
        CommError: The driver cannot lock host memory.
    """

    def __init__(self, device: Device, world_size: int, num_slots: int) -> None:
        self._device, self._world_size = device, world_size
        self._snapshot_at = -(-(_RING + RING * num_slots * 8) // LINE) * LINE
        size = self._snapshot_at + ControlBlock.num_bytes(world_size)
        try:
            self._here, self._address = device.driver.allocate_host(size)
        except CudaError as error:
            raise CommError(f"the driver cannot lock memory of the host: {error}") from None
        self._memory = np.ctypeslib.as_array((ctypes.c_int64 * (size // 8)).from_address(self._here))
        self._memory[:] = 0
        self._ring = self._memory[_RING // 8 :][: RING * num_slots].reshape(RING, num_slots)
        self._event = device.driver.create_event()

    @property
    def abort(self) -> int:
        """Device address of the abort word."""
        return self._address

    @property
    def begun_word(self) -> int:
        """Device address of the word that says which call has begun."""
        return self._address + _BEGUN

    @property
    def finished_word(self) -> int:
        """Device address of the word that says which call is over."""
        return self._address + _FINISHED

    @property
    def ring(self) -> int:
        """Device address of the ring."""
        return self._address + _RING

    def enter(self, call: int, addresses: list[int]) -> None:
        """Write the addresses of a call, which is about to be enqueued, into the ring."""
        self._ring[call % RING] = addresses

    def begun(self) -> int:
        """The last call that the device has begun."""
        return int(read_word(self._here + _BEGUN))

    def finished(self) -> int:
        """The last call that the device has finished."""
        return int(read_word(self._here + _FINISHED))

    def stop(self) -> None:
        """End every wait of this rank's kernels, and make all later ones do nothing; calls no driver."""
        write_word(self._here, 1)

    def snapshot(self, control_block: ControlBlock, seconds: float) -> Snapshot | None:
        """Copy the control block to the host; None if that takes longer."""
        driver, side = self._device.driver, self._device.side
        size = ControlBlock.num_bytes(self._world_size)
        driver.copy_to_host(self._here + self._snapshot_at, control_block.address, size, side)
        driver.record_event(self._event, side)
        if not in_time(lambda: driver.has_happened(self._event), seconds):
            return None
        return Snapshot(self._memory[self._snapshot_at // 8 :].copy(), self._world_size)

    def close(self) -> None:
        """Release the page; nothing on the device may use it any more. What it holds can still be read."""
        address, self._memory = self._here, self._memory.copy()
        self._here = self._memory.ctypes.data
        self._device.driver.free_host(address)
        self._device.driver.destroy_event(self._event)


def in_time(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until something has happened; False if that takes longer."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL)
    return True


def first_state(page: HostPage) -> np.ndarray:
    """``(STATE_BYTES / 8,)`` int64: the state of a rank that has made no call."""
    words = np.zeros(STATE_BYTES // 8, np.int64)
    words[ABORT // 8] = page.abort
    return words
