"""Ranks that run hand-made plans: communicators without a planner, and the dense answer to compare with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dgcl
from dgcl.build import connect_shares
from dgcl.communicator import Communicator
from dgcl.prepare.share import Share
from dgcl.ranks.context import context
from tests.support.plans import World

SUMMABLE = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
DTYPES = (*SUMMABLE, torch.float8_e4m3fn, torch.bool, torch.uint16, torch.uint32, torch.uint64)


def join(
    shares: list[Share], timeout: float = 60.0, channel: str = "auto", device: Any = None
) -> Communicator:
    """This rank's communicator for its share of a world; collective."""
    rank = context.require_control().rank
    return connect_shares(shares[rank], timeout, channel, device)


def on_threads(
    world: World, function: Callable[[Communicator], Any], timeout: float = 60.0, channel: str = "auto"
) -> list[Any]:
    """``function(comm)`` on every rank of the world, as threads; what it returned, in rank order."""
    shares = world.shares()
    return dgcl.launch(lambda: function(join(shares, timeout, channel)), world.world_size)


def hurry(runtime: Any, seconds: float):
    """Let this rank wait no longer than that from now on; set-up and first calls had all the time they need."""
    runtime._timeout = seconds


def said(call: Callable[[], Any]) -> str:
    """What a call says when it fails, or "nothing"."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:  # of which CommError is one
        return str(error)
    return "nothing"


def local_ids(comm: Communicator) -> Tensor:
    """Global ids of the local rows: owned, then halo."""
    return torch.cat([comm.owned_ids, comm.halo_ids])


def folded(comm: Communicator, rows: Tensor) -> Tensor:
    """What a fold of ``rows`` must give here, added up densely in the rows' own type; collective."""
    held = comm.control.exchange((local_ids(comm), rows.detach().clone()))
    total = torch.zeros(comm.num_nodes, *rows.shape[1:], dtype=rows.dtype)
    for ids, theirs in held:
        total.index_add_(0, ids, theirs)
    return total[comm.owned_ids]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits, NaNs included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """A tensor of any bit patterns that the type has (bool: two)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)
