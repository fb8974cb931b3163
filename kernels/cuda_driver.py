"""Calls the CUDA driver through ctypes: one method per driver function, errors as `CudaError`.

Kernels are loaded from PTX and launched with prepared arguments, because a launch by numba's dispatcher costs the host
tens of microseconds. :class:`Driver` takes any object that has the driver's functions, so tests pass one made of Python
functions. Memory, streams and contexts belong to torch; handles and addresses are plain integers here.
Called by `cuda_launch`, `dgcl/transport/cuda/gpu` and `dgcl/transport/cuda/peer_memory`. Free to change while arguments
are those that NVIDIA declares (`tests/kernels/test_cuda_declarations.py`), and a failure names the driver's function
and reason (`tests/kernels/test_cuda_driver.py`).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

# Numbers of the driver's enumerations (cuda.h).
_MULTIPROCESSORS, _COMPUTE_MODE, _MAJOR, _MINOR = 16, 20, 75, 76
_PEER_ACCESS, _PEER_ATOMICS = 2, 3
_NUM_REGISTERS, _LOCAL_BYTES = 4, 3
_LAZY_PEER_ACCESS = 1
_HOST_ALLOC_PORTABLE_MAPPED = 3
_NON_BLOCKING_STREAM = 1  # not ordered with the legacy default stream
_EVENT_WITHOUT_TIME = 2
_NOT_FOUND, _NOT_READY = 500, 600
_ERROR_LOG, _ERROR_LOG_BYTES, _LOG_BYTES = 5, 6, 4096  # options of the translator of PTX
_NAME_BYTES = 256

IPC_HANDLE_BYTES = 64


class CudaError(RuntimeError):
    """A driver function failed.

    Attributes:
        function: Which one.
        code, name: The driver's number and name of the error.
    """

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.function, self.code, self.name = function, code, name

    def explained(self, reason: str) -> CudaError:
        """The same error with a reason."""
        return CudaError(self.function, self.code, f"{self.name}: {reason}")


class _IpcHandle(ctypes.Structure):
    """A memory handle; the driver takes it by value."""

    _fields_ = [("bytes", ctypes.c_char * IPC_HANDLE_BYTES)]


class _Uuid(ctypes.Structure):
    """A device's UUID."""

    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


