"""All CUDA kernels by name, and their PTX.

``gather_16``, ``sum_float32_4``, ``wait``, ...: the number is the unit in bytes. Variants of the gather are
named like ``gather_16_x8_stream``: eight loads under way, with a cache hint.

Numba compiles a kernel to PTX without a GPU or a driver; it needs NVVM, a part of the CUDA toolkit. Where
that is missing, or where numba and its CUDA half do not fit together, PTX that was written elsewhere
(:func:`write_ptx`) serves as well: the driver translates it for the GPU at hand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dgcl.kernels.cuda_memory import HINTS, SIMULATED

#: Compute capabilities that PTX is made for; newer GPUs run the newest of them.
CAPABILITIES: Final = ((7, 5), (8, 0), (9, 0))

#: Sizes of what a thread moves at a time, in bytes.
UNITS: Final = (16, 8, 4, 2, 1)

_UNROLL: Final = 4

# The text says which version of the PTX language its compiler speaks, and an older driver refuses a newer
# one. What our kernels use is in 7.8, the first that knows compute capability 9.0.
_PTX_VERSION: Final = "7.8"


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


def gather(unit: int, unroll: int = _UNROLL, hint: str = "plain") -> Kernel:
    """A gather, or a variant of it."""
    from dgcl.kernels.cuda_gather import gather_kernel

    name = f"gather_{unit}" + (f"_x{unroll}" if unroll != _UNROLL else "") + f"_{hint}" * (hint != "plain")
    return Kernel(name, 6, lambda: gather_kernel(unit, unroll, hint))


def catalogue() -> dict[str, Kernel]:
    """Every kernel that the runtime uses, by name."""
    from dgcl.kernels import cuda_flags
    from dgcl.kernels.cuda_numbers import ITEM_BYTES
    from dgcl.kernels.cuda_sum import sum_kernel

    def sums(element: str, unit: int) -> Kernel:
        return Kernel(f"sum_{element}_{unit}", 7, lambda: sum_kernel(element, unit))

    kernels = [
        Kernel("announce", 5, lambda: cuda_flags.announce),
        Kernel("wait", 3, lambda: cuda_flags.wait),
        Kernel("resolve", 5, lambda: cuda_flags.resolve),
        Kernel("signal", 3, lambda: cuda_flags.signal),
        *(gather(unit) for unit in UNITS),
        *(sums(element, unit) for element, size in ITEM_BYTES.items() for unit in UNITS if unit >= size),
    ]
    return {kernel.name: kernel for kernel in kernels}


def variants() -> list[Kernel]:
    """Other ways to gather, for measuring which is best on a GPU."""
    return [gather(16, unroll, hint) for unroll in (1, 2, 4, 8) for hint in HINTS]


def sum_name(dtype: str, unit: int) -> str:
    """The name of the sum for a torch element type such as ``"bfloat16"``."""
    return f"sum_{'int8' if dtype == 'uint8' else dtype}_{unit}"


def nearest_capability(capability: tuple[int, int]) -> tuple[int, int]:
    """The newest of :data:`CAPABILITIES` that a GPU of this compute capability runs.

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
    return fitting[-1]


def compile_ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
    """Compile one kernel; its entry is called ``dgcl_`` and its name.

    Raises:
        RuntimeError: In numba's simulator, which has no compiler.
    """
    if SIMULATED:
        raise RuntimeError("numba's CUDA simulator is on (NUMBA_ENABLE_CUDASIM); it does not compile kernels")
    from numba import cuda, types

    function = kernel.build()
    text, _ = cuda.compile_ptx(function, types.void(*[types.int64] * kernel.num_parameters), cc=capability)
    entry = re.search(r"\.entry\s+(\w+)", text)
    assert entry is not None, text
    text = text.replace(entry[1], f"dgcl_{kernel.name}")
    return re.sub(r"(?m)^\.version .*$", f".version {_PTX_VERSION}", text, count=1)


def fingerprint() -> str:
    """A hash of the kernels' source, to tell whether stored PTX is still theirs."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("cuda_*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def write_ptx(
    folder: Path, kernels: Iterable[Kernel], capabilities: Iterable[tuple[int, int]] = CAPABILITIES
) -> None:
    """Compile kernels into files of ``folder``, for a machine that cannot compile them."""
    folder.mkdir(parents=True, exist_ok=True)
    capabilities = tuple(capabilities)
    for kernel in kernels:
        for capability in capabilities:
            _file(folder, kernel, capability).write_text(compile_ptx(kernel, capability))
    (folder / "fingerprint").write_text(fingerprint())


def stored_ptx(folder: Path) -> Callable[[Kernel, tuple[int, int]], str]:
    """A source of PTX: what is stored in ``folder``, if it is of these sources, and compiled otherwise."""
    mark = folder / "fingerprint"
    usable = mark.is_file() and mark.read_text() == fingerprint()

    def ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
        stored = _file(folder, kernel, capability)
        return stored.read_text() if usable and stored.is_file() else compile_ptx(kernel, capability)

    return ptx


def _file(folder: Path, kernel: Kernel, capability: tuple[int, int]) -> Path:
    return folder / f"{kernel.name}.sm_{capability[0]}{capability[1]}.ptx"
