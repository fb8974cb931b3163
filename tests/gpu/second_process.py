"""What the second process of a test does, and starting it: it talks to the first through a pipe."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from dgcl.kernels.cuda_launch import Prepared
from tests.gpu.device import Gpu, as_bytes
from tests.gpu.flag_rounds import FlagRounds

_ANSWER_SECONDS = 120.0


@contextmanager
def second_process(role: Callable[..., None], *args: Any) -> Iterator[Pipe]:
    """A process that runs ``role(pipe, *args)``; killed at the end of the block if it still runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=role, args=(Pipe(theirs), *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Pipe(ours)
        process.join(10)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()


class Pipe:
    """One end of a pipe, with a deadline for answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any) -> None:
        self._connection.send(value)

    def receive(self) -> Any:
        """The next value of the other process.

        Raises:
            TimeoutError: It sends nothing.
            EOFError: It has ended.
        """
        if not self._connection.poll(_ANSWER_SECONDS):
            raise TimeoutError(f"no answer of the other process within {_ANSWER_SECONDS:g} s")
        return self._connection.recv()


def write(pipe: Pipe) -> None:
    """Fill the first process's memory with a pattern."""
    gpu = Gpu()
    handle, size = pipe.receive()
    address = gpu.driver.open_memory(handle)
    memory = as_bytes(address, size)
    pattern = (torch.arange(size, device=gpu.device) % 251).to(torch.uint8)
    seconds = statistics.median(gpu.seconds(lambda: memory.copy_(pattern), 5))
    torch.cuda.synchronize()
    gpu.driver.close_memory(address)
    pipe.send({"copy into the other's memory, GB/s read plus written": round(2e-9 * size / seconds)})


def export(pipe: Pipe) -> None:
    """Allocate memory for the first process to open."""
    gpu = Gpu()
    pipe.send(gpu.driver.export_memory(gpu.driver.allocate(1 << 22)))
    pipe.receive()


def answer_flags(pipe: Pipe, way: str) -> None:
    """The other side of rounds of flags."""
    gpu = Gpu()
    theirs = gpu.driver.open_memory(pipe.receive())
    own = gpu.driver.allocate(1 << 21)
    as_bytes(own, 1 << 21).zero_()
    torch.cuda.synchronize()
    pipe.send(gpu.driver.export_memory(own))
    rounds = FlagRounds(gpu, way, own=own, other=theirs, first=False)
    pipe.send("ready")
    rounds.run()
    pipe.send("done")


def stall(pipe: Pipe, way: str) -> None:
    """Wait on the device until told to go on."""
    gpu = Gpu()
    memory = torch.zeros(2, dtype=torch.int64).pin_memory()
    own = memory.data_ptr()
    rounds = FlagRounds(gpu, way, own=own, other=own + 8, first=False)
    rounds.enqueue_one()
    pipe.send("waiting")
    pipe.receive()
    start = time.perf_counter()
    memory[0] = 1
    torch.cuda.synchronize()
    pipe.send({"went on after, us": round(1e6 * (time.perf_counter() - start)), "flag": int(memory[1])})


def read(pipe: Pipe, pid: int, file: int, size: int) -> None:
    """Read another process's host memory by this process's copies."""
    gpu = Gpu()
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    with mmap.mmap(opened, size) as mapped:
        shared = np.frombuffer(mapped, np.uint8)
        gpu.driver.register_host(shared.ctypes.data, size)
        target = torch.zeros(size, dtype=torch.uint8, device=gpu.device)
        inward = Prepared(gpu.driver)
        inward.copy(target.data_ptr(), shared.ctypes.data, size)
        stream = [torch.cuda.current_stream().cuda_stream]
        seconds = statistics.median(gpu.seconds(lambda: inward.enqueue(stream), 5))
        pattern = (torch.arange(size, device=gpu.device) % 249).to(torch.uint8)
        right = bool((target == pattern).all())
        pipe.send({"from the host, GB/s": round(size * 1e-9 / seconds, 1), "read bytes right": right})
        gpu.driver.unregister_host(shared.ctypes.data)
        del shared
