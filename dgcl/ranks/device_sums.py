"""Sums tensors on GPUs over ranks by NCCL, from device to device, with the bits of `rank_sums`.

NCCL's own all-reduce adds in an order that depends on its version and on the machine. Here it only moves slices (all to
all) and sums (all-gather), and each rank adds its slice in rank order.

Called by `rank_sums` and `dgcl/transport/connect`. Free to change while the order is that of ranks, sums go through the
hosts where NCCL does not work, and a rank that is lost or late is an error on all (`tests/dgcl/ranks/test_sums.py`).
"""

import logging
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from dgcl.errors import CommError, CommTimeoutError
from dgcl.ranks.control import Control
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.enqueued import Enqueued
from dgcl.ranks.group_control import GroupControl

_log = logging.getLogger("dgcl")

_CONNECTING = 120.0  # seconds for NCCL to connect all ranks
_PROOF = 1000  # elements


# NCCL says nothing of a rank that never comes: its kernels wait. So all ranks have agreed on the sum before
# anything is enqueued, and report to each other when they have enqueued it. No host waits for its device; what
# that does not end in time ends by an abort, and the next sum raises.


class DeviceSums:
    """Sums over the ranks of a control plane by a group of torch's NCCL backend.

    Args:
        control: The control plane.
        group: A backend of the same ranks, used for nothing else.
    """

    def __init__(self, control: GroupControl, group: Any) -> None:
        self._rank, self._size, self._timeout = control.rank, control.world_size, control.timeout
        self._group = group
        self._failure: CommError | None = None
        self.enqueued = Enqueued(self._timeout, self._check, self._fail)

    def sum(self, control: Control, tensor: Tensor) -> Tensor:
        """The sum of a tensor of any shape, on the same device. Collective.

        Raises:
            CommError: A rank is lost, or does not come; or the device has not ended an earlier sum.
        """
        try:
            if self._failure is not None:
                raise type(self._failure)(str(self._failure))  # a copy: a traceback keeps tensors
            total = self.enqueue(tensor.detach().reshape(-1))
            self.enqueued.add(tensor.device, f"rank {self._rank}: a sum over ranks")
            control.barrier()  # all have enqueued it, so NCCL waits for nobody who is gone
        except BaseException as error:
            self.abort()
            if isinstance(error, RuntimeError) and not isinstance(error, CommError):
                raise CommError(f"rank {self._rank}: NCCL: {error}") from None
            raise
        return total.view(tensor.shape)

    def enqueue(self, flat: Tensor) -> Tensor:
        """Enqueue the sum of ``(n,)`` tensors behind the work of the current stream."""
        length = -(-len(flat) // self._size)
        padded = flat.new_zeros(self._size * length)
        padded[: len(flat)] = flat
        slices, everything = torch.empty_like(padded), torch.empty_like(padded)
        self._group.alltoall_base(slices.view(torch.uint8), padded.view(torch.uint8), [], []).wait()
        first, *others = slices.view(self._size, length).unbind()
        total = first.clone()
        for part in others:
            total += part
        self._group._allgather_base(everything.view(torch.uint8), total.view(torch.uint8)).wait()
        return everything[: len(flat)]

    def _check(self, place: str, late: bool) -> None:
        if late:
            raise CommTimeoutError(f"{place} has not ended on the device within {self._timeout:g} s")

    def _fail(self, error: CommError) -> None:
        self._failure = error
        self.abort()

    def abort(self) -> None:
        """End what is on the device; does not wait for that."""

        def run() -> None:
            with suppress(RuntimeError):
                self._group.abort()

        threading.Thread(target=run, name="dgcl abort", daemon=True).start()


def gpu_of(tensor: Tensor) -> str:
    """The UUID of the GPU that a tensor is on; "" for a tensor elsewhere."""
    return str(torch.cuda.get_device_properties(tensor.device).uuid) if tensor.is_cuda else ""


def have_device_sums(control: Control) -> bool:
    """Whether ranks have found that sums go from device to device."""
    return isinstance(control, GroupControl) and any(control.device_sums.values())


def device_sums(control: Control, gpus: Sequence[str], device: torch.device) -> DeviceSums | None:
    """What sums tensors on these GPUs, by rank; None where they go through the hosts. Collective; made once.

    NCCL wants ranks that are processes with a GPU each, and whether it works is found out by a sum, under a deadline.
    """
    if not isinstance(control, GroupControl) or not all(gpus) or len(set(gpus)) < len(gpus):
        return None
    key = tuple(gpus)
    if key not in control.device_sums:
        control.device_sums[key] = _open(control, device)
    return control.device_sums[key]


def _open(control: GroupControl, device: torch.device) -> DeviceSums | None:
    import torch.distributed as dist

    if not all(control.exchange(dist.is_nccl_available())):
        return None
    store = control.next_store("sums on devices")
    seconds = min(_CONNECTING, control.timeout / 2)
    opened: list[DeviceSums] = []

    def connect() -> None:
        group = make_backend(store, control, device)
        opened.append(DeviceSums(control, group))
        weakref.finalize(control, _shut_down, opened[0].enqueued, group)
        values = torch.arange(_PROOF, device=device) + control.rank
        total = opened[0].enqueue(values).cpu()
        size = control.world_size
        expected = size * torch.arange(_PROOF, device="cpu") + size * (size - 1) // 2
        if not torch.equal(total, expected):
            raise CommError("a sum of known numbers is wrong")

    problem = ""
    try:
        in_time(connect, seconds)
    except Exception as error:  # whatever it is: the others wait to hear of it
        problem = f"rank {control.rank}: {(str(error) or type(error).__name__).splitlines()[0]}"
    problem = next(filter(None, control.exchange(problem)), "")
    if not problem:
        return opened[0]
    if control.rank == 0:
        _log.info(
            "sums of tensors on GPUs go through the hosts: NCCL does not work between ranks (%s)", problem
        )
    for sums in opened:
        sums.abort()
    return None


def make_backend(store: Any, control: GroupControl, device: torch.device) -> Any:
    """A group of NCCL that torch does not know."""
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(
        seconds=control.timeout + _CONNECTING
    )  # ours comes first: torch ends the process
    with torch.cuda.device(device):
        return dist.ProcessGroupNCCL(
            dist.PrefixStore("nccl", store), control.rank, control.world_size, options
        )


def _shut_down(enqueued: Enqueued, group: Any) -> None:
    enqueued.close()
    with suppress(RuntimeError):
        group.shutdown()