class Driver:
    """The driver's functions that dgcl uses.

    Args:
        library: Has the functions of ``libcuda`` as attributes.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("cuInit", c_uint(0))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a driver function.

        Raises:
            CudaError: It returned something else than success, or this driver does not have it.
        """
        pointer = getattr(self._library, function, None)
        if pointer is None:
            raise CudaError(function, _NOT_FOUND, "CUDA_ERROR_NOT_FOUND, this driver is too old for it")
        code = pointer(*arguments)
        if code != 0:
            raise CudaError(function, code, self.error_name(code))

    def _handle(self, function: str, *arguments: Any) -> int:
        """What a function writes to its first argument: a handle or an address."""
        value = c_void_p()
        self.call(function, byref(value), *arguments)
        return value.value or 0

    def _number(self, function: str, *arguments: Any) -> int:
        """What a function writes to its first argument: a number."""
        value = c_int()
        self.call(function, byref(value), *arguments)
        return value.value

    def error_name(self, code: int) -> str:
        """The driver's name of an error."""
        name = c_char_p()
        if self._library.cuGetErrorName(c_int(code), byref(name)) != 0 or name.value is None:
            return "unknown error"
        return name.value.decode()

    def entry_point(self, function: str) -> int:
        """The address of a driver function, for compiled callers; 0 when this driver does not have it."""
        pointer = getattr(self._library, function, None)
        return 0 if pointer is None else ctypes.cast(pointer, c_void_p).value or 0

    # Devices

    def num_devices(self) -> int:
        """How many devices this process sees."""
        return self._number("cuDeviceGetCount")

    def capability(self, device: int) -> tuple[int, int]:
        """The compute capability of a device."""
        return self._attribute(device, _MAJOR), self._attribute(device, _MINOR)

    def num_multiprocessors(self, device: int) -> int:
        """How many multiprocessors a device has."""
        return self._attribute(device, _MULTIPROCESSORS)

    def compute_mode(self, device: int) -> int:
        """Who may use a device: 0 everybody, 2 nobody, 3 one process."""
        return self._attribute(device, _COMPUTE_MODE)

    def reach(self, device: int, peer: int) -> tuple[bool, bool]:
        """Whether a device can access a peer's memory, and whether atomic operations there are native."""
        ordinals = self._device(device), self._device(peer)
        access, atomics = (
            self._number("cuDeviceGetP2PAttribute", c_int(which), *ordinals) != 0
            for which in (_PEER_ACCESS, _PEER_ATOMICS)
        )
        return access, atomics

    def _device(self, number: int) -> c_int:
        return c_int(self._number("cuDeviceGet", c_int(number)))

    def _attribute(self, device: int, which: int) -> int:
        return self._number("cuDeviceGetAttribute", c_int(which), self._device(device))

    def uuid(self, device: int) -> str:
        """The UUID of a device, hexadecimal."""
        uuid = _Uuid()
        self.call("cuDeviceGetUuid_v2", byref(uuid), self._device(device))
        return bytes(uuid.bytes).hex()

    def device_name(self, device: int) -> str:
        """The product's name; that of a part of a GPU has the word MIG in it."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGetName", name, c_int(_NAME_BYTES), self._device(device))
        return name.value.decode(errors="replace")

    # Contexts

    def current_context(self) -> int:
        """The calling thread's context; 0: none."""
        return self._handle("cuCtxGetCurrent")

    def use_context(self, context: int) -> None:
        """Make a context that of the calling thread."""
        self.call("cuCtxSetCurrent", c_void_p(context))

    # Streams and events

    def create_stream(self, level: int = 0) -> int:
        """A stream that is not ordered with the legacy default stream.

        Args:
            level: Of priority, 0 the lowest; beyond the device's highest, that.
        """
        lowest, highest = c_int(), c_int()
        self.call("cuCtxGetStreamPriorityRange", byref(lowest), byref(highest))  # highest <= lowest
        priority = c_int(max(highest.value, lowest.value - level))
        return self._handle("cuStreamCreateWithPriority", c_uint(_NON_BLOCKING_STREAM), priority)

    def synchronize_stream(self, stream: int) -> None:
        """Block the host until a stream has done everything. Not for use inside a call."""
        self.call("cuStreamSynchronize", c_void_p(stream))

    def is_capturing(self, stream: int) -> bool:
        """Whether what is put into a stream becomes part of a graph instead of being done."""
        status = c_int()
        self.call("cuStreamIsCapturing", c_void_p(stream), byref(status))
        return status.value != 0

    def create_event(self) -> int:
        """An event without a time stamp."""
        return self._handle("cuEventCreate", c_uint(_EVENT_WITHOUT_TIME))

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self.call("cuEventDestroy_v2", c_void_p(event))

    def record_event(self, event: int, stream: int) -> None:
        """Set an event behind all that a stream has been given so far."""
        self.call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def wait_event(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""
        self.call("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def has_happened(self, event: int) -> bool:
        """Whether all before an event is done; does not wait."""
        try:
            self.call("cuEventQuery", c_void_p(event))
        except CudaError as error:
            if error.code != _NOT_READY:
                raise
            return False
        return True

    # Kernels

    def load_module(self, ptx: str) -> int:
        """Compile PTX for the GPU of the current context, and load it.

        Raises:
            CudaError: The driver refuses it; with the log of its compiler.
        """
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            return self._handle("cuModuleLoadDataEx", c_char_p(ptx.encode()), c_uint(2), options, values)
        except CudaError as error:
            reason = " ".join(log.value.decode(errors="replace").split())
            raise error.explained(reason) if reason else error from None

    def function(self, module: int, name: str) -> int:
        """A kernel of a module."""
        return self._handle("cuModuleGetFunction", c_void_p(module), c_char_p(name.encode()))

    def load_function(self, function: int) -> None:
        """Load a kernel now, where the driver would only when it is first launched, and might have to wait."""
        if hasattr(self._library, "cuFuncLoad"):  # CUDA 12.4 and later
            self.call("cuFuncLoad", c_void_p(function))
        else:
            self.registers(function)  # loads what it is asked about

    def registers(self, function: int) -> tuple[int, int]:
        """Registers, and bytes of local memory, that each thread of a kernel takes."""
        registers, local = (
            self._number("cuFuncGetAttribute", c_int(which), c_void_p(function))
            for which in (_NUM_REGISTERS, _LOCAL_BYTES)
        )
        return registers, local

    def blocks_per_multiprocessor(self, function: int, threads: int) -> int:
        """How many blocks of a kernel a multiprocessor holds at once."""
        return self._number(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", c_void_p(function), c_int(threads), c_size_t(0)
        )

    # Memory: plain allocations, which other processes can open, theirs, and the host's

    def allocate(self, num_bytes: int) -> int:
        """Device memory of its own, not a piece of torch's."""
        return self._handle("cuMemAlloc_v2", c_size_t(num_bytes))

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` gave."""
        self.call("cuMemFree_v2", c_void_p(address))

    def clear(self, address: int, num_bytes: int, stream: int) -> None:
        """Let a stream set device memory to zero."""
        self.call(
            "cuMemsetD8Async", c_void_p(address), ctypes.c_ubyte(0), c_size_t(num_bytes), c_void_p(stream)
        )

    def copy_to_device(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Let a stream copy from the host; the source must live until the copy is done."""
        self.call(
            "cuMemcpyHtoDAsync_v2", c_void_p(target), c_void_p(source), c_size_t(num_bytes), c_void_p(stream)
        )

    def copy_to_host(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Let a stream copy to locked memory of the host."""
        self.call(
            "cuMemcpyDtoHAsync_v2", c_void_p(target), c_void_p(source), c_size_t(num_bytes), c_void_p(stream)
        )

    def export_memory(self, address: int) -> bytes:
        """A handle by which another process can open the allocation that *begins* at ``address``."""
        handle = _IpcHandle()
        self.call("cuIpcGetMemHandle", byref(handle), c_void_p(address))
        return bytes(handle)

    def open_memory(self, handle: bytes) -> int:
        """Map another process's allocation; not one of this process, whose address is known anyway."""
        opaque = _IpcHandle.from_buffer_copy(handle)
        return self._handle("cuIpcOpenMemHandle_v2", opaque, c_uint(_LAZY_PEER_ACCESS))

    def close_memory(self, address: int) -> None:
        """Unmap what :meth:`open_memory` mapped."""
        self.call("cuIpcCloseMemHandle", c_void_p(address))

    def allocate_host(self, num_bytes: int) -> tuple[int, int]:
        """Locked host memory, with anything in it; returns its address here, and on the device."""
        address = self._handle("cuMemHostAlloc", c_size_t(num_bytes), c_uint(_HOST_ALLOC_PORTABLE_MAPPED))
        return address, self._handle("cuMemHostGetDevicePointer_v2", c_void_p(address), c_uint(0))

    def free_host(self, address: int) -> None:
        """Give back what :meth:`allocate_host` gave."""
        self.call("cuMemFreeHost", c_void_p(address))


def open_driver() -> Driver:
    """The driver of this machine.

    Raises:
        CudaError: There is none, or it finds no device.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError("cuInit", 100, f"CUDA_ERROR_NO_DEVICE, no driver on this machine: {error}") from None
    return Driver(library)
