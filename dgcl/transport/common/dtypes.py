"""Numbers torch's element types alike on every rank, and makes tensors over blocks of a pool's memory.

A type's number is its place among torch's types, sorted by name, so the ranks of a job must have the same types. Types
that numpy lacks, such as bfloat16, are arrays of integers of their size, viewed as the type. A block returns to its
pool when the tensor's storage dies.
Called by `calls`, `dgcl/transport/row_checks`, `dgcl/transport/shared_memory/step_list`,
`dgcl/transport/collective/transport`, `dgcl/transport/cuda/device_exchange` and others. Free to change while rows of
every type keep all their bits (`tests/dgcl/transport/shared_memory/test_executor.py`).
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.rows import SUMMABLE
from dgcl.transport.common.pool import Block, BufferPool


@dataclass(frozen=True)
class RowType:
    """The type of the rows of a call; all ranks must agree on it, besides the verb.

    Attributes:
        row_bytes: Size of a row.
        code: A number for the element type, the same on every rank.
        name: The element type's name, for messages.
        sum_code: Its index in :data:`dgcl.kernels.rows.SUMMABLE`; -1 if such rows cannot be summed.
    """

    row_bytes: int
    code: int
    name: str
    sum_code: int = -1


@functools.cache
def _dtypes() -> tuple[torch.dtype, ...]:
    return tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))


def dtype_name(code: int) -> str:
    """The name of the element type with this number."""
    return str(_dtypes()[code]) if code < len(_dtypes()) else f"element type {code}"


def dtype_bytes(code: int) -> int:
    """Bytes of an element of the type with this number; 1 if there is no such type."""
    return _dtypes()[code].itemsize if code < len(_dtypes()) else 1


@functools.cache
def in_memory(dtype: torch.dtype) -> tuple[np.dtype[Any], torch.dtype | None]:
    """The numpy type of elements of a torch type, and None; where numpy lacks it, as bfloat16, one of their size, and
    the type itself, as which they are viewed."""
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype, None
    except (TypeError, RuntimeError):
        return np.dtype(f"u{dtype.itemsize}"), dtype


@functools.cache
def row_type(dtype: torch.dtype, elements: int) -> RowType:
    """The :class:`RowType` of rows of ``elements`` elements."""
    name = str(dtype).removeprefix("torch.")
    return RowType(
        row_bytes=dtype.itemsize * elements,
        code=_dtypes().index(dtype),
        name=name,
        sum_code=SUMMABLE.index(name) if name in SUMMABLE else -1,
    )


def as_tensor(pool: BufferPool, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor over a block of a pool; the block returns to the pool when the tensor's storage dies."""
    element, viewed = in_memory(dtype)
    memory = pool.array(block, math.prod(shape) * dtype.itemsize, element).reshape(shape)
    rows = torch.from_numpy(memory)
    # The type last: autograd takes a view of floats for one, and refuses to change it in place.
    return rows if viewed is None else rows.view(viewed)
