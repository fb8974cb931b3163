"""What numba's CUDA simulator takes for :mod:`dgcl.kernels.cuda_memory`: the same on host memory, in Python.

The simulator runs a kernel's threads as Python threads. Python's lock makes every access here one piece and
keeps their order, so the flags need nothing more.
"""

import ctypes
import sys
import time
from typing import Any

import numpy as np
from numba import config

from dgcl.kernels import cuda_numbers
from dgcl.kernels.cuda_numbers import Arithmetic

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


def inlined(function: Any) -> Any:
    """The function: nothing is compiled."""
    return function


def install():
    """Let kernels use this module, in a process that has imported none of them."""
    assert config.ENABLE_CUDASIM, "set NUMBA_ENABLE_CUDASIM=1"
    sys.modules["dgcl.kernels.cuda_memory"] = sys.modules[__name__]
    cuda_numbers.arithmetic = arithmetic


def arithmetic(element: str, unit: int) -> Arithmetic:
    """As that of :mod:`dgcl.kernels.cuda_numbers`, in numpy."""
    count, lanes = num_words(unit), unit // 2 if element in ("float16", "bfloat16") else 0
    integers = {"int8": np.uint8, "int16": np.uint16, "int32": np.uint32, "int64": np.uint64}

    def widen(words: tuple[int, ...]) -> np.ndarray:
        bits = np.array(words, np.uint32)
        if element == "bfloat16":
            return (bits.view(np.uint16)[:lanes].astype(np.uint32) << np.uint32(16)).view(np.float32)
        if element == "float16":
            return bits.view(np.float16)[:lanes].astype(np.float32)
        return bits.view(integers.get(element) or element)

    def add(terms: np.ndarray, words: tuple[int, ...]) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return terms + widen(words)

    def narrow(terms: np.ndarray) -> tuple[int, ...]:
        if not lanes:
            return tuple(terms.view(np.uint32).tolist())
        if element == "float16":
            with np.errstate(over="ignore"):
                halves = terms.astype(np.float16).view(np.uint16)
        else:
            bits = terms.view(np.uint32).astype(np.uint64)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            halves = np.where(np.isnan(terms), (bits >> 16) | 0x40, rounded).astype(np.uint16)
        words = np.zeros(2 * count, np.uint16)
        words[:lanes] = halves
        return tuple(words.view(np.uint32).tolist())

    return Arithmetic(widen, add, narrow)
