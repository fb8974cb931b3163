"""Ranks on devices that are made of host memory (:mod:`tests.support.fake_cuda`)."""

import ctypes
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.kernels.cuda_driver import Driver
from dgcl.ranks.context import context
from dgcl.transport.cuda.device_exchange import DeviceExchange
from dgcl.transport.cuda.gpu import Device
from tests.support.fake_cuda import FakeCuda, Memory, _contexts
from tests.support.plans import World
from tests.support.ranks import hurry


class FakeTensors:
    """torch on such a device: tensors of the CPU over its memory, and a current stream per thread."""

    device = torch.device("cpu")

    def __init__(self, fake: FakeCuda):
        self._fake = fake

    def current_stream(self) -> int:
        stream = getattr(_contexts, "stream", 0)
        return stream if stream in self._fake._streams else 0  # of another device, as main threads have

    def over(self, owner: Any, address: int, num_bytes: int) -> torch.Tensor:
        self._fake.memory.check(address, num_bytes)
        buffer = (ctypes.c_uint8 * num_bytes).from_address(address)
        buffer.owner = owner  # type: ignore[attr-defined]
        return torch.from_numpy(np.frombuffer(buffer, np.uint8))

    def keep(self, tensor: torch.Tensor, stream: int):
        if tensor.nbytes == 0:
            return
        if self._fake.memory.share(tensor.data_ptr(), tensor.nbytes):
            self._fake._streams[stream].kept.append(tensor)


def open_fake(fake: FakeCuda) -> Device:
    """The device, for the calling thread, which from now on works on a stream of its own."""
    _contexts.current = fake.context
    index = fake.memory.devices.index(fake.number)
    device = Device(Driver(fake), index, FakeTensors(fake), lambda kernel, capability: kernel.name)
    _contexts.stream = device.driver.create_stream()

    def kept() -> list[np.ndarray]:
        with device._upload_lock:
            return [source for _, source in device._uploads]

    fake.kept.append(kept)
    return device


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """Like ``torch.cuda.stream``."""
    before, _contexts.stream = getattr(_contexts, "stream", 0), stream
    try:
        yield
    finally:
        _contexts.stream = before


@contextmanager
def fake_devices(count: int, seed: int = 0, memory: Memory | None = None) -> Iterator[list[FakeCuda]]:
    """Devices that reach each other's memory, and stop at the end."""
    memory = memory or Memory()
    fakes = [FakeCuda(memory, seed + number) for number in range(count)]
    try:
        yield fakes
    finally:
        for fake in fakes:
            fake.stop()


class Rank:
    """A rank in a test: its device, its exchange, and what it knows of the world."""

    def __init__(self, world: World, fake: FakeCuda, timeout: float):
        control = context.require_control()
        self.world, self.fake, self.control = world, fake, control
        self.program = world.programs[control.rank]
        self.rank = control.rank
        self.device = open_fake(fake)
        self.stream = _contexts.stream
        self.exchange = DeviceExchange({"halo": self.program}, control, timeout, self.device)

    @property
    def local_ids(self) -> np.ndarray:
        return np.concatenate([self.program.owned_ids, self.program.halo_ids])

    def wait(self):
        """As a user would, before he looks at results."""
        self.exchange.synchronize()

    def hurry(self, seconds: float):
        """Let this rank wait no longer than that from now on."""
        hurry(self.exchange._hosts.runtime, seconds)
        self.exchange._timeout = self.exchange._watchdog.timeout = seconds

    def values(
        self, ids: np.ndarray, rank: int, width: int, dtype: torch.dtype, seed: int = 0
    ) -> torch.Tensor:
        """What a rank has for vertices: small whole numbers, whose sums are exact in every type."""
        return torch.from_numpy((ids[:, None] * 7 + rank * 3 + np.arange(width) + seed) % 9 - 4).to(dtype)

    def owned(self, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        return self.values(self.program.owned_ids, 0, width, dtype, seed)

    def expanded(self, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        return self.values(self.local_ids, 0, width, dtype, seed)

    def local(self, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        return self.values(self.local_ids, self.rank, width, dtype, seed)

    def folded(self, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        total = torch.zeros(self.world.graph.num_nodes, width, dtype=dtype)
        for program in self.world.programs:
            ids = np.concatenate([program.owned_ids, program.halo_ids])
            total[torch.from_numpy(ids)] += self.values(ids, program.rank, width, dtype, seed)
        return total[torch.from_numpy(self.program.owned_ids)]


def on_devices(
    world: World,
    function: Callable[[Rank], Any],
    *,
    shared: bool = True,
    seed: int = 0,
    timeout: float = 60.0,
    prepare: Callable[[list[FakeCuda]], None] = lambda fakes: None,
) -> tuple[list[Any], list[FakeCuda]]:
    """``function(rank)`` on every rank of the world, as threads: what it returned, and the devices.

    Args:
        world: Who has what.
        function: Run by every rank, on a stream of its own.
        shared: All ranks on one device, or one for each.
        seed: Of the order in which streams run.
        timeout: Of the communicators.
        prepare: Does something to the devices first.
    """
    count = 1 if shared else world.world_size
    with fake_devices(count, seed) as fakes:
        prepare(fakes)

        def run() -> Any:
            rank = Rank(world, fakes[context.require_control().rank % count], timeout)
            try:
                result = function(rank)
                rank.fake.drain()
                return result
            except BaseException as error:
                rank.exchange.fail(dgcl.CommError(f"rank {rank.rank}: stopped by {error!r}"))
                for trouble in rank.fake.errors[:3]:
                    error.add_note("on the device: " + "".join(traceback.format_exception(trouble)))
                raise
            finally:
                rank.exchange.close()
                _contexts.current = 0

        results = dgcl.launch(run, world.world_size)
    for fake in fakes:
        if fake.errors:
            raise fake.errors[0]
    return results, fakes
