"""Numbers for torch's element types, the same on every rank of a job."""

import functools
from typing import Any

import numpy as np
import torch

from dgcl.kernels.rows import SUMMABLE
from dgcl.transport.shared_memory.row_types import RowType


@functools.cache
def _dtypes() -> tuple[torch.dtype, ...]:
    return tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))


@functools.cache
def _code(dtype: torch.dtype) -> int:
    return _dtypes().index(dtype)


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
    """The :class:`~dgcl.transport.shared_memory.row_types.RowType` of rows of ``elements`` elements."""
    name = str(dtype).removeprefix("torch.")
    return RowType(
        row_bytes=dtype.itemsize * elements,
        code=_code(dtype),
        name=name,
        sum_code=SUMMABLE.index(name) if name in SUMMABLE else -1,
    )
