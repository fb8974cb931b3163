"""Enqueues a list of kernel launches and copies on a CUDA stream in one compiled call.

An allgather is some ten launches and copies. Issued one by one from Python, each costs several microseconds with the
GIL held; here each is a row of a table (:data:`OPERATION`), and a compiled loop without the GIL calls the driver
through the addresses of its functions.
Called by `cuda_launch`. Free to change while operations are enqueued in their order, the first that is refused is named
(`tests/kernels/test_cuda_driver.py`), and argument widths are those that NVIDIA declares
(`tests/kernels/test_cuda_declarations.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int32, int64, types
from numba.extending import intrinsic

from dgcl.kernels.compiled import compiled

#: Kinds of operations, and the driver's function for each.
LAUNCH, COPY = 0, 1
ENTRY_POINTS = ("cuLaunchKernel", "cuMemcpyAsync")

#: One operation.
#:
#: ===============  ================================================================================
#: LAUNCH           kernel ``handle``, ``a`` blocks of ``b`` threads; the driver reads the parameters
#:                  through the pointers at address ``c``
#: COPY             ``b`` bytes from address ``a`` to address ``handle``
#: ===============  ================================================================================
OPERATION = np.dtype([("kind", "i8"), ("handle", "i8"), ("a", "i8"), ("b", "i8"), ("c", "i8")])
OPERATION_WORDS = OPERATION.itemsize // 8

_I32 = ir.IntType(32)


def _driver_function(*widths: int) -> Any:
    """A compiled call of a driver function at an address, with integer arguments of these widths in bits."""
    arguments = [ir.IntType(width) for width in widths]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.inttoptr(args[0], ir.FunctionType(_I32, arguments).as_pointer())
        narrowed = [
            builder.trunc(value, kind) if kind.width < 64 else value
            for value, kind in zip(args[1:], arguments, strict=True)
        ]
        return builder.call(function, narrowed)

    return types.int32(types.int64, *[types.int64] * len(widths)), codegen


@intrinsic
def _launch(
    typingctx: Any,
    function: Any,
    kernel: Any,
    grid_x: Any,
    grid_y: Any,
    grid_z: Any,
    block_x: Any,
    block_y: Any,
    block_z: Any,
    shared: Any,
    stream: Any,
    parameters: Any,
    extra: Any,
) -> Any:
    return _driver_function(64, 32, 32, 32, 32, 32, 32, 32, 64, 64, 64)


@intrinsic
def _copy(typingctx: Any, function: Any, target: Any, source: Any, num_bytes: Any, stream: Any) -> Any:
    return _driver_function(64, 64, 64, 64)


@compiled
def enqueue(entry_points: np.ndarray, stream: int, operations: np.ndarray) -> int:
    """Put operations into a stream, in their order.

    Args:
        entry_points: ``(2,)`` int64, the addresses of :data:`ENTRY_POINTS`.
        stream: The stream's handle.
        operations: ``(n, OPERATION_WORDS)`` int64.

    Returns:
        0, or of the first that failed: its place in the upper half, the driver's error in the lower.
    """
    zero, one = int64(0), int64(1)
    for i in range(len(operations)):
        kind, handle, a, b, c = operations[i]
        function = entry_points[kind]
        code = int32(0)
        if kind == LAUNCH:
            code = _launch(function, handle, a, one, one, b, one, one, zero, stream, c, zero)
        elif kind == COPY:
            code = _copy(function, handle, a, b, stream)
        if code != 0:
            return (int64(i) << 32) | int64(code)
    return zero
