"""The compiled part of the sender: filling a slice of rows, and waiting for words in memory without the GIL."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from dgcl.kernels.memory import load_acquire, sleep_microseconds, yield_cpu
from dgcl.kernels.rows import gather_rows, sum_rows

#: Hash of the kernels compiled into the cached functions here, which numba does not look at; held by a test.
COMPILED_FROM: Final = "f9b5f53ebf805ec2"

_YIELDS: Final = 20
_SLEEP_MICROSECONDS: Final = 50


@njit(nogil=True, cache=True)
def fill_expand_slice(
    target: int,
    source: int,
    num_source_rows: int,
    second: int,
    send_rows: np.ndarray,
    begin: int,
    end: int,
    row_bytes: int,
) -> None:
    """Gather rows ``send_rows[begin:end]`` at ``target``, as :func:`dgcl.kernels.rows.gather_rows`."""
    gather_rows(target, source, num_source_rows, second, send_rows, begin, end, row_bytes)


@njit(nogil=True, cache=True)
def fill_fold_slice(
    sum_code: int,
    target: int,
    own: int,
    begin: int,
    end: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    arrivals: int,
    row_bytes: int,
) -> None:
    """Sum local rows ``begin:end`` and what has arrived for them at ``target``."""
    first = np.searchsorted(arrival_rows, begin)
    sum_rows(sum_code, target, own, begin, end, arrival_rows, arrival_slots, first, arrivals, row_bytes)


@njit(nogil=True, cache=True)
def wait_for_any(addresses: np.ndarray, values: np.ndarray, looks: int) -> bool:
    """Whether a word at one of ``addresses`` has reached its value, after at most ``looks`` looks."""
    for look in range(looks):
        for i in range(len(addresses)):
            if load_acquire(addresses[i]) >= values[i]:
                return True
        if look < _YIELDS:
            yield_cpu()
        else:
            sleep_microseconds(np.uint32(_SLEEP_MICROSECONDS))
    return False
