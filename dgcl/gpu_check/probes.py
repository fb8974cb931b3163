"""What the driver and the device can do that the runtime may lean on, tried instead of assumed.

``python -m dgcl.gpu_check.probes NAME`` runs one and prints what it found as JSON. Each runs in a process
of its own, because a probe that goes wrong may leave a device that waits forever;
:mod:`dgcl.gpu_check.__main__` gives each a time limit. Probes of two processes start the other one
themselves.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from dgcl.gpu_check.flag_rounds import FlagRounds
from dgcl.gpu_check.gpu import Gpu, Tables, as_bytes
from dgcl.gpu_check.pair import Peer
from dgcl.kernels.cuda_catalogue import catalogue, fitting_capabilities
from dgcl.kernels.cuda_driver import CudaError
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_ptx import compile_ptx
from dgcl.kernels.cuda_tables import FLAG

MODULE: Final = "dgcl.gpu_check.peer"


def probe_driver() -> dict[str, Any]:
    """Versions; whether kernels compile here, and how long compiling and loading take."""
    gpu = Gpu()
    capability = gpu.driver.capability(gpu.device.index)
    found: dict[str, Any] = {
        "driver speaks CUDA": gpu.driver.version(),
        "torch": torch.__version__,
        "capability": capability,
        "streams wait for words by themselves": gpu.driver.can_wait_in_streams(gpu.device.index),
    }
    kernel = catalogue()["sum_float32_16"]
    start = time.perf_counter()
    try:
        compile_ptx(kernel, fitting_capabilities(capability)[-1])
        found["numba compiles here"] = f"{time.perf_counter() - start:.2f} s for the first"
    except Exception as error:  # whatever is wrong with this installation is what the probe is for
        found["numba compiles here"] = f"no: {type(error).__name__}: {error}"[:300]
    start = time.perf_counter()
    for name in ("gather_16", "sum_float32_16", "announce", "wait", "resolve", "signal"):
        gpu.kernels[name]
    found["seconds to get six kernels onto the device"] = round(time.perf_counter() - start, 3)
    return found


def probe_launch() -> dict[str, Any]:
    """Host time of launches: one prepared list, one by one, and by torch, for scale."""
    gpu = Gpu()
    tables = Tables(gpu.device)
    parameters = tables.state(), tables.put(np.zeros(1, FLAG)), 0
    stream = torch.cuda.current_stream().cuda_stream
    found = {}
    for count in (1, 10, 20):
        prepared = Prepared(gpu.driver)
        for _ in range(count):
            prepared.launch(gpu.kernels["signal"], 1, 32, *parameters)
        found[f"{count} prepared launches, us"] = _host_microseconds(lambda p=prepared: p.enqueue([stream]))  # type: ignore[misc]
    word = torch.zeros(1, device=gpu.device)
    found["one torch add_, us"] = _host_microseconds(lambda: word.add_(1))
    if gpu.driver.can_wait_in_streams(gpu.device.index):
        prepared = Prepared(gpu.driver)
        address = tables.put(np.zeros(1, np.int64))
        for _ in range(10):
            prepared.write_value(address, 0, 5)
        for _ in range(10):
            prepared.wait_value(address, 0, 5)
        found["20 stream memory operations, us"] = _host_microseconds(lambda: prepared.enqueue([stream]))
    return found


def _host_microseconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(times[20:]), 2)


def probe_own_handle() -> dict[str, Any]:
    """Whether a process can open a handle of its own memory (ranks that are threads must not need to)."""
    gpu = Gpu()
    address = gpu.driver.allocate(1 << 20)
    handle = gpu.driver.export_memory(address)
    try:
        opened = gpu.driver.open_memory(handle)
    except CudaError as error:
        return {"opens": False, "error": str(error)}
    return {"opens": True, "at the same address": opened == address}


def probe_ipc() -> dict[str, Any]:
    """Two processes on this GPU: one writes into the other's memory."""
    gpu = Gpu()
    size = 1 << 26
    address = gpu.driver.allocate(size)
    memory = as_bytes(address, size)
    memory.fill_(1)
    torch.cuda.synchronize()
    with Peer(MODULE, "write") as peer:
        peer.send({"handle": gpu.driver.export_memory(address).hex(), "size": size})
        answer = peer.receive()
    pattern = torch.arange(size, device=gpu.device) % 251
    found = {"opened": True, "written bytes right": bool((memory == pattern.to(torch.uint8)).all()), **answer}
    gpu.driver.free(address)
    return found


def probe_open_late() -> dict[str, Any]:
    """Whether memory of another process can be opened, and memory be allocated, while a kernel of this process
    waits: how communicators grow. Given up after 20 seconds."""
    import threading

    gpu = Gpu()
    flag = torch.zeros(2, dtype=torch.int64).pin_memory()
    found: dict[str, Any] = {}
    with Peer(MODULE, "export") as peer:
        handle = bytes.fromhex(peer.receive()["handle"])
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
            found[f"{name} waits for the kernel"] = waited
            found[f"{name}, ms"] = round(1e3 * (time.perf_counter() - start), 2)
        flag[0] = 1
        torch.cuda.synchronize()
        peer.send("go")
    return found


