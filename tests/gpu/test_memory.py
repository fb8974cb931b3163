"""Memory and flags that two processes share on one GPU, tried instead of assumed."""

from __future__ import annotations

import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dgcl.kernels.cuda_driver import CudaError
from dgcl.kernels.cuda_launch import Prepared
from tests.gpu import second_process as second
from tests.gpu.device import Gpu, as_bytes
from tests.gpu.flag_rounds import FlagRounds
from tests.gpu.second_process import second_process

pytestmark = pytest.mark.gpu
Found = Callable[[dict[str, Any]], None]


def ways(gpu: Gpu) -> list[str]:
    """How a rank may wait for a flag here."""
    return ["kernels"] + ["streams"] * gpu.driver.can_wait_in_streams(gpu.device.index)


class TestIpc:
    def test_another_process_writes_into_our_memory(self, gpu: Gpu, found: Found) -> None:
        size = 1 << 26
        address = gpu.driver.allocate(size)
        memory = as_bytes(address, size)
        memory.fill_(1)
        torch.cuda.synchronize()
        with second_process(second.write) as pipe:
            pipe.send((gpu.driver.export_memory(address), size))
            found(pipe.receive())
        pattern = torch.arange(size, device=gpu.device) % 251
        assert torch.equal(memory, pattern.to(torch.uint8)), "the bytes that arrived are wrong"
        gpu.driver.free(address)

    def test_a_process_may_open_its_own_handle_or_not(self, gpu: Gpu, found: Found) -> None:
        """Ranks that are threads must not need to."""
        address = gpu.driver.allocate(1 << 20)
        try:
            opened = gpu.driver.open_memory(gpu.driver.export_memory(address))
        except CudaError as error:
            found({"opens its own handle": False, "error": str(error)})
        else:
            found({"opens its own handle": True, "at the same address": opened == address})


def test_flags(gpu: Gpu, found: Found) -> None:
    """Round trips of flags between two processes, by waiting kernels and by the streams themselves."""
    for way in ways(gpu):
        address = gpu.driver.allocate(1 << 21)
        as_bytes(address, 1 << 21).zero_()
        torch.cuda.synchronize()
        with second_process(second.answer_flags, way) as pipe:
            pipe.send(gpu.driver.export_memory(address))
            theirs = gpu.driver.open_memory(pipe.receive())
            rounds = FlagRounds(gpu, way, own=address, other=theirs, first=True)
            assert pipe.receive() == "ready"
            found({f"round trip by {way}, us": round(1e6 * rounds.run(), 1)})
            assert pipe.receive() == "done"


def test_open_late(gpu: Gpu, found: Found) -> None:
    """Can memory be opened, and allocated, while a kernel of this process waits? So communicators grow."""
    flag = torch.zeros(2, dtype=torch.int64).pin_memory()
    with second_process(second.export) as pipe:
        handle = pipe.receive()
        rounds = FlagRounds(gpu, "kernels", own=flag.data_ptr(), other=flag.data_ptr() + 8, first=False)
        torch.cuda.synchronize()
        context = gpu.driver.current_context()
        rounds.enqueue_one()
        for name, run in (
            ("opening", lambda: gpu.driver.open_memory(handle)),
            ("allocating", lambda: gpu.driver.allocate(1 << 26)),
        ):
            done = threading.Event()

            def work(run: Callable[[], object] = run, done: threading.Event = done) -> None:
                gpu.driver.use_context(context)
                run()
                done.set()

            start = time.perf_counter()
            threading.Thread(target=work, daemon=True).start()
            waited = not done.wait(10)
            milliseconds = round(1e3 * (time.perf_counter() - start), 2)
            found({f"{name} waits for the kernel": waited, f"{name}, ms": milliseconds})
        flag[0] = 1
        torch.cuda.synchronize()
        pipe.send("go on")


def test_slices(gpu: Gpu, found: Found) -> None:
    """What a waiting process costs a working one."""
    source = torch.ones(1 << 30, dtype=torch.uint8, device=gpu.device)
    other = torch.empty_like(source)

    def milliseconds() -> float:
        return round(1e3 * statistics.median(gpu.seconds(lambda: other.copy_(source), 20)), 3)

    found({"copy alone, ms": milliseconds()})
    for way in ways(gpu):
        with second_process(second.stall, way) as pipe:
            assert pipe.receive() == "waiting"
            time.sleep(0.2)
            found({f"copy while the other waits by {way}, ms": milliseconds()})
            pipe.send("go on")
            found({f"other, waiting by {way}": pipe.receive()})


def test_pinned(gpu: Gpu, found: Found) -> None:
    """A shared segment of host memory that both processes lock, written by one GPU copy, read by another."""
    size = 1 << 28
    file = os.memfd_create("dgcl-gpu-check")
    try:
        os.ftruncate(file, size)
        with mmap.mmap(file, size) as mapped:
            shared = np.frombuffer(mapped, np.uint8)
            address = shared.ctypes.data
            start = time.perf_counter()
            device_address = gpu.driver.register_host(address, size)
            locked = time.perf_counter() - start
            source = (torch.arange(size, device=gpu.device) % 249).to(torch.uint8)
            out = Prepared(gpu.driver)
            out.copy(address, source.data_ptr(), size)
            stream = [torch.cuda.current_stream().cuda_stream]
            seconds = statistics.median(gpu.seconds(lambda: out.enqueue(stream), 5))
            found(
                {
                    "locked, s per GB": round(locked / (size * 1e-9), 3),
                    "same address on the device": device_address == address,
                    "to the host, GB/s": round(size * 1e-9 / seconds, 1),
                }
            )
            with second_process(second.read, os.getpid(), file, size) as pipe:
                answer = pipe.receive()
            gpu.driver.unregister_host(address)
            del shared
    finally:
        os.close(file)
    found(answer)
    assert answer["read bytes right"]
