"""The GPU under test: memory by torch, kernels by the driver, times by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from dgcl.kernels.cuda_catalogue import Kernel
from dgcl.kernels.cuda_driver import open_driver
from dgcl.kernels.cuda_launch import Kernels, Loaded, Prepared
from dgcl.kernels.cuda_tables import STATE_BYTES


class Target(Protocol):
    """What a measurement runs on."""

    name: str
    device: torch.device

    def blocks_at_once(self, kernel: Kernel, threads: int) -> int:
        """How many blocks the device holds at once."""

    def prepare(self, kernel: Kernel, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        """A function that launches a kernel."""

    def seconds(self, run: Callable[[], object], repeats: int) -> list[float]:
        """What each of some runs takes on the device, after some that are not timed."""


class Gpu:
    """The current CUDA device of torch.

    Raises:
        RuntimeError: There is no CUDA device.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device: torch.cuda.is_available() is False on this machine")
        torch.cuda.init()
        index = torch.cuda.current_device()
        torch.cuda.synchronize()
        self.device = torch.device("cuda", index)
        self.name = torch.cuda.get_device_name(index)
        self.driver = open_driver()
        self.kernels = Kernels(self.driver, index)
        self._loaded: dict[str, Loaded] = {}

    def load(self, kernel: Kernel) -> Loaded:
        """A kernel on the device."""
        if kernel.name not in self._loaded:
            self._loaded[kernel.name] = self.kernels.load(kernel)
        return self._loaded[kernel.name]

    def blocks_at_once(self, kernel: Kernel, threads: int) -> int:
        """How many blocks the device holds at once."""
        return self.kernels.blocks_at_once(self.load(kernel), threads)

    def prepare(self, kernel: Kernel, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        """A function that launches a kernel on torch's current stream."""
        prepared = Prepared(self.driver)
        prepared.launch(self.load(kernel), blocks, threads, *parameters)
        stream = torch.cuda.current_stream().cuda_stream
        return lambda: prepared.enqueue([stream])

    def seconds(self, run: Callable[[], object], repeats: int) -> list[float]:
        """What each of some runs takes on the device, after some that are not timed."""
        for _ in range(3):
            run()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(marks)]


class Tables:
    """Tables on the device; they are kept as long as this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[torch.Tensor] = []

    def put(self, table: np.ndarray) -> int:
        """Copy a table to the device; returns its address."""
        raw = torch.from_numpy(np.frombuffer(table.tobytes(), np.uint8).copy()).to(self._device)
        self._kept.append(raw)
        return raw.data_ptr()

    def addresses(self, *tensors: torch.Tensor) -> int:
        """A table of the addresses of tensors."""
        return self.put(np.array([tensor.data_ptr() for tensor in tensors], np.int64))

    def state(self) -> int:
        """A state in which nothing has gone wrong."""
        return self.put(np.zeros(STATE_BYTES, np.uint8))


class _Memory:
    """Device memory at a raw address, for torch."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def as_bytes(address: int, num_bytes: int) -> torch.Tensor:
    """A tensor over device memory that torch did not allocate."""
    return torch.as_tensor(_Memory(address, num_bytes), device="cuda")
