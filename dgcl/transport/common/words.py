"""Reads and writes 64-bit words that ranks and devices share, in acquire and release order; wakes sleeping ranks.

Who reads a word that another rank has written also sees all that this rank wrote before it. ``call_attention`` makes
ranks that sleep look for failures, not only for rows.
Called by `control_page`, `peers`, `life_cycle`, `dgcl/transport/cuda/control_block`,
`dgcl/transport/shared_memory/executor` and others. Free to change while reads acquire and writes release, so that a
call is read whole (`tests/dgcl/transport/common/test_control_page.py`), and no wake-up is lost
(`tests/kernels/test_futex.py`).
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
