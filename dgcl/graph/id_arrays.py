"""Converts ids from numpy, lists or torch (on any device) to int32 or int64 arrays, never rounding.

Floats and booleans are refused, not converted. Classes of other libraries are recognised without importing these.
Called by `build_csr`, `sources`, `dgcl/partition/check_part`, `dgcl/prepare/local_edges`, `dgcl/distributed/dispatch`
and others. Free to change while integers of any width are taken, and what holds no ids is refused by name
(`tests/dgcl/graph/test_csr.py`; tensors: `tests/dgcl/graph/test_sources.py`).
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.checks import check_index


def is_a(obj: object, module: str, name: str) -> bool:
    """Tell whether `obj` is an instance of a class of a library that may not even be loaded."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(obj, cls)


def is_tensor(obj: object) -> bool:
    """Tell whether `obj` is a torch tensor, without importing torch."""
    return is_a(obj, "torch", "Tensor")


def as_ids(values: Any, name: str, ndim: int = 1) -> NDArray[Any]:
    """Return `values` as a C-contiguous int32 or int64 array; other integer types become int64.

    The result shares memory with the input where it can.

    Raises:
        TypeError: `values` are not integers (floats and booleans are refused, not converted).
        ValueError: wrong number of dimensions, or an unsigned value of 2**63 or more.
    """
    array = _as_numpy(values, name)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # what is empty has no type of its own; numpy and torch call it float
    if array.dtype.kind == "b":
        raise TypeError(f"{name} must hold integers (got booleans; for a mask pass np.flatnonzero(mask))")
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must hold integers (got dtype {array.dtype}; convert with .astype(np.int64))"
        )
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension{'s' * (ndim > 1)} (got shape {array.shape})")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name} has a value of 2**63 or more ({int(array.max())})")
    dtype = np.int32 if array.dtype.newbyteorder("=") == np.int32 else np.int64
    return np.ascontiguousarray(array, dtype=dtype)


def _as_numpy(values: Any, name: str) -> NDArray[Any]:
    """`values` as a numpy array of whatever type."""
    if is_tensor(values):
        # Asked here, since numpy has no bfloat16 to tell us later.
        if values.numel() and (values.dtype.is_floating_point or values.dtype.is_complex):
            raise TypeError(f"{name} must hold integers (got {values.dtype}; convert with .long())")
        if str(values.layout) != "torch.strided":
            raise TypeError(f"{name} must be a dense tensor (got layout {values.layout})")
        return np.asarray(
            values.detach().cpu().numpy() if values.numel() else np.empty(values.shape, np.int64)
        )
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise ValueError(f"{name} must be a rectangular array of integers ({error})") from None


def any_outside(ids: NDArray[Any], end: int) -> bool:
    """Whether an id of 32 or 64 bits is negative or at least ``end``: as unsigned ones, negative ids are large."""
    return bool(ids.size and ids.view(f"u{ids.itemsize}").max() >= end)


def as_num_nodes(num_nodes: Any) -> int:
    """Return `num_nodes` as a positive int.

    Raises:
        TypeError: not an integer.
        ValueError: not positive, or too large.
    """
    return check_index(num_nodes, "num_nodes", 1, (1 << 48) - 1)  # no memory holds more degrees
