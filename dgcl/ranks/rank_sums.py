"""Sums tensors over ranks, with the same bits on every rank and in every run.

An element is always added in rank order. Small tensors go from every rank to every rank, and each adds them all. Of
larger ones every rank adds one slice (a reduce-scatter), and then the sums go round (an all-gather): of W bytes each of
P ranks receives 2 (P - 1) / P W, not (P - 1) W. Between GPUs that NCCL connects all go from device to device
(`device_sums`), and no host waits for that.

Called by `dgcl/autograd/operators` and `dgcl/nn/gradients`. Free to change while that order and those bytes hold, and
different shapes are an error on every rank (`tests/dgcl/ranks/test_sums.py`).
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import DisagreementError
from dgcl.ranks.control import Control
from dgcl.ranks.device_sums import device_sums, gpu_of, have_device_sums
from dgcl.ranks.tensors import require_tensors

#: Bytes up to which a second round of messages costs more than bytes do: some 20 us for each peer, at 1 GB/s.
DIRECT_BYTES = 16 << 10


class TensorsDisagreeError(DisagreementError):
    """Ranks make the same call, of tensors of different shapes or dtypes."""


def all_reduce_sum(control: Control, tensor: Tensor, name: str = "all_reduce_sum") -> Tensor:
    """The sum of a tensor over the ranks. Collective.

    Args:
        control: The control plane.
        tensor: Of the same shape and dtype on every rank; on any device.
        name: What messages call it.

    Returns:
        A new tensor on the same device; each element is ``((t0 + t1) + t2) + ...`` over ranks, in the tensor's dtype.

    Raises:
        TypeError, ValueError: It is no tensor, or a sparse one.
        DisagreementError: Ranks have tensors of different shapes or dtypes; on every rank.
    """
    require_tensors(tensor=tensor)
    if tensor.layout != torch.strided:
        raise ValueError(f"tensor must be dense (got {tensor.layout}); call .to_dense()")
    if tensor.is_meta:
        raise ValueError("tensor must have values (got one on the device meta)")
    if control.world_size == 1:
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    with control.collective(name):
        gpu = gpu_of(tensor)
        direct = tensor.nbytes <= DIRECT_BYTES and not (gpu and tensor.nbytes and have_device_sums(control))
        array = _to_array(_on_host(tensor)) if direct else None
        reports = control.exchange((tuple(tensor.shape), tensor.dtype, gpu, array))
        shape, dtype, *_ = reports[0]
        for rank, (other_shape, other_dtype, *_) in enumerate(reports):
            if (other_shape, other_dtype) != (shape, dtype):
                raise TensorsDisagreeError(
                    f"tensor of {name}: ranks disagree: {shape} {dtype} on rank 0, {other_shape} {other_dtype} on"
                    f" rank {rank}"
                )
        direct = all(array is not None for *_, array in reports)
        if not direct:
            on_device = device_sums(control, [gpu for *_, gpu, _ in reports], tensor.device)
            if on_device is not None:
                return on_device.sum(control, tensor)
        parts = [_to_tensor(array, dtype) for *_, array in reports if array is not None]
        total = _add(parts) if direct else _sum_slices(control, _on_host(tensor).view(-1))
        return total.view(shape).to(tensor.device)


def _on_host(tensor: Tensor) -> Tensor:
    """A contiguous copy: ranks that are threads read each other's memory, and the caller may soon write to it."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _sum_slices(control: Control, own: Tensor) -> Tensor:
    """The sum of ``(n,)`` tensors: each rank adds a slice of all, and all get the sums."""
    size, count = control.world_size, len(own)
    bounds = [count * rank // size for rank in range(size + 1)]
    slices = [_to_array(own[begin:end]) for begin, end in pairwise(bounds)]
    total = _add([_to_tensor(array, own.dtype) for array in control.all_to_all(slices)])
    return torch.cat([_to_tensor(array, own.dtype) for array in control.exchange(_to_array(total))])


def _add(parts: list[Tensor]) -> Tensor:
    """The sum of tensors, in their order, which are only read."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _to_array(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor, which are pickled faster than tensors, and without the rest of its storage."""
    return tensor.view(-1).view(torch.uint8).numpy()


def _to_tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(array).view(dtype) if array.size else torch.empty(0, dtype=dtype, device="cpu")
