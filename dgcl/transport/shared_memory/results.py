"""Turns blocks of a rank's memory into the tensors that calls return."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dgcl.transport.shared_memory.dtypes import numpy_dtype
from dgcl.transport.shared_memory.pool import Block, BufferPool


def as_tensor(pool: BufferPool, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor over a block of a pool; the block returns to the pool when the tensor's storage dies."""
    size = math.prod(shape) * dtype.itemsize
    twin = numpy_dtype(dtype)
    if twin is not None:
        return torch.from_numpy(pool.array(block, size, twin).reshape(shape))
    memory = pool.array(block, size)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(memory).view(dtype).view(shape)
