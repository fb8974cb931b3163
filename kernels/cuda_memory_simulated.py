"""What :mod:`dgcl.kernels.cuda_memory_ptx` does, for numba's CUDA simulator: on host memory, in Python.

The simulator runs a kernel's threads as Python threads. Python's lock makes every access here one piece and
keeps their order, so the flags need nothing more.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

_TYPES: dict[int, Any] = {
    16: (ctypes.c_uint32 * 4),
    8: (ctypes.c_uint32 * 2),
    4: (ctypes.c_uint32 * 1),
    2: (ctypes.c_uint16 * 1),
    1: (ctypes.c_uint8 * 1),
}


def num_words(unit: int) -> int:
    """How many uint32 hold a unit."""
    return len(_TYPES[unit]())


def _checked(address: int, unit: int) -> int:
    # A GPU traps on a misaligned access, the host does not.
    if address % unit:
        raise AssertionError(f"address {address:#x} is no multiple of {unit}")
    return int(address)


def load_unit(unit: int) -> Any:
    """A function ``load(address) -> words`` for one unit."""
    kind = _TYPES[unit]

    def load(address: int) -> tuple[int, ...]:
        return tuple(kind.from_address(_checked(address, unit)))

    return load


def store_unit(unit: int) -> Any:
    """A function ``store(address, words)`` for one unit."""
    kind = _TYPES[unit]

    def store(address: int, words: tuple[int, ...]) -> None:
        kind.from_address(_checked(address, unit))[:] = [int(word) for word in words]

    return store


def load_word(address: int) -> int:
    """The int64 at ``address``."""
    return ctypes.c_int64.from_address(_checked(address, 8)).value


def store_word(address: int, value: int) -> None:
    """Write an int64."""
    ctypes.c_int64.from_address(_checked(address, 8)).value = int(value)


def load_index(address: int) -> int:
    """The int32 at ``address``."""
    return ctypes.c_int32.from_address(_checked(address, 4)).value


load_acquire, store_release = load_word, store_word


def sleep_nanoseconds(duration: int) -> None:
    """Let other Python threads run."""
    time.sleep(int(duration) * 1e-9)
