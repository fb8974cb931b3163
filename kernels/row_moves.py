"""Copies rows that have arrived to their places, where at most one row arrives for each place.

Where several may arrive, or a row is there already, they are added instead (:func:`dgcl.kernels.rows.add_arrivals`).
Called by `dgcl/offload/placing` and `dgcl/transport/precompile`. Free to change while each arrival is at its place byte
for byte, and all other rows stay untouched (`tests/kernels/test_rows.py`).
"""

import numpy as np
from numba import int32, int64, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import AHEAD, claim_row, prefetch_row
from dgcl.kernels.memory import copy_bytes


@compiled(void(int64, int64, int32[::1], int32[::1], int64, int64))
def put_arrivals(
    rows: int,
    num_rows: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    arrivals: int,
    row_bytes: int,
) -> None:
    """Write to each of ``num_rows`` rows at address ``rows`` what arrived for it: at most one row.

    As :func:`dgcl.kernels.rows.add_arrivals` to zeros, without reading them. ``arrival_rows`` ascends strictly below
    ``num_rows``; rows for which nothing arrived are not touched.
    """
    end = len(arrival_rows)
    while end and arrival_rows[end - 1] >= num_rows:  # rows that only pass through
        end -= 1
    for p in range(end):
        if p + AHEAD < end:
            claim_row(rows + int64(arrival_rows[p + AHEAD]) * row_bytes, row_bytes)
            prefetch_row(arrivals + int64(arrival_slots[p + AHEAD]) * row_bytes, row_bytes)
        target = rows + int64(arrival_rows[p]) * row_bytes
        copy_bytes(target, arrivals + int64(arrival_slots[p]) * row_bytes, row_bytes)
