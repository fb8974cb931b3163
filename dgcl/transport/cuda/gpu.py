"""Represents one CUDA device: its driver and kernels, a stream for uploads, and torch's tensors.

Everything goes through two interfaces: :class:`~dgcl.kernels.cuda_driver.Driver`, which takes any object with the
driver's functions, and :class:`Tensors`, the little that torch does. Tests implement both over host memory; the rest of
the runtime is the same there.
Called by `connect_devices`, `device_exchange`, `device_pool`, `dgcl/build`, `dgcl/calibration/run` and others. Free to
change while a rank takes the device that was asked for, or was set, or is its own, and a wrong one is named
(`tests/dgcl/transport/cuda/test_communicator.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.cuda_catalogue import Kernel
from dgcl.kernels.cuda_driver import CudaError, Driver, open_driver
from dgcl.kernels.cuda_launch import Kernels
from dgcl.kernels.cuda_ptx import ptx_of
from dgcl.kernels.cuda_shapes import THREADS
from dgcl.ranks.environment import local_rank

#: Level of priority of :attr:`Device.side`, above those of the streams of calls.
SIDE_LEVEL = 4


class Tensors(Protocol):
    """What the runtime needs of torch."""

    device: torch.device

    def current_stream(self) -> int:
        """The handle of the stream that the calling thread's operations go to."""

    def over(self, owner: Any, address: int, num_bytes: int) -> Tensor:
        """A uint8 tensor over device memory (at least a byte), whose storage keeps ``owner`` alive."""

    def keep(self, tensor: Tensor, stream: int) -> None:
        """Keep the tensor's memory unchanged until work that ``stream`` is about to be given has read it."""


class _Exposed:
    """Device memory in the form that torch imports; torch keeps this object as long as the storage lives."""

    def __init__(self, owner: Any, address: int, num_bytes: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class CudaTensors(Tensors):
    """torch on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def current_stream(self) -> int:
        """The handle of torch's current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def over(self, owner: Any, address: int, num_bytes: int) -> Tensor:
        """A tensor over memory that torch did not allocate."""
        return torch.as_tensor(_Exposed(owner, address, num_bytes), device=self.device)

    def keep(self, tensor: Tensor, stream: int) -> None:
        """Nothing to do: torch gives freed memory out again in the order of the stream."""


class Device:
    """One device, in the context that is current when this is made.

    Args:
        driver: The driver.
        index: The driver's number of the device.
        tensors: torch on this device.
        ptx: The PTX of a kernel for a compute capability.

    Attributes:
        context: Handle of its context, for other threads.
        side: A stream for what runs beside calls: uploads, snapshots of flags, stops.
        uuid: Identifies the device whatever its number, hexadecimal.
        title: The product's name.
        problem: Why the driver cannot be used, and only torch can; "" if it can.
        is_shared: Whether other ranks use it, too; :func:`dgcl.transport.cuda.open_devices` finds out.
    """

    is_shared = False

    def __init__(
        self,
        driver: Driver,
        index: int,
        tensors: Tensors,
        ptx: Callable[[Kernel, tuple[int, int]], str] = ptx_of,
    ) -> None:
        self.driver, self.index, self.tensors = driver, index, tensors
        self.context = driver.current_context()
        self.kernels = Kernels(driver, index, ptx)
        self.side = driver.create_stream(SIDE_LEVEL)
        self.uuid, self.title, self.problem = driver.uuid(index), driver.device_name(index), ""
        self._uploads: deque[tuple[int, np.ndarray]] = (
            deque()
        )  # events, and sources that the copies before them read
        self._events: list[int] = []
        self._upload_lock = threading.Lock()

    @classmethod
    def of_torch(cls, index: int, problem: str) -> Device:
        """A device of torch's whose driver cannot be used."""
        device = object.__new__(cls)
        device.index, device.problem, device.title = index, problem, torch.cuda.get_device_name(index)
        device.tensors = CudaTensors(torch.device("cuda", index))
        device.uuid = UUID(str(torch.cuda.get_device_properties(index).uuid).removeprefix("GPU-")).hex
        return device

    @property
    def name(self) -> str:
        """Its name as NVML has it: ``GPU-``, or ``MIG-`` for a part of one, and the UUID."""
        kind = "MIG" if "MIG" in self.title.split() else "GPU"
        return f"{kind}-{UUID(self.uuid)}"

    def blocks_at_once(self, kernel: str) -> int:
        """How many thread blocks of a kernel the device holds at once."""
        return self.kernels.blocks_at_once(self.kernels[kernel], THREADS)

    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy a contiguous array to the device, on the side stream; it lives until the copy is done.

        That a copy from pageable memory has read its source when the driver returns is not relied on: where the
        device reads pageable memory itself (Grace, HMM) it need not have.
        """
        driver = self.driver
        with self._upload_lock:
            while self._uploads and driver.has_happened(self._uploads[0][0]):
                self._events.append(self._uploads.popleft()[0])
            event = self._events.pop() if self._events else driver.create_event()
            driver.copy_to_device(address, source.ctypes.data, source.nbytes, self.side)
            driver.record_event(event, self.side)
            self._uploads.append((event, source))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device's context current in this thread, for a block of code; finalisers run in any thread."""
        before = self.driver.current_context()
        if before == self.context:
            yield
            return
        self.driver.use_context(self.context)
        try:
            yield
        finally:
            self.driver.use_context(before)


def open_device(device: torch.device) -> Device:
    """A CUDA device, in the context that torch uses on it.

    Raises:
        ValueError: There is no such device, or it is too old.
    """
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise ValueError(
            f"device: {device} was asked for, but torch {torch.__version__} (built for CUDA: {built}) sees no "
            "CUDA device; use device='cpu'"
        )
    index, count = number_of(device), torch.cuda.device_count()
    if index >= count:
        raise ValueError(
            f"device: {device} was asked for, torch sees {count} devices; device='cuda' is this rank's"
        )
    torch.cuda.init()
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # torch has made its context, and it is current
        try:
            return Device(open_driver(), index, CudaTensors(torch.device("cuda", index)))
        except CudaError as error:
            return Device.of_torch(index, f"the driver cannot be used: {error}")


def number_of(device: torch.device) -> int:
    """The number of a device: as given, or torch's current one if one was set, or that of the launcher's."""
    if device.index is not None:
        return int(device.index)
    local, current = local_rank(), torch.cuda.current_device()
    return current if local is None or current != 0 or local >= torch.cuda.device_count() else local
