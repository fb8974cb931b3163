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

from typing import Final

from numba import config

#: Whether kernels run in numba's simulator (the environment variable NUMBA_ENABLE_CUDASIM).
SIMULATED: Final = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    from dgcl.kernels.cuda_memory_simulated import (
        HINTS,
        load_acquire,
        load_index,
        load_unit,
        load_word,
        num_words,
        sleep_nanoseconds,
        store_release,
        store_unit,
        store_word,
    )
else:
    from dgcl.kernels.cuda_memory_ptx import (
        HINTS,
        load_acquire,
        load_index,
        load_unit,
        load_word,
        num_words,
        sleep_nanoseconds,
        store_release,
        store_unit,
        store_word,
    )

__all__ = [
    "HINTS",
    "SIMULATED",
    "load_acquire",
    "load_index",
    "load_unit",
    "load_word",
    "num_words",
    "sleep_nanoseconds",
    "store_release",
    "store_unit",
    "store_word",
]
