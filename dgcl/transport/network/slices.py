"""Waits for words in memory without the GIL: the compiled part of the sender."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import boolean, int64

from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import load_acquire, sleep_microseconds, yield_cpu

_YIELDS: Final = 20
_SLEEP_MICROSECONDS: Final = 50


@compiled(boolean(int64[::1], int64[::1], int64))
def wait_for_any(addresses: np.ndarray, values: np.ndarray, looks: int) -> bool:
    """Whether a word at one of ``addresses`` has reached its value, within at most ``looks`` checks."""
    for look in range(looks):
        for i in range(len(addresses)):
            if load_acquire(addresses[i]) >= values[i]:
                return True
        if look < _YIELDS:
            yield_cpu()
        else:
            sleep_microseconds(np.uint32(_SLEEP_MICROSECONDS))
    return False
