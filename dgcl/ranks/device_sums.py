"""Sums of tensors on GPUs from device to device, by NCCL, in the same order as through the hosts.

NCCL's own all-reduce adds in an order that depends on its version and on the machine. Here it only moves slices (all to
all) and sums (all-gather), and each rank adds its slice in rank order; so the bits are those of :mod:`dgcl.ranks.sums`.

NCCL says nothing of a rank that never comes: its kernels wait. So all ranks have agreed on the sum before anything is
enqueued, report to each other when they have enqueued it, and then wait under a deadline. What fails ends by an abort.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from dgcl.errors import CommError, CommTimeoutError
from dgcl.ranks.control import Control
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.group_control import GroupControl

_log = logging.getLogger("dgcl")

_CONNECTING = 120.0  # seconds for NCCL to connect all ranks
_LONGEST_PAUSE = 0.001  # seconds between two looks at the device
_PROOF = 1000  # elements


class DeviceSums:
    """Sums over the ranks of a control plane by a group of torch's NCCL backend.

    Args:
        control: The control plane.
        group: A backend of the same ranks, used for nothing else.
    """

    def __init__(self, control: GroupControl, group: Any) -> None:
        self._rank, self._size, self._timeout = control.rank, control.world_size, control.timeout
        self._group = group

    def sum(self, control: Control, tensor: Tensor) -> Tensor:
        """The sum of a tensor of any shape, on the same device. Collective.

        Raises:
            CommError: A rank is lost, or does not come.
        """
        try:
            total = self.enqueue(tensor.detach().reshape(-1))
            is_done = _completion(tensor.device)
            control.barrier()  # all have enqueued it, so NCCL waits for nobody who is gone
            self._await(is_done)
        except BaseException as error:
            threading.Thread(target=self._abort, name="dgcl abort", daemon=True).start()
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

    def _await(self, is_done: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + self._timeout, 1e-5
        while not is_done():
            if time.monotonic() > deadline:
                raise CommTimeoutError(
                    f"rank {self._rank}: a sum over ranks on the device has not ended within {self._timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _abort(self) -> None:
        with suppress(RuntimeError):
            self._group.abort()


def gpu_of(tensor: Tensor) -> str:
    """The UUID of the GPU that a tensor is on; "" for a tensor elsewhere."""
    return str(torch.cuda.get_device_properties(tensor.device).uuid) if tensor.is_cuda else ""


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
        weakref.finalize(control, _shut_down, group)
        opened.append(DeviceSums(control, group))
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
        threading.Thread(target=sums._abort, name="dgcl abort", daemon=True).start()
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


def _completion(device: torch.device) -> Callable[[], bool]:
    """Tells whether what the current stream has been given is done."""
    if device.type != "cuda":
        return lambda: True
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.query


def _shut_down(group: Any) -> None:
    with suppress(RuntimeError):
        group.shutdown()
