"""Allocates and uploads tables in device memory, which stay there until the communicator is closed.

An upload is still under way when its address is returned: calls wait for its event on the device, and the source must
not change any more. Memory is taken in pieces of at least 1 MiB, set to zero.
Called by `connect_devices`. Free to change while calls on all streams read finished tables
(`tests/dgcl/transport/cuda/test_exchange.py`), and a device that does not finish them at set-up is an error in time
(`tests/dgcl/transport/cuda/test_faults.py`, "frozen").
"""

import numpy as np

from dgcl.errors import CommError
from dgcl.transport.cuda.control_block import SECONDS, in_time
from dgcl.transport.cuda.gpu import Device

_CHUNK = 1 << 20
_ALIGN = 256


class Tables:
    """Allocates and uploads tables; uploads are still under way when :meth:`upload` returns.

    Attributes:
        event: Has happened when all uploads are done.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._chunks: list[int] = []
        self._free = self._end = 0
        self.event = device.driver.create_event()

    def upload(self, table: np.ndarray) -> int:
        """Copy a table to the device, which nobody may change any more; returns its address there."""
        raw = np.ascontiguousarray(table)
        address = self.allocate(raw.nbytes)
        if raw.nbytes:
            self._device.upload(address, raw)
        self._device.driver.record_event(self.event, self._device.side)
        return address

    def wait(self) -> None:
        """Wait until the device has done all uploads, and all else on its side stream.

        Raises:
            CommError: It does not within :data:`SECONDS`.
        """
        driver = self._device.driver
        driver.record_event(self.event, self._device.side)
        if not in_time(lambda: driver.has_happened(self.event), SECONDS):
            raise CommError(f"the device has not done what set-up needs within {SECONDS:g} s")

    def allocate(self, num_bytes: int) -> int:
        """Device memory for a table, set to zero."""
        size = max(-(-num_bytes // _ALIGN), 1) * _ALIGN
        if self._free + size > self._end:
            chunk = max(size, _CHUNK)
            self._free = self._device.driver.allocate(chunk)
            self._end = self._free + chunk
            self._chunks.append(self._free)
            self._device.driver.clear(self._free, chunk, self._device.side)
        address, self._free = self._free, self._free + size
        return address

    def free(self) -> None:
        """Give the memory back; no kernel may use it any more."""
        while self._chunks:
            self._device.driver.free(self._chunks.pop())
        self._device.driver.destroy_event(self.event)
