"""A CUDA driver made of host memory, as thin as it can be while it keeps what CUDA promises, and no more.

- Work runs later, in a thread of its own, and of several streams in any order: a random one of those that
  can go on. Streams named in ``slow`` run only when no other can. Nothing runs while the device is frozen.
- Device memory is shared memory (memfd), so a handle opens at another address, also where threads stand for processes.
  What touches memory that is not allocated, or not any more, is an error that the test sees.
- Driver functions want a context. Blocking functions are counted. Those that may wait for kernels that run (to load, to
  allocate, to open) do so where the device ``dawdles``.

The kernels are numpy here, on the same tables; that the real ones do the same is shown elsewhere
(:mod:`tests.kernels.cuda_row_cases`).
"""

import bisect
import ctypes
import itertools
import mmap
import os
import random
import re
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.fake_kernels import KERNELS

VOID, UINT, U64 = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64

#: The driver's numbers of errors (tests/kernels/test_cuda_declarations.py compares them with NVIDIA's).
OUT_OF_MEMORY, NOT_READY = 2, 600

#: What waits: (whether it can go on, what it does then).
Work = tuple[Callable[[], bool], Callable[[], None]]

_contexts = threading.local()
_numbers = itertools.count(1)


class Memory:
    """All memory of a process that devices may touch, by address."""

    def __init__(self):
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._known: dict[int, tuple[int, Any]] = {}
        self._users: Counter[int] = Counter()
        self.devices: list[int] = []  # what the driver numbers

    def add(self, address: int, size: int, owner: Any):
        with self._lock:
            bisect.insort(self._starts, address)
            self._users[address] = 1
            self._known[address] = (size, owner)

    def share(self, address: int, size: int) -> bool:
        """Keep memory of torch's for one more user, who may see more of it; False if it is a device's own."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address) - 1
            start = self._starts[place] if place >= 0 else 0
            known, owner = self._known.get(start, (0, None))
            if owner is not None and address < start + known:
                return False
            if address not in self._known:
                bisect.insort(self._starts, address)
            self._users[address] += 1
            self._known[address] = (max(size, self._known.get(address, (0,))[0]), None)
            return True

    def remove(self, address: int) -> Any:
        with self._lock:
            owner = self._known[address][1]
            self._users[address] -= 1
            if not self._users[address]:
                self._starts.remove(address)
                del self._known[address]
            return owner

    def owner_of(self, address: int) -> Any:
        with self._lock:
            return self._known[self._starts[bisect.bisect_right(self._starts, address) - 1]][1]

    def check(self, address: int, size: int):
        with self._lock:
            place = bisect.bisect_right(self._starts, address) - 1
            start = self._starts[place] if place >= 0 else 0
            if size and (place < 0 or address + size > start + self._known[start][0]):
                raise AssertionError(f"{size} bytes at {address:#x} are not allocated")


class Event:
    def __init__(self):
        self.recorded = self.happened = 0


class Stream:
    def __init__(self):
        self.work: deque[Work] = deque()
        self.is_captured = False
        self.kept: deque[Any] = deque()

    def put(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True):
        self.work.append((ready, run))


class FakeCuda:
    """A device and its driver; what :class:`dgcl.kernels.cuda_driver.Driver` takes.

    Args:
        memory: Of the process; devices that share it reach each other.
        seed: Of the order in which streams run.
        uuid: Which device; processes that name the same share it.
    """

    def __init__(self, memory: Memory, seed: int = 0, *, uuid: int | None = None):
        self.memory = memory
        self.number = uuid if uuid is not None else next(_numbers)
        memory.devices.append(self.number)
        self.context = 0x1000 + next(_numbers)
        self.errors: list[BaseException] = []
        self.blocks: list[str] = []  # names of threads that blocked
        self.refused: dict[str, int] = {}  # functions that fail, and how
        self.limit = 1 << 40  # bytes of memory
        self.missing: set[str] = set()  # functions that this driver does not have
        self.dawdles = False  # what may wait for all that runs does
        self.mode, self.access, self.atomics, self.hidden = 0, True, True, False
        self.slow: set[int] = set()
        self.kept: list[
            Callable[[], list[np.ndarray]]
        ] = []  # of each user: arrays that live until they are copied
        self.highest = -5  # priority
        self.name = "NVIDIA Example 40GB"
        self.enqueued: list[tuple[int, str]] = []  # streams, and what they were given to do, events left out
        self.most_work = 0  # operations that were ever in a stream, of those that the host has launched
        self.frozen = threading.Event()
        self._streams: dict[int, Stream] = {0: Stream()}
        self._events: dict[int, Event] = {}
        self._functions: dict[int, str] = {}
        self._host_memory: dict[int, Any] = {}
        self._used = 0
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._make_callbacks()
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    # The device.

    def _run(self):
        while not self._stopped.is_set():
            if self.frozen.is_set() or not self._step():
                time.sleep(20e-6)
        # What threads that are about to end still give it, so that their memory can be given back.
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            if not self._step():
                time.sleep(1e-3)

    def _step(self) -> bool:
        handles = [handle for handle, stream in list(self._streams.items()) if stream.work]
        self._random.shuffle(handles)
        handles.sort(key=lambda handle: handle in self.slow)
        for handle in handles:
            stream = self._streams[handle]
            ready, run = stream.work[0]
            try:
                if not ready():
                    continue
                run()
            except BaseException as error:  # the test looks at them
                self.errors.append(error)
            stream.work.popleft()
            self._drop(stream)
            return True
        return False

    def _drop(self, stream: Stream):
        # The newest stays: what reads it may not all have been put into the stream yet.
        count = len(stream.kept) - 1
        if not stream.work:  # asked after that, for others may be added meanwhile
            for _ in range(count):
                tensor = stream.kept.popleft()  # lives until its place is forgotten
                self.memory.remove(tensor.data_ptr())

    def stop(self):
        self._stopped.set()

    def drain(self, seconds: float = 60.0):
        """Wait until everything is done."""
        end = time.monotonic() + seconds
        while any(stream.work for stream in list(self._streams.values())):
            if self.errors:
                raise self.errors[0]
            assert time.monotonic() < end, "the device does not come to an end"
            time.sleep(1e-4)
        if self.errors:
            raise self.errors[0]

    # The driver: what compiled code calls.

    def _make_callbacks(self):
        callback, code = ctypes.CFUNCTYPE, ctypes.c_int
        self.cuLaunchKernel = callback(code, VOID, *[UINT] * 7, VOID, ctypes.POINTER(VOID), VOID)(
            self._launch
        )
        self.cuEventRecord = callback(code, VOID, VOID)(self._record)
        self.cuStreamWaitEvent = callback(code, VOID, VOID, UINT)(self._wait_event)
        self.cuMemcpyAsync = callback(code, U64, U64, ctypes.c_size_t, VOID)(self._copy)

    def _launch(self, function: int, blocks: int, *rest: Any) -> int:
        stream, parameters = rest[6], rest[7]
        name = self._functions[function]
        count, start, ready, run = KERNELS[re.sub(r"_\d+$", "", name)]
        values = [ctypes.c_int64.from_address(parameters[i]).value for i in range(count)]
        here = self._streams[stream or 0]
        started = False

        def may_go_on() -> bool:  # asked when all before it has ended
            nonlocal started
            if not started:
                started = True
                start(self, *values)
            return ready(self, *values)

        here.put(lambda: run(self, name, blocks, *values), may_go_on)
        self.enqueued.append((stream or 0, re.sub(r"_.*\d$", "", name)))
        self.most_work = max(self.most_work, len(here.work))
        return self.refused.get("cuLaunchKernel", 0)

    def _record(self, event: int, stream: int) -> int:
        mine = self._events[event]
        mine.recorded += 1
        number = mine.recorded
        self._streams[stream or 0].put(lambda: setattr(mine, "happened", max(mine.happened, number)))
        return 0

    def _wait_event(self, stream: int, event: int, flags: int) -> int:
        mine = self._events[event]
        number = mine.recorded
        self._streams[stream or 0].put(lambda: None, lambda: mine.happened >= number)
        return 0

    def _copy(self, target: int, source: int, num_bytes: int, stream: int) -> int:
        def run():
            self.check(source, num_bytes)
            self.check(target, num_bytes)
            ctypes.memmove(target, source, num_bytes)

        self._streams[stream or 0].put(run)
        self.enqueued.append((stream or 0, "copy"))
        return 0

    # The driver: the rest.

    def check(self, address: int, num_bytes: int):
        """What a device touches must be allocated."""
        self.memory.check(address, num_bytes)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            if name in object.__getattribute__(self, "missing"):
                raise AttributeError(name)
            refused = object.__getattribute__(self, "refused")
            if name in refused and name != "cuLaunchKernel":
                return lambda *arguments: refused[name]
        return object.__getattribute__(self, name)

    def _need_context(self):
        assert getattr(_contexts, "current", 0) == self.context, "no context, or another device's"

    def _dawdle(self):
        """Wait for all kernels that run, as some functions of the driver may."""
        end = time.monotonic() + 60
        while self.dawdles and any(stream.work for stream in list(self._streams.values())):
            assert time.monotonic() < end, "blocked for ever"
            time.sleep(1e-4)

    def cuInit(self, flags: Any) -> int:
        return 0

    def cuGetErrorName(self, code: Any, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OF_THE_FAKE"
        return 0

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: Any, device: Any) -> int:
        value._obj.value = {16: 2, 20: self.mode, 75: 9, 76: 0}[which.value]
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:
        number = self.memory.devices[device.value]
        uuid._obj.bytes[:] = list(number.to_bytes(16, "little"))
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 0 if self.hidden else len(self.memory.devices)
        return 0

    def cuDeviceGetP2PAttribute(self, value: Any, which: Any, device: Any, peer: Any) -> int:
        assert device.value != peer.value
        value._obj.value = int({2: self.access, 3: self.atomics}[which.value])
        return 0

    def cuDeviceGetName(self, name: Any, size: Any, device: Any) -> int:
        name.value = self.name.encode()
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = getattr(_contexts, "current", None)
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        _contexts.current = context.value
        return 0

    def cuModuleLoadDataEx(self, module: Any, image: Any, *options: Any) -> int:
        self._need_context()
        self._dawdle()
        module._obj.value = next(_numbers)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        function._obj.value = module.value
        self._functions[module.value] = name.value.decode().removeprefix("dgcl_")
        return 0

    def cuFuncGetAttribute(self, value: Any, which: Any, function: Any) -> int:
        value._obj.value = 32
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, *rest: Any) -> int:
        count._obj.value = 2
        return 0

    def new_stream(self) -> int:
        """As of a library that makes its own."""
        number = 0x100 + next(_numbers)
        self._streams[number] = Stream()
        return number

    def cuCtxGetStreamPriorityRange(self, lowest: Any, highest: Any) -> int:
        self._need_context()
        lowest._obj.value, highest._obj.value = 0, self.highest
        return 0

    def cuStreamCreateWithPriority(self, stream: Any, flags: Any, priority: Any) -> int:
        self._need_context()
        assert flags.value == 1
        assert self.highest <= priority.value <= 0
        stream._obj.value = self.new_stream()
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        self._need_context()
        self.blocks.append(threading.current_thread().name)
        end = time.monotonic() + 60
        while self._streams[stream.value or 0].work:
            assert time.monotonic() < end, "blocked for ever"
            time.sleep(1e-5)
        return 0

    def cuStreamIsCapturing(self, stream: Any, status: Any) -> int:
        status._obj.value = int(self._streams[stream.value or 0].is_captured)
        return 0

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        self._need_context()
        event._obj.value = number = 0x10000 + next(_numbers)
        self._events[number] = Event()
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self._events[event.value]
        return 0

    def cuEventQuery(self, event: Any) -> int:
        self._need_context()
        mine = self._events[event.value]
        return 0 if mine.happened >= mine.recorded else NOT_READY

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        self._need_context()
        self._dawdle()
        if self._used + size.value > self.limit:
            return OUT_OF_MEMORY
        self._used += size.value
        allocation = Allocation(self, size.value)
        address._obj.value = allocation.address
        self.memory.add(allocation.address, size.value, allocation)
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        self._need_context()
        allocation = self.memory.remove(address.value)
        self._used -= allocation.size
        return 0

    def cuMemsetD8Async(self, address: Any, value: Any, size: Any, stream: Any) -> int:
        self._need_context()
        where, count = address.value, size.value
        self._streams[stream.value or 0].put(
            lambda: (self.check(where, count), ctypes.memset(where, value.value, count))[0]
        )
        return 0

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        self._need_context()
        where, what, count = target.value, source.value, size.value

        def run():  # as where the device reads any memory of the host itself: only now
            self.check(where, count)
            self._check_source(what, count)
            ctypes.memmove(where, what, count)

        self._streams[stream.value or 0].put(run)
        return 0

    def _check_source(self, address: int, size: int):
        """What a copy reads is locked memory, or an array that its :class:`Device` keeps."""
        if any(
            array.ctypes.data <= address and address + size <= array.ctypes.data + array.nbytes
            for kept in self.kept
            for array in kept()
        ):
            return
        self.memory.check(address, size)

    def cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        self._need_context()
        self.memory.check(target.value, size.value)  # locked
        self._copy(target.value, source.value, size.value, stream.value)
        return 0

    def cuIpcGetMemHandle(self, handle: Any, address: Any) -> int:
        allocation = self.memory._known[address.value][1]
        packed = struct.pack("qqq", os.getpid(), allocation.file, allocation.size)
        ctypes.memmove(ctypes.addressof(handle._obj), packed, len(packed))
        return 0

    def cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, flags: Any) -> int:
        self._need_context()
        self._dawdle()
        process, file, size = struct.unpack("qqq", bytes(handle)[:24])
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        mapped = mmap.mmap(opened, size)
        os.close(opened)
        address._obj.value = where = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.memory.add(where, size, mapped)
        return 0

    def cuIpcCloseMemHandle(self, address: Any) -> int:
        self._need_context()
        self.memory.remove(address.value)
        return 0

    def cuMemHostAlloc(self, address: Any, size: Any, flags: Any) -> int:
        self._need_context()
        memory = (ctypes.c_uint8 * size.value)(*[0xA5] * min(size.value, 4096))
        address._obj.value = where = ctypes.addressof(memory)
        self._host_memory[where] = memory
        self.memory.add(where, size.value, None)
        return 0

    def cuMemFreeHost(self, address: Any) -> int:
        self.memory.remove(address.value)
        memory = self._host_memory.pop(address.value)
        ctypes.memset(memory, 0x5A, len(memory))
        return 0

    def cuFuncLoad(self, function: Any) -> int:
        self._dawdle()
        assert function.value in self._functions
        return 0

    def cuMemHostGetDevicePointer_v2(self, mapped: Any, address: Any, flags: Any) -> int:
        mapped._obj.value = address.value
        return 0


class Allocation:
    """Memory of a device, as a file that other processes can open. Fresh memory is full of rubbish."""

    def __init__(self, device: FakeCuda, size: int):
        self.device, self.size = device, size
        self.file = os.memfd_create("fake-cuda")
        os.ftruncate(self.file, size)
        self.mapped = mmap.mmap(self.file, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))
        np.frombuffer(self.mapped, np.uint8)[: 1 << 16] = 0xA5

    def __del__(self):
        os.close(self.file)
