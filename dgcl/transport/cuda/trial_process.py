"""Script that exchanges known rows between GPUs, and raises an error where any of them differ.

It takes every width and kind of sum of the kernels, first on CPUs, for which kernels may be compiled, then many times
on the devices. What is wrong is raised; a process that does not come to an end ends itself.
Called by `trial`, in a process for each rank, and by users: ``torchrun ... -m dgcl.transport.cuda.trial_process cuda``.
Free to change while it notices other rows than were sent (`tests/dgcl/transport/cuda/test_trial.py`); on GPUs:
`tests/gpu/test_communicators.py`.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import dgcl
from dgcl.errors import CommError
from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

#: Element types and trailing shapes: every width of the kernels' units, and every kind of sum.
KINDS = (
    ("float32", (1,)),
    ("float16", (127,)),
    ("bfloat16", (128,)),
    ("bfloat16", (3, 43)),
    ("float64", (16,)),
    ("int64", (5,)),
    ("int32", (4,)),
    ("int16", (3,)),
    ("uint8", (7,)),
    ("float32", (602,)),
)
_SECONDS = 15.0
_ROUNDS = 500  # an expand and a fold each


def make_edges(num_ranks: int, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """``(2, E)`` random edges, and the part of each vertex."""
    generator = np.random.default_rng(num_ranks)
    part = np.arange(num_nodes) * num_ranks // num_nodes
    return generator.integers(0, num_nodes, (2, 4 * num_nodes)), part


def values(ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small whole numbers, whose sums are exact in every type."""
    columns = torch.arange(torch.Size(shape).numel(), device=ids.device)
    return ((ids[:, None] * 7 + columns) % 5).to(dtype).view(-1, *shape)


def wrong_rows(comm: Communicator, device: str, rounds: int) -> list[str]:
    """Kinds of rows that expand or fold gets wrong on this rank. Collective.

    Each is tried three times, the last many times: ten times ``rounds``, or as many as some seconds allow.
    """
    ids = torch.cat([comm.owned_ids, comm.halo_ids])
    held = torch.zeros(comm.num_nodes, dtype=torch.int64)
    held[ids] = 1
    holders = comm.all_reduce_sum(held)[comm.owned_ids].to(device)
    ids = ids.to(device)
    start, wrong = time.monotonic(), []
    for name, shape, times in [*((*kind, 3) for kind in KINDS), *[("int64", (4,), rounds)] * 10]:
        if times == rounds and max(comm.control.exchange(time.monotonic() - start)) > _SECONDS / 3:
            break
        every = values(ids, shape, getattr(torch, name))
        sums = every[: comm.num_owned].double() * holders.view(-1, *[1] * len(shape))
        differs = torch.zeros((), dtype=torch.bool, device=device)
        for step in range(times):
            more = step % 3  # what came before would be noticed
            expanded, folded = comm.expand(every[: comm.num_owned] + more), comm.fold(every)
            differs |= (expanded != every + more).any() | (folded.double() != sums).any()
        comm.synchronize()
        if differs:
            wrong.append(f"{name} {shape}")
    return wrong


def main(device: str, rounds: int = _ROUNDS) -> None:
    """Try this rank's device with those of the others; first the same on CPUs, for which kernels may be compiled.

    Raises:
        CommError: Rows are not those that were sent, or none of them come.
    """
    dgcl.init()
    num_ranks = context.require_control().world_size
    edges, part = make_edges(num_ranks, 256 * num_ranks)
    topology = "pcie8" if num_ranks <= 8 else "dgx2"
    for where, times in (("cpu", 1), (device, rounds)):
        comm = dgcl.build_comm_info(edges, topology, part=part, method="spst", device=where, channel="memory")
        wrong = comm.control.exchange(wrong_rows(comm, where, times))
        comm.close()
        for rank, kinds in enumerate(wrong):
            if kinds:
                raise CommError(f"rank {rank} has got other rows than were sent: {', '.join(kinds)}")
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1])
