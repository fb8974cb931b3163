"""Loads, stores, flags and sleep for CUDA kernels: PTX on a device, Python in numba's simulator.

Memory order. Flags are int64 words, naturally aligned, written with ``st.release.sys`` and read with
``ld.acquire.sys``. System scope, because the other side may be another GPU, the host, or another process.
Under the PTX memory model a release is cumulative: it orders not only this thread's writes before the flag,
but all writes that happened before this thread came so far. Rows are written by one kernel and their flag
by the next in the same stream; the end of a kernel happens before the start of the next one, so who
acquires the flag sees the rows, also when they lie in the memory of a third GPU. Likewise a kernel that
reads rows starts after the kernel (or the stream's memory operation) that acquired their flag. Copy kernels
therefore contain no fence at all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numba import config, njit

#: Whether kernels run in numba's simulator (the environment variable NUMBA_ENABLE_CUDASIM).
SIMULATED = bool(config.ENABLE_CUDASIM)

_here: Any = import_module(f"dgcl.kernels.cuda_memory_{'simulated' if SIMULATED else 'ptx'}")
num_words, load_unit, store_unit = _here.num_words, _here.load_unit, _here.store_unit
load_index, load_word, store_word = _here.load_index, _here.load_word, _here.store_word
load_acquire, store_release = _here.load_acquire, _here.store_release
sleep_nanoseconds = _here.sleep_nanoseconds


def inlined(function: Any) -> Any:
    """A step of several kernels, which the compiler puts in its place in each of them."""
    return function if SIMULATED else njit(inline="always")(function)