def probe_flags() -> dict[str, Any]:
    """Two processes on this GPU: round trips of flags, by waiting kernels and by the streams themselves."""
    gpu = Gpu()
    found: dict[str, Any] = {}
    ways = ["kernels"] + ["streams"] * gpu.driver.can_wait_in_streams(gpu.device.index)
    for way in ways:
        address = gpu.driver.allocate(1 << 21)
        as_bytes(address, 1 << 21).zero_()
        torch.cuda.synchronize()
        with Peer(MODULE, "pong", way) as peer:
            peer.send({"handle": gpu.driver.export_memory(address).hex()})
            theirs = gpu.driver.open_memory(bytes.fromhex(peer.receive()["handle"]))
            rounds = FlagRounds(gpu, way, own=address, other=theirs, first=True)
            peer.receive()
            seconds = rounds.run()
            found[f"round trip by {way}, us"] = round(1e6 * seconds, 1)
            peer.receive()
    return found


def probe_slices() -> dict[str, Any]:
    """Two processes on this GPU: what a waiting one costs one that works."""
    gpu = Gpu()
    source = torch.ones(1 << 30, dtype=torch.uint8, device=gpu.device)
    other = torch.empty_like(source)

    def milliseconds() -> float:
        return round(1e3 * statistics.median(gpu.seconds(lambda: other.copy_(source), 20)), 3)

    found: dict[str, Any] = {"copy alone, ms": milliseconds()}
    ways = ["kernels"] + ["streams"] * gpu.driver.can_wait_in_streams(gpu.device.index)
    for way in ways:
        with Peer(MODULE, "stall", way) as peer:
            peer.receive()
            time.sleep(0.2)
            found[f"copy while the other waits by {way}, ms"] = milliseconds()
            peer.send("go on")
            found[f"other, waiting by {way}"] = peer.receive()
    return found


def probe_pinned() -> dict[str, Any]:
    """Two processes: a shared segment of host memory that both lock, written by one GPU copy, read by
    another."""
    import mmap
    import os

    gpu = Gpu()
    size = 1 << 28
    file = os.memfd_create("dgcl-probe")
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
            found = {
                "locked, s per GB": round(locked / (size * 1e-9), 3),
                "same address on the device": device_address == address,
                "to the host, GB/s": round(size * 1e-9 / seconds, 1),
            }
            with Peer(MODULE, "read", str(os.getpid()), str(file), str(size)) as peer:
                found |= peer.receive()
            gpu.driver.unregister_host(address)
            del shared
    finally:
        os.close(file)
    return found


def probe_graph() -> dict[str, Any]:
    """Whether an exchange can be captured into a CUDA graph, and repeated: call numbers count on by
    themselves."""
    from dgcl.gpu_check.loopback import connect
    from dgcl.gpu_check.programs import make_programs
    from dgcl.gpu_check.streams import Streams
    from dgcl.transport.cuda.program import EXPAND

    gpu = Gpu()
    programs = make_programs(4, 1 << 14, "spst")
    loopback = connect(
        programs, 64, torch.float32, gpu.device, lambda name: gpu.kernels.num_multiprocessors, 256
    )
    streams = Streams(gpu, loopback)
    loopback.begin(EXPAND)
    streams.run(loopback, EXPAND)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            streams.enqueue(EXPAND)
    except (RuntimeError, CudaError) as error:
        return {"captures": False, "error": str(error)[:300]}
    for rank in loopback.ranks:
        owned = rank.program.num_owned
        rank.local[:owned] = torch.from_numpy(rank.program.owned_ids).to(gpu.device)[:, None].float()
        rank.local[owned:] = -1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    loopback.check(4)
    right = all(
        bool((rank.local[:, 0].cpu().long().numpy() == _all_ids(rank.program)).all())
        for rank in loopback.ranks
    )
    return {"captures": True, "three replays right": right}


def _all_ids(program: Any) -> np.ndarray:
    return np.concatenate([program.owned_ids, program.halo_ids])


def probe_nccl() -> dict[str, Any]:
    """Whether NCCL lets two processes share one GPU (it usually refuses)."""
    with Peer(MODULE, "nccl", "1") as peer, Peer(MODULE, "nccl", "0") as other:
        return {"rank 0": other.receive(), "rank 1": peer.receive()}


PROBES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "driver": probe_driver,
    "launch": probe_launch,
    "own_handle": probe_own_handle,
    "ipc": probe_ipc,
    "open_late": probe_open_late,
    "flags": probe_flags,
    "slices": probe_slices,
    "pinned": probe_pinned,
    "graph": probe_graph,
    "nccl": probe_nccl,
}


if __name__ == "__main__":
    json.dump(PROBES[sys.argv[1]](), sys.stdout)
    sys.stdout.write("\n")
