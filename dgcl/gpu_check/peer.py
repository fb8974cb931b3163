"""The other process of a probe (:mod:`dgcl.gpu_check.probes`): ``python -m dgcl.gpu_check.peer ROLE ...``."""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch

from dgcl.gpu_check.flag_rounds import FlagRounds
from dgcl.gpu_check.gpu import Gpu, as_bytes
from dgcl.gpu_check.pair import Channel, parent
from dgcl.kernels.cuda_launch import Prepared


def write(asker: Channel) -> None:
    """Fill the asker's memory with a pattern."""
    gpu = Gpu()
    asked = asker.receive()
    address = gpu.driver.open_memory(bytes.fromhex(asked["handle"]))
    memory = as_bytes(address, asked["size"])
    pattern = (torch.arange(asked["size"], device=gpu.device) % 251).to(torch.uint8)
    seconds = statistics.median(gpu.seconds(lambda: memory.copy_(pattern), 5))
    torch.cuda.synchronize()
    gpu.driver.close_memory(address)
    asker.send(
        {"copy into the other's memory, GB/s read plus written": round(2e-9 * asked["size"] / seconds)}
    )


def export(asker: Channel) -> None:
    """Memory for the asker to open."""
    gpu = Gpu()
    address = gpu.driver.allocate(1 << 22)
    asker.send({"handle": gpu.driver.export_memory(address).hex()})
    asker.receive()


def pong(asker: Channel, way: str) -> None:
    """The other side of rounds of flags."""
    gpu = Gpu()
    theirs = gpu.driver.open_memory(bytes.fromhex(asker.receive()["handle"]))
    own = gpu.driver.allocate(1 << 21)
    as_bytes(own, 1 << 21).zero_()
    torch.cuda.synchronize()
    asker.send({"handle": gpu.driver.export_memory(own).hex()})
    rounds = FlagRounds(gpu, way, own=own, other=theirs, first=False)
    asker.send("ready")
    rounds.run()
    asker.send("done")


def stall(asker: Channel, way: str) -> None:
    """Wait on the device until told to go on."""
    gpu = Gpu()
    memory = torch.zeros(2, dtype=torch.int64).pin_memory()
    own = memory.data_ptr()
    rounds = FlagRounds(gpu, way, own=own, other=own + 8, first=False)
    rounds.enqueue_one()
    asker.send("waiting")
    asker.receive()
    start = time.perf_counter()
    memory[0] = 1
    torch.cuda.synchronize()
    asker.send({"went on after, us": round(1e6 * (time.perf_counter() - start)), "flag": int(memory[1])})


def read(asker: Channel, pid: str, file: str, size: str) -> None:
    """Read another process's host memory by this process's copies."""
    gpu = Gpu()
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    with mmap.mmap(opened, int(size)) as mapped:
        shared = np.frombuffer(mapped, np.uint8)
        gpu.driver.register_host(shared.ctypes.data, int(size))
        target = torch.zeros(int(size), dtype=torch.uint8, device=gpu.device)
        inward = Prepared(gpu.driver)
        inward.copy(target.data_ptr(), shared.ctypes.data, int(size))
        stream = [torch.cuda.current_stream().cuda_stream]
        seconds = statistics.median(gpu.seconds(lambda: inward.enqueue(stream), 5))
        pattern = (torch.arange(int(size), device=gpu.device) % 249).to(torch.uint8)
        asker.send(
            {
                "from the host, GB/s": round(int(size) * 1e-9 / seconds, 1),
                "read bytes right": bool((target == pattern).all()),
            }
        )
        gpu.driver.unregister_host(shared.ctypes.data)
        del shared


def nccl(asker: Channel, rank: str) -> None:
    """One of two NCCL ranks on one GPU."""
    import torch.distributed as dist

    try:
        store = dist.TCPStore("127.0.0.1", 29511, 2, rank == "0", timedelta(seconds=30))
        torch.cuda.set_device(0)
        dist.init_process_group(
            "nccl", store=store, rank=int(rank), world_size=2, timeout=timedelta(seconds=30)
        )
        mine = torch.full((2,), float(rank), device="cuda")
        out = torch.empty_like(mine)
        dist.all_to_all_single(out, mine)
        torch.cuda.synchronize()
        asker.send({"runs": True, "right": out.tolist() == [0.0, 1.0]})
    except Exception as error:  # that it refuses, and how, is what the probe is for
        asker.send({"runs": False, "error": " ".join(str(error).split())[:300]})


ROLES: dict[str, Callable[..., None]] = {
    "write": write,
    "export": export,
    "pong": pong,
    "stall": stall,
    "read": read,
    "nccl": nccl,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](parent(), *sys.argv[2:])
