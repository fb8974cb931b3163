"""Words of memory that other ranks, and devices, read and write.

Called by this folder, `dgcl/transport/cuda/` and 2 more folders. Free to change while rows arrive bit for
bit, and failures are named on every rank (`tests/dgcl/transport/common/test_control_page.py`).
"""

import numpy as np
from numba import int64, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.futex import ATTEND, wake
from dgcl.kernels.memory import load_acquire, store_release


@compiled(int64(int64))
def read_word(address: int) -> int:
    """Return the int64 at ``address``, with acquire order."""
    return load_acquire(address)


@compiled(void(int64, int64))
def write_word(address: int, value: int) -> None:
    """Write an int64, with release order."""
    store_release(address, value)


@compiled(void(int64[::1]))
def call_attention(wake_words: np.ndarray) -> None:
    """Wake all sleeping ranks, so that they check more than flags."""
    for i in range(len(wake_words)):
        wake(wake_words[i], ATTEND)
