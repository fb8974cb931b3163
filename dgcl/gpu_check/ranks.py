"""What the ranks of the communicator's checks do: each is a process of its own, all on one GPU.

Run by :mod:`dgcl.gpu_check.communicator` through :func:`dgcl.launch`; the functions are at the top level so that
spawned processes find them. They take the device by name, so that they can be tried on a CPU.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

import dgcl
from dgcl.build import connect, prepare
from dgcl.communicator import Communicator
from dgcl.context import context
from dgcl.device import open_devices
from dgcl.errors import CommError
from dgcl.gpu_check.programs import TOPOLOGY, make_edges

#: Element types and trailing shapes that are checked.
KINDS: Final = (
    ("float32", (1,)),
    ("float32", (602,)),
    ("float16", (127,)),
    ("bfloat16", (128,)),
    ("bfloat16", (3, 43)),
    ("float64", (16,)),
    ("int64", (5,)),
    ("uint8", (7,)),
)
_TIMEOUT: Final = 40.0


def join(
    num_nodes: int, method: str, device: str, timeout: float = _TIMEOUT, *, through_host: bool = False
) -> Communicator:
    """A communicator on ``device`` over a random graph."""
    control = context.require_control()
    edges, part = make_edges(control.world_size, num_nodes)
    if through_host:
        opened = open_devices(control, device)
        if opened is not None:
            opened.is_open = False
        shares = partial(prepare, edges, control.world_size, TOPOLOGY, part=part, method=method)
        return connect(shares, Communicator, timeout, device=opened)
    return dgcl.build_comm_info(
        edges, TOPOLOGY, part=part, method=method, timeout=timeout, device=device, seed=1
    )


def own_stream(device: str) -> Any:
    """For ranks that are threads and share a GPU."""
    return torch.cuda.stream(torch.cuda.Stream()) if device.startswith("cuda") else nullcontext()


def values(ids: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in every type."""
    columns = torch.arange(torch.Size(shape).numel(), device=device)
    rows = (ids.to(device)[:, None] * 7 + columns) % 5
    return rows.to(dtype).view(-1, *shape)


def is_right(comm: Communicator, device: str) -> dict[str, bool]:
    """Expand, fold and the gradient, for all kinds of rows, to the bit."""
    ids = torch.cat([comm.owned_ids, comm.halo_ids])
    held = torch.zeros(comm.num_nodes, dtype=torch.int64)
    held[ids] = 1
    holders = comm.all_reduce_sum(held)[comm.owned_ids].to(device)
    found = {}
    for name, shape in KINDS:
        dtype = getattr(torch, name)
        mine, every = values(comm.owned_ids, shape, dtype, device), values(ids, shape, dtype, device)
        right = True
        for _ in range(3):
            expanded, folded = comm.expand(mine), comm.fold(every)
            comm.synchronize()
            total = mine.to(torch.float64) * holders.view(-1, *[1] * len(shape))
            right &= torch.equal(expanded, every) and torch.equal(folded.to(torch.float64), total)
        found[f"{name} {shape}"] = right
    x = values(comm.owned_ids, (8,), torch.float32, device).requires_grad_()
    weights = values(ids, (8,), torch.float32, device)
    (dgcl.graph_allgather(x, comm) * weights).sum().backward()
    wanted = comm.fold(weights)
    comm.synchronize()
    found["gradient"] = x.grad is not None and torch.equal(x.grad, wanted)
    return found


