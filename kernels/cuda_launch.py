"""Loads CUDA kernels on a device, and prepares lists of launches and copies that are enqueued in every call.

A kernel is loaded when it is first asked for: a first launch could otherwise have to wait for kernels that run. Where
an old driver refuses the newest PTX, older PTX is tried.
Called by `dgcl/transport/cuda/gpu` and `dgcl/transport/cuda/operations`. Free to change while a kernel is loaded once,
and a prepared list repeats the same launches on the stream of each call (`tests/kernels/test_cuda_driver.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgcl.kernels.cuda_catalogue import Kernel, catalogue, fitting_capabilities
from dgcl.kernels.cuda_driver import CudaError, Driver
from dgcl.kernels.cuda_enqueue import (
    COPY,
    ENTRY_POINTS,
    LAUNCH,
    OPERATION,
    OPERATION_WORDS,
    enqueue,
)
from dgcl.kernels.cuda_ptx import ptx_of

_log = logging.getLogger("dgcl")

# The driver's numbers for "no binary for this GPU", "invalid PTX" and "unsupported PTX version".
_REFUSES_PTX = (209, 218, 222)


@dataclass(frozen=True)
class Loaded:
    """A kernel on a device.

    Attributes:
        name, num_parameters: As in the catalogue.
        handle: The driver's handle of the function.
    """

    name: str
    num_parameters: int
    handle: int


class Kernels:
    """The kernels of one device, each loaded when it is first asked for.

    Args:
        driver: The driver.
        device: Number of the device. Its context must be current in the calling thread whenever a kernel is loaded
            (``torch.cuda`` does that).
        ptx: Returns a kernel's PTX for a compute capability.
    """

    def __init__(
        self,
        driver: Driver,
        device: int,
        ptx: Callable[[Kernel, tuple[int, int]], str] = ptx_of,
    ) -> None:
        self.driver = driver
        self.num_multiprocessors = driver.num_multiprocessors(device)
        self._capabilities = fitting_capabilities(driver.capability(device))
        self._ptx = ptx
        self._catalogue = catalogue()
        self._loaded: dict[str, Loaded] = {}

    def __getitem__(self, name: str) -> Loaded:
        """A kernel of the catalogue, by name."""
        return self._loaded[name] if name in self._loaded else self.load(self._catalogue[name])

    def load(self, kernel: Kernel) -> Loaded:
        """Load a kernel, also one that is not in the catalogue.

        Raises:
            CudaError: The driver refuses it.
        """
        handle = self.driver.function(self._load(kernel), f"dgcl_{kernel.name}")
        self.driver.load_function(handle)  # now: a first launch may have to wait for kernels that run
        loaded = self._loaded[kernel.name] = Loaded(kernel.name, kernel.num_parameters, handle)
        return loaded

    def _load(self, kernel: Kernel) -> int:
        """Load a module from the newest PTX that the driver accepts; an old driver may refuse the newest."""
        while True:
            capability = self._capabilities[-1]
            try:
                return self.driver.load_module(self._ptx(kernel, capability))
            except CudaError as error:
                if error.code not in _REFUSES_PTX or len(self._capabilities) == 1:
                    raise
                self._capabilities.pop()
                _log.info(
                    "the driver refuses kernels for compute capability %d.%d (%s); trying older ones",
                    *capability,
                    error,
                )

    def blocks_at_once(self, kernel: Loaded, threads: int) -> int:
        """How many blocks of a kernel the device holds at once."""
        return self.num_multiprocessors * self.driver.blocks_per_multiprocessor(kernel.handle, threads)


class Prepared:
    """A list of stream operations, to be enqueued as often as needed.

    >>> prepared = Prepared(driver)
    >>> prepared.launch(kernels["signal_wait"], 1, 32, *SignalWait(state, raised=flags, num_raised=3))
    >>> prepared.enqueue(torch.cuda.current_stream().cuda_stream)
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._entry_points = np.array([driver.entry_point(name) for name in ENTRY_POINTS], np.int64)
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._names: list[str] = []
        # What operations point at: values of parameters and pointers to them.
        self._kept: list[np.ndarray] = []
        self._operations: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def launch(self, kernel: Loaded, blocks: int, threads: int, *parameters: int) -> None:
        """Launch a kernel; nothing when there are no blocks."""
        if len(parameters) != kernel.num_parameters:
            raise ValueError(
                f"parameters: {kernel.name} takes {kernel.num_parameters}, got {len(parameters)}"
            )
        if blocks == 0:
            return
        values = np.array(parameters, np.int64)
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.int64)
        self._kept += [values, pointers]
        self._add(kernel.name, LAUNCH, kernel.handle, blocks, threads, pointers.ctypes.data)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy between any two memories, by the copy engine where it can."""
        if num_bytes:
            self._add("copy", COPY, target, source, num_bytes)

    def place_copy(self, place: int, target: int, source: int) -> None:
        """Change the addresses of the copy that is the ``place``-th operation, counted from 0."""
        operations = self._made()
        assert operations[place, 0] == COPY
        operations[place, 1:3] = target, source

    def _made(self) -> np.ndarray:
        if self._operations is None:
            records = np.array(self._rows, OPERATION)
            self._operations = records.view(np.int64).reshape(-1, OPERATION_WORDS)
        return self._operations

    def _add(self, name: str, kind: int, handle: int, a: int, b: int, c: int = 0) -> None:
        if self._entry_points[kind] == 0:
            raise CudaError(ENTRY_POINTS[kind], 500, "CUDA_ERROR_NOT_FOUND, this driver is too old for it")
        self._rows.append((kind, handle, a, b, c))
        self._names.append(name)
        self._operations = None

    def enqueue(self, stream: int) -> None:
        """Put the operations into the stream with this handle, without waiting for any of them.

        Raises:
            CudaError: The driver refused one. Those before it run.
        """
        failed = int(enqueue(self._entry_points, stream, self._made()))
        if failed:
            place, code = failed >> 32, failed & 0xFFFFFFFF
            raise CudaError(f"operation {place} ({self._names[place]})", code, self._driver.error_name(code))
