"""What the ranks of the tests of communicators do: each is a process of its own, all on one GPU.

:mod:`tests.gpu.test_communicators` starts them by :func:`dgcl.launch`; the functions are at the top level so that
spawned processes find them. They take the device by name, so that they can be tried on a CPU.
"""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import dgcl
from dgcl.build import connect
from dgcl.communicator import Communicator
from dgcl.errors import CommError
from dgcl.kernels.cuda_driver import CudaError
from dgcl.prepare.shares import prepare_inputs
from dgcl.ranks.context import context
from dgcl.transport.cuda import open_devices
from dgcl.transport.cuda.trial_process import KINDS, make_edges, values, wrong_rows
from tests.support.fold_rounding import fold_bound

#: What the others are to raise when the last rank is late, or is killed.
FAULTS = {"late": "CommTimeoutError", "dies": "PeerLostError"}
_TIMEOUT = 40.0
#: The machine that plans are made for. On a line of PCIe switches multi-stage plans pay.
TOPOLOGY = "pcie8"


def wrong_kinds(answers: list[dict[str, bool]]) -> list[str]:
    """The kinds of rows that were wrong on some rank."""
    return sorted({name for answer in answers for name, right in answer.items() if not right})


def largest_shares(answers: list[dict[str, float]]) -> dict[str, float]:
    """Over all ranks, the largest error as a share of the bound, by element type."""
    return {kind: max(answer[kind] for answer in answers) for kind in answers[0]}


def fault_reports(kind: str, channel: str, folder: Path, device: str) -> list[str]:
    """What ranks 0 and 1 of three said of a fault of the last one."""
    with suppress(Exception):  # the job fails, as it should; what the ranks have seen is in the files
        dgcl.launch(fault_rank, 3, kind, channel, str(folder), device, ranks="processes", timeout=120.0)
    paths = [folder / f"{kind}-{rank}" for rank in range(2)]
    return [path.read_text() if path.is_file() else "never returned" for path in paths]


def join(
    num_nodes: int,
    method: str,
    device: str,
    timeout: float = _TIMEOUT,
    channel: str = "memory",
    *,
    through_host: bool = False,
) -> Communicator:
    """A communicator on ``device`` over a random graph."""
    control = context.require_control()
    edges, part = make_edges(control.world_size, num_nodes)
    opened = open_devices(control, device)
    if opened is not None and through_host:
        opened.driver.export_memory = refuse
    shares = partial(prepare_inputs, edges, control.world_size, TOPOLOGY, part=part, method=method)
    return connect(shares, timeout, channel, device=opened)


def refuse(address: int) -> bytes:
    """Stand for a driver that shares no memory."""
    raise CudaError("cuIpcGetMemHandle", 801, "CUDA_ERROR_NOT_SUPPORTED")


def is_right(comm: Communicator, device: str) -> dict[str, bool]:
    """Expand, fold and the gradient, for all kinds of rows, to the bit."""
    wrong = wrong_rows(comm, device, 3)
    found = {f"{name} {shape}": f"{name} {shape}" not in wrong for name, shape in KINDS}
    x = values(comm.owned_ids.to(device), (8,), torch.float32).requires_grad_()
    weights = values(torch.cat([comm.owned_ids, comm.halo_ids]).to(device), (8,), torch.float32)
    (dgcl.graph_allgather(x, comm) * weights).sum().backward()
    wanted = comm.fold(weights)
    comm.synchronize()
    found["gradient"] = x.grad is not None and torch.equal(x.grad, wanted)
    return found


def check_rank(num_nodes: int, method: str, device: str, through_host: bool = False) -> dict[str, bool]:
    """One rank of the check for right rows."""
    return is_right(join(num_nodes, method, device, through_host=through_host), device)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def precision_rank(num_nodes: int, method: str, device: str) -> dict[str, float]:
    """One rank of the check of folds of 16-bit floats: the largest error, as a share of what is allowed, by type."""
    comm = join(num_nodes, method, device)
    ids = torch.cat([comm.owned_ids, comm.halo_ids])
    everyones = comm.control.exchange(ids)
    found = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        exact, sizes = (torch.zeros(comm.num_nodes, 24, dtype=torch.float64) for _ in range(2))
        for rank, theirs in enumerate(everyones):
            rows = _random_rows(len(theirs), rank, dtype).double()
            exact.index_add_(0, theirs, rows)
            sizes.index_add_(0, theirs, rows.abs())
        folded = comm.fold(_random_rows(len(ids), comm.rank, dtype).to(device))
        comm.synchronize()
        bound = fold_bound(dtype, comm.plan.num_stages, comm.world_size)
        share = bound.share(folded.cpu(), exact[comm.owned_ids], sizes[comm.owned_ids])
        found[str(dtype).removeprefix("torch.")] = share
    return found


def _random_rows(count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank contributes: numbers of many sizes, which every rank can make for every other."""
    generator = torch.Generator().manual_seed(rank)
    sizes = 10.0 ** torch.randint(-6, 3, (count, 24), generator=generator)
    return (torch.randn(count, 24, generator=generator) * sizes).to(dtype)


def fault_rank(kind: str, channel: str, folder: str, device: str) -> str:
    """One rank of a fault: the last rank is late or dies; what the others say of it."""
    comm = join(1 << 12, "direct", device, 3.0 if kind == "late" else 60.0, channel)
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
