"""All CUDA kernels by name.

``gather_16``, ``sum_float32_4``, ``begin``, ...: the number is the unit in bytes.

A kernel's Python function is imported when it is compiled, not before: whoever loads stored PTX needs no CUDA half
of numba that works.

Called by `dgcl/transport/cuda/` and this folder. Free to change while results are bit for bit those of
plain Python (`tests/kernels/test_cuda_compile.py` and `tests/kernels/test_cuda_device.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dgcl.kernels.cuda_tables import Begin, SignalWait

#: Compute capabilities that PTX is made for; newer GPUs run the newest of them.
CAPABILITIES = ((7, 5), (8, 0), (9, 0))

#: Sizes of what a thread moves at a time, in bytes.
UNITS = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        name: Its name here and, after ``dgcl_``, in the PTX.
        num_parameters: All of them are int64.
        build: Makes the Python function.
    """

    name: str
    num_parameters: int
    build: Callable[[], Callable[..., None]]


def _import(module: str, name: str) -> Any:
    return getattr(import_module(f"dgcl.kernels.{module}"), name)


def catalogue() -> dict[str, Kernel]:
    """Every kernel that the runtime uses, by name."""
    from dgcl.kernels.cuda_numbers import ITEM_BYTES

    def flags(name: str, num_parameters: int) -> Kernel:
        return Kernel(name, num_parameters, lambda: _import("cuda_flags", name))

    def sums(element: str, unit: int) -> Kernel:
        return Kernel(f"sum_{element}_{unit}", 7, lambda: _import("cuda_rows", "sum_kernel")(element, unit))

    def gathers(unit: int) -> Kernel:
        return Kernel(f"gather_{unit}", 6, lambda: _import("cuda_rows", "gather_kernel")(unit))

    kernels = [
        flags("begin", len(Begin._fields)),
        flags("signal_wait", len(SignalWait._fields)),
        *(gathers(unit) for unit in UNITS),
        *(sums(element, unit) for element, size in ITEM_BYTES.items() for unit in UNITS if unit >= size),
    ]
    return {kernel.name: kernel for kernel in kernels}


def sum_name(dtype: str, unit: int) -> str:
    """The name of the sum for a torch element type such as ``"bfloat16"``."""
    return f"sum_{'int8' if dtype == 'uint8' else dtype}_{unit}"


def fitting_capabilities(capability: tuple[int, int]) -> list[tuple[int, int]]:
    """Those of :data:`CAPABILITIES` that a GPU of this compute capability runs, oldest first.

    Raises:
        ValueError: The GPU is older than all of them.
    """
    fitting = [known for known in CAPABILITIES if known <= capability]
    if not fitting:
        oldest = ".".join(map(str, CAPABILITIES[0]))
        raise ValueError(
            f"capability: expected compute capability {oldest} or newer, got "
            f'{capability[0]}.{capability[1]}; use device="cpu"'
        )
    return fitting
