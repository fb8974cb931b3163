"""Where CUDA kernels run in tests: numba's simulator on host memory, or a GPU; both offer the same verbs."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dgcl.kernels.cuda_catalogue import catalogue


class Machine(Protocol):
    """Memory at raw addresses, and kernels by name."""

    threads: int  # of a block of the row kernels
    max_blocks: int
    scale: int  # by which cases are enlarged

    def upload(self, data: np.ndarray, offset: int = 0) -> int:
        """The address, ``offset`` bytes beyond a multiple of 256, of a copy of ``data`` on the device."""

    def upload_behind(self, num_bytes: int, data: np.ndarray) -> int:
        """The address of ``num_bytes`` zeros with a copy of ``data`` behind them."""

    def download(self, address: int, num_bytes: int) -> np.ndarray:
        """Bytes of the device, after everything launched has ended."""

    def words(self, count: int) -> tuple[np.ndarray, int]:
        """int64 words, all 0, that host and device both see, and their address on the device."""

    def launch(self, name: str, blocks: int, threads: int, *parameters: int):
        """Run a kernel of the catalogue."""

    def start(self, name: str, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        """Run a kernel in the background; the result waits for its end."""


class SimulatedMachine:
    """Numba's simulator, for which NUMBA_ENABLE_CUDASIM must be set; an address is one of host memory."""

    threads, max_blocks, scale = 4, 5, 1

    def __init__(self):
        self._kept: list[np.ndarray] = []
        self._kernels: dict[str, Any] = {}
        self._catalogue = catalogue()

    def upload(self, data: np.ndarray, offset: int = 0) -> int:
        memory = np.zeros(data.nbytes + 512, np.uint8)
        self._kept.append(memory)
        address = -(-memory.ctypes.data // 256) * 256 + offset
        start = address - memory.ctypes.data
        memory[start : start + data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
        return address

    def upload_behind(self, num_bytes: int, data: np.ndarray) -> int:
        memory = np.zeros(num_bytes + data.nbytes, np.uint8)  # untouched pages take no memory
        memory[num_bytes:] = data.view(np.uint8).ravel()
        self._kept.append(memory)
        return memory.ctypes.data

    def download(self, address: int, num_bytes: int) -> np.ndarray:
        for memory in self._kept:
            start = address - memory.ctypes.data
            if start >= 0 and start + num_bytes <= memory.nbytes:
                return memory[start : start + num_bytes].copy()
        raise AssertionError(f"nothing was uploaded at {address:#x}")

    def words(self, count: int) -> tuple[np.ndarray, int]:
        words = np.zeros(count, np.int64)
        self._kept.append(words.view(np.uint8))
        return words, words.ctypes.data

    def kernel(self, name: str) -> Any:
        from numba import cuda

        if name not in self._kernels:
            self._kernels[name] = cuda.jit(self._catalogue[name].build())
        return self._kernels[name]

    def launch(self, name: str, blocks: int, threads: int, *parameters: int):
        assert len(parameters) == self._catalogue[name].num_parameters
        if blocks:
            self.kernel(name)[blocks, threads](*parameters)

    def start(self, name: str, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        thread = threading.Thread(target=self.launch, args=(name, blocks, threads, *parameters), daemon=True)
        thread.start()

        def finish():
            thread.join(60)
            assert not thread.is_alive(), f"{name} does not end"

        return finish


class DeviceMachine:
    """The GPU that torch uses; kernels are launched as the runtime launches them."""

    threads, scale = 256, 50

    def __init__(self):
        import torch

        from dgcl.kernels.cuda_driver import open_driver
        from dgcl.kernels.cuda_launch import Kernels

        self._torch = torch
        torch.cuda.init()
        torch.cuda.synchronize()
        self.driver = open_driver()
        self.kernels = Kernels(self.driver, torch.cuda.current_device())
        self.max_blocks = 2 * self.kernels.num_multiprocessors
        self._kept: list[Any] = []

    def forget(self):
        """Free what was uploaded."""
        self._torch.cuda.synchronize()
        self._kept.clear()

    def upload(self, data: np.ndarray, offset: int = 0) -> int:
        memory = self._torch.zeros(data.nbytes + 512, dtype=self._torch.uint8, device="cuda")
        self._kept.append(memory)
        address = -(-memory.data_ptr() // 256) * 256 + offset
        start = address - memory.data_ptr()
        host = self._torch.from_numpy(np.frombuffer(data.tobytes(), np.uint8).copy())
        memory[start : start + data.nbytes].copy_(host)
        return address

    def upload_behind(self, num_bytes: int, data: np.ndarray) -> int:
        memory = self._torch.zeros(num_bytes + data.nbytes, dtype=self._torch.uint8, device="cuda")
        memory[num_bytes:].copy_(self._torch.from_numpy(data.view(np.uint8).ravel().copy()))
        self._kept.append(memory)
        return memory.data_ptr()

    def download(self, address: int, num_bytes: int) -> np.ndarray:
        self._torch.cuda.synchronize()
        for memory in self._kept:
            start = address - memory.data_ptr()
            if start >= 0 and start + num_bytes <= memory.numel():
                return memory[start : start + num_bytes].cpu().numpy()
        raise AssertionError(f"nothing was uploaded at {address:#x}")

    def words(self, count: int) -> tuple[np.ndarray, int]:
        # Page-locked memory has the same address on the device as on the host.
        words = self._torch.zeros(count, dtype=self._torch.int64).pin_memory()
        self._kept.append(words.view(self._torch.uint8))
        return words.numpy(), words.data_ptr()

    def launch(self, name: str, blocks: int, threads: int, *parameters: int):
        self.start(name, blocks, threads, *parameters)()

    def start(self, name: str, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        from dgcl.kernels.cuda_launch import Prepared

        prepared = Prepared(self.driver)
        prepared.launch(self.kernels[name], blocks, threads, *parameters)
        stream = self._torch.cuda.current_stream()
        prepared.enqueue(stream.cuda_stream)
        return stream.synchronize