def check_rank(num_nodes: int, method: str, device: str, through_host: bool = False) -> dict[str, bool]:
    """One rank of the check for right rows."""
    with own_stream(device):
        return is_right(join(num_nodes, method, device, through_host=through_host), device)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], object], repeats: int, comm: Communicator, device: str) -> float:
    """Seconds of one run on the device, over some in a row, on the slowest rank."""
    for _ in range(3):
        run()
    _synchronize(device)
    comm.control.barrier()
    if device.startswith("cuda"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize()
        mine = begin.elapsed_time(end) * 1e-3
    else:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        mine = time.perf_counter() - start
    return max(comm.control.exchange(mine)) / repeats


def host_microseconds(run: Callable[[], object], comm: Communicator, device: str) -> float:
    """Host time of one call while the device is idle, median."""
    times = []
    for _ in range(50):
        _synchronize(device)
        comm.control.barrier()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def speed_rank(num_nodes: int, method: str, width: int, repeats: int, device: str) -> dict[str, float]:
    """One rank of the measurement: seconds of an expand and a fold, and of other ways to do the expand."""
    comm = join(num_nodes, method, device)
    program = comm._program
    rows = torch.randn(comm.num_owned, width, device=device)
    grads = torch.randn(comm.num_local, width, device=device)
    found = {
        "expand": seconds_of(lambda: comm.expand(rows), repeats, comm, device),
        "fold": seconds_of(lambda: comm.fold(grads), repeats, comm, device),
        "host us of expand": host_microseconds(lambda: comm.expand(rows), comm, device),
        "host us of fold": host_microseconds(lambda: comm.fold(grads), comm, device),
        "bytes": float(sum(comm.control.exchange(program.expand.rows_sent)) * width * 4),
    }
    result = comm.expand(rows)
    comm.synchronize()
    if comm.plan.num_stages == 1:
        index = torch.from_numpy(program.send_rows).to(device)
        packed = torch.empty(len(index), width, device=device)
        landed = torch.empty(comm.num_local, width, device=device)

        def gather_and_copy() -> None:
            torch.index_select(rows, 0, index, out=packed)
            landed[: comm.num_owned].copy_(rows)
            landed[comm.num_owned :].copy_(result[comm.num_owned :])

        found["gather and copy"] = seconds_of(gather_and_copy, repeats, comm, device)
        schedule = program.expand
        sends, receives = [0] * comm.world_size, [0] * comm.world_size
        for peer, count in zip(schedule.send_peer.tolist(), schedule.send_count.sum(1).tolist(), strict=True):
            sends[peer] = count
        for peer, count in zip(schedule.recv_peer.tolist(), schedule.recv_count.sum(1).tolist(), strict=True):
            receives[peer] = count
        through = torch.empty(sum(receives), width)

        def gloo() -> None:
            dist.all_to_all_single(through, rows.index_select(0, index).cpu(), receives, sends)
            landed[: comm.num_owned].copy_(rows)
            landed[comm.num_owned :].copy_(through)

        if dist.is_initialized():
            found["gloo"] = seconds_of(gloo, max(repeats // 5, 1), comm, device)
            _synchronize(device)
            found["gloo agrees"] = float(torch.equal(landed, result))
    return found


def fault_rank(kind: str, folder: str, device: str) -> str:
    """One rank of a fault: the last rank is late or dies; what the others say of it."""
    comm = join(1 << 12, "direct", device, timeout=3.0 if kind == "late" else 60.0)
    rows = torch.ones(comm.num_owned, 32, device=device)
    for _ in range(5):
        comm.fold(comm.expand(rows))
    comm.synchronize()
    comm.control.barrier()
    if comm.rank == comm.world_size - 1:
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(5.0)
    text, start = "nothing was noticed", time.monotonic()
    try:
        for _ in range(3):
            comm.fold(comm.expand(rows))
            comm.synchronize()
    except CommError as error:
        text = f"{type(error).__name__} after {time.monotonic() - start:.2f} s: {error}"
    _synchronize(device)  # the device is not stuck
    alive = float(torch.ones(3, device=device).sum()) == 3.0
    text = f"{text} (device {'works on' if alive else 'is stuck'})"
    Path(folder, f"{kind}-{comm.rank}").write_text(text)
    return text


def graph_rank(device: str) -> dict[str, Any]:
    """One rank of a step that is captured into a CUDA graph and replayed."""
    comm = join(1 << 14, "direct", device)
    ids = torch.cat([comm.owned_ids, comm.halo_ids])
    rows = values(comm.owned_ids, (16,), torch.float32, device)
    weight = torch.full((16, 16), 0.5, device=device, requires_grad=True)

    def step() -> torch.Tensor:
        weight.grad = None
        out = comm.expand(rows @ weight)
        out.square().sum().backward()
        return out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    comm.synchronize()
    comm.control.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    right = True
    for seed in range(3):
        rows.copy_(values(comm.owned_ids + seed, (16,), torch.float32, device))
        graph.replay()
        torch.cuda.synchronize()
        wanted = values(ids + seed, (16,), torch.float32, device) @ weight.detach()
        right &= torch.equal(out.detach(), wanted)
    comm.synchronize()
    return {"captured": True, "three replays right": right}
