"""Turns blocks of a rank's memory into the tensors that calls return."""

import math

import torch
from torch import Tensor

from dgcl.transport.shared_memory.dtypes import in_memory
from dgcl.transport.shared_memory.pool import Block, BufferPool


def as_tensor(pool: BufferPool, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor over a block of a pool; the block returns to the pool when the tensor's storage dies."""
    element, viewed = in_memory(dtype)
    memory = pool.array(block, math.prod(shape) * dtype.itemsize, element).reshape(shape)
    rows = torch.from_numpy(memory)
    # The type last: autograd takes a view of floats for one, and refuses to change it in place.
    return rows if viewed is None else rows.view(viewed)
