"""Defines the planner's array types, and checks integer arrays: dtype, length, range, row pointers.

Checked arrays are read-only views of the caller's memory where possible. Floats and booleans are refused.
Called by `relation`, `trees`, `plan_io`, `dgcl/relation/local_graph`, `dgcl/program/compile` and others. Free to
change while no value is rounded or wraps around, and an error names the array and its first bad element
(`tests/planner/test_relations.py`; row pointers: `tests/planner/test_plan_files.py`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
MaskArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def integer_array(name: str, values: Any, dtype: npt.DTypeLike, ndim: int) -> npt.NDArray[Any]:
    """Return ``values`` as a read-only C-contiguous integer array of ``dtype``, without any loss.

    Integers of any width are converted if every value fits. The result shares memory with the input where it can,
    as a view: the caller's own array stays writeable.

    Raises:
        TypeError: Not integers (floats, booleans).
        ValueError: Another number of dimensions, or values outside ``dtype``.
    """
    array = np.asarray(values)
    want = np.dtype(dtype)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(want)  # np.asarray([]) is float64: an empty list has no type of its own
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers that fit {want} (got dtype {array.dtype})")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s) (got shape {array.shape})")
    if array.dtype != want:
        limits = np.iinfo(want)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise ValueError(f"{name} has values outside {want} (from {array.min()} to {array.max()})")
        array = array.astype(want)
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def require_length(name: str, array: npt.NDArray[Any], length: int, meaning: str) -> None:
    """Raise ValueError unless the first dimension of ``array`` is ``length``, which ``meaning`` explains."""
    if array.shape[0] != length:
        raise ValueError(f"{name} must have length {length} ({meaning}), got {array.shape[0]}")


def pointers(sizes: npt.NDArray[Any]) -> Int64Array:
    """Return where parts of these sizes begin that follow each other, and where the last one ends: one number more."""
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def ranges(first: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Int64Array:
    """Return the numbers ``first[i]`` to ``first[i] + sizes[i] - 1`` of every i, one range after the other."""
    return np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def require_range(name: str, array: npt.NDArray[Any], low: int, high: int, meaning: str) -> None:
    """Raise ValueError naming the first element outside ``low <= x < high``."""
    bad = (array < low) | (array >= high)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name}[{at}] is {array[at]}: must be {meaning} (>= {low} and < {high})")


def require_edge_pointers(ptr: npt.NDArray[Any], num_edges: int) -> None:
    """Raise ValueError unless ``ptr`` starts at 0, never falls, and ends at ``num_edges``."""
    if ptr.shape[0] == 0 or ptr[0] != 0:
        raise ValueError(f"edge_ptr must start with 0 (got {ptr[:1].tolist()})")
    falling = np.flatnonzero(ptr[1:] < ptr[:-1])
    if falling.size:
        at = int(falling[0])
        raise ValueError(f"edge_ptr must not fall: it is {ptr[at]} at {at} and {ptr[at + 1]} at {at + 1}")
    if ptr[-1] != num_edges:
        raise ValueError(f"edge_ptr must end at {num_edges} (the number of edges), got {ptr[-1]}")
